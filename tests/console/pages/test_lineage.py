"""The runs that a snapshot was restored into, and the history of rescales."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_rows
from console.jobs.models import Attempt, Job, Run
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from console.pages.lineage import rescales_of, restored_runs
from tests.console.ui import blocks, rows


@pytest.fixture
def snapshot(db: None) -> Checkpoint:
    return rows.checkpoint(rows.run(rows.job(), "stopped"), 7)


def test_a_snapshot_lists_the_runs_that_were_restored_from_it(
    browser: Client, operator: User, snapshot: Checkpoint
) -> None:
    job = snapshot.job
    began = rows.run(job, "failed", restore_checkpoint=snapshot)
    Attempt.objects.create(run=began, token=901, outcome="failed", restored_checkpoint=snapshot)
    recovered = rows.run(job, "stopped")
    for token in (902, 903):
        Attempt.objects.create(run=recovered, token=token, outcome="failed", restored_checkpoint=snapshot)
    rows.run(job, "stopped")
    context = OperationRequestContext(user=operator)
    cloned = request(context, job, "clone", {"checkpoint": snapshot.pk, "name": "trial"}).operation.result or {}
    assert [run.pk for run in restored_runs(snapshot)] == [cloned["run"], recovered.pk, began.pk]
    page = browser.get(f"/checkpoints/{snapshot.pk}/")
    said = blocks.text(page)
    assert f"Run {began.pk} Failed at its start" in said
    assert f"Run {recovered.pk} Stopped after a failure" in said
    assert f"Run {cloned['run']} clone trial Waiting for a worker as a clone" in said
    assert f'href="/runs/{began.pk}/"' in page.content.decode()
    assert f'href="/checkpoints/{snapshot.pk}/"' in browser.get(f"/runs/{began.pk}/").content.decode()
    assert not restored_runs(rows.checkpoint(snapshot.run, 8)).exists()


def test_rescales_are_listed_with_downtime_and_outcome(browser: Client, operator: User, db: None) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 7)
    context = OperationRequestContext(user=operator)
    operation = request(context, run.job, "rescale", {"parallelism": 4}).operation
    stopped = timezone.now() - timedelta(minutes=5)
    Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=stopped)
    Operation.objects.filter(kind="stop").update(state="succeeded", ended_at=stopped)
    savepoint = rows.checkpoint(run, 8, kind="stop")
    advance_rows()
    restore = Operation.objects.get(kind="restore")
    assert (restore.run and restore.run.restore_checkpoint) == savepoint
    Operation.objects.filter(kind="restore").update(state="succeeded", ended_at=stopped + timedelta(seconds=12))
    advance_rows()
    (rescale,) = rescales_of(run.job, 10)
    assert (rescale.operation, rescale.operation.state) == (operation, "succeeded")
    assert (rescale.former, rescale.parallelism, rescale.former_version, rescale.version) == (2, 4, 1, 1)
    assert (rescale.run, rescale.downtime_ms) == (restore.run_id, 12_000)
    said = blocks.text(browser.get(f"/jobs/{run.job_id}/rescale/"))
    assert f"operator 2 → 4 1 12 s {run.pk} → {rescale.run} Succeeded" in said


def test_a_rescale_that_failed_has_its_reason(browser: Client, operator: User, db: None) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 7)
    request(OperationRequestContext(user=operator), run.job, "rescale", {"parallelism": 4})
    Operation.objects.filter(kind="stop").update(state="failed", error={"code": "x", "message": "storage is full"})
    advance_rows()
    (rescale,) = rescales_of(Job.objects.get(), 10)
    assert (rescale.run, rescale.downtime_ms, rescale.operation.state) == (None, None, "failed")
    assert "storage is full" in blocks.text(browser.get(f"/jobs/{run.job_id}/rescale/"))
