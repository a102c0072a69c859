"""Effects of an attempt on its metadata thread: ids, manifests, reports, operations, the state of the run.

Answers are posted to the mailbox of the attempt.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from runtime.core.attempt import effects, events
from runtime.core.attempt.result import AttemptFailed, Superseded, master_failure
from runtime.core.checkpoint.effects import CompleteOperation, IssueId, ReportCheckpoint, StoreManifest
from runtime.core.checkpoint.events import IdIssued, IdUnavailable, ManifestFailed, ManifestRecorded
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest
from runtime.errors import EnvironmentFailure, OperatorFailure, WeirError, is_outage
from runtime.io.logs import traceback_text
from runtime.master.config import MasterConfig
from runtime.master.delivery_backlog import DeliveryBacklog
from runtime.master.finalize import NotRecorded, Recorded, finalize_checkpoint
from runtime.master.metadata_thread import MetadataThread
from runtime.master.metrics_history import MetricsHistory
from runtime.master.output_commit import CheckpointOutput
from runtime.ports import SnapshotStore
from runtime.run_store import RunStore

log = structlog.get_logger()


class MetadataEffects:
    """Owned by the loop of an attempt.

    Args:
        restored: the state that the attempt started from.
        operations: the taken operations of the attempt, by id.
        now: milliseconds since the epoch; thread-safe, as `post` is.
        post: puts a call into the mailbox of the loop.
        handle: handles an event; called on the loop.
        on_completed: called after each completed checkpoint, on the metadata thread.
    """

    def __init__(
        self,
        config: MasterConfig,
        token: Token,
        records: RunStore,
        store: SnapshotStore,
        restored: Iterable[SubtaskRestore],
        operations: Mapping[str, events.OperationRequest],
        history: MetricsHistory,
        now: Callable[[], int],
        post: Callable[[Callable[[], None]], None],
        handle: Callable[[events.AttemptEvent], None],
        on_completed: Callable[[Manifest], None],
    ) -> None:
        self._records, self._store, self._operations, self._history = records, store, operations, history
        self._now, self._post, self._handle, self._on_completed = now, post, handle, on_completed
        self.thread = MetadataThread(
            lambda error: self._answer(events.WorkFailed(now(), AttemptFailed(f"{type(error).__name__}: {error}"))),
            call_limit_s=config.metadata_timeout_ms / 1000,
        )
        self._output = CheckpointOutput(config.job.sinks, token, restored, self.thread.pause)
        self._backlog = DeliveryBacklog(config.job.sinks)

    def perform(self, effect: effects.MetadataEffect) -> None:
        submit, records = self.thread.submit, self._records
        match effect:
            case IssueId():
                submit(self._issue_id, self._on_id, once=True)
            case StoreManifest():
                submit(partial(self._finalize, effect), partial(self._on_finalized, effect, self._now()))
            case ReportCheckpoint():
                if effect.reason not in (None, FailureReason.SUSPENDED):
                    self._history.on_failed_checkpoint()
                submit(partial(records.report_checkpoint, effect))
            case effects.ChangeState(event):
                submit(partial(records.change_state, event), self._on_state)
            case effects.TakeOperations(only_cancel):
                submit(partial(records.take_operations, only_cancel=only_cancel), self._on_operations, once=True)
            case CompleteOperation():
                self._complete_operation(effect)
            case effects.DeferOperation(operation, checkpoint):
                self._log_deferred(operation, checkpoint)
            case effects.MeasureBacklog():  # pragma: no branch  (the match is exhaustive)
                submit(self._backlog.is_too_large, self._on_backlog)

    def _answer(self, event: events.AttemptEvent) -> None:
        self._post(partial(self._handle, event))

    # ------------------------------------------------------------ checkpoints

    def _issue_id(self) -> int | None:
        """Any error fails this checkpoint only, as an unavailable database does."""
        try:
            return self._records.next_checkpoint_id()
        except EnvironmentFailure:
            raise
        except Exception as error:
            log.error("no checkpoint id", traceback=traceback_text(error))
            raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error

    def _on_id(self, answer: int | None | EnvironmentFailure) -> None:
        at = self._now()
        if answer is None:
            self._answer(events.AttemptSuperseded(at))
        elif isinstance(answer, EnvironmentFailure):
            self._answer(IdUnavailable(at, str(answer)))
        else:
            self._answer(IdIssued(at, CheckpointId(answer)))

    def _finalize(self, effect: StoreManifest) -> Recorded | NotRecorded | Superseded:
        """Finalizes a checkpoint unless its output has a problem."""
        try:
            problem = self._output.problem(effect.manifest)
        except OperatorFailure as error:  # the thread has later work, such as the answers to operations
            problem = str(error)
        if problem is not None:
            return NotRecorded(problem)
        return finalize_checkpoint(self._store, self._records, effect.manifest, effect.timings, self._now)

    def _on_finalized(
        self, effect: StoreManifest, acknowledged_at: int, result: Recorded | NotRecorded | Superseded
    ) -> None:
        """Commits output before slots are notified.

        A failed commit ends the attempt. A restore of this checkpoint, or of a later checkpoint, commits.
        """
        manifest = effect.manifest
        checkpoint = CheckpointId(manifest.checkpoint)
        match result:
            case Recorded():
                try:
                    self._output.on_recorded(manifest)
                except (WeirError, OSError) as error:
                    failed = master_failure(error, f"checkpoint {checkpoint} cannot be committed: ")
                    failed = replace(failed, damaged_file="", is_outage=is_outage(error))
                    self._answer(events.WorkFailed(self._now(), failed))
                self._post(partial(self._on_recorded, effect, acknowledged_at))
                self.thread.submit(partial(self._on_completed, manifest))
            case NotRecorded(detail):
                self._answer(ManifestFailed(self._now(), checkpoint, detail))
            case Superseded():
                self._answer(events.AttemptSuperseded(self._now()))

    def _on_recorded(self, effect: StoreManifest, acknowledged_at: int) -> None:
        """Runs on the loop."""
        manifest, now = effect.manifest, self._now()
        self._history.on_checkpoint(manifest, effect.timings, now - manifest.triggered_at, now - acknowledged_at)
        self._handle(ManifestRecorded(now, CheckpointId(manifest.checkpoint)))

    # ------------------------------------------------------------ the run

    def _on_state(self, state: object) -> None:
        if state is None:
            self._answer(events.AttemptSuperseded(self._now()))

    def _on_backlog(self, is_too_large: bool) -> None:
        self._answer(events.BacklogMeasured(self._now(), is_too_large))

    def _on_operations(self, result: list[events.OperationRequest] | None | EnvironmentFailure) -> None:
        at = self._now()
        if result is None:
            self._answer(events.AttemptSuperseded(at))
        else:
            self._answer(events.OperationsTaken(at, () if isinstance(result, EnvironmentFailure) else tuple(result)))

    def _complete_operation(self, answer: CompleteOperation) -> None:
        fields = self._operations[answer.operation].log_fields
        result = error = None
        if answer.checkpoint is not None:
            log.info("savepoint of the operation is complete", checkpoint=answer.checkpoint, **fields)
            result = {"checkpoint": answer.checkpoint}
        else:
            reason = str(answer.reason or "")
            log.warning("operation failed", reason=reason, detail=answer.detail, **fields)
            error = {"code": reason, "message": answer.detail}
        self.thread.submit(partial(self._records.complete_operation, answer.operation, result, error))

    def _log_deferred(self, operation: str, checkpoint: CheckpointId | None) -> None:
        fields = self._operations[operation].log_fields
        if checkpoint is not None:
            log.info("savepoint of the operation is complete", checkpoint=checkpoint, **fields)
        else:
            log.info("operation left to the next attempt", **fields)
