"""The list of operations and the page of one."""

import csv
import re
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from console.accounts.models import User
from console.operations.models import Operation
from tests.console.ui import blocks, rows

POLL = {"HX-Request": "true"}


def test_operations_are_listed_across_jobs(at_console: Client, operator: User) -> None:
    rows.operation(rows.job("alpha"), "drain", "running", requested_by=operator, reason="end of the year")
    rows.operation(rows.job("beta"), "savepoint", "failed", error={"code": "expired", "message": "Nobody answered."})
    response = at_console.get("/operations/")
    said = blocks.text(response)
    assert "Drain alpha In progress operator end of the year" in said
    assert "Savepoint beta Failed Nobody answered." in said
    assert at_console.get("/operations/", headers=POLL).status_code == 200


def test_no_operation_is_lost_between_pages(at_console: Client) -> None:
    """Operations that are written by a single statement have the same time."""
    job, now = rows.job(), timezone.now()
    ids = {rows.operation(job, created_at=now).pk for _ in range(45)}
    pks: list[Any] = []
    query: dict[str, str] = {}
    for _ in range(3):
        page = at_console.get("/operations/", query).context["operations"]
        pks += [row.pk for row in page.rows]
        query = {"before": str(page.older)}
    assert (len(pks), set(pks), page.older) == (45, ids, None)
    assert at_console.get("/operations/", {"before": "2026-01-01"}).context["operations"].first


def test_an_operation_shows_phase_progress_and_what_is_usual(at_console: Client, operator: User) -> None:
    job = rows.job()
    numbers = rows.live() | {"checkpoint": {"number": 215, "acknowledged": 3, "subtasks": 10, "kind": "savepoint"}}
    run = rows.run(job, live=numbers)
    rows.operation(job, "savepoint")
    phase = "waiting_for_acknowledgements"
    operation = rows.operation(job, "savepoint", "running", run=run, phase=phase, requested_by=operator)
    response = at_console.get(f"/operations/{operation.pk}/")
    said = blocks.text(response)
    assert "Waiting for acknowledgements: 3 of 10 subtasks have acknowledged." in said
    assert "Expected time: 2.0 s ; as the last savepoint of this job." in said
    assert '<progress value="3" max="10"' in response.content.decode()
    assert at_console.get(f"/operations/{operation.pk}/", headers=POLL).status_code == 200


def test_a_finished_operation_leads_to_its_checkpoint(at_console: Client) -> None:
    job = rows.job()
    checkpoint = rows.checkpoint(rows.run(job), 208, kind="savepoint")
    operation = rows.operation(job, "savepoint", result={"checkpoint": 208})
    response = at_console.get(f"/operations/{operation.pk}/")
    assert f'href="/checkpoints/{checkpoint.pk}/"' in response.content.decode()


def test_a_failed_operation_says_what_happened(at_console: Client) -> None:
    error = {"code": "expired", "message": "Savepoint 31 was not acknowledged by window (1) within 60 s."}
    operation = rows.operation(rows.job(), "savepoint", "failed", error=error)
    assert "not acknowledged by window (1) within 60 s. expired" in blocks.text(
        at_console.get(f"/operations/{operation.pk}/")
    )


def test_an_outcome_that_stays_unknown_says_what_is_known_and_is_not_watched(at_console: Client) -> None:
    error = {"code": "run-failed", "message": "The run ended (failed) before the outcome was recorded."}
    operation = rows.operation(rows.job(), "savepoint", "unknown", error=error, ended_at=timezone.now())
    path = f"/operations/{operation.pk}/"
    said = blocks.text(at_console.get(path))
    assert "before the outcome was recorded." in said
    assert "The outcome stays unknown" in said
    assert "reconciling" not in said, "nothing reads the row again"


def test_a_restore_is_told_in_the_words_of_the_job_not_in_ids(at_console: Client) -> None:
    first = rows.run(rows.job(), "stopped")
    checkpoint = rows.checkpoint(first, 845, kind="stop")
    run = rows.run(first.job, parallelism=3, restore_checkpoint=checkpoint)
    params = {"checkpoint": checkpoint.pk, "version": run.version_id, "parallelism": 3, "accept_repeated_output": True}
    operation = rows.operation(first.job, "restore", run=run, params=params, result={"run": run.pk})
    said = blocks.text(at_console.get(f"/operations/{operation.pk}/"))
    assert "From savepoint 845 Into version 1, parallelism 3 Accept repeated output True" in said
    assert f"Checkpoint {checkpoint.pk}" not in said
    assert "{" not in said


def test_operations_are_filtered_and_exported(at_console: Client, operator: User) -> None:
    alpha, beta = rows.job("alpha"), rows.job("beta")
    rows.operation(alpha, "drain", requested_by=operator, reason="end, of the year")
    rows.operation(beta, "savepoint", "failed", error={"code": "expired", "message": "Nobody answered."})

    def kinds(**query: str) -> list[str]:
        return [row.kind for row in at_console.get("/operations/", query).context["operations"].rows]

    assert kinds(kind="drain") == kinds(q="alp") == kinds(q="year") == kinds(user="operator") == ["drain"]
    assert kinds(state="failed") == ["savepoint"]
    assert "No operation matches." in blocks.text(at_console.get("/operations/", {"kind": "stop"}))
    exported = at_console.get("/operations/", {"kind": "drain", "format": "csv"})
    header, row = csv.reader(exported.getvalue().decode().splitlines())
    assert dict(zip(header, row, strict=True))["reason"] == "end, of the year"
    assert exported.headers["Content-Type"].startswith("text/csv")


def test_the_outcome_of_a_start_follows_its_run(at_console: Client) -> None:
    now = timezone.now()
    run = rows.run(rows.job(), "failed", started_at=now - timedelta(seconds=63), ended_at=now - timedelta(seconds=60))
    operation = rows.operation(run.job, "start", run=run, result={"run": run.pk})
    assert f"run {run.pk} Failed after 3.0 s" in blocks.text(at_console.get("/operations/"))
    said = blocks.text(at_console.get(f"/operations/{operation.pk}/"))
    assert "The run started, then it ended after 3.0 s: Failed" in said


def test_a_request_is_withdrawn_until_a_master_begins_it(at_console: Client, reading: Client) -> None:
    run = rows.run(rows.job())
    operation = rows.operation(run.job, "savepoint", "queued", run=run)
    path = f"/operations/{operation.pk}/"
    assert "Withdraw the request" in blocks.text(at_console.get(path))
    assert "Withdraw the request" not in blocks.text(reading.get(path))
    assert "You may not operate jobs" in blocks.text(reading.post(f"{path}withdraw/", follow=True))
    assert "The request is withdrawn." in blocks.text(at_console.post(f"{path}withdraw/", follow=True))
    operation.refresh_from_db()
    assert (operation.state, operation.error["code"]) == ("failed", "withdrawn")  # type: ignore[index]
    begun = rows.operation(run.job, "stop", "running", run=run)
    said = blocks.text(at_console.post(f"/operations/{begun.pk}/withdraw/", follow=True))
    assert "The stop is running: only a request that no job master has begun can be withdrawn." in said
    begun.refresh_from_db()
    assert begun.state == "running"


def test_a_rollback_can_be_withdrawn_until_its_restore_begins(at_console: Client, operator: User) -> None:
    """The page names the consequence, and a poll removes the button."""
    run = rows.run(rows.job())
    rollback = rows.operation(run.job, "rollback", "running", run=run, requested_by=operator, ended_at=None)
    rows.operation(run.job, "stop", "running", run=run, part_of=rollback)
    path = f"/operations/{rollback.pk}/"
    page = at_console.get(path)
    assert f"The stop of run {run.pk} goes on, and nothing is restored after it." in blocks.text(page)
    assert f"weir withdraw {rollback.pk}" in blocks.text(page)
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    rows.operation(run.job, "restore", "running", run=run, part_of=rollback)
    answer = at_console.get(path, headers={**POLL, "X-Blocks": digests})
    assert blocks.swapped(answer) == {"operation", "withdraw"}
    assert "The rollback has begun the restore: cancel the new run instead." in blocks.live(answer)["withdraw"]
    said = blocks.text(at_console.post(f"{path}withdraw/", follow=True))
    assert "The rollback has begun the restore: cancel the new run instead." in said


def test_an_operation_shows_its_phases_also_after_its_end(at_console: Client) -> None:
    """S4: requested, taken, each step and the end, with times; a change that took effect at once has none."""
    run, now = rows.run(rows.job()), timezone.now()
    checkpoint = rows.checkpoint(run, 208, kind="savepoint", triggered_at=now - timedelta(seconds=8), duration_ms=3_000)
    times = {"created_at": now - timedelta(seconds=10), "started_at": now - timedelta(seconds=9)}
    operation = rows.operation(run.job, "savepoint", "running", run=run, phase="asked", ended_at=None, **times)
    path = f"/operations/{operation.pk}/"
    assert [phase.label for phase in at_console.get(path).context["phases"]] == ["Requested", "Taken by the job master"]
    Operation.objects.update(state="succeeded", phase="", result={"checkpoint": 208}, ended_at=now)
    page = at_console.get(path)
    assert [phase.label for phase in page.context["phases"]] == [
        "Requested", "Taken by the job master", "Savepoint 208 triggered", "Savepoint 208 completed", "Succeeded",
    ]  # fmt: skip
    said = blocks.text(page)
    assert f"Savepoint 208 triggered {checkpoint.triggered_at:%Y-%m-%d %H:%M:%S.}" in said, "and milliseconds"
    assert page.context["phases"][-1].until is None, "the end does not last"
    assert re.search(r"Savepoint 208 triggered [^a-z]+ \d+ s ago 3\.0 s Savepoint 208 completed", said)
    clone = rows.operation(run.job, "drill", phase="waiting for a worker")
    labels = [phase.label for phase in at_console.get(f"/operations/{clone.pk}/").context["phases"]]
    assert labels == ["Requested", "Started", "Succeeded"], "a phase that the trigger stored after the end is none"
    instant = rows.operation(run.job, "pin", created_at=now, started_at=now, ended_at=now)
    assert at_console.get(f"/operations/{instant.pk}/").context["phases"] == ()
