"""Polls: nothing is rendered when nothing was written, only changed blocks are sent, and answers are compressed."""

import gzip
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import NEEDS_REVIEW, Checkpoint
from console.health.findings import Level
from console.health.models import JobHealth
from console.jobs.models import JobVersion, Run
from console.metrics.models import SubtaskMetrics
from console.operations.models import Operation, Schedule, Verification
from console.ui.views import jobs as job_views
from tests.console.ui import blocks, every_page, numbers, rows

AJAX = {"HX-Request": "true"}


@pytest.fixture
def running(db: None) -> Run:
    return rows.run_with_savepoint()


def paths(run: Run) -> list[str]:
    under_way = Checkpoint.objects.get(status="in_progress")
    savepoint = Checkpoint.objects.filter(kind="savepoint", status="completed").latest("number")
    return ["/jobs/", f"/jobs/{run.job_id}/", f"/jobs/{run.job_id}/checkpoints/",
            f"/jobs/{run.job_id}/checkpoints/statistics/", f"/checkpoints/{under_way.pk}/",
            "/operations/", f"/operations/{Operation.objects.get().pk}/", f"/checkpoints/{savepoint.pk}/discard/",
            f"/checkpoints/{savepoint.pk}/clone/", f"/jobs/bulk/?kind=stop&job={run.job_id}",
            f"/jobs/{run.job_id}/restore/", f"/jobs/{run.job_id}/rescale/", "/reviews/",
            f"/runs/{run.pk}/subtasks/?operator=window", f"/checkpoints/{savepoint.pk}/evidence/",
            f"/jobs/{run.job_id}/checkpoints/schedule/", f"/jobs/{run.job_id}/versions/"]  # fmt: skip


def digests(page: Any) -> str:
    return " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of revisions stands, so that a test on a slow machine does not cross its border."""
    monkeypatch.setattr("console.ui.live.revision.time.time", lambda: 0.0)


def test_a_poll_that_finds_nothing_written_reads_and_renders_nothing(
    at_console: Client, running: Run, still: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in paths(running):
        tag = at_console.get(path, headers=AJAX)["ETag"]
        with CaptureQueriesContext(connection) as queries:
            answer = at_console.get(path, headers={**AJAX, "If-None-Match": tag})
        assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", tag), path
        assert len(queries) <= 8, path
    tag = at_console.get(f"/jobs/{running.job_id}/", headers=AJAX)["ETag"]
    monkeypatch.setattr(job_views, "job_view", None)
    assert at_console.get(f"/jobs/{running.job_id}/", headers={**AJAX, "If-None-Match": f"W/{tag}"}).status_code == 304


def test_a_poll_with_blocks_that_the_page_has_no_place_for_loads_the_page(at_console: Client, running: Run) -> None:
    """At the first run of a job: plots, slots, attempts and checkpoints."""
    job = rows.job("flights-new")
    page = at_console.get(f"/jobs/{job.pk}/")
    headers = {**AJAX, "X-Blocks": digests(page)}
    assert "HX-Refresh" not in at_console.get(f"/jobs/{job.pk}/", headers=headers)
    rows.run(job, "running", live=rows.live())
    answer = at_console.get(f"/jobs/{job.pk}/", headers=headers)
    assert (answer["HX-Refresh"], answer.content) == ("true", b"")
    headers["X-Blocks"] = digests(at_console.get(f"/jobs/{job.pk}/"))
    assert "HX-Refresh" not in at_console.get(f"/jobs/{job.pk}/", headers=headers)


def test_every_page_has_a_place_for_all_blocks_of_its_polls(at_console: Client, running: Run) -> None:
    """Otherwise each poll loads the page again."""
    pages = [*paths(running), "/cluster/"]
    for path in (*pages, *every_page.pages_of_other_states().values()):
        page = at_console.get(path)
        answer = at_console.get(path, headers={**AJAX, "X-Blocks": digests(page).replace("=", "=other")})
        assert "HX-Refresh" not in answer, path


def test_whatever_is_written_is_seen_by_the_next_poll(
    at_console: Client, running: Run, still: None, transactional_db: None
) -> None:
    """Also what a job master writes without Django. Rows of one transaction share a mark, hence separate ones."""
    for table in ("weir_job", "weir_run", "weir_checkpoint", "weir_operation", "weir_attempt"):
        tag = at_console.get(f"/jobs/{running.job_id}/", headers=AJAX)["ETag"]
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET id = id WHERE id = (SELECT max(id) FROM {table})"
                           if table != "weir_operation" else "UPDATE weir_operation SET phase = 'storing'")  # fmt: skip
        answer = at_console.get(f"/jobs/{running.job_id}/", headers={**AJAX, "If-None-Match": tag})
        assert answer.status_code in (200, 204), table
        assert answer["ETag"] != tag, table


def test_only_blocks_that_changed_are_sent(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/"
    for _ in range(5):  # plots move on every 5 s, between two requests of a slow machine too
        block_digests = digests(at_console.get(path))
        nothing = at_console.get(path, headers={**AJAX, "X-Blocks": block_digests})
        if nothing.status_code == 204:
            break
    assert (nothing.status_code, nothing.content) == (204, b"")
    Operation.objects.update(phase="storing")
    changed = at_console.get(path, headers={**AJAX, "X-Blocks": block_digests})
    assert blocks.swapped(changed) - {"plots", "plot-tables"} == {"notices", "operations"}


def changed_blocks(client: Client, path: str, change: Callable[[], object]) -> tuple[int, set[str]]:
    """Status and blocks of the poll after `change`, from a page that polls and whose poll before had no content."""
    page = client.get(path)
    assert b"data-poll" in page.content, path
    block_digests = digests(page)
    assert client.get(path, headers={**AJAX, "X-Blocks": block_digests}).status_code == 204, path
    tag = client.get(path, headers={**AJAX, "X-Blocks": block_digests})["ETag"]
    change()
    answer = client.get(path, headers={**AJAX, "X-Blocks": block_digests, "If-None-Match": tag})
    return answer.status_code, blocks.swapped(answer)


@pytest.mark.django_db(transaction=True)
def test_pages_of_subtasks_reviews_schedules_checks_and_versions_follow_their_rows(
    at_console: Client, still: None
) -> None:
    run = rows.run_with_savepoint()
    numbers.backpressure(run, "join", (), timezone.now() - timedelta(seconds=30))
    job, path = run.job, f"/jobs/{run.job_id}/"
    savepoint = Checkpoint.objects.filter(kind="savepoint", status="completed").latest("number")
    newest = SubtaskMetrics.objects.latest("at")
    later = SubtaskMetrics(run_id=run.pk, at=timezone.now(), token=run.token, operators=newest.operators)
    changes = changed_blocks(
        at_console, f"/runs/{run.pk}/subtasks/?operator=window", lambda: later.save(force_insert=True)
    )
    assert changes == (200, {"subtasks"})
    assigned = Checkpoint.objects.filter(NEEDS_REVIEW).earliest("pk")
    user = User.objects.get(username="operator")
    changes = changed_blocks(
        at_console, "/reviews/", lambda: Checkpoint.objects.filter(pk=assigned.pk).update(assignee=user)
    )
    assert changes == (200, {"queue"})
    schedule: dict[str, Any] = {"every_hours": 6, "keep": 3, "name": "scheduled"}
    Schedule.objects.create(job=job, owner=user, operation="savepoint", next_at=timezone.now(), **schedule)
    missed = partial(Schedule.objects.update, missed_at=timezone.now(), missed_reason="The run was restarting.")
    assert changed_blocks(at_console, f"{path}checkpoints/schedule/", missed) == (200, {"savepoint"})
    check = rows.operation(job, "verify", "running", run=run, params={"checkpoint": savepoint.pk})

    def end_check() -> None:
        Operation.objects.filter(pk=check.pk).update(state="succeeded", ended_at=timezone.now())
        files = [["part-0", 10, "ab", "matches"]]
        Verification.objects.create(checkpoint=savepoint, operation=check, manifest_sha256="", files=files)

    changes = changed_blocks(at_console, f"/checkpoints/{savepoint.pk}/evidence/", end_check)
    assert changes == (200, {"verify", "verification", "files"})
    version = JobVersion.objects.create(job=job, number=2, parallelism=2, state="compiling")
    ready = partial(JobVersion.objects.filter(pk=version.pk).update, state="ready", graph=run.version.graph)
    assert changed_blocks(at_console, f"{path}versions/", ready) == (200, {"versions"})


def test_no_page_stops_asking_and_each_answer_names_a_pause_of_at_most_four_seconds(
    at_console: Client, running: Run
) -> None:
    """Pages of what had ended stopped for good, and showed nothing of a later review, restore or run."""
    for path in (*paths(running), *every_page.pages_of_other_states().values()):
        page = at_console.get(path)
        first = re.search(rb'data-poll="(\d+)"', page.content)
        assert first is not None, path
        answer = at_console.get(path, headers=AJAX)
        assert answer.status_code != 286, path
        unchanged = at_console.get(path, headers={**AJAX, "If-None-Match": answer["ETag"]})
        for pause_ms in (first[1], answer["X-Poll-After"], unchanged["X-Poll-After"]):
            assert 2_000 <= int(pause_ms) <= 4_000, path


@pytest.mark.django_db(transaction=True)
def test_the_page_of_a_run_and_the_list_follow_the_verdict(at_console: Client, still: None) -> None:
    run = rows.run(rows.job())
    for path, words in ((f"/runs/{run.pk}/", "Running, needs attention"), ("/jobs/", "no records from flights for")):
        verdict = rows.health(run, Level.OK, "")
        tag = at_console.get(path, headers=AJAX)["ETag"]
        silent = [["flights", "flights", (timezone.now() - timedelta(minutes=2)).isoformat()]]
        level = Level.ATTENTION if "needs" in words else Level.OK
        JobHealth.objects.update(level=level, silent_inputs=silent)
        answer = at_console.get(path, headers={**AJAX, "If-None-Match": tag})
        assert answer.status_code == 200, path
        assert words in blocks.text(answer)
        verdict.delete()


@pytest.mark.django_db(transaction=True)
def test_the_list_is_rendered_once_for_the_reports_of_an_interval(at_console: Client, still: None) -> None:
    """Each report of a job master, one a second, made the answer to each poll a full list."""
    begin = datetime.fromtimestamp(timezone.now().timestamp() // 5 * 5, UTC)
    run = rows.run(rows.job(), live_at=begin)
    tag = at_console.get("/jobs/", headers=AJAX)["ETag"]

    def status() -> int:
        return at_console.get("/jobs/", headers={**AJAX, "If-None-Match": tag}).status_code

    Run.objects.update(live=rows.live(acknowledged=3), live_at=begin + timedelta(seconds=4), lease_beat=9)
    assert status() == 304
    for changes in ({"live_at": begin + timedelta(seconds=5)}, {"live_at": begin, "state": "restarting"}):
        Run.objects.update(**changes)
        assert status() == 200, changes
    Run.objects.update(state=run.state)
    assert status() == 304


@pytest.mark.django_db(transaction=True)
def test_the_page_of_an_ended_operation_shows_that_its_run_fails_later(at_console: Client, still: None) -> None:
    run = rows.run(rows.job())
    operation = rows.operation(run.job, "start", run=run, phase="run running", result={"run": run.pk})
    path = f"/operations/{operation.pk}/"
    tag = at_console.get(path, headers=AJAX)["ETag"]
    Run.objects.update(state="failed", ended_at=timezone.now(), failure={"code": "x", "message": "the disk is full"})
    answer = at_console.get(path, headers={**AJAX, "If-None-Match": tag})
    assert answer.status_code == 200
    assert "Failed" in blocks.text(answer)


def test_the_page_of_a_job_that_has_ended_goes_on_asking_and_gets_nothing(at_console: Client, running: Run) -> None:
    Operation.objects.all().delete()
    Run.objects.update(state="stopped")
    path = f"/jobs/{running.job_id}/"
    for _ in range(5):  # plots move on every 5 s, between two requests of a slow machine too
        block_digests = digests(at_console.get(path))
        if (status := at_console.get(path, headers={**AJAX, "X-Blocks": block_digests}).status_code) == 204:
            break
    assert status == 204


def test_another_user_s_revision_is_another(at_console: Client, reading: Client, running: Run, still: None) -> None:
    path = f"/jobs/{running.job_id}/"
    assert at_console.get(path, headers=AJAX)["ETag"] != reading.get(path, headers=AJAX)["ETag"]


def test_answers_are_compressed(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/"
    for headers in ({}, AJAX):
        answer = at_console.get(path, headers={**headers, "Accept-Encoding": "gzip"})
        assert answer["Content-Encoding"] == "gzip"
        assert len(answer.content) * 4 < len(gzip.decompress(answer.content))
