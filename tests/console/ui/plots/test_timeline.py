"""The plots on the page of a job: the numbers of its runs, events, the chosen interval, and the cost of a poll."""

import csv
import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from console import formats
from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.metrics.models import Metrics
from console.ui.plots.timeline import PHASES, checkpoint_phases
from tests.console.ui import blocks, numbers, rows
from tests.console.ui.story import RATE, SURGE

MAX_PAGE_BYTES = 30 * 1024  #: compressed
MAX_QUERIES = 12  #: of any page, as in `benchmarks.console`
AJAX = {"HX-Request": "true"}


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture(scope="module")
def stored(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[int]:
    """The key of a run of 30 operators with two attempts, savepoints, and 6 h of numbers.

    The transaction around its rows also contains those of each test. The clock stands until the last test has ended.
    """
    now = timezone.now()
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), transaction.atomic():
        patch.setattr(timezone, "now", lambda: now)
        run = numbers.wide_run()
        rows.attempts(run)
        rows.history(run)
        numbers.record(run)
        yield run.pk
        transaction.set_rollback(True)


@pytest.fixture
def running(db: None, stored: int) -> Run:
    return Run.objects.get(pk=stored)


def test_phases_add_up_to_the_duration_at_most() -> None:
    """Those of a subtask do, except for the clocks of different hosts."""
    columns = {f"{phase}_ms": [30.0, None, 60.0, 60.0] for phase in PHASES[:-1]}
    phases = checkpoint_phases(
        {**columns, "commit_ms": [40.0, None, 30.0, None], "checkpoint_ms": [200.0, None, 100.0, 100.0]}
    )
    assert phases["commit"] == [40.0, None, 30.0, 0.0]
    assert [phases[phase][0] for phase in PHASES[:-1]] == [30.0] * 5
    assert [phases[phase][2] for phase in PHASES[:-1]] == pytest.approx([14.0] * 5)
    assert sum(phases[phase][3] or 0 for phase in PHASES) == pytest.approx(100.0), "without a time of the commit"


@pytest.mark.parametrize("span", ["15min", "6h", "7d"])
def test_the_page_of_30_operators_stays_small(at_console: Client, running: Run, span: str) -> None:
    """The first request of a process reads all rows."""
    with CaptureQueriesContext(connection) as queries:
        page = at_console.get(f"/jobs/{running.job_id}/?span={span}")
    assert len(queries) <= MAX_QUERIES
    with CaptureQueriesContext(connection) as repeated:
        at_console.get(f"/jobs/{running.job_id}/?span={span}")
    assert len(repeated) <= 6, "rows are shared; plots, causes and states come from the cache of fragments"
    assert len(gzip.compress(page.content, 6)) <= MAX_PAGE_BYTES
    timeline = page.context["timeline"]
    assert [row.name for row in timeline.load.rows] == numbers.NAMES
    rates = [value for value in timeline.numbers["records_in_per_s"] if value is not None]
    assert 4 * RATE < max(rates) < 1.1 * 5 * RATE * (1 + SURGE), "of five sources"
    assert len(timeline.table) <= 32
    said, restored = blocks.text(page), running.attempts.latest("token").restored_checkpoint
    assert f"restarted from {restored}: {rows.LOST}" in said
    savepoint = running.checkpoints.filter(kind="savepoint", status="completed").earliest("number")
    assert f"Savepoint {savepoint.number} completed" in said


def test_the_first_page_of_a_chosen_operator_keeps_the_limit_of_queries(at_console: Client, running: Run) -> None:
    with CaptureQueriesContext(connection) as queries:
        page = at_console.get(f"/jobs/{running.job_id}/?node={numbers.UIDS[0]}&span=6h")
    assert "Subtasks" in blocks.live(page)["subtasks"]
    assert len(queries) <= MAX_QUERIES


@pytest.mark.parametrize("span", ["15min", "6h", "7d"])
def test_the_first_page_of_a_user_with_permissions_keeps_the_limit_of_queries(
    reading: Client, running: Run, span: str
) -> None:
    """Permissions take a query; a superuser has none. The plots of longer spans read how far rows are rolled up."""
    with CaptureQueriesContext(connection) as queries:
        reading.get(f"/jobs/{running.job_id}/?span={span}")
    assert len(queries) <= MAX_QUERIES


def test_a_browser_that_has_the_plots_costs_no_query_of_numbers(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/?span=7d"
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(at_console.get(path)).items())
    Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
    with CaptureQueriesContext(connection) as queries:
        changed = at_console.get(path, headers={**AJAX, "X-Blocks": digests})
    assert "graph" in blocks.swapped(changed)
    assert "plots" not in blocks.swapped(changed)
    assert not [query for query in queries if "sum(records_in)" in query["sql"]]
    rows.operation(running.job, "drain", run=running)
    assert "plots" in blocks.swapped(at_console.get(path, headers={**AJAX, "X-Blocks": digests}))


def test_a_failed_checkpoint_that_is_higher_than_the_plot_shows_its_duration(
    at_console: Client, operator: object
) -> None:
    """Its bar was cut at the frame, as if it had lasted 5 s."""
    run = numbers.run_with_story("flights-delays", "running", 214)
    late = run.checkpoints.get(reason="expired")
    ended = timezone.now() - timedelta(minutes=11)
    periodic = rows.checkpoint(
        run, 900, status="failed", reason="finalize_failed", triggered_at=ended - timedelta(seconds=75),
        completed_at=ended,
    )  # fmt: skip
    intervals = Metrics.objects.filter(run_id=run.pk, step_s=5, operator="", at__gt=ended - timedelta(seconds=5))
    intervals.filter(at__lte=ended).update(checkpoints_failed=1)
    page = at_console.get(f"/jobs/{run.job_id}/")
    (plot,) = (plot for plot in page.context["timeline"].plots_below if plot.key == "checkpoints")
    assert [(bar.about, str(bar.label)) for bar in plot.failed] == [
        ("Checkpoint 900 failed after 1 min 15 s", "1 min 15 s"),
        (f"Savepoint {late.number} expired after 1 min", "1 min"),
    ]
    assert all(0 <= bar.left < bar.right <= 101 for bar in plot.failed)
    plots, tables = blocks.live(page)["plots"], blocks.live(page)["plot-tables"]
    assert "<title>Checkpoint 900 failed after 1 min 15 s</title><rect" in plots
    assert "highest of completed" in plots
    for failed, words in ((late, f"Savepoint {late.number} expired after 1 min"), (periodic, plot.failed[0].about)):
        assert f'<a href="/checkpoints/{failed.pk}/">{words}</a>' in tables


def test_legends_have_the_highest_value_of_the_window_and_the_sum_of_failures(at_console: Client, running: Run) -> None:
    timeline = at_console.get(f"/jobs/{running.job_id}/?span=6h").context["timeline"]
    plots = {plot.key: plot for plot in (*timeline.plots_above, *timeline.plots_below)}
    for key, column in (("lag", "processing_lag_ms"), ("checkpoints", "checkpoint_ms")):
        most = max(value for value in timeline.numbers[column] if value is not None)
        assert plots[key].highest == formats.duration(most)
    legend = {series.key: str(series.newest) for series in plots["checkpoints"].series}
    assert legend["failed"] == f"{sum(value or 0 for value in timeline.numbers['checkpoints_failed'])}"
    assert legend["duration"] != str(plots["checkpoints"].highest), "the newest, not the longest"
    assert timeline.old_since is None


@pytest.mark.parametrize("state", ["failed", "restarting", "running"])
def test_a_legend_shows_no_old_number_as_that_of_the_present(
    at_console: Client, operator: object, state: str, now: datetime
) -> None:
    """S1: a job that had failed read 86 k/s. Numbers of a running job are old if its master sends none."""
    run = numbers.run_with_story("flights", state, 214)
    if state == "running":
        Metrics.objects.filter(run_id=run.pk, at__gte=now - timedelta(minutes=3)).delete()
    page = at_console.get(f"/jobs/{run.job_id}/")
    timeline = page.context["timeline"]
    newest = [str(series.newest) for plot in timeline.plots_above for series in plot.series]
    assert newest == ["–"] * len(newest)
    assert f"newest numbers {timeline.old_since:%H:%M:%S}" in blocks.text(page)


def test_an_interval_limits_the_table_of_checkpoints(at_console: Client, running: Run) -> None:
    """S2: from and to in the address, so that it works without scripts."""
    middle = Checkpoint.objects.get(number=180).triggered_at
    begin, end = ((middle + timedelta(seconds=s)).isoformat().replace("+00:00", "Z") for s in (-7, 7))
    page = at_console.get(f"/jobs/{running.job_id}/?from={begin}&to={end}")
    assert [row.number for row in page.context["view"].checkpoints.rows] == [181, 180, 179]
    assert 'id="all-checkpoints"' in page.content.decode()
    assert '<rect class="chosen"' in blocks.live(page)["plots"]


def test_the_same_numbers_as_csv(at_console: Client, running: Run) -> None:
    answer = at_console.get(f"/jobs/{running.job_id}/history.csv?span=15min")
    read = list(csv.DictReader(answer.getvalue().decode().splitlines()))
    timeline = at_console.get(f"/jobs/{running.job_id}/?span=15min").context["timeline"]
    table = dict(zip((int(datetime.fromisoformat(row["begin"]).timestamp() * 1000) for row in read), read, strict=True))
    begin, step = timeline.lines_grid
    drawn = {begin + at * step: value for at, value in enumerate(timeline.numbers["records_in_per_s"][:-6])}
    overlap = {at: value for at, value in drawn.items() if value is not None and at in table}
    assert len(overlap) > 100
    for at, value in overlap.items():
        assert float(table[at]["records_in_per_s"]) == pytest.approx(value)


def test_a_run_behind_many_newer_runs_keeps_its_plots(at_console: Client, running: Run, now: datetime) -> None:
    Run.objects.filter(pk=running.pk).update(state="stopped", ended_at=now)
    for number in range(25):
        rows.run(running.job, "stopped", created_at=now + timedelta(minutes=number), ended_at=now + timedelta(hours=1))
    page = at_console.get(f"/jobs/{running.job_id}/?span=6h&until={now.strftime('%Y-%m-%dT%H:%M:%SZ')}")
    assert any(page.context["timeline"].numbers["records_in_per_s"])


def test_a_job_without_numbers_has_words_in_place_of_plots(at_console: Client) -> None:
    run = rows.run(rows.job())
    page = at_console.get(f"/jobs/{run.job_id}/?until=2020-01-01T00:00:00Z")
    assert "No numbers of this time." in blocks.text(page)
    assert "data-timeline" not in page.content.decode()


def test_events_without_numbers_stand_above_a_sentence(at_console: Client) -> None:
    run = rows.run(rows.job(), "finished")
    rows.attempts(run)
    plots = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["plots"]
    assert "No numbers of this time." in plots
    assert 'class="mark restart"' in plots
    assert 'class="plot ' not in plots


def test_a_job_that_never_ran_has_no_plots(at_console: Client) -> None:
    assert "plots-head" not in at_console.get(f"/jobs/{rows.job().pk}/").content.decode()
