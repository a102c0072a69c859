"""The pages of the fixtures agree with each other: times, figures and events of a run have one source."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from console import formats
from console.checkpoints.lanes import lanes_of
from console.checkpoints.models import Checkpoint, Kind
from console.jobs.models import Run
from console.ui.templatetags.weir import quantity
from runtime.core.checkpoint.acknowledgements import PHASES
from tests.console.ui import blocks, every_page, numbers, rows

#: The runs of the pictures by state.
RUNS: dict[str, Callable[[], Run]] = {
    "running": partial(numbers.run_with_story, "flights-delays", "running", 214),
    "slow": numbers.slow_run,
    "recovered": numbers.recovered_run,
    "failed": partial(every_page.run_in_other_state, "failed"),
}


@pytest.fixture(scope="module", params=RUNS)
def stored(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[int]:
    """The key of a run. The transaction around its rows, which all tests of the run read, also contains their own.

    The clock stands until the last of these tests has ended, so that all of them read the same pages.
    """
    now = timezone.now()
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), transaction.atomic():
        patch.setattr(timezone, "now", lambda: now)
        rows.operator_user("ada")
        yield RUNS[request.param]().pk
        transaction.set_rollback(True)


@pytest.fixture
def run(db: None, stored: int) -> Run:
    """The run of the pictures in a state."""
    return Run.objects.get(pk=stored)


def page(at_console: Client, run: Run) -> Any:
    return at_console.get(f"/jobs/{run.job_id}/").context


def test_restarts_are_the_starts_of_attempts(at_console: Client, run: Run) -> None:
    context = page(at_console, run)
    restarts = [mark.time for mark in context["timeline"].marks if mark.kind == "restart"]
    assert restarts == [attempt.started_at for attempt in run.attempts.order_by("token")[1:]]
    assert len(restarts) == context["view"].page.restarts
    failures = {cause.last for cause in context["inspector"].failures}
    assert failures == set(run.attempts.filter(outcome="failed").values_list("ended_at", flat=True))


def test_state_and_durations_in_tables_are_those_of_the_plots(at_console: Client, run: Run) -> None:
    columns = page(at_console, run)["timeline"].numbers
    completed = run.checkpoints.filter(status="completed")
    plotted = [value for value in columns["state_bytes"] if value is not None]
    periodic = completed.exclude(kind=Kind.DRAIN).latest("number")
    assert plotted[-1] == pytest.approx(periodic.size_bytes, rel=0.1)
    slowest = max(row.duration_ms or 0 for row in completed)
    assert max(value for value in columns["checkpoint_ms"] if value is not None) == slowest


def test_phases_of_the_plots_are_those_of_the_slowest_subtask_of_a_checkpoint(at_console: Client, run: Run) -> None:
    columns = page(at_console, run)["timeline"].numbers
    indexes = [at for at, took in enumerate(columns["checkpoint_ms"]) if took is not None]
    plotted = tuple(columns[f"{phase}_ms"][indexes[-1]] for phase in PHASES)
    checkpoints = run.checkpoints.filter(status="completed").only("acknowledgements")
    slowest = [max(lanes_of(row.acknowledgements, ()), key=lambda lane: lane.at_ms or 0) for row in checkpoints]
    assert plotted in [pytest.approx(lane.phases_ms, rel=0.01) for lane in slowest]


def test_rates_of_the_graph_are_those_of_the_plots(at_console: Client, run: Run) -> None:
    context = page(at_console, run)
    if not context["view"].live.flowing:
        return
    operators = context["view"].live.operators
    for column, rate in (
        ("records_in_per_s", operators["flights"].rate_out),
        ("records_out_per_s", operators["parquet"].rate_in),
    ):
        newest = [value for value in context["timeline"].numbers[column] if value is not None][-1]
        assert newest == pytest.approx(rate, rel=0.1), column
    newest = [value for value in context["timeline"].numbers["records_in_per_s"] if value is not None][-1]
    assert formats.rate(newest) == formats.rate(operators["flights"].rate_out), "the same text on the page"


def test_the_lag_at_the_top_is_that_of_the_plots(at_console: Client, run: Run) -> None:
    """The first thing to look at: how far the watermark is behind the clock."""
    response = at_console.get(f"/jobs/{run.job_id}/")
    head = blocks.live(response)["health"]
    if run.state != "running":
        assert ("<dt>Lag</dt>" in head) == (run.state == "failed"), "the lag of a failed job grows"
        return
    newest = [value for value in response.context["timeline"].numbers["processing_lag_ms"] if value is not None][-1]
    assert f"<dt>Lag</dt><dd>{quantity(formats.duration(newest))}</dd>" in head


def test_records_to_replay_are_the_rate_times_the_age_of_the_recovery_point(at_console: Client, run: Run) -> None:
    context = page(at_console, run)
    horizon = context["view"].health.horizon
    if run.state != "running":
        assert horizon is None
        return
    point = Checkpoint.objects.get(job=run.job, number=horizon.checkpoint)
    age_s = (context["now"] - point.triggered_at).total_seconds()
    assert horizon.records == pytest.approx(context["view"].live.operators["flights"].rate_out * age_s, rel=0.1)


def test_retention_keeps_as_many_checkpoints_as_the_job_wants_and_frees_what_they_wrote(
    at_console: Client, run: Run
) -> None:
    preview = at_console.get(f"/jobs/{run.job_id}/checkpoints/retention/?keep=3").context["preview"]
    assert len(preview.discarded) + len(preview.kept_checkpoints) == rows.RETAINED
    for line in preview.discarded:
        assert line.freed_bytes == pytest.approx(line.checkpoint.written_bytes, rel=0.1)
        assert line.shared_bytes > 10 * line.freed_bytes
