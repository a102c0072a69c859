"""The attempt of a run: deployment, checkpoints, operations, the first failure, and the end.

Invariants: the first result stands; with it the coordinator is suspended, and each operation is answered or left open;
sources are paused only while too many epochs await delivery.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from runtime.core.attempt import events
from runtime.core.attempt.effects import (
    AnnounceOperation,
    AttemptEffect,
    ChangeState,
    DeferOperation,
    DeploySlots,
    End,
    MeasureBacklog,
    PauseSources,
    RetireSubtasks,
    ShutDown,
    StartSubtasks,
    TakeOperations,
)
from runtime.core.attempt.failover_regions import FailoverRules, RestartScope, restart_scope
from runtime.core.attempt.result import (
    AttemptFailed,
    AttemptResult,
    Canceled,
    Ended,
    Released,
    SavepointCompleted,
    Superseded,
)
from runtime.core.attempt.slot_liveness import SlotLiveness
from runtime.core.checkpoint import effects as checkpoint_effects
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.checkpoint.events import (
    CheckpointRequested,
    CoordinatorEvent,
    CoordinatorSuspended,
    IdIssued,
    IdUnavailable,
    JobStarted,
    ManifestFailed,
    ManifestRecorded,
    SubtaskReported,
    Ticked,
    TriggerFailed,
)
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import (
    BuildSideRead,
    HistoryRead,
    LiveOpened,
    ProbeSideOpened,
    SourceReport,
    SubtaskReport,
)
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.row_numbers import ProcessedRows
from runtime.core.subtask.build_sides import BuildSides
from runtime.core.subtask.idle_sources import IdleSources
from runtime.core.subtask.source_parts import Histories

BACKLOG_INTERVAL_MS: Final = 1_000  #: between the measurements of the backlog
CHANNEL_LOSS_WAIT_MS: Final = 500  #: for the failure of the slot at the other end, which has a better reason
TRIGGER_RETRY_MS: Final = 1_000  #: delay after an error at a trigger

Effects = list[AttemptEffect]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """The constants of an attempt."""

    job: str
    token: Token
    graph: JobGraph
    coordinator: CoordinatorSettings
    began_at: int
    is_resumed: bool  #: see `JobStarted`
    start_timeout_ms: int  #: until every slot is connected
    heartbeat_timeout_ms: int
    metadata_timeout_ms: int  #: a write of metadata that takes longer is hung
    rules: FailoverRules
    kept: Mapping[int, Token] = field(default_factory=dict)  #: see `AttemptFailed.kept`; of the last attempt
    checkpoint: int = 0  #: that is restored; 0: none
    has_backlog: bool = False  #: a sink delivers committed epochs later


class AttemptMachine:
    """Mutable, owned by the master of an attempt. All times (`at`) are milliseconds since the epoch."""

    def __init__(self, settings: AttemptSettings) -> None:
        self._settings = settings
        self.coordinator = Coordinator(settings.job, settings.token, settings.graph, settings.coordinator)
        self._build_sides = BuildSides(settings.graph)
        self._histories = Histories(settings.graph)
        self._idle_sources = IdleSources()
        self._liveness = SlotLiveness(settings.heartbeat_timeout_ms)
        self._addresses: dict[int, str] = {}
        self._logs: dict[int, str] = {}
        self._kept = dict(settings.kept)  #: slots of earlier attempts that run on
        self._scope: RestartScope | None = None  #: None: all subtasks restart, or whole slots
        self._retiring: set[int] = set()  #: kept slots that have not closed their restarting subtasks
        self._processed: list[ProcessedRows] = []
        self._channel_loss: events.ChannelLost | None = None  #: the first
        self.deployed_slots: set[int] = set()
        self.running_since: int | None = None
        self._has_progressed = False
        self._wake_at: list[int] = []
        self.are_sources_paused = False
        self._backlog_measured_at: int | None = None
        self._is_measuring_backlog = False
        self.operations: dict[str, events.OperationRequest] = {}  #: taken operations, by id
        self._is_taking_operations = False
        self._is_taking_again = False  #: a query in flight may miss later operations
        self.result: AttemptResult | None = None  #: the first result; `End` has the final result
        self._is_suspended = False

    def handle(self, event: events.AttemptEvent) -> Effects:
        effects = self._on_event(event)
        if self.result is not None and not self._is_suspended:
            self._is_suspended = True
            effects += self._coordinate(CoordinatorSuspended(event.at))
            effects.append(ShutDown(self.result))
        return effects

    def _on_event(self, event: events.AttemptEvent) -> Effects:
        match event:
            case Ticked():
                return self._on_tick(event)
            case events.ReportReceived(at, subtask, report):
                return self._on_report(at, subtask, report)
            case events.HeartbeatReceived(_, slot):
                self._liveness.on_message(slot)
                return []
            case events.SlotConnected():
                return self._on_slot_connected(event)
            case events.SlotRetired():
                return self._on_slot_retired(event)
            case events.ChannelLost():
                self._channel_loss = self._channel_loss or event
                return []
            case events.SlotDeployed(at, slot):
                return self._on_slot_deployed(at, slot)
            case events.SlotLost(_, slot, detail):
                return self._fail_by(slot, f"was lost: {detail}")
            case events.WorkFailed(_, failure):
                return self._end(failure)
            case IdIssued() | IdUnavailable() | ManifestFailed():
                return self._coordinate(event)
            case ManifestRecorded():
                self._has_progressed = True
                return self._coordinate(event)
            case TriggerFailed(at):
                self._wake_at.append(at + TRIGGER_RETRY_MS)
                return self._coordinate(event)
            case _:
                return self._on_run_event(event)

    def _on_run_event(
        self,
        event: events.OperationsWaiting
        | events.OperationsTaken
        | events.BacklogMeasured
        | events.MetadataHung
        | events.ReleaseRequested
        | events.AttemptSuperseded
        | events.ShutDownCompleted,
    ) -> Effects:
        match event:
            case events.OperationsWaiting():
                return self._take_operations()
            case events.OperationsTaken(at, operations):
                return self._on_operations(at, operations)
            case events.BacklogMeasured(_, is_too_large):
                return self._on_backlog(is_too_large)
            case events.MetadataHung():
                return self._end(AttemptFailed(self._hung_write(), is_outage=True))
            case events.ReleaseRequested():
                return self._end(Released())
            case events.AttemptSuperseded():
                return self._end(Superseded())
            case events.ShutDownCompleted(at):  # pragma: no branch  (the match is exhaustive)
                return [End(self._final_result(at))]

    # ------------------------------------------------------------ time

    @property
    def next_wake(self) -> int | None:
        """When the coordinator next needs a tick. Heartbeats need a tick at least once a second."""
        return min(self._wake_at, default=None)

    def _on_tick(self, tick: Ticked) -> Effects:
        at, settings = tick.at, self._settings
        effects = self._measure_backlog(at)
        if self._wake_at and at >= min(self._wake_at):
            self._wake_at = [wake_at for wake_at in self._wake_at if wake_at > at]
            effects += self._coordinate(tick)
        silent = self._liveness.silent_slot(at)
        if silent is not None:
            self._fail_by(silent, f"has been silent for {settings.heartbeat_timeout_ms} ms")
        loss = self._channel_loss
        if loss is not None and at - loss.at > CHANNEL_LOSS_WAIT_MS:
            self._end(AttemptFailed(loss.detail, slot=loss.peer))
        missing = sorted(set(range(settings.graph.parallelism)) - self._addresses.keys())
        if missing and at - settings.began_at > settings.start_timeout_ms:
            detail = f"slots {missing} did not connect within {settings.start_timeout_ms} ms"
            self._end(AttemptFailed(detail), missing)
        return effects

    def _measure_backlog(self, at: int) -> Effects:
        """A measurement at most once a second, and one at a time."""
        if not self._settings.has_backlog or self.running_since is None or self._is_measuring_backlog:
            return []
        if self._backlog_measured_at is not None and at - self._backlog_measured_at < BACKLOG_INTERVAL_MS:
            return []
        self._backlog_measured_at, self._is_measuring_backlog = at, True
        return [MeasureBacklog()]

    def _on_backlog(self, is_too_large: bool) -> Effects:
        self._is_measuring_backlog = False
        if is_too_large == self.are_sources_paused:
            return []
        self.are_sources_paused = is_too_large
        return [PauseSources(is_too_large)]

    # ------------------------------------------------------------ slots

    def _on_slot_connected(self, event: events.SlotConnected) -> Effects:
        self._liveness.on_message(event.slot)
        self._addresses[event.slot], self._logs[event.slot] = event.address, event.log
        self._kept.pop(event.slot, None)  # it may have been lost and replaced since the last attempt
        if event.kept_since is not None:
            self._kept[event.slot] = event.kept_since
        if len(self._addresses) < self._settings.graph.parallelism:
            return []
        if not self._kept:
            return [DeploySlots(dict(self._addresses))]
        scope = self._scope_of(self._addresses.keys() - self._kept.keys())
        self._retiring = set(self._kept.keys() - scope.untouched_slots)
        if not self._retiring:
            return [DeploySlots(dict(self._addresses), frozenset(self._kept))]
        self._scope = scope
        return [RetireSubtasks(frozenset(self._retiring), tuple(sorted(scope.everywhere)))]

    def _on_slot_retired(self, event: events.SlotRetired) -> Effects:
        self._liveness.on_message(event.slot)
        if event.ended:  # what has ended is not sent again
            detail = f"all subtasks restart: {event.ended} had read all rows"
            return self._end(AttemptFailed(detail, code=ROWS_NOT_REPEATED_CODE))
        newest = max((each.completed for each in event.processed), default=0)
        if newest > self._settings.checkpoint:  # the numbers of rows between the two are forgotten
            detail = f"all subtasks restart: checkpoint {self._settings.checkpoint} is older than {newest}"
            return self._end(AttemptFailed(detail, code=ROWS_NOT_REPEATED_CODE))
        self._addresses[event.slot] = event.address
        self._processed += event.processed
        self._retiring.discard(event.slot)
        if self._retiring:
            return []
        assert self._scope is not None, "a slot retires subtasks on request"
        untouched = frozenset(self._kept) & self._scope.untouched_slots
        return [DeploySlots(dict(self._addresses), untouched, self._scope, tuple(self._processed))]

    def _on_slot_deployed(self, at: int, slot: int) -> Effects:
        self._liveness.on_message(slot)
        self.deployed_slots.add(slot)
        if len(self.deployed_slots) < self._settings.graph.parallelism or self.result is not None:
            return []
        self.running_since = at
        started = self._coordinate(JobStarted(at, resumed=self._settings.is_resumed))
        return [StartSubtasks(), *started, ChangeState(RunEvent.DEPLOYED), *self._take_operations()]

    def _on_report(self, at: int, subtask: SubtaskId, report: SubtaskReport) -> Effects:
        self._liveness.on_message(subtask.index)
        match report:
            case BuildSideRead():
                join = self._build_sides.complete(subtask)
                return [] if join is None else [ProbeSideOpened(join)]
            case HistoryRead():
                source = self._histories.complete(subtask)
                return [] if source is None else [LiveOpened(source)]
            case SourceReport():
                return list(self._idle_sources.on_report(subtask, report))
            case _:
                return self._coordinate(SubtaskReported(at, subtask, report))

    # ------------------------------------------------------------ the coordinator

    def _coordinate(self, event: CoordinatorEvent) -> Effects:
        return [each for effect in self.coordinator.handle(event) for each in self._on_effect(effect)]

    def _on_effect(self, effect: checkpoint_effects.CoordinatorEffect) -> Effects:
        match effect:
            case checkpoint_effects.WakeAt(at):
                self._wake_at.append(at)
                return []
            case checkpoint_effects.CompleteOperation():
                return [self._answer(effect)]
            case checkpoint_effects.ResumeJob():
                return [ChangeState(RunEvent.SHUTDOWN_ABANDONED)]
            case checkpoint_effects.FailAttempt(detail):
                return self._end(AttemptFailed(detail))
            case checkpoint_effects.EndJob():
                return self._end(Ended())
            case _:
                return [effect]

    # ------------------------------------------------------------ operations

    def _take_operations(self) -> Effects:
        self._is_taking_again = self._is_taking_operations
        if self._is_taking_operations or self.result is not None:
            return []
        self._is_taking_operations = True
        return [TakeOperations(only_cancel=self.running_since is None)]

    def _on_operations(self, at: int, operations: tuple[events.OperationRequest, ...]) -> Effects:
        self._is_taking_operations = False
        if self.result is not None:
            return []  # left to the next attempt, or to the end of the run
        effects: Effects = []
        for request in operations:
            if request.id not in self.operations:
                self.operations[request.id] = request
                effects += self._start_operation(at, request)
        return effects + self._take_operations() if self._is_taking_again else effects

    def _start_operation(self, at: int, request: events.OperationRequest) -> Effects:
        announced = AnnounceOperation(request)
        if request.kind == "cancel":
            self._end(Canceled())
            return [announced, ChangeState(RunEvent.CANCEL_REQUESTED)]
        event = {"stop": RunEvent.STOP_REQUESTED, "drain": RunEvent.DRAIN_REQUESTED}.get(request.kind)
        changed = [] if event is None else [ChangeState(event)]
        requested = CheckpointRequested(at, CheckpointKind(request.kind), request.id)
        return [announced, *changed, *self._coordinate(requested)]

    def _answer(self, answer: checkpoint_effects.CompleteOperation) -> AttemptEffect:
        """The answer, unless the end of the run or the next attempt answers the operation."""
        if answer.checkpoint is not None and self._ends_job(answer.operation):
            return DeferOperation(answer.operation, answer.checkpoint)
        if answer.reason is FailureReason.SUSPENDED and self._is_requeued(answer.operation):
            return DeferOperation(answer.operation)
        return answer

    def _is_requeued(self, operation: str) -> bool:
        """Whether an operation that the end of the attempt interrupts stays queued for the next attempt.

        Every operation does when the worker shuts down, a stop or drain also after the loss of a slot and during an
        outage. If code of the job raised, the stop or drain may be the cause, so the operation fails.
        """
        match self.result:
            case Released():
                return True
            case AttemptFailed(is_final=False) as failed:
                return self._ends_job(operation) and (not failed.operator or failed.is_outage)
        return False

    def _ends_job(self, operation: str) -> bool:
        return self.operations[operation].kind in ("stop", "drain")

    @property
    def cancel_operations(self) -> list[str]:
        """The operations that requested a cancel."""
        return [request.id for request in self.operations.values() if request.kind == "cancel"]

    # ------------------------------------------------------------ the end

    def _end(self, result: AttemptResult, failed_slots: Collection[int] = ()) -> Effects:
        if isinstance(result, AttemptFailed):
            slots = failed_slots or (() if result.slot is None else (result.slot,))
            kept, scope = self._kept_slots(result, slots), self._scope_of(slots)
            has_partial = bool(kept.keys() - scope.untouched_slots)
            restarted = tuple(sorted(scope.everywhere)) if has_partial else ()
            result = replace(result, kept=kept, restarted=restarted)
        self.result = self.result or result
        return []

    def _kept_slots(self, failed: AttemptFailed, slots: Collection[int]) -> Mapping[int, Token]:
        """The slots that need not restart. An older checkpoint, or an end under way, concerns all slots."""
        if not slots or failed.is_final or failed.damaged_file or self.coordinator.is_ending:
            return {}
        running = range(self._settings.graph.parallelism) if self.running_since is not None else ()
        tokens = dict.fromkeys(running, self._settings.token) | self._kept
        scope = self._scope_of(slots)
        is_partial = not self.coordinator.has_finished_subtask and failed.code != ROWS_NOT_REPEATED_CODE
        kept = scope.kept_slots if is_partial else scope.untouched_slots
        return {slot: tokens[slot] for slot in sorted(tokens.keys() & kept)}

    def _scope_of(self, failed: Collection[int]) -> RestartScope:
        return restart_scope(self._settings.graph, self._settings.rules, failed)

    def _fail_by(self, slot: int, detail: str) -> Effects:
        log = self._logs.get(slot, "")
        return self._end(AttemptFailed(f"slot {slot} {detail}", slot=slot, slot_log=log, lost_slot=slot))

    def _hung_write(self) -> str:
        storing = [str(checkpoint) for checkpoint, each in self.coordinator.pending.items() if each.storing]
        work = f"checkpoint {storing[0]} is not stored and committed" if storing else "a write has not ended"
        timeout_ms = self._settings.metadata_timeout_ms
        return f"{work} after {timeout_ms} ms: storage, database or a sink does not answer"

    def _final_result(self, at: int) -> AttemptResult:
        """The result with what the last writes have added: a manifest in flight may have been recorded."""
        assert self.result is not None, "the attempt goes on"
        savepoint = self.coordinator.savepoint
        if isinstance(self.result, Ended):
            return Ended(savepoint)
        if savepoint is not None and not isinstance(self.result, Superseded):
            return SavepointCompleted(savepoint)
        if isinstance(self.result, AttemptFailed):
            ran_ms = 0 if self.running_since is None else at - self.running_since
            return replace(self.result, has_progressed=self._has_progressed, ran_ms=ran_ms)
        return self.result
