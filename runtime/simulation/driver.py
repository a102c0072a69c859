"""Runs the coordinator of an attempt in the simulator and performs its effects: ids, manifests, records, retention.

The counterpart of `master.attempt`: all decisions about checkpoints are the coordinator's. Faults decide whether and
when the outside world answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.effects import (
    Acknowledge,
    CoordinatorEffect,
    Decline,
    EndJob,
    FailAttempt,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportBuildSide,
    ReportCheckpoint,
    ReportEnded,
    ReportFinished,
    ResumeJob,
    SettleOperation,
    StoreManifest,
    TriggerSubtask,
    WakeAt,
)
from runtime.core.events import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    CoordinatorEvent,
    CoordinatorSuspended,
    IdIssued,
    IdUnavailable,
    JobStarted,
    LogicFinished,
    ManifestFailed,
    ManifestRecorded,
    ProbeSideOpened,
    SubtaskEnded,
    SubtaskEvent,
    Ticked,
    Triggered,
)
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import FailureReason, Manifest
from runtime.core.snapshot.manifest_codec import home_of
from runtime.core.subtask.build_sides import BuildSides
from runtime.errors import EnvironmentFailure
from runtime.io.manifests import write_manifest
from runtime.master import retention
from runtime.master.slot_monitor import Monitor
from runtime.simulation.cluster import Attempt
from runtime.simulation.invariants import check_discarded, check_files, check_notified, require
from runtime.simulation.slots import Broken, Said, SlotLost, Started
from runtime.simulation.world import JOB, World

#: Reasons that count as checkpoint failures; a trigger that is refused is not counted.
_COUNTED: Final = (FailureReason.ASYNC_FAILED, FailureReason.EXPIRED, FailureReason.FINALIZE_FAILED)

HEARTBEAT_TIMEOUT_MS: Final = 2_000

Work = Callable[[], "Work | None"]  #: returns the work that must follow immediately, if any


@dataclass(slots=True)
class Process:
    """The process of a master and its consecutive drivers."""

    gone: bool = False  #: crashed or superseded
    stopped_until: int = 0  #: world time at which a process stopped by SIGSTOP continues


class Driver:
    """Runs the coordinator of an attempt and performs its effects."""

    def __init__(self, world: World, process: Process, attempt: Attempt, settings: CoordinatorSettings) -> None:
        self.world, self.process, self.attempt = world, process, attempt
        self.coordinator = Coordinator(JOB, attempt.token, attempt.graph, settings)
        self.build_sides = BuildSides(attempt.graph)
        self.concluded = False  #: the master has abandoned this attempt
        self.skew_ms = world.rng.choice((-5_000, 5_000)) if world.faults.strikes("skewed_clock") else 0
        self.suspended = False
        self.ended = False
        self.failure: str | None = None
        self.started: set[SubtaskId] = set()
        self.wakes: list[int] = []
        self.asked: set[str] = set()  #: operations without a result
        self.to_write: deque[tuple[Work, str]] = deque()  #: in order; the first is in progress
        self.storing = 0  #: number of manifests in `to_write`
        self.stopping = False  #: whether the run's state would be stopping
        self.tolerable = settings.tolerable_failures
        self.failed_in_a_row = 0  #: consecutive failed checkpoints, counted from the reports
        self.newest_completed = 0
        self.monitor = Monitor(attempt.graph)
        for slot in attempt.slots:
            self.monitor.heard(slot, world.now)

    @property
    def now(self) -> int:
        """Milliseconds of the host's clock, which may be skewed: each attempt may run on another host."""
        return self.world.now + self.skew_ms

    def next_wake(self) -> int | None:
        """The next due time of the coordinator, in world time; None if there is none."""
        return min(self.wakes) - self.skew_ms if self.wakes else None

    def feed(self, event: CoordinatorEvent) -> None:
        self.world.note(f"{self.attempt.token}:coordinator", event)
        for effect in self.coordinator.handle(event):
            self._perform(effect)
        borne = self.tolerable is None or self.failed_in_a_row <= self.tolerable or self.suspended or self.ended
        require(borne or self.failure is not None, "too-many-failures-fail-the-attempt", str(self.failed_in_a_row))
        if self.failure is not None and not self.suspended:
            self.suspend()

    def suspend(self) -> None:
        self.suspended = True
        self.feed(CoordinatorSuspended(self.now))

    def tick(self) -> None:
        """Checks heartbeats, then wakes the coordinator once for all due timers."""
        if self.world.faults.may_happen("stop_master"):
            self._judge_silence()
        due = [at for at in self.wakes if at <= self.now]
        if due and not self.suspended and not self.ended:
            self.wakes = [at for at in self.wakes if at > self.now]
            self.feed(Ticked(self.now))

    def _judge_silence(self) -> None:
        """Checks heartbeat timeouts as `master.attempt` does, once all messages are read.

        A lost slot is always reported by `SlotLost`. A timeout of a slot with heartbeats is therefore a violation.
        """
        slots = self.attempt.slots
        if self.suspended or self.ended or any(slot.up.ready for slot in slots.values()):
            return
        for index, slot in slots.items():
            if slot.take_beat():
                self.monitor.heard(index, self.world.now)
        silent = self.monitor.silent(self.world.now, HEARTBEAT_TIMEOUT_MS)
        if silent is not None:
            require(not slots[silent].beats, "a-living-slot-is-not-blamed", f"slot {silent}")

    # ------------------------------------------------------------ messages of slots

    def receive(self, said: Said) -> None:
        now = self.now
        if isinstance(said, SlotLost):
            self.fail("a slot was lost")
            return
        match said:
            case subtask, Started():
                self._subtask_started(subtask)
            case subtask, Broken(detail):
                self.fail(f"{subtask}: {detail}")
            case subtask, Acknowledge(checkpoint, snapshot, timings):
                self.feed(Acknowledged(now, subtask, checkpoint, snapshot, timings))
            case subtask, Decline(checkpoint, reason, detail):
                self.feed(CheckpointDeclined(now, subtask, checkpoint, reason, detail))
            case subtask, ReportBuildSide():
                self._open_probe_side(self.build_sides.complete(subtask))
            case subtask, ReportFinished():
                self.feed(LogicFinished(now, subtask))
            case subtask, ReportEnded():
                self.feed(SubtaskEnded(now, subtask))

    def _subtask_started(self, subtask: SubtaskId) -> None:
        self.started.add(subtask)
        if len(self.started) == len(self.attempt.graph.subtasks):
            self.feed(JobStarted(self.now, resumed=self.world.bases[self.attempt.token] is not None))

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

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case IssueId():
                self._write(self._issue, "slow_id")
            case WakeAt(at):
                self.wakes.append(at)
            case TriggerSubtask(subtask, barrier):
                self._send(subtask, Triggered(barrier))
            case StoreManifest(manifest):
                self.storing += 1
                self._write(lambda: self._store(manifest), "slow_manifest")
            case NotifyCompleted(permit, subtasks):
                check_notified(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointCompleted(permit))
            case NotifyAborted(checkpoint, subtasks):
                check_notified(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointAborted(checkpoint))
            case ReportCheckpoint():
                self._report(effect)
            case LateAnswer():
                self.world.note("late", effect)
            case SettleOperation(operation):
                self.world.note("operation", effect)
                self.world.ledger.settle(operation)
                self.asked.discard(operation)
            case FailAttempt(detail):
                self.failure = self.failure or detail
            case EndJob():
                self._end_job()
            case ResumeJob():
                self.stopping = False

    def _end_job(self) -> None:
        self.ended = True
        saved = self.coordinator.savepoint is not None
        require(saved == self.stopping, "a-stop-ends-with-its-savepoint", f"stopping {self.stopping}, saved {saved}")

    def _send(self, subtask: SubtaskId, event: SubtaskEvent) -> None:
        self.attempt.slots[subtask.index].tell(subtask, event)

    def _report(self, report: ReportCheckpoint) -> None:
        begun = report.reason is None and report.acknowledged == 0 and report.at == report.triggered_at
        if begun and report.checkpoint not in self.world.ledger.triggered:
            self.world.ledger.began(report.checkpoint, self.attempt.token, report.kind)
        if report.reason in _COUNTED and not report.kind.is_savepoint and report.checkpoint > self.newest_completed:
            self.failed_in_a_row += 1
        self.world.note("report", report)

    def _write(self, work: Work, slow: str) -> None:
        """Queues work. It is done sequentially and in order, as by the metadata thread in production."""
        self.to_write.append((work, slow))
        if len(self.to_write) == 1:
            self._write_on()

    def _write_on(self) -> None:
        work, slow = self.to_write[0]
        self.world.later(lambda: self._written(work), slow)

    def _written(self, work: Work) -> None:
        if self.world.now < self.process.stopped_until:
            self.world.background.add(self.process.stopped_until, lambda: self._written(work))
            return
        following = work()
        if following is not None:
            self.to_write[0] = (following, "slow_manifest")
        else:
            self.to_write.popleft()
        if self.process.gone:  # the write in progress has arrived; the rest is never sent
            self.to_write.clear()
        elif self.to_write:
            self._write_on()

    def _issue(self) -> None:
        if self.process.gone:
            return
        if self.world.faults.strikes("id_unavailable"):
            self.feed(IdUnavailable(self.now, "the database is unavailable"))
            return
        checkpoint = self.world.records.next_id(self.attempt.token)
        if checkpoint is None:
            self._superseded()
        else:
            self.feed(IdIssued(self.now, checkpoint))

    def _store(self, manifest: Manifest) -> Work | None:
        """Writes and records a manifest. An unknown outcome is read back before the coordinator is notified."""
        faults, records = self.world.faults, self.world.records
        try:
            write_manifest(self.world.storage, manifest)
        except EnvironmentFailure as failure:
            self._answer(ManifestFailed(self.now, CheckpointId(manifest.checkpoint), str(failure)))
            return None
        if faults.strikes("unknown_manifest"):
            if self.world.rng.random() < 0.5:
                records.record(manifest, self.attempt.graph)
            return lambda: self._read_back(manifest)
        self._stored(manifest, records.record(manifest, self.attempt.graph))
        return None

    def _read_back(self, manifest: Manifest) -> None:
        recorded = manifest.checkpoint in self.world.ledger.recorded
        self._stored(manifest, recorded or self.world.records.record(manifest, self.attempt.graph))

    def _stored(self, manifest: Manifest, recorded: bool) -> None:
        checkpoint = CheckpointId(manifest.checkpoint)
        if recorded:
            self._write(self._discard, "")
            if checkpoint > self.newest_completed:
                self.newest_completed, self.failed_in_a_row = checkpoint, 0
            self._answer(ManifestRecorded(self.now, checkpoint))
        else:
            self._answer(ManifestFailed(self.now, checkpoint, "this attempt has been superseded"))
            self._superseded()

    def _answer(self, event: ManifestRecorded | ManifestFailed) -> None:
        self.storing -= 1
        if not self.process.gone:
            self.feed(event)

    def _discard(self) -> Work | None:
        """Discards checkpoints beyond the retention limit; their files are deleted later, after a delay."""
        if self.process.gone:
            return None
        before = self.world.records.retained()
        folders = self.world.records.discard_beyond(self.attempt.token, self.world.retained_checkpoints)
        discarded = [manifest for manifest in before if home_of(manifest) in folders]
        return (lambda: self._delete(discarded)) if discarded else None

    def _delete(self, discarded: list[Manifest]) -> None:
        if self.process.gone:
            return
        records, storage = self.world.records, self.world.storage
        folders = [home_of(manifest) for manifest in discarded]
        try:
            retention.discard(storage, folders, records.readable(), records.unreadable())
            limit = max((m.checkpoint for m in records.retained() if m.checkpoint in records.damaged), default=0)
            readable = [manifest for manifest in discarded if manifest.checkpoint not in records.damaged]
            check_discarded(storage, readable, records.retained(), limit)
        except EnvironmentFailure as failure:
            self.world.note(f"{self.attempt.token}:master", f"the next start deletes the rest: {failure}")
        self.world.note(f"{self.attempt.token}:master", f"discarded {folders}")
        check_files(self.world.storage, self.world.records.retained())

    def _superseded(self) -> None:
        """Fails the attempt and ends the process: a newer attempt owns the job."""
        self.fail("superseded")
        if not self.concluded:
            self.process.gone = True
