"""The end of a run without a savepoint."""

from collections.abc import Iterator

from console import formats
from console.checkpoints.selectors import RunProgress
from console.jobs.models import Run
from console.metrics.live import Live
from console.operations.kinds.job.delegated import BulkProgress, DelegatedOperation
from console.operations.models import OperationKind
from console.operations.operation_type import JobButton
from console.operations.params import RunParams
from console.operations.preview import Confirmation, Number, cancel_numbers
from runtime.core.job.lifecycle import RunState


class Cancel(DelegatedOperation):
    kind = OperationKind.CANCEL
    params = RunParams
    button = JobButton(place=7, label="Cancel…", key="c", is_dangerous=True)
    message = "The cancellation was requested."
    bulk_title = "Cancel the runs"
    bulk_effect = (
        "The runs of these jobs end at once, without a savepoint. To lose no work, stop them with a savepoint instead."
    )
    ends_run = True
    goal = "canceled"
    states = (RunState.CANCELLING,)
    reached_state = RunState.CANCELED

    def _numbers(self, run: Run, reached: RunProgress, replayed: int | None) -> Iterator[Number]:
        return cancel_numbers(run, reached, replayed)

    def confirmation(self, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
        where = f"run {run.pk}" if run else "the run"
        return _batch_confirmation(where) if run and run.version.is_batch else _confirmation(run, where, reached)

    def effect(self, progress: BulkProgress) -> str:
        run, committed = progress.run, progress.committed
        name = f"run {run.pk}"
        if run.run_state is RunState.QUEUED:
            return f"{name} leaves the queue; it has not started"
        if run.version.is_batch:
            return f"{name} ends at once; no output of it is committed"
        if committed is None:
            return f"{name} ends at once; it has completed no checkpoint, so all of its work is lost"
        age = formats.duration((progress.now - committed.triggered_at).total_seconds() * 1000)
        return f"{name} ends at once; output since {committed}, {age} ago, is not committed"


def _batch_confirmation(where: str) -> Confirmation:
    return Confirmation(
        title="Cancel",
        verb="Cancel the run",
        sentences=(
            f"Spark ends the tasks of {where} at once.",
            "A run in BATCH commits its output once, at its end: no output of this run is committed.",
            "A later start reads all input again.",
        ),
        instead="To keep its work, wait until the run has finished.",
        dangerous=True,
    )


def _origin(run: Run) -> str:
    """A sentence on the snapshot that a run restored or is restoring, from which the job can continue; "" without."""
    if run.restore_checkpoint is not None:
        snapshot = run.restore_checkpoint
        is_kept = snapshot.discarded_at is None
        return f"The state that it restored is that of {snapshot}" + (
            ", which stays: a later restore can begin from it again." if is_kept else ", whose files were discarded."
        )
    return "The savepoint that it restored stays in its folder." if run.restore_path else ""


def _confirmation(run: Run | None, where: str, reached: RunProgress) -> Confirmation:
    committed = reached.committed
    lost = f"Output since {committed} is not committed." if committed else "No output of this run is committed."
    if reached.newest is None and run is not None and (origin := _origin(run)):
        back = f"This run has completed no checkpoint: its output is not committed. {origin}"
    elif reached.newest is None:
        back = "This run has completed no checkpoint: its output is not committed, and its state cannot be restored."
    elif reached.continuable is None:
        back = f"{lost} A run cannot continue from {reached.newest}."
    else:
        back = f"{lost} A restore from {reached.continuable} reads all input after it again."
        if committed is not None and committed.number > reached.continuable.number:
            back += f" The output from there to {committed} is then written a second time."
    return Confirmation(
        title="Cancel",
        verb="Cancel the run",
        sentences=(f"The subtasks of {where} end at once, without a savepoint.", back),
        instead="To lose no work, stop it with a savepoint instead.",
        gentler="stop",
        dangerous=True,
    )
