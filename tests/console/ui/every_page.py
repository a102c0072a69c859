"""Paths of every page of the console, in every state that looks different."""

from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import rows

LATE = "no acknowledgement from window-of-one-day/0, window-of-one-day/1, parquet/0 and 17 more"
FAILURE = {"code": "final", "message": "division by zero", "operator": "window", "detail": "Traceback\n  line 1"}


def pages_of_running_job(run: Run) -> dict[str, str]:
    """Path by name of the picture; adds a failed operation, a drain and a failed checkpoint to the job."""
    job = f"/jobs/{run.job_id}"
    checkpoint, operation = Checkpoint.objects.get(number=213), Operation.objects.latest("created_at")
    rows.operation(run.job, state="failed", run=run, error={"code": "expired", "message": LATE})
    rows.checkpoint(run, 215, "drain", finished_operators=[f"an-operator-{number}" for number in range(9)])
    failed = Checkpoint.objects.filter(status="failed").latest("number")
    return {
        "jobs": "/jobs/",
        "bulk": f"/jobs/bulk/?kind=stop&job={run.job_id}",
        "job": f"{job}/",
        "job-node": f"{job}/?node=window&span=6h",
        "versions": f"{job}/versions/",
        "edit": f"{job}/edit/",
        "run": f"/runs/{run.pk}/",
        "checkpoint": f"/checkpoints/{checkpoint.pk}/",
        "checkpoint-failed": f"/checkpoints/{failed.pk}/",
        "checkpoint-running": f"/checkpoints/{Checkpoint.objects.get(status='in_progress').pk}/",
        "clone": f"/checkpoints/{checkpoint.pk}/clone/",
        "state": f"/checkpoints/{checkpoint.pk}/state/?operator=window&state=state",
        "state-query": f"/state-queries/{StateQuery.objects.get(state='succeeded').pk}/",
        "state-query-running": f"/state-queries/{StateQuery.objects.get(state='running').pk}/",
        "checkpoints": f"{job}/checkpoints/?slower_than=1s",
        "compare": f"{job}/checkpoints/compare/?base=203&other=213",
        "retention": f"{job}/checkpoints/retention/?keep=3",
        "trend": f"{job}/checkpoints/trend/?days=7",
        "schedule": f"{job}/checkpoints/schedule/",
        "checkpoint-statistics": f"{job}/checkpoints/statistics/",
        "savepoint": f"{job}/savepoint/",
        "stop": f"{job}/stop/",
        "drain": f"{job}/drain/",
        "cancel": f"{job}/cancel/",
        "rescale": f"{job}/rescale/",
        "restore": f"{job}/restore/?checkpoint={checkpoint.pk - 3}",
        "evidence": f"/checkpoints/{checkpoint.pk}/evidence/",
        "reviews": "/reviews/",
        "cluster": "/cluster/",
        "operations": "/operations/",
        "operation": f"/operations/{operation.pk}/",
        "choose-pipeline": "/jobs/new/",
        "new-job": "/jobs/new/?pipeline=flights",
        "new-version": f"{job}/versions/new/",
    }


def pages_of_other_states() -> dict[str, str]:
    """Jobs that restart, have failed, have finished or never ran: their pages and the pages of their runs."""
    found: dict[str, str] = {}
    for token, state in enumerate(("restarting", "failed", "finished"), 9_000):
        failure = FAILURE if state == "failed" else None
        run = rows.run(rows.job(f"flights-{state}"), state, token=token, failure=failure)
        rows.attempts(run)
        rows.checkpoint(run, 3)
        found |= {f"job-{state}": f"/jobs/{run.job_id}/", f"run-{state}": f"/runs/{run.pk}/"}
    never = rows.job("flights-new")
    return {**found, "job-new": f"/jobs/{never.pk}/", "jobs-none": "/jobs/?q=no-such-job"}
