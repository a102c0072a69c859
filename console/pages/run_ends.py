"""Why a run ended, for pages and REST."""

from collections.abc import Iterable

from console.jobs.failures import NO_REASON, failure_detail
from console.jobs.models import Run
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.registry import operation_types
from runtime.access.redaction import Schema
from runtime.core.job.lifecycle import RunState


def ending_operation(run: Run) -> Operation | None:
    """The operation that ended the run; None if it runs or ended by itself. A query for runs that have ended."""
    if not run.is_terminal:
        return None
    ending = Operation.objects.filter(run=run, kind__in=_ending_kinds(), state=OperationState.SUCCEEDED)
    return ending.select_related("requested_by").order_by("-created_at").first()


def ending_of(run: Run, operations: Iterable[Operation]) -> Operation | None:
    """As `ending_operation`, of the newest `operations` of the job, newest first."""
    succeeded = (row for row in operations if row.run_id == run.pk and row.state == OperationState.SUCCEEDED)
    return next((row for row in succeeded if row.kind in _ending_kinds()), None)


def end_of_run(run: Run, ended_by: Operation | None, schema: Schema) -> str:
    """Why the run ended, in a sentence; "" while it runs. `schema` is that of the pipeline's parameters."""
    if not run.is_terminal:
        return ""
    if run.run_state is RunState.FAILED:
        return f"The run failed: {failure_detail(run.failure, run.version, schema, NO_REASON).message}"
    if ended_by is not None:
        user = ended_by.requested_by.get_username() if ended_by.requested_by else "the system"
        savepoint = (ended_by.result or {}).get("checkpoint")
        suffix = f" with savepoint {savepoint}" if savepoint else ""
        reason = f" Reason given: {ended_by.reason}" if ended_by.reason else ""
        return f"A {ended_by.kind} that {user} requested ended the run{suffix}.{reason}"
    if run.run_state is RunState.FINISHED:
        return "All inputs ended, and all output is committed."
    return f"The run was {run.state}."


def _ending_kinds() -> list[OperationKind]:
    return [each.kind for each in operation_types() if each.ends_run]
