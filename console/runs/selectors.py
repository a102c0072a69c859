"""Queries of runs."""

from typing import Any

from django.db.models import F, QuerySet

from console.jobs.models import Job, Run

#: Jobs with annotations, which the type does not show.
FoundJobs = QuerySet[Any]


def latest_run(job: Job) -> Run | None:
    """The newest run of a job, with its version."""
    run = Run.objects.filter(job=job).select_related("version").order_by("-pk").first()
    if run is not None:
        run.job = job
    return run


def with_latest_run() -> FoundJobs:
    """All jobs, annotated with `run_pk` and `run_state` of the latest run."""
    jobs: FoundJobs = Job.objects.annotate(run_pk=F("latest_run"), run_state=F("latest_run__state"))
    return jobs
