"""The rows that requests of a job's page share: as new as the last write, and the same for every user."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core.cache import caches
from django.db import connection, transaction
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.checkpoints.models import Checkpoint
from console.health.findings import Level
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from console.pages.selectors import PAGE_ROWS
from console.ui.live import job_rows
from tests.console.ui import blocks, rows

POLL = {"HX-Request": "true"}
SHARED_QUERIES = 6  #: of a poll that finds only a new report
OF_TIME = {"plots", "plot-tables", "warnings"}  #: blocks with keys of their own

WRITES: dict[str, Callable[[Run], object]] = {
    "report": lambda run: Run.objects.filter(pk=run.pk).update(live={**(run.live or {}), "unreadable": ["chk-77"]}),
    "state": lambda run: Run.objects.filter(pk=run.pk).update(state="stopping"),
    "end": lambda run: Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=timezone.now()),
    "attempt": lambda run: Attempt.objects.filter(run=run, outcome="running").update(reason="slot 2 was lost"),
    "failure": lambda run: Attempt.objects.create(
        run=run, token=run.token * 10 + 5, outcome="failed", ended_at=timezone.now(), reason="the disk is full",
    ),
    "operation": lambda run: Operation.objects.update(phase="storing"),
    "checkpoint": lambda run: Checkpoint.objects.filter(number=213).update(name="before the upgrade"),
    "progress": lambda run: Checkpoint.objects.filter(status="in_progress").update(acknowledged=9),
    "discard": lambda run: Checkpoint.objects.filter(status="completed").update(discarded_at=timezone.now()),
    "version": lambda run: JobVersion.objects.create(job=run.job, number=2, parallelism=2, state="rejected", error={}),
    "pipeline": lambda run: Pipeline.objects.update(schema={"properties": {"input": {"title": "Folder"}}}),
    "job": lambda run: Job.objects.update(runbook="https://wiki.example/other"),
    "verdict": lambda run: rows.health(run, Level.ATTENTION, "Checkpoints are slow."),
}  # fmt: skip
#: On the texts of this job: the report has newer acknowledgements than the row.
WITHOUT_EFFECT = {"progress"}


@pytest.fixture
def running(db: None) -> Run:
    return rows.run_with_savepoint()


def _forget() -> None:
    job_rows.forget_rows()
    caches["fragments"].clear()


def test_a_poll_after_a_write_brings_what_a_fresh_process_would_show(
    at_console: Client, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands: a finding that no pass has stored begins at the time of each request."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    path = f"/jobs/{running.job_id}/"
    for name, write in WRITES.items():
        _forget()
        with transaction.atomic():
            before = at_console.get(path)
            digests = " ".join(f"{block}={digest}" for block, digest in blocks.digests(before).items())
            write(running)
            poll = at_console.get(path, headers={**POLL, "X-Blocks": digests})
            contents = {**blocks.live(before), **blocks.live(poll)}
            _forget()
            reference = blocks.live(at_console.get(path))
            changed = {block for block in reference if contents.get(block) != reference[block]} - OF_TIME
            assert (name, changed) == (name, set())
            assert name in WITHOUT_EFFECT or blocks.swapped(poll) - OF_TIME, name
            transaction.set_rollback(True)


def test_a_poll_brings_the_phase_of_an_operation_that_is_older_than_those_listed(
    at_console: Client, running: Run
) -> None:
    older = rows.operation(running.job, "copy", "running", run=running, created_at=timezone.now() - timedelta(days=1))
    for _ in range(PAGE_ROWS):
        rows.operation(running.job, "verify", run=running)
    path = f"/jobs/{running.job_id}/"
    at_console.get(path)
    Operation.objects.filter(pk=older.pk).update(phase="copying files: 2.1 KiB of 1.2 MiB")
    assert "copying files: 2.1 KiB of 1.2 MiB" in at_console.get(path).text


def test_a_poll_that_finds_only_a_new_report_reads_no_other_rows(
    at_console: Client, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = f"/jobs/{running.job_id}/", timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)  # rows, plots and states are read anew after some seconds
    monkeypatch.setattr(job_rows, "age", lambda _: 0)
    at_console.get(path)
    monkeypatch.setattr(job_rows, "job_page", None)
    Run.objects.update(live={**(running.live or {}), "unreadable": ["chk-77"]}, lease_beat=F("lease_beat") + 1)
    with CaptureQueriesContext(connection) as queries:
        poll = at_console.get(path, headers=POLL)
    assert "The manifest of chk-77 cannot be read" in blocks.text(poll)
    assert len(queries) <= SHARED_QUERIES


def test_shared_rows_show_each_user_their_own_acts(at_console: Client, reading: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/"
    for client, may in ((at_console, True), (reading, False), (at_console, True)):
        contents = blocks.live(client.get(path))
        assert ('id="do-stop"' in contents["acts"]) is may
        assert ("operations.add_operation is required" in contents["refused-acts"]) is not may


def test_shared_rows_show_each_user_the_times_of_their_zone(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/"
    assert "data-tick" in blocks.live(at_console.get(path))["runs"]
    at_console.cookies["weir_zone"] = "Europe/Berlin"
    assert "data-tick" not in blocks.live(at_console.get(path))["attempts"].partition("Duration")[0]
    absolute = blocks.live(at_console.get(path))["operations"]
    del at_console.cookies["weir_zone"]
    relative = blocks.live(at_console.get(path))["operations"]
    assert absolute != relative
    assert 'data-tick="ago"' not in absolute
    assert 'data-tick="ago"' in relative


def test_a_process_keeps_the_rows_of_few_jobs(running: Run) -> None:
    entry = job_rows.MarkedRows(running.job_id, None, None).rows()
    shared = job_rows._Shared()
    for job in range(1_000):
        shared.put(job, "marks", entry)
    assert shared.get(0, "marks") is None
    assert shared.get(999, "marks") is entry
    assert shared.get(999, "others") is None
