"""Queries of runs."""

from console.jobs.models import Job, Run


def latest_run(job: Job) -> Run | None:
    """The newest run of a job, with its version."""
    run = Run.objects.filter(job=job).select_related("version").order_by("-pk").first()
    if run is not None:
        run.job = job
    return run
