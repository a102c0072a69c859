"""Runs the coordinator of an attempt in the simulator and performs its effects: ids, manifests, records, retention.

The counterpart of `master.attempt`: the coordinator makes all decisions about checkpoints. Faults decide whether and
when the stores of the world answer.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runtime.core.attempt.slot_liveness import SlotLiveness
from runtime.core.checkpoint import effects, events
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import (
    BuildSideRead,
    CheckpointAborted,
    ProbeSideOpened,
    SourceReport,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.core.subtask.build_sides import BuildSides
from runtime.core.subtask.events import CheckpointCompleted, SubtaskEvent, Triggered
from runtime.core.subtask.idle_sources import IdleSources
from runtime.errors import EnvironmentFailure
from runtime.io.manifests import write_manifest
from runtime.master import retention
from runtime.simulation.cluster import Attempt
from runtime.simulation.invariants import check_deletion, check_files, check_notification_targets, require
from runtime.simulation.slots import ReportFailed, ReportStarted, SlotLost, SlotMessage
from runtime.simulation.world import JOB, World

#: Reasons that count as checkpoint failures; a trigger that is refused is not counted.
_FAILURE_REASONS: Final = (FailureReason.ASYNC_FAILED, FailureReason.EXPIRED, FailureReason.FINALIZE_FAILED)

HEARTBEAT_TIMEOUT_MS: Final = 2_000

Work = Callable[[], "Work | None"]  #: returns the work that must follow immediately, if any


@dataclass(slots=True)
class MasterProcess:
    """The process of a master and its consecutive drivers."""

    is_gone: bool = False  #: crashed or superseded
    stopped_until: int = 0  #: world time at which a process stopped by SIGSTOP continues


class Driver:
    """Runs the coordinator of an attempt and performs its effects."""

    def __init__(self, world: World, process: MasterProcess, attempt: Attempt, settings: CoordinatorSettings) -> None:
        self.world, self.process, self.attempt = world, process, attempt
        self.coordinator = Coordinator(JOB, attempt.token, attempt.graph, settings)
        self.build_sides = BuildSides(attempt.graph)
        self.idle_sources = IdleSources()
        self.concluded = False  #: whether the master has abandoned the attempt
        self.skew_ms = world.rng.choice((-5_000, 5_000)) if world.faults.occurs("skewed_clock") else 0
        self.suspended = False
        self.ended = False
        self.failure: str | None = None
        self.started: set[SubtaskId] = set()
        self.wakes: list[int] = []
        self.open_operations: set[str] = set()  #: operations without a result
        self.pending_writes: deque[tuple[Work, str]] = deque()  #: queued work in order; the first is in progress
        self.pending_manifests = 0  #: number of manifests in `pending_writes`
        self.stopping = False  #: whether the run would be in state `stopping` in production
        self.tolerable = settings.tolerable_failures
        self.consecutive_failures = 0  #: consecutive failed checkpoints, counted from the reports
        self.newest_completed = 0
        self.liveness = SlotLiveness(HEARTBEAT_TIMEOUT_MS)
        for slot in attempt.slots:
            self.liveness.on_message(slot)

    @property
    def now(self) -> int:
        """The clock of the master's host in ms, which may be skewed: each attempt may run on another host."""
        return self.world.now + self.skew_ms

    def next_wake(self) -> int | None:
        """The next due time of the coordinator, in world time; None without a pending timer."""
        return min(self.wakes) - self.skew_ms if self.wakes else None

    def feed(self, event: events.CoordinatorEvent) -> None:
        self.world.note(f"{self.attempt.token}:coordinator", event)
        for effect in self.coordinator.handle(event):
            self._perform(effect)
        borne = self.tolerable is None or self.consecutive_failures <= self.tolerable or self.suspended or self.ended
        require(borne or self.failure is not None, "too-many-failures-fail-the-attempt", str(self.consecutive_failures))
        if self.failure is not None and not self.suspended:
            self.suspend()

    def suspend(self) -> None:
        self.suspended = True
        self.feed(events.CoordinatorSuspended(self.now))

    def tick(self) -> None:
        """Checks heartbeats, then wakes the coordinator once for all due timers."""
        if self.world.faults.can_occur("stop_master"):
            self._check_heartbeats()
        due = [at for at in self.wakes if at <= self.now]
        if due and not self.suspended and not self.ended:
            self.wakes = [at for at in self.wakes if at > self.now]
            self.feed(events.Ticked(self.now))

    def _check_heartbeats(self) -> None:
        """Checks heartbeat timeouts as `master.attempt` does, once all messages are read.

        A lost slot is always reported by `SlotLost`. A timeout of a slot with heartbeats is therefore a violation.
        """
        slots = self.attempt.slots
        if self.suspended or self.ended or any(slot.up.is_ready for slot in slots.values()):
            return
        for index, slot in slots.items():
            if slot.take_heartbeat():
                self.liveness.on_message(index)
        silent = self.liveness.silent_slot(self.world.now)
        if silent is not None:
            require(not slots[silent].has_heartbeats, "a-living-slot-is-not-blamed", f"slot {silent}")

    # ------------------------------------------------------------ messages of slots

    def receive(self, said: SlotMessage) -> None:
        if isinstance(said, SlotLost):
            self.fail("a slot was lost")
            return
        match said:
            case subtask, ReportStarted():
                self._on_subtask_started(subtask)
            case subtask, ReportFailed(detail):
                self.fail(f"{subtask}: {detail}")
            case subtask, BuildSideRead():
                self._open_probe_side(self.build_sides.complete(subtask))
            case subtask, SourceReport() as report:
                for follow in self.idle_sources.on_report(subtask, report):
                    self._send(follow.subtask, follow)
            case subtask, report:
                self.feed(events.SubtaskReported(self.now, subtask, report))

    def _on_subtask_started(self, subtask: SubtaskId) -> None:
        self.started.add(subtask)
        if len(self.started) == len(self.attempt.graph.subtasks):
            self.feed(events.JobStarted(self.now, resumed=self.world.bases[self.attempt.token] is not None))

    def _open_probe_side(self, join: OperatorId | None) -> None:
        if join is not None:
            for subtask in self.attempt.graph.subtasks:
                self._send(subtask, ProbeSideOpened(join))

    def fail(self, detail: str) -> None:
        if not self.suspended and not self.ended:
            self.world.note(f"{self.attempt.token}:master", f"the attempt failed: {detail}")
            self.failure = detail
            self.suspend()

    # ------------------------------------------------------------ effects

    def _perform(self, effect: effects.CoordinatorEffect) -> None:
        match effect:
            case effects.IssueId():
                self._queue_write(self._issue, "slow_id")
            case effects.WakeAt(at):
                self.wakes.append(at)
            case TriggerSubtask(subtask, barrier):
                self._send(subtask, Triggered(barrier))
            case effects.StoreManifest(manifest):
                self.pending_manifests += 1
                self._queue_write(lambda: self._store(manifest), "slow_manifest")
            case effects.NotifyCompleted(permit, subtasks):
                check_notification_targets(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointCompleted(permit))
            case effects.NotifyAborted(checkpoint, subtasks):
                check_notification_targets(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointAborted(checkpoint))
            case effects.ReportCheckpoint():
                self._report(effect)
            case effects.LateAnswer():
                self.world.note("late", effect)
            case effects.CompleteOperation(operation):
                self.world.note("operation", effect)
                self.world.ledger.on_operation_result(operation)
                self.open_operations.discard(operation)
            case effects.FailAttempt(detail):
                self.failure = self.failure or detail
            case effects.EndJob():
                self._end_job()
            case effects.ResumeJob():
                self.stopping = False

    def _end_job(self) -> None:
        self.ended = True
        saved = self.coordinator.savepoint is not None
        require(saved == self.stopping, "a-stop-ends-with-its-savepoint", f"stopping {self.stopping}, saved {saved}")

    def _send(self, subtask: SubtaskId, event: SubtaskEvent) -> None:
        self.attempt.slots[subtask.index].send_event(subtask, event)

    def _report(self, report: effects.ReportCheckpoint) -> None:
        begun = report.reason is None and report.acknowledged == 0 and report.at == report.triggered_at
        if begun and report.checkpoint not in self.world.ledger.triggered:
            self.world.ledger.on_trigger(report.checkpoint, self.attempt.token, report.kind)
        if (
            report.reason in _FAILURE_REASONS
            and not report.kind.is_savepoint
            and report.checkpoint > self.newest_completed
        ):
            self.consecutive_failures += 1
        self.world.note("report", report)

    def _queue_write(self, work: Work, slow: str) -> None:
        """Queues `work`. Queued work runs sequentially and in order, as on the metadata thread in production."""
        self.pending_writes.append((work, slow))
        if len(self.pending_writes) == 1:
            self._run_next_write()

    def _run_next_write(self) -> None:
        work, slow = self.pending_writes[0]
        self.world.schedule(lambda: self._run_write(work), slow)

    def _run_write(self, work: Work) -> None:
        if self.world.now < self.process.stopped_until:
            self.world.background.add(self.process.stopped_until, lambda: self._run_write(work))
            return
        following = work()
        if following is not None:
            self.pending_writes[0] = (following, "slow_manifest")
        else:
            self.pending_writes.popleft()
        if self.process.is_gone:  # the write in progress has arrived; the rest is never sent
            self.pending_writes.clear()
        elif self.pending_writes:
            self._run_next_write()

    def _issue(self) -> None:
        if self.process.is_gone:
            return
        if self.world.faults.occurs("id_unavailable"):
            self.feed(events.IdUnavailable(self.now, "the database is unavailable"))
            return
        checkpoint = self.world.records.next_id(self.attempt.token)
        if checkpoint is None:
            self._on_superseding()
        else:
            self.feed(events.IdIssued(self.now, checkpoint))

    def _store(self, manifest: Manifest) -> Work | None:
        """Writes and records a manifest. An unknown outcome is read back before the coordinator is notified."""
        faults, records = self.world.faults, self.world.records
        try:
            write_manifest(self.world.storage, manifest)
        except EnvironmentFailure as failure:
            self._report_manifest(events.ManifestFailed(self.now, CheckpointId(manifest.checkpoint), str(failure)))
            return None
        if faults.occurs("unknown_manifest"):
            if self.world.rng.random() < 0.5:
                records.record(manifest, self.attempt.graph)
            return lambda: self._read_back(manifest)
        self._on_record_result(manifest, records.record(manifest, self.attempt.graph))
        return None

    def _read_back(self, manifest: Manifest) -> None:
        recorded = manifest.checkpoint in self.world.ledger.recorded
        self._on_record_result(manifest, recorded or self.world.records.record(manifest, self.attempt.graph))

    def _on_record_result(self, manifest: Manifest, recorded: bool) -> None:
        checkpoint = CheckpointId(manifest.checkpoint)
        if recorded:
            self.attempt.check_tables(manifest)
            self._queue_write(self._discard, "")
            if checkpoint > self.newest_completed:
                self.newest_completed, self.consecutive_failures = checkpoint, 0
            self._report_manifest(events.ManifestRecorded(self.now, checkpoint))
        else:
            self._report_manifest(events.ManifestFailed(self.now, checkpoint, "this attempt has been superseded"))
            self._on_superseding()

    def _report_manifest(self, event: events.ManifestRecorded | events.ManifestFailed) -> None:
        self.pending_manifests -= 1
        if not self.process.is_gone:
            self.feed(event)

    def _discard(self) -> Work | None:
        """Discards checkpoints beyond the retention limit; their files are deleted later, after a delay."""
        if self.process.is_gone:
            return None
        before = self.world.records.retained_manifests()
        folders = self.world.records.discard_beyond(self.attempt.token, self.world.retained_checkpoints)
        discarded = [manifest for manifest in before if manifest_folder(manifest) in folders]
        return (lambda: self._delete(discarded)) if discarded else None

    def _delete(self, discarded: list[Manifest]) -> None:
        if self.process.is_gone:
            return
        records, storage = self.world.records, self.world.storage
        folders = [manifest_folder(manifest) for manifest in discarded]
        try:
            retention.discard_checkpoints(storage, folders, records.readable_manifests(), records.unreadable_folders())
            limit = max(
                (m.checkpoint for m in records.retained_manifests() if m.checkpoint in records.damaged), default=0
            )
            readable = [manifest for manifest in discarded if manifest.checkpoint not in records.damaged]
            check_deletion(storage, readable, records.retained_manifests(), limit)
        except EnvironmentFailure as failure:
            self.world.note(f"{self.attempt.token}:master", f"the next start deletes the rest: {failure}")
        self.world.note(f"{self.attempt.token}:master", f"discarded {folders}")
        check_files(self.world.storage, self.world.records.retained_manifests())

    def _on_superseding(self) -> None:
        """Fails the attempt and ends the process: a newer attempt owns the job."""
        self.fail("superseded")
        if not self.concluded:
            self.process.is_gone = True
