"""Operations that the job master of the run carries out: savepoint, stop, drain and cancel.

The master ends them together with the run. Operations that are still open after the run's end are ended here from the
records: the run's final state and its completed savepoints. If the records do not show the outcome, the state becomes
`unknown` and stays so, since an ended run records nothing more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from django.db.models import Q
from django.db.models.functions import Now

from console import formats
from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.selectors import RunProgress
from console.checkpoints.services import RUN_ENDED
from console.checkpoints.timed_reads import require_target_in_time
from console.jobs.models import Run
from console.metrics.live import Live
from console.operations.expected_times import ExpectedDuration
from console.operations.job_state import JobState, ending_operations, require_latest, run_conflict, with_blockers
from console.operations.kinds.job.run_outcome import end, run_error
from console.operations.labels import require_texts
from console.operations.maintenance import require_no_maintenance
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.operation_type import JobOperation, save_queued
from console.operations.params import RunParams, SavepointParams
from console.operations.preview import Confirmation, Number, savepoint_numbers
from console.operations.registry import operation_type
from console.runs import run_store
from runtime.core.job.lifecycle import FLOWING_STATES, RunAct, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkProgress:
    """A run, with the facts that the effect of an operation depends on. `committed`: up to it, output is committed."""

    run: Run
    newest: Checkpoint | None
    committed: Checkpoint | None
    expected: ExpectedDuration | None
    now: datetime

    @property
    def savepoint(self) -> str:
        """A savepoint now, with its expected size."""
        if self.newest is None or self.newest.size_bytes is None or self.run.version.is_batch:
            return "a savepoint"
        return f"a savepoint of about {formats.size(self.newest.size_bytes)}"

    @property
    def lasts(self) -> str:
        """The expected time, as a clause."""
        return f"; expected time {self.expected} ({self.expected.note})" if self.expected else ""


class DelegatedOperation(JobOperation):
    """Args:
    reached_state: final state of the run that means success.
    bulk_title, bulk_effect: texts of the page that requests it of several jobs.
    """

    due = RUN_ENDED
    reached_state: ClassVar[RunState | None] = None
    bulk_title: ClassVar[str]
    bulk_effect: ClassVar[str]

    @property
    def act(self) -> RunAct:
        return RunAct(self.kind)

    def conflict(self, state: JobState) -> Conflict | None:
        return state.run_conflict(self.act)

    def confirmation(self, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
        """`reached` holds the newest checkpoints of the run."""
        raise NotImplementedError

    def preview(self, run: Run | None, reached: RunProgress, replayed: int | None) -> tuple[Number, ...]:
        """The numbers of an operation on a streaming run whose records flow; else none. At most four queries.

        `replayed`: the records since `reached.continuable`, which a restore after a cancel would read again.
        """
        if run is None or run.version.is_batch or run.run_state not in FLOWING_STATES:
            return ()
        return tuple(self._numbers(run, reached, replayed))

    def _numbers(self, run: Run, reached: RunProgress, replayed: int | None) -> Iterator[Number]:
        raise NotImplementedError

    def effect(self, progress: BulkProgress) -> str:
        """The effect on a run for which it is possible, in a clause."""
        raise NotImplementedError

    def accept(self, row: Operation, params: RunParams) -> Operation:
        return self.delegate(row, params.run)

    def delegate(self, row: Operation, run_id: int | None) -> Operation:
        """Leaves the operation to the run's master; a cancel of an unclaimed run ends at once.

        Raises:
            Conflict: the latest run is not that with `run_id`, or its state does not allow the operation.
        """
        run = Run.objects.select_for_update(no_key=True).filter(job=row.job).order_by("-pk").first()
        require_latest(run, run_id)
        if conflict := run_conflict(run, self.act, ending_operations(run)):
            raise with_blockers(row.job, conflict)
        assert run is not None, "a job that never ran has a conflict"
        row.run = run
        if self.act is RunAct.CANCEL and run_store.cancel_in_queue(run.pk):
            row.state = OperationState.SUCCEEDED.value
            row.phase = "cancelled before it started"
            row.started_at = row.ended_at = Now()
        row.save(force_insert=True)
        if not row.is_active:
            row.refresh_from_db()  # reads the times that Postgres has set
        return row

    def advance(self, row: Operation) -> None:
        """Ends an operation that the master of an ended run has left open."""
        run = row.run
        assert run is not None, "it is written with its run"
        if self.reached_state is run.run_state:
            final = Checkpoint.objects.filter(run=run, kind=self.kind, status=Status.COMPLETED).first()
            result = {"checkpoint": final.number} if final else None
            end(row, OperationState.SUCCEEDED, phase="settled by how the run ended", result=result)
        else:
            end(row, OperationState.FAILED, error=run_error(run, f"before the {self.kind} was done"))


class SavepointTaking(DelegatedOperation):
    """A savepoint, stop or drain. It can be withdrawn until the job master begins it.

    `fires_windows`: open windows are emitted early.
    """

    params = SavepointParams
    takes_savepoint = True
    withdrawable = Q()
    fires_windows: ClassVar[bool] = False

    def _numbers(self, run: Run, reached: RunProgress, replayed: int | None) -> Iterator[Number]:
        return savepoint_numbers(self.kind, run, reached, commits=self.ends_run, fires_windows=self.fires_windows)

    def accept(self, row: Operation, params: RunParams) -> Operation:
        assert isinstance(params, SavepointParams), "its parameters"
        require_texts(params.name, params.note)
        if params.target is None:
            return super().accept(row, params)
        copy = operation_type(OperationKind.COPY)
        require_no_maintenance(copy)
        require_target_in_time(params.target)
        accepted = super().accept(row, params)
        save_queued(copy.part_of(accepted, target=params.target), "waiting for the savepoint")
        return accepted

    def withdrawal_refusal(self, row: Operation) -> str:
        if row.state == OperationState.QUEUED:
            return ""
        return f"The {row.kind} is {row.state}: only a request that no job master has begun can be withdrawn."
