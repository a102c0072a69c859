"""The checkpoint coordinator of an attempt: trigger, collect, complete, expire, notify, end.

Invariants: a checkpoint id is used once; completion is notified only after the manifest is recorded; a plain savepoint
sends no notification; a failed checkpoint undoes no work; each requested operation is answered exactly once. (Flink's
`CheckpointCoordinator`.)
"""

from collections import Counter, OrderedDict
from typing import Final, Literal

import msgspec

from runtime.core.checkpoint import events
from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.checkpoint.effects import (
    CheckpointStatus,
    CompleteOperation,
    CoordinatorEffect,
    EndJob,
    FailAttempt,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ResumeJob,
    StoreManifest,
    WakeAt,
)
from runtime.core.checkpoint.failure_manager import CheckpointFailureManager
from runtime.core.checkpoint.missing_subtasks import MissingSubtasks, missing_subtasks
from runtime.core.checkpoint.pending import PendingCheckpoint, partly_finished_union
from runtime.core.checkpoint.plan import plan_checkpoint
from runtime.core.checkpoint.recent_checkpoints import RecentCheckpoints
from runtime.core.checkpoint.request_queue import RequestQueue
from runtime.core.checkpoint.trigger_schedule import TriggerSchedule
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import CheckpointId, SubtaskId, Token
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import permit_for_manifest
from runtime.core.snapshot.control import (
    Acknowledgement,
    CoordinatorReport,
    Decline,
    LogicFinished,
    SubtaskEnded,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest, SubtaskSnapshot

MIN_FINAL_RETRY_MS: Final = 500  #: minimum delay after a failure before the last checkpoint is tried again

Effects = list[CoordinatorEffect]


class Coordinator:
    """Mutable, owned by the master of an attempt. All times (`at`) are milliseconds since the epoch."""

    def __init__(self, job: str, token: Token, graph: JobGraph, settings: CoordinatorSettings) -> None:
        self._job, self._token, self._graph, self._settings = job, token, graph, settings
        self._phase: Literal["starting", "running", "suspended"] = "starting"  #: checkpoints start while running
        self._finished: set[SubtaskId] = set()
        self._ended: set[SubtaskId] = set()
        self._queue = RequestQueue()
        self._issuing: events.CheckpointRequested | None = None
        self.pending: OrderedDict[CheckpointId, PendingCheckpoint] = OrderedDict()
        self._recent = RecentCheckpoints()
        self._manifests: dict[CheckpointId, Manifest] = {}
        #: last snapshots of finished subtasks; later manifests repeat them
        self._last_snapshots: dict[SubtaskId, SubtaskSnapshot] = {}
        self._newest = CheckpointId(0)  #: the newest completed checkpoint
        self._trigger_schedule = TriggerSchedule(settings.interval_ms, settings.min_pause_ms)
        self._failure_manager = CheckpointFailureManager(settings.tolerable_failures)
        self._ending: CheckpointKind | None = None  #: a stop or drain has been accepted
        self._released = False  #: a checkpoint has completed that every subtask took after finishing its logic
        self._final_not_before = 0
        self.savepoint: Manifest | None = None  #: the savepoint of a completed stop or drain
        self._unanswered: Counter[str] = Counter()  #: requested operations without a `CompleteOperation`

    def handle(self, event: events.CoordinatorEvent) -> Effects:
        if isinstance(event, events.CheckpointRequested) and event.operation is not None:
            self._unanswered[event.operation] += 1
        effects = self._on_event(event)
        self._check_answers(effects)
        return effects

    def _check_answers(self, effects: Effects) -> None:
        """Asserts that each operation is answered once: at the end all but those whose manifest is being stored."""
        for effect in effects:
            if isinstance(effect, CompleteOperation):
                assert self._unanswered[effect.operation] > 0, f"operation {effect.operation} is answered twice"
                self._unanswered[effect.operation] -= 1
        if self._phase == "suspended":
            storing = Counter(each.operation for each in self.pending.values() if each.operation is not None)
            assert +self._unanswered == storing, f"an operation has no answer: {+self._unanswered - storing}"

    def _on_event(self, event: events.CoordinatorEvent) -> Effects:
        match event:
            case events.SubtaskReported(at, subtask, report):
                return self._on_report(at, subtask, report)
            case events.Ticked(at):
                return self._on_tick(at)
            case events.JobStarted(at, resumed):
                return self._on_started(at, resumed)
            case events.CheckpointRequested():
                return self._on_requested(event)
            case events.IdIssued(at, checkpoint):
                return self._on_id_issued(at, checkpoint)
            case events.IdUnavailable(at, detail):
                return self._on_id_unavailable(at, detail)
            case events.TriggerFailed(_, detail):
                return self._fail_attempt(self._failure_manager.on_failed(FailureReason.TRIGGER_FAILED, detail))
            case events.ManifestRecorded(at, checkpoint):
                return self._on_recorded(at, checkpoint)
            case events.ManifestFailed(at, checkpoint, detail):
                return self._fail_checkpoint(at, checkpoint, FailureReason.FINALIZE_FAILED, detail)
            case events.CoordinatorSuspended(at):  # pragma: no branch  (the match is exhaustive)
                return self._on_suspended(at)

    @property
    def progress(self) -> tuple[CheckpointId, CheckpointKind, int, int] | None:
        """The oldest pending checkpoint: id, kind, number of acknowledgements, number of subtasks that take part."""
        for checkpoint, pending in self.pending.items():
            return checkpoint, pending.barrier.kind, len(pending.acks), len(pending.plan.wait_for)
        return None

    def progress_by_checkpoint(self) -> dict[CheckpointId, tuple[SubtaskProgress, ...]]:
        """The acknowledgements of every pending checkpoint."""
        return {checkpoint: pending.progress() for checkpoint, pending in self.pending.items()}

    # ------------------------------------------------------------ starting checkpoints

    def _on_started(self, at: int, resumed: bool) -> Effects:
        assert self._phase != "running", "a coordinator starts once"
        if self._phase == "suspended":  # the last slot started while the attempt was being suspended
            return []
        self._phase = "running"
        begun = self._schedule(at, resumed)
        return begun + self._final_checkpoint(at)  # some subtasks may have finished before the last subtask started

    def _schedule(self, at: int, resumed: bool = False) -> Effects:
        first = self._trigger_schedule.start(at, resumed)
        return [] if first is None else [WakeAt(first)]

    def _on_tick(self, at: int) -> Effects:
        effects: Effects = []
        for checkpoint, pending in list(self.pending.items()):
            if at >= pending.expires_at and not pending.storing:
                late = self._missing_subtasks(pending)
                effects += self._fail_checkpoint(
                    at, checkpoint, FailureReason.EXPIRED, f"no acknowledgement from {late}"
                )
        following = None if self._released else self._trigger_schedule.due(at)
        if following is not None:
            effects.append(WakeAt(following))
            effects += self._enqueue(events.CheckpointRequested(at, CheckpointKind.CHECKPOINT))
        return effects + self._final_checkpoint(at) + self._start_next(at)

    def _on_requested(self, request: events.CheckpointRequested) -> Effects:
        refusal = self._refusal(request)
        if refusal is not None:
            resumed: Effects = [ResumeJob()] if request.kind.ends_job and self._ending is None else []
            return _fail_operation(request.operation, *refusal) + resumed
        effects: Effects = []
        if request.kind.ends_job:
            self._ending = request.kind
            self._trigger_schedule.stop()
            effects = self._fail_all(request.at, "a stop or drain begins")
        return effects + self._enqueue(request) + self._start_next(request.at)

    def _enqueue(self, request: events.CheckpointRequested) -> Effects:
        """Queues `request`. The operation of a displaced request, possibly of `request` itself, fails."""
        displaced = self._queue.add(request)
        if displaced is None:
            return []
        return _fail_operation(displaced.operation, FailureReason.TOO_MANY_REQUESTS, "too many requests are waiting")

    def _refusal(self, request: events.CheckpointRequested) -> tuple[FailureReason, str] | None:
        if self._phase != "running":
            return FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "the job is not running yet, or no longer"
        if self._ending is not None:
            return FailureReason.SUSPENDED, f"a {self._ending} is under way"
        if self._released:
            return FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "all input has been read and the job is ending"
        return None

    def _start_next(self, at: int) -> Effects:
        """Starts the next waiting request if it may start."""
        if self._issuing is not None or self._phase != "running":
            return []
        request = self._queue.take(len(self.pending), self._settings.max_concurrent)
        if request is None:
            return []
        if self._is_pointless(request):
            return self._start_next(at)
        later = self._trigger_schedule.min_pause_until(at) if request.is_periodic else None
        if later is not None:
            return [WakeAt(later), *self._start_next(at)]
        self._issuing = request
        return [IssueId()]

    def _is_pointless(self, request: events.CheckpointRequested) -> bool:
        """True for a periodic checkpoint while the job is ending."""
        return request.is_periodic and (self._released or self._ending is not None)

    def _on_id_issued(self, at: int, checkpoint: CheckpointId) -> Effects:
        request, self._issuing = self._issuing, None
        if request is None or self._phase != "running":  # suspended in the meantime: the id stays unused
            return []
        if self._is_pointless(request):
            return self._start_next(at)
        planned = plan_checkpoint(self._graph, self._ended)
        assert planned.wait_for, "the job goes on although every subtask has ended"
        barrier = Barrier(checkpoint, request.kind, at)
        expires_at = at + self._settings.timeout_ms
        pending = PendingCheckpoint(barrier, planned, request.operation, expires_at)
        self.pending[checkpoint] = pending
        triggers: Effects = [TriggerSubtask(subtask, barrier) for subtask in sorted(planned.trigger)]
        return [pending.report(at), WakeAt(expires_at), *triggers, *self._start_next(at)]

    def _on_id_unavailable(self, at: int, detail: str) -> Effects:
        request, self._issuing = self._issuing, None
        if request is None:
            return []
        self._delay_final(at)
        failed = _fail_operation(request.operation, FailureReason.ID_UNAVAILABLE, detail)
        if request.is_replanned and request.kind.ends_job:
            return [*failed, FailAttempt(f"the {request.kind} could not be planned anew: {detail}")]
        resumed = self._resume_job(at) if request.kind.ends_job else []
        savepoint = request.kind.is_savepoint
        exceeded = self._failure_manager.on_failed(FailureReason.ID_UNAVAILABLE, detail, savepoint=savepoint)
        return failed + resumed + self._fail_attempt(exceeded) + self._final_checkpoint(at) + self._start_next(at)

    def _resume_job(self, at: int) -> Effects:
        """Continues the job after a stop or drain that failed before any subtask was triggered."""
        self._ending = None
        return [ResumeJob(), *self._schedule(at)]

    # ------------------------------------------------------------ collecting

    def _on_report(self, at: int, subtask: SubtaskId, report: CoordinatorReport) -> Effects:
        match report:
            case Acknowledgement():
                return self._on_acknowledgement(at, subtask, report)
            case Decline():
                return self._on_decline(at, subtask, report)
            case LogicFinished():
                self._finished.add(subtask)
                return self._final_checkpoint(at)
            case SubtaskEnded():  # pragma: no branch  (the match is exhaustive)
                return self._on_subtask_ended(at, subtask)

    def _on_acknowledgement(self, at: int, subtask: SubtaskId, ack: Acknowledgement) -> Effects:
        pending = self.pending.get(ack.checkpoint)
        if pending is None:
            return [self._recent.late_answer(subtask, ack.checkpoint, declined=False)]
        if not pending.acknowledge(at, subtask, ack) or not pending.complete:
            return []
        manifest = pending.manifest(self._job, self._token, self._graph, self._last_snapshots)
        lost = partly_finished_union(manifest, self._graph.names)
        if lost is not None:
            return self._fail_checkpoint(at, ack.checkpoint, FailureReason.UNION_STATE_PARTLY_FINISHED, lost)
        pending.storing = True
        self._manifests[ack.checkpoint] = manifest
        timings = tuple((subtask, pending.acks[subtask].timings) for subtask in sorted(pending.acks))
        return [StoreManifest(manifest, timings)]

    def _on_decline(self, at: int, subtask: SubtaskId, decline: Decline) -> Effects:
        pending = self.pending.get(decline.checkpoint)
        if pending is None:
            return [self._recent.late_answer(subtask, decline.checkpoint, declined=True)]
        if pending.storing:
            return [LateAnswer(subtask, decline.checkpoint, True, CheckpointStatus.STORING)]
        detail = f"{self._graph.label(subtask)}: {decline.detail}"
        return self._fail_checkpoint(at, decline.checkpoint, decline.reason, detail)

    def _on_recorded(self, at: int, checkpoint: CheckpointId) -> Effects:
        pending = self.pending.pop(checkpoint)
        manifest = self._manifests.pop(checkpoint)
        kind = pending.barrier.kind
        self._trigger_schedule.on_completed(at)
        self._recent.on_completed(checkpoint)
        self._failure_manager.on_completed(checkpoint)
        effects: Effects = [pending.report(at)]
        if kind.ends_job:
            self.savepoint = manifest
        if kind is not CheckpointKind.SAVEPOINT:
            self._released = self._released or pending.releases_all
            finished = {s: each.snapshot for s, each in pending.acks.items() if each.snapshot.finished}
            if checkpoint < self._newest:  # completed out of order: files of this older checkpoint may be gone
                self._last_snapshots = finished | self._last_snapshots
            else:
                self._newest = checkpoint
                self._last_snapshots.update(finished)
            effects += self._subsume_older(at, checkpoint)
            effects.append(NotifyCompleted(permit_for_manifest(manifest, self._token), pending.plan.notify))
        if pending.operation is not None:
            effects.append(CompleteOperation(pending.operation, checkpoint))
        return effects + self._final_checkpoint(at) + self._start_next(at)

    def _subsume_older(self, at: int, checkpoint: CheckpointId) -> Effects:
        older = [
            other
            for other, pending in self.pending.items()
            if other < checkpoint and not pending.barrier.kind.is_savepoint and not pending.storing
        ]
        detail = f"checkpoint {checkpoint} completed first"
        return [
            effect for other in older for effect in self._fail_checkpoint(at, other, FailureReason.SUBSUMED, detail)
        ]

    # ------------------------------------------------------------ giving up

    def _fail_checkpoint(self, at: int, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> Effects:
        pending = self.pending[checkpoint]
        effects = self._abort(at, checkpoint, reason, detail)
        is_requested = pending.operation is not None or pending.barrier.kind.ends_job
        if reason is FailureReason.TASK_FINISHED_WHILE_TRIGGERED and is_requested:
            return effects + self._replan(at, pending)
        if reason.may_persist:
            self._delay_final(at)
        effects += _fail_operation(pending.operation, reason, detail)
        if pending.barrier.kind.ends_job:
            # Some subtasks may have finished their logic, so the job must restart from the last checkpoint.
            return [*effects, FailAttempt(f"the savepoint of the {pending.barrier.kind} failed: {reason}: {detail}")]
        effects += self._retry_periodic(at, pending, reason)
        savepoint = pending.barrier.kind.is_savepoint
        exceeded = self._failure_manager.on_failed(reason, detail, checkpoint=checkpoint, savepoint=savepoint)
        return effects + self._fail_attempt(exceeded) + self._final_checkpoint(at) + self._start_next(at)

    def _abort(self, at: int, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> Effects:
        """Gives up a pending checkpoint. The caller completes the operation that requested it."""
        pending = self.pending.pop(checkpoint)
        self._manifests.pop(checkpoint, None)
        self._recent.on_failed(checkpoint, reason)
        return [pending.report(at, reason, detail), NotifyAborted(checkpoint, pending.plan.wait_for)]

    @staticmethod
    def _fail_attempt(detail: str | None) -> Effects:
        return [] if detail is None else [FailAttempt(detail)]

    def _retry_periodic(self, at: int, pending: PendingCheckpoint, reason: FailureReason) -> Effects:
        """Retries a failed periodic checkpoint before the next interval, unless a newer checkpoint is pending."""
        is_retried = self._phase == "running" and reason is not FailureReason.SUBSUMED and pending.operation is None
        if not is_retried or self._is_logic_finished:
            return []
        newer = self._issuing is not None or any(other > pending.barrier.checkpoint for other in self.pending)
        if newer or self._queue.waiting or not self._trigger_schedule.may_retry():
            return []
        self._trigger_schedule.on_retry()
        return self._enqueue(events.CheckpointRequested(at, CheckpointKind.CHECKPOINT))

    def _replan(self, at: int, pending: PendingCheckpoint) -> Effects:
        """Replans what an operation has requested, because a subtask ended by itself. Each subtask ends once, so the
        retries end too.
        """
        request = events.CheckpointRequested(at, pending.barrier.kind, pending.operation, is_replanned=True)
        return self._enqueue(request) + self._start_next(at)

    def _fail_all(self, at: int, detail: str) -> Effects:
        """Gives up queued requests, and pending checkpoints whose manifest is not being stored. Starts no other."""
        effects: Effects = []
        for checkpoint, pending in list(self.pending.items()):
            if not pending.storing:
                effects += self._abort(at, checkpoint, FailureReason.SUSPENDED, detail)
                effects += _fail_operation(pending.operation, FailureReason.SUSPENDED, detail)
        for request in self._queue.clear():
            effects += _fail_operation(request.operation, FailureReason.SUSPENDED, detail)
        return effects

    def _on_suspended(self, at: int, detail: str = "the attempt ended") -> Effects:
        self._phase = "suspended"
        self._trigger_schedule.stop()
        effects = self._fail_all(at, detail)
        request, self._issuing = self._issuing, None
        if request is not None:
            effects += _fail_operation(request.operation, FailureReason.SUSPENDED, detail)
        return effects

    # ------------------------------------------------------------ the end

    @property
    def is_ending(self) -> bool:
        """Whether a subtask has ended, or a stop, a drain or the last checkpoint is under way or complete."""
        return bool(self._ended) or self._ending is not None or self._is_logic_finished

    @property
    def has_finished_subtask(self) -> bool:
        """Whether a subtask has finished its logic."""
        return bool(self._finished)

    @property
    def _is_logic_finished(self) -> bool:
        return len(self._finished) == len(self._graph.subtasks)

    def _final_checkpoint(self, at: int) -> Effects:
        """Starts the last checkpoint once every subtask has finished its logic; its completion lets them all end."""
        busy = self.pending or self._issuing is not None or self._ending is not None
        if not self._is_logic_finished or self._released or busy or self._phase != "running":
            return []
        if at < self._final_not_before:
            return [WakeAt(self._final_not_before)]
        self._issuing = events.CheckpointRequested(at, CheckpointKind.CHECKPOINT)
        return [IssueId()]

    def _delay_final(self, at: int) -> None:
        """Delays the last checkpoint: the cause of a failure, such as unavailable storage, may persist."""
        self._final_not_before = at + max(self._settings.min_pause_ms, MIN_FINAL_RETRY_MS)

    def _on_subtask_ended(self, at: int, subtask: SubtaskId) -> Effects:
        self._ended.add(subtask)
        if subtask in self._last_snapshots:  # a subtask commits before it ends: no committable is pending
            snapshot = msgspec.structs.replace(self._last_snapshots[subtask], committables=())
            self._last_snapshots[subtask] = snapshot
        effects: Effects = []
        for checkpoint, pending in list(self.pending.items()):
            if subtask in pending.plan.wait_for and subtask not in pending.acks:
                detail = f"{self._graph.label(subtask)} ended before its snapshot"
                effects += self._fail_checkpoint(at, checkpoint, FailureReason.TASK_FINISHED_WHILE_TRIGGERED, detail)
        return effects + self._end_job(at) if len(self._ended) == len(self._graph.subtasks) else effects

    def _end_job(self, at: int) -> Effects:
        by_itself: Effects = [ResumeJob()] if self._ending is not None and self.savepoint is None else []
        return [*self._on_suspended(at, "the job has ended"), *by_itself, EndJob()]

    def _missing_subtasks(self, pending: PendingCheckpoint) -> MissingSubtasks:
        """The subtasks whose acknowledgements `pending` lacks."""
        late = pending.plan.wait_for - pending.acks.keys()
        missing = [(subtask.operator, subtask.index) for subtask in self._graph.subtasks if subtask in late]
        return missing_subtasks(missing, self._graph.downstream, self._graph.names.__getitem__)


def _fail_operation(operation: str | None, reason: FailureReason, detail: str) -> Effects:
    """The failure of `operation`; empty for a periodic checkpoint, which belongs to no operation."""
    return [] if operation is None else [CompleteOperation(operation, None, reason, detail)]
