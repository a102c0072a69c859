"""Gaps of the plots: times without numbers in which a run was up, as bands, in the tables and in the CSV."""

import csv
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.jobs.models import Run
from console.metrics.gaps import RunTime, find_gaps
from console.metrics.models import Metrics
from console.ui.plots.gaps import draw_gaps
from console.ui.plots.window import SPANS, Window
from tests.console.ui import blocks, numbers, rows

END = datetime(2026, 11, 23, 12, tzinfo=UTC)
WINDOW = Window(SPANS[0], END - SPANS[0].length, END, is_moving=True)
SIZE = WINDOW.lines.size


def test_a_gap_is_a_time_of_a_run_without_numbers() -> None:
    begin, step = WINDOW.lines.begin, WINDOW.lines.step_s
    values = [None if 20 <= at < 80 or at < 5 else 1.0 for at in range(SIZE)]
    runs = [RunTime(1, begin + timedelta(seconds=10 * step), None)]
    (gap,) = draw_gaps(find_gaps(values, runs, WINDOW.lines, END), WINDOW)
    assert (gap.begin - begin, gap.end - begin) == (timedelta(seconds=20 * step), timedelta(seconds=80 * step))
    assert gap.left == pytest.approx(100 * 20 / SIZE, abs=0.01)
    assert gap.width == pytest.approx(100 * 60 / SIZE, abs=0.01)
    assert gap.has_label
    assert find_gaps(values, [RunTime(1, None, None)], WINDOW.lines, END) == (), "the run has not started"
    ended = [RunTime(1, begin, begin + timedelta(seconds=20 * step))]
    assert [gap.begin for gap in find_gaps(values, ended, WINDOW.lines, END)] == [begin]


def test_numbers_on_their_way_are_no_gap() -> None:
    values = [None if at >= SIZE - 5 else 1.0 for at in range(SIZE)]
    runs = [RunTime(1, WINDOW.begin, None)]
    gaps = find_gaps(values, runs, WINDOW.lines, END)
    assert [END - gap.end for gap in gaps] == [timedelta(seconds=15)]
    assert find_gaps(values, runs, WINDOW.lines, END - timedelta(seconds=15)) == ()


@pytest.fixture
def silent(db: None) -> Run:
    """A run whose numbers of four minutes are missing."""
    run = rows.run(rows.job())
    rows.attempts(run)
    numbers.record(run)
    now = timezone.now()
    Metrics.objects.filter(at__gte=now - timedelta(minutes=9), at__lt=now - timedelta(minutes=5)).delete()
    return run


def test_the_page_and_the_csv_mark_the_gap(at_console: Client, silent: Run) -> None:
    page = at_console.get(f"/jobs/{silent.job_id}/")
    gaps = page.context["timeline"].gaps
    (gap,) = (gap for gap in gaps if gap.has_label)
    assert gap.end - gap.begin == pytest.approx(timedelta(minutes=4), abs=timedelta(seconds=10))
    live = blocks.live(page)
    assert live["plots"].count("gap-label") == 4, "a label in each plot of lines or bars"
    assert live["plots"].count('<rect class="gap"') == 5 * len(gaps), "and a band in the heat map"
    assert live["plots"].index('<pattern id="no-numbers"') < live["plots"].index('class="plot-row"'), "for all rows"
    assert '<td colspan="6" class="muted">no numbers</td>' in live["plot-tables"]
    assert (
        f"{gap.begin:%b} {gap.begin.day}, {gap.begin:%H:%M:%S} to {gap.end:%H:%M:%S}</span> no numbers"
        in live["plot-tables"]
    )
    answer = at_console.get(f"/jobs/{silent.job_id}/history.csv")
    marked = [row for row in csv.DictReader(answer.getvalue().decode().splitlines()) if row["gap"] == "no numbers"]
    assert all(row["records_in_per_s"] == "" for row in marked)
    assert abs(len(marked) - 48) <= 3, "intervals of 5 s"
