"""Performs the effects of an attempt's machine in the simulator: slots, ids, manifests, records, operations, retention.

The counterpart of `master.attempt`: the machine decides, as in production. Faults decide whether and when the stores of
the world answer.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from runtime.core.attempt import effects, events
from runtime.core.attempt.machine import AttemptMachine, AttemptSettings
from runtime.core.attempt.result import AttemptFailed, AttemptResult, Ended, SavepointCompleted
from runtime.core.checkpoint.effects import (
    CompleteOperation,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    StoreManifest,
)
from runtime.core.checkpoint.events import IdIssued, IdUnavailable, ManifestFailed, ManifestRecorded, Ticked
from runtime.core.job.ids import CheckpointId, SubtaskId
from runtime.core.job.lifecycle import RunEvent, RunState, next_state
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import (
    CheckpointAborted,
    FollowWatermark,
    LiveOpened,
    ProbeSideOpened,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.core.subtask.events import CheckpointCompleted, SubtaskEvent, Triggered
from runtime.errors import EnvironmentFailure
from runtime.io.control.endpoints import Hello, SlotGate
from runtime.io.manifests import write_manifest
from runtime.master import retention
from runtime.simulation.cluster import Attempt
from runtime.simulation.invariants import check_deletion, check_files, check_notification_targets, require
from runtime.simulation.slots import ReportFailed, ReportStarted, SlotLost, SlotMessage
from runtime.simulation.world import JOB, World

#: Reasons that count as checkpoint failures; a trigger that is refused is not counted.
_FAILURE_REASONS: Final = (FailureReason.ASYNC_FAILED, FailureReason.EXPIRED, FailureReason.FINALIZE_FAILED)

HEARTBEAT_TIMEOUT_MS: Final = 2_000
TICK_INTERVAL_MS: Final = 250  #: as in production
POKE_INTERVAL_MS: Final = 1_000  #: as in production
METADATA_TIMEOUT_MS: Final = 5_000  #: longer than any write, unless the master is stopped meanwhile
START_TIMEOUT_MS: Final = 60_000  #: never reached: slots are connected from the start

Work = Callable[[], "Work | None"]  #: returns the work that must follow immediately, if any


@dataclass(slots=True)
class MasterProcess:
    """The process of a master and its consecutive drivers."""

    is_gone: bool = False  #: crashed or superseded
    stopped_until: int = 0  #: world time at which a process stopped by SIGSTOP continues


class Driver:
    """Runs the machine of an attempt and performs its effects. `operations`: requested and not completed, by id."""

    def __init__(
        self,
        world: World,
        process: MasterProcess,
        attempt: Attempt,
        settings: CoordinatorSettings,
        operations: dict[str, events.OperationRequest],
    ) -> None:
        self.world, self.process, self.attempt, self.operations = world, process, attempt, operations
        self.skew_ms = world.rng.choice((-5_000, 5_000)) if world.faults.occurs("skewed_clock") else 0
        self.machine = AttemptMachine(
            AttemptSettings(
                job=JOB,
                token=attempt.token,
                graph=attempt.graph,
                coordinator=settings,
                began_at=self.now,
                is_resumed=world.bases[attempt.token] is not None,
                start_timeout_ms=START_TIMEOUT_MS,
                heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
                metadata_timeout_ms=METADATA_TIMEOUT_MS,
                rules=attempt.failover_rules,
                kept=attempt.kept,
            )
        )
        self.result: AttemptResult | None = None  #: set once the master has abandoned the attempt
        self.state = RunState.STARTING
        self.started: set[SubtaskId] = set()
        self._connected: set[int] = set()
        self.ticked_at = self.now
        self.is_poked = False
        self.poked_at = world.now
        self.open_operations: set[str] = set()  #: begun operations without an answer
        self.savepoints: dict[int, str] = {}  #: operations that the end of the run answers, by checkpoint
        self.pending_writes: deque[tuple[Work, str]] = deque()  #: queued work in order; the first is in progress
        self.write_began_at = world.now
        self.awaits_writes = True  #: whether a shutdown waits for `pending_writes`
        self.tolerable = settings.tolerable_failures
        self.consecutive_failures = 0  #: consecutive failed checkpoints, counted from the reports
        self.newest_completed = 0
        self._gate = SlotGate(attempt.token, JOB)
        for slot in attempt.slots:
            self._connect(slot)

    @property
    def now(self) -> int:
        """The clock of the master's host in ms, which may be skewed: each attempt may run on another host."""
        return self.world.now + self.skew_ms

    @property
    def suspended(self) -> bool:
        return self.machine.result is not None

    @property
    def is_gone(self) -> bool:
        """Whether the attempt is over for its master: an answer to a write is lost."""
        return self.process.is_gone or self.result is not None

    def feed(self, event: events.AttemptEvent) -> None:
        performed = self.machine.handle(event)
        if performed or not isinstance(event, Ticked | events.HeartbeatReceived):
            self.world.note(f"{self.attempt.token}:attempt", event)
        for effect in performed:
            self._perform(effect)
        borne = self.tolerable is None or self.consecutive_failures <= self.tolerable or self.suspended
        require(borne, "too-many-failures-fail-the-attempt", str(self.consecutive_failures))

    # ------------------------------------------------------------ time

    def next_wake(self) -> int | None:
        """The time of the next tick, in world time; None if the attempt is being shut down."""
        if self.suspended:
            return None
        wake_at = self.machine.next_wake
        latest = self.ticked_at + TICK_INTERVAL_MS
        return (latest if wake_at is None else min(wake_at, latest)) - self.skew_ms

    def tick(self) -> None:
        """Handles a tick that is due, once all messages are read, as production does."""
        due = self.next_wake()
        if due is None or any(slot.up.is_ready for slot in self.attempt.slots.values()):
            return
        if self.is_poked or (self.operations and self.world.now - self.poked_at >= POKE_INTERVAL_MS):
            self.is_poked, self.poked_at = False, self.world.now
            self.feed(events.OperationsWaiting(self.now))
        if due <= self.world.now:
            self.ticked_at = self.now
            for index, slot in self.attempt.slots.items():
                if slot.take_heartbeat():
                    self.feed(events.HeartbeatReceived(self.now, index))
            self.feed(Ticked(self.now))
            if self.pending_writes and self.world.now - self.write_began_at > METADATA_TIMEOUT_MS:
                self.feed(events.MetadataHung(self.now))

    # ------------------------------------------------------------ messages of slots

    def _connect(self, slot: int) -> None:
        """The slot connects, perhaps beside a slot of an older attempt and a second slot of its number."""
        foreign = self.world.faults.occurs("foreign_slot")
        for token in (
            (self.attempt.token - 1, self.attempt.token, self.attempt.token) if foreign else (self.attempt.token,)
        ):
            hello = Hello(token=token, secret=JOB, slot=slot, pid=0, host="", address=f"{slot} of {token}")
            if self._gate.admit(hello) is None:
                require(slot not in self._connected, "a-slot-connects-once", hello)
                require(token == self.attempt.token, "only-slots-of-the-attempt-connect", hello)
                self._connected.add(slot)
                self.feed(events.SlotConnected(self.now, slot, hello.address, "", self.attempt.kept.get(slot)))

    def receive(self, slot: int, message: SlotMessage) -> None:
        if isinstance(message, SlotLost):
            self.feed(events.SlotLost(self.now, slot, "the connection is closed"))
            return
        subtask, report = message
        match report:
            case ReportStarted():
                self._on_subtask_started(subtask)
            case ReportFailed(detail, is_outage):
                text = f"{subtask}: {detail}"
                failure = AttemptFailed(text, subtask.operator, is_outage=is_outage, slot=slot)
                self.feed(events.WorkFailed(self.now, failure))
            case _:
                self.feed(events.ReportReceived(self.now, subtask, report))

    def _on_subtask_started(self, subtask: SubtaskId) -> None:
        self.started.add(subtask)
        slot = {each for each in self.attempt.graph.subtasks if each.index == subtask.index}
        if slot <= self.started:
            self.feed(events.SlotDeployed(self.now, subtask.index))

    # ------------------------------------------------------------ effects

    def _perform(self, effect: effects.AttemptEffect) -> None:
        match effect:
            case TriggerSubtask(subtask, barrier):
                self._send([subtask], Triggered(barrier))
            case FollowWatermark():
                self._send([effect.subtask], effect)
            case ProbeSideOpened() | LiveOpened():
                self._send(self.attempt.graph.subtasks, effect)
            case NotifyCompleted(permit, subtasks):
                check_notification_targets(self.attempt.graph, subtasks)
                self._send(sorted(subtasks), CheckpointCompleted(permit))
            case NotifyAborted(checkpoint, subtasks):
                check_notification_targets(self.attempt.graph, subtasks)
                self._send(sorted(subtasks), CheckpointAborted(checkpoint))
            case LateAnswer():
                self.world.note("late", effect)
            case effects.AnnounceOperation(request):
                self.world.note("operation", effect)
                if request.kind != "cancel":  # the end of the run answers it
                    self.open_operations.add(request.id)
            case effects.ShutDown(result):
                self._shut_down(result)
            case effects.End(result):
                self._end(result)
            case effects.RetireSubtasks() | effects.DeploySlots():
                self._on_deployment(effect)
            case effects.StartSubtasks():
                pass
            case effects.PauseSources() | effects.MeasureBacklog():
                raise AssertionError("no sink of the simulator delivers committed epochs later")
            case _:
                self._write(effect)

    def _on_deployment(self, effect: effects.RetireSubtasks | effects.DeploySlots) -> None:
        """The attempt has closed the subtasks that restart. New subtasks start by themselves."""
        if isinstance(effect, effects.RetireSubtasks):
            for slot in sorted(effect.slots):
                self.feed(events.SlotRetired(self.now, slot, f"{slot} of {self.attempt.token}"))
        else:
            for slot in sorted(self.attempt.kept):
                self.attempt.continue_slot(slot)

    def _send(self, subtasks: Iterable[SubtaskId], event: SubtaskEvent) -> None:
        for subtask in subtasks:
            self.attempt.slots[subtask.index].send_event(subtask, event)

    def _write(
        self,
        effect: IssueId
        | StoreManifest
        | ReportCheckpoint
        | CompleteOperation
        | effects.DeferOperation
        | effects.ChangeState
        | effects.TakeOperations,
    ) -> None:
        match effect:
            case IssueId():
                self._queue_write(self._issue, "slow_id")
            case StoreManifest(manifest):
                self._queue_write(lambda: self._store(manifest), "slow_manifest")
            case ReportCheckpoint():
                self._report(effect)
            case CompleteOperation(operation):
                self.world.note("operation", effect)
                self._queue_write(lambda: self._complete(operation), "")
            case effects.DeferOperation(operation, checkpoint):
                self.world.note("operation", effect)
                self.open_operations.discard(operation)
                if checkpoint is not None:
                    self.savepoints[checkpoint] = operation
            case effects.ChangeState(event):
                self._queue_write(lambda: self._change_state(event), "")
            case effects.TakeOperations(only_cancel):  # pragma: no branch  (the match is exhaustive)
                self._queue_write(lambda: self._take_operations(only_cancel), "")

    # ------------------------------------------------------------ the end

    def _shut_down(self, result: AttemptResult) -> None:
        """Abandons the slots. A failed attempt may not wait for a write that takes long."""
        slot = result.slot if isinstance(result, AttemptFailed) else None
        is_living = slot is not None and self.attempt.slots[slot].has_heartbeats
        require(not is_living, "a-living-slot-is-not-blamed", f"slot {slot}")
        has_ended = isinstance(result, Ended)
        keeps = result.kept if isinstance(result, AttemptFailed) else {}
        self.attempt.count_repeated_rows()
        self.attempt.abandon(0 if has_ended else self.world.rng.choice((0, 100, 600)), keeps)
        self.awaits_writes = has_ended or self.world.rng.random() < 0.5

    def close(self) -> bool:
        """Ends the attempt, unless its shutdown waits for a write. Returns whether it has ended."""
        if self.awaits_writes and self.pending_writes:
            return False
        self.feed(events.ShutDownCompleted(self.now))
        return True

    def _end(self, result: AttemptResult) -> None:
        self.result = result
        is_cut_off = bool(self.pending_writes) or self._is_superseded  # the next attempt takes the rest
        require(is_cut_off or not self.open_operations, "every-operation-is-settled", self.open_operations)
        savepoint = result.savepoint if isinstance(result, Ended | SavepointCompleted) else None
        if savepoint is not None:
            is_open = savepoint.checkpoint in self.savepoints
            require(is_open, "the-end-of-the-run-settles-a-stop", savepoint.checkpoint)
            self.world.ledger.on_operation_result(self.savepoints[savepoint.checkpoint])
        if isinstance(result, Ended):
            stopping = self.state in (RunState.STOPPING, RunState.DRAINING)
            saved = savepoint is not None
            require(saved == stopping, "a-stop-ends-with-its-savepoint", f"{self.state}, saved {saved}")

    # ------------------------------------------------------------ writes

    def _report(self, report: ReportCheckpoint) -> None:
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
        self.write_began_at = self.world.now
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
        if self.is_gone:  # the write in progress has arrived; the rest is never sent
            self.pending_writes.clear()
        elif self.pending_writes:
            self._run_next_write()

    def _answer(self, event: events.AttemptEvent) -> None:
        if not self.is_gone:
            self.feed(event)

    @property
    def _is_superseded(self) -> bool:
        return self.world.records.token != self.attempt.token

    def _change_state(self, event: RunEvent) -> None:
        if self._is_superseded:
            self._answer(events.AttemptSuperseded(self.now))
        else:
            self.state = next_state(self.state, event) or self.state

    def _take_operations(self, only_cancel: bool) -> None:
        """Taken requests without an answer are taken again. A lost answer is as if nothing had been requested."""
        if self.world.faults.occurs("lose_metadata_reply"):
            self._answer(events.OperationsTaken(self.now, ()))
            return
        requests = [each for each in self.operations.values() if each.kind == "cancel" or not only_cancel]
        taken = events.OperationsTaken(self.now, tuple(requests))
        self._answer(events.AttemptSuperseded(self.now) if self._is_superseded else taken)

    def _complete(self, operation: str) -> None:
        self.open_operations.discard(operation)
        if not self._is_superseded:
            self.world.ledger.on_operation_result(operation)
            del self.operations[operation]

    def _issue(self) -> None:
        if self.world.faults.occurs("id_unavailable"):
            self._answer(IdUnavailable(self.now, "the database is unavailable"))
            return
        checkpoint = self.world.records.next_id(self.attempt.token)
        if self.world.faults.occurs("lose_metadata_reply"):
            self._answer(IdUnavailable(self.now, "the answer is lost"))
            return
        superseded = events.AttemptSuperseded(self.now)
        self._answer(superseded if checkpoint is None else IdIssued(self.now, checkpoint))

    def _store(self, manifest: Manifest) -> Work | None:
        """Writes and records a manifest. An unknown outcome is read back before the coordinator is notified."""
        faults, records = self.world.faults, self.world.records
        try:
            write_manifest(self.world.storage, manifest)
        except EnvironmentFailure as failure:
            self._answer(ManifestFailed(self.now, CheckpointId(manifest.checkpoint), str(failure)))
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
            self._answer(ManifestRecorded(self.now, checkpoint))
        else:
            self._answer(events.AttemptSuperseded(self.now))

    def _discard(self) -> Work | None:
        """Discards checkpoints beyond the retention limit; their files are deleted later, after a delay."""
        if self.is_gone:
            return None
        before = self.world.records.retained_manifests()
        folders = self.world.records.discard_beyond(self.attempt.token, self.world.retained_checkpoints)
        if self.world.faults.occurs("lose_metadata_reply"):
            return self._discard  # which discards nothing more: the next start deletes the files
        discarded = [manifest for manifest in before if manifest_folder(manifest) in folders]
        return (lambda: self._delete(discarded)) if discarded else None

    def _delete(self, discarded: list[Manifest]) -> None:
        if self.is_gone:
            return
        records, storage = self.world.records, self.world.storage
        folders = [manifest_folder(manifest) for manifest in discarded]
        try:
            readable, unreadable = records.readable_manifests(), records.unreadable_folders()
            oldest = min([self.attempt.token, *self.attempt.kept.values()])
            retention.discard_checkpoints(storage, folders, readable, unreadable, oldest=oldest)
            limit = max(
                (m.checkpoint for m in records.retained_manifests() if m.checkpoint in records.damaged), default=0
            )
            readable = [manifest for manifest in discarded if manifest.checkpoint not in records.damaged]
            check_deletion(storage.paths, readable, records.retained_manifests(), limit)
        except EnvironmentFailure as failure:
            self.world.note(f"{self.attempt.token}:master", f"the next start deletes the rest: {failure}")
        self.world.note(f"{self.attempt.token}:master", f"discarded {folders}")
        check_files(self.world.storage.paths, self.world.records.retained_manifests())
