"""A savepoint of a run that continues."""

from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.selectors import RunProgress
from console.jobs.models import Run
from console.metrics.live import Live
from console.operations.kinds.job.delegated import BulkProgress, SavepointTaking
from console.operations.kinds.job.run_outcome import end
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.operation_type import JobButton
from console.operations.preview import Confirmation


class Savepoint(SavepointTaking):
    kind = OperationKind.SAVEPOINT
    button = JobButton(place=1, label="Take savepoint", key="s", asks=False)
    message = "A savepoint was requested."
    bulk_title = "Take savepoints"
    bulk_effect = "A savepoint is taken of each of these jobs, which continue to run."
    changes_run = False

    def confirmation(self, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
        return Confirmation(
            title="Take savepoint",
            sentences=(
                f"Weir takes a savepoint of {f'run {run.pk}' if run else 'the run'}, which continues to run.",
                "The savepoint contains all of its files, and retention never deletes it.",
            ),
            instead="",
            dangerous=False,
        )

    def effect(self, progress: BulkProgress) -> str:
        return f"run {progress.run.pk} takes {progress.savepoint} and continues{progress.lasts}"

    def advance(self, row: Operation) -> None:
        """Ends an operation whose master may have recorded the savepoint, but not the end of the operation."""
        run, requested_at = row.run, row.started_at or row.created_at
        assert run is not None, "it is written with its run"
        savepoints = Checkpoint.objects.filter(
            run=run, kind=Kind.SAVEPOINT, status=Status.COMPLETED, triggered_at__gte=requested_at
        ).order_by("number")
        ended = Operation.objects.filter(run=run, kind=row.kind, result__checkpoint__isnull=False)
        if last := savepoints.exclude(number__in=[each.result["checkpoint"] for each in ended if each.result]).first():
            end(row, OperationState.SUCCEEDED, phase="", result={"checkpoint": last.number})
            return
        message = f"The run ended ({run.state}) before the outcome was recorded, and no savepoint of it is on record."
        end(row, OperationState.UNKNOWN, phase="", error={"code": f"run-{run.state}", "message": message})
