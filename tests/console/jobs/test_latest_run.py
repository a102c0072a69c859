"""The column with the latest run of a job, which a trigger keeps."""

import pytest

from console.jobs.models import Job, Run
from tests.console.ui import rows


def latest(job: Job) -> int | None:
    return Job.objects.values_list("latest_run", flat=True).get(pk=job.pk)


@pytest.mark.django_db
def test_a_new_run_becomes_the_latest_of_its_job_alone() -> None:
    job, other = rows.job(), rows.job(name="other")
    assert (latest(job), latest(other)) == (None, None)
    first = rows.run(job, state="stopped")
    assert (latest(job), latest(other)) == (first.pk, None)
    second = rows.run(job)
    Run.objects.filter(pk=first.pk).update(state="failed")
    assert latest(job) == second.pk


@pytest.mark.django_db
def test_a_run_with_a_lower_id_does_not_become_the_latest() -> None:
    job = rows.job()
    newest = rows.run(job)
    Run.objects.create(
        pk=newest.pk - 1, job=job, version=newest.version, parallelism=1, state="stopped", created_by=newest.created_by
    )
    assert latest(job) == newest.pk


@pytest.mark.django_db
def test_a_deleted_run_leaves_the_newest_of_the_others() -> None:
    job = rows.job()
    first, second, newest = (rows.run(job, state="stopped") for _ in range(3))
    newest.delete()
    assert latest(job) == second.pk
    first.delete()
    assert latest(job) == second.pk
    Run.objects.all().delete()
    assert latest(job) is None
