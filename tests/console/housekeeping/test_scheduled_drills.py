"""Restore drills on a schedule, their misses, and the proof on the pages of the job and of the snapshot."""

import re
from datetime import datetime, timedelta
from errno import ENOSPC
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_operations, advance_rows
from console.housekeeping.scheduled_operations import run_schedules
from console.jobs.models import Job, Run
from console.operations.models import Operation, Schedule
from console.operations.schedules import next_times
from tests.console.stored import job_root
from tests.console.ui import blocks, rows


@pytest.fixture
def run(transactional_db: None) -> Run:
    return rows.run(rows.job())


def ask(api: APIClient, run: Run, kind: str, **params: Any) -> Any:
    params = {"operation": "drill", **params}
    return api.post(f"/api/v1/jobs/{run.job_id}/operations/", {"kind": kind, "params": params}, format="json")


def pass_due() -> Schedule:
    """A pass with a due schedule of drills, whose clone a worker then creates."""
    Schedule.objects.filter(operation="drill").update(next_at=timezone.now() - timedelta(seconds=5))
    run_schedules()
    advance_operations()
    return Schedule.objects.get(operation="drill")


def drill() -> Operation:
    return Operation.objects.filter(kind="drill").latest("created_at")


def end_drill(state: str) -> Operation:
    """The clone of the newest drill completes a checkpoint, unless it fails, and ends."""
    clone = Run.objects.get(pk=(drill().result or {})["run"])
    if state == "canceled":
        Checkpoint.objects.create(
            job=clone.job, run=clone, number=99, token=2, kind="checkpoint", status="completed", size_bytes=1_000,
            completed_at=clone.created_at + timedelta(milliseconds=3_400),
        )  # fmt: skip
    Run.objects.filter(pk=clone.pk).update(state=state, failure={"message": "the input is missing"})
    advance_rows()
    advance_operations()
    return drill()


def test_a_due_schedule_drills_the_newest_snapshot_that_a_run_continues_from(api: APIClient, run: Run) -> None:
    assert ask(api, run, "schedule", every_hours=24).json()["state"] == "succeeded"
    rows.checkpoint(run, 7)
    newest = rows.checkpoint(run, 8)
    rows.checkpoint(run, 9, kind="drain")
    assert pass_due().last_operation == drill()
    run_schedules()
    operation = Operation.objects.get(kind="drill")
    assert operation.params == {"checkpoint": newest.pk, "version": run.version_id, "parallelism": run.parallelism}
    assert (operation.reason, operation.requested_by) == ("Schedule of restore drills", Schedule.objects.get().owner)


def test_a_drill_that_cannot_be_requested_is_missed_with_its_reason(api: APIClient, browser: Client, run: Run) -> None:
    ask(api, run, "schedule", daily_at="03:00")
    assert pass_due().missed_reason == "The job has no snapshot from which a run can continue."
    rows.checkpoint(run, 7)
    assert pass_due().missed_reason == ""
    assert pass_due().missed_reason == "Another restore drill of this job has not ended."
    assert Operation.objects.filter(kind="drill").count() == 1
    page = browser.get(f"/jobs/{run.job_id}/checkpoints/schedule/").content.decode()
    assert "was missed. Another restore drill of this job has not ended." in page
    end_drill("canceled")
    assert pass_due().missed_reason == ""
    end_drill("canceled")
    Job.objects.filter(pk=run.job_id).update(archived_at=timezone.now())
    assert "archived" in pass_due().missed_reason


def test_a_drill_waits_for_storage_and_names_its_error(
    api: APIClient, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are copied outside the pass of the schedules, so that other schedules are served."""

    def fail(*_: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    snapshot = rows.checkpoint(run, 7)
    folders = {*job_root(run.job_id).parent.iterdir()}
    ask(api, run, "schedule", every_hours=24)
    ask(api, run, "schedule", operation="savepoint", every_hours=6)
    Schedule.objects.update(next_at=timezone.now() - timedelta(seconds=5))
    with monkeypatch.context() as full:
        full.setattr("os.link", fail)
        full.setattr("runtime.io.filesystem._chunks", fail)
        run_schedules()
        advance_operations()
        assert Operation.objects.filter(kind="savepoint").exists()
        assert (drill().state, "No space left" in drill().phase) == ("queued", True)
        snapshot.refresh_from_db()
        assert snapshot.held_by == drill().pk, "retention keeps its files"
        Operation.objects.filter(pk=drill().pk).update(created_at=timezone.now() - timedelta(minutes=31))
        advance_operations()
    assert (drill().state, "No space left" in (drill().error or {})["message"]) == ("failed", True)
    assert Checkpoint.objects.get(pk=snapshot.pk).held_by is None
    assert Job.objects.get() == run.job
    assert {*job_root(run.job_id).parent.iterdir()} == folders, "no file is left"


def test_a_job_has_a_schedule_of_each_operation(api: APIClient, run: Run) -> None:
    path = f"/api/v1/jobs/{run.job_id}/checkpoints/schedule/"
    ask(api, run, "schedule", operation="savepoint", every_hours=6)
    ask(api, run, "schedule", daily_at="03:00")
    savepoints, drills = api.get(path).json(), api.get(f"{path}?operation=drill").json()
    assert (savepoints["every_hours"], savepoints["keep"], savepoints["name"]) == (6, 7, "scheduled")
    assert (drills["daily_at"], drills["keep"], drills["name"]) == ("03:00:00", None, "")
    assert ask(api, run, "schedule", daily_at="03:00", keep=7).status_code == 422, "drills leave no savepoint"
    assert ask(api, run, "unschedule").json()["state"] == "succeeded"
    assert api.get(f"{path}?operation=drill").status_code == 404
    assert api.get(path).status_code == 200


def test_the_next_five_times_are_shown(api: APIClient, browser: Client, run: Run) -> None:
    ask(api, run, "schedule", every_hours=5)
    times = next_times(Schedule.objects.get(), 5)
    assert {after - before for before, after in pairwise(times)} == {timedelta(hours=5)}
    texts = api.get(f"/api/v1/jobs/{run.job_id}/checkpoints/schedule/?operation=drill").json()["next_times"]
    assert [datetime.fromisoformat(time) for time in texts] == times
    page = browser.get(f"/jobs/{run.job_id}/checkpoints/schedule/").content.decode()
    assert all(f"{time:%Y-%m-%d %H:%M}" in page for time in times)


def test_the_page_saves_and_removes_a_schedule_of_drills(browser: Client, run: Run) -> None:
    path = f"/jobs/{run.job_id}/checkpoints/schedule/"
    browser.post(path, {"operation": "drill", "rule": "hours", "every_hours": "12", "daily_at": "02:00"})
    assert (Schedule.objects.get().operation, Schedule.objects.get().every_hours) == ("drill", 12)
    browser.post(path, {"operation": "drill", "act": "unschedule"})
    assert not Schedule.objects.exists()


def test_job_and_snapshot_show_the_drill_that_ended_last(api: APIClient, browser: Client, run: Run) -> None:
    snapshot = rows.checkpoint(run, 7)

    def shown() -> tuple[str, str]:
        return (
            blocks.text(browser.get(f"/jobs/{run.job_id}/")),
            blocks.text(browser.get(f"/checkpoints/{snapshot.pk}/")),
        )

    assert all("No restore drill yet" in page for page in shown())
    ask(api, run, "schedule", every_hours=24)
    pass_due()
    assert end_drill("canceled").state == "succeeded"
    of_job, of_snapshot = shown()
    assert re.search(r"Proved restorable (now|\d+ s ago), took 3\.4 s, snapshot 7", of_job)
    assert re.search(r"Proved restorable (now|\d+ s ago), took 3\.4 s", of_snapshot)
    pass_due()
    assert end_drill("failed").state == "failed"
    of_job, of_snapshot = shown()
    why = r": The clone ended \(failed\) before its first checkpoint: the input is missing"
    assert re.search(r"Last restore drill failed (now|\d+ s ago), snapshot 7" + why, of_job)
    assert re.search(r"Last restore drill failed (now|\d+ s ago)" + why, of_snapshot)
