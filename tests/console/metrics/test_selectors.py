"""The numbers of a run on a grid: from the coarsest rows that fit, with the newest from finer ones, and bounded."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.accounts.refusals import InvalidField
from console.jobs.models import Attempt, Run
from console.metrics import rollup, selectors
from console.metrics.models import Metrics, SubtaskMetrics
from console.metrics.selectors import MAX_POINTS, MAX_VALUES, choose_grid, history
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeRun

NOW = datetime(2026, 11, 23, 10, 7, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return make_run(RunState.RUNNING, token=1)


def add(run: Run, times: Iterable[datetime], operator: str = "", records: int = 50) -> None:
    """Intervals of 5 s in which `records` came."""
    numbers = {
        "records_in": records,
        "records_out": 10,
        "bytes_in": 0,
        "bytes_out": 0,
        "busy": 0.5,
        "backpressured": 0.25,
    }
    Metrics.objects.bulk_create(
        Metrics(step_s=5, run_id=run.pk, at=at, operator=operator, token=1, span_ms=5_000, **numbers) for at in times
    )


def begin_attempt(run: Run, at: datetime, deployed: datetime | None) -> None:
    launch = None if deployed is None else {"deployed": int(deployed.timestamp() * 1000)}
    Attempt.objects.create(run=run, token=2, started_at=at, launch=launch)


def every_5_s(begin: datetime, end: datetime) -> list[datetime]:
    return [begin + timedelta(seconds=5 * n) for n in range(int((end - begin).total_seconds()) // 5)]


@given(st.integers(1, 400 * 24 * 3600), st.integers(0, 900 * 24 * 3600), st.integers(0, 4_000), st.integers(1, 130))
def test_a_grid_is_the_finest_that_fits_and_is_kept(long_s: int, ago_s: int, wanted_s: int, series: int) -> None:
    """Every coarser one would show less, and each finer one has too many points, or rows that are gone."""
    end = NOW - timedelta(seconds=ago_s)
    begin = end - timedelta(seconds=long_s)
    try:
        grid = choose_grid(begin, end, wanted_s, series, NOW)
    except InvalidField:
        assert long_s / selectors.RESOLUTIONS_S[-1] > MAX_VALUES // series - 2
        return
    assert grid.begin <= begin < grid.begin + timedelta(seconds=grid.step_s)
    assert grid.end - timedelta(seconds=grid.step_s) < end <= grid.end
    assert grid.size <= MAX_POINTS
    assert grid.size * series <= MAX_VALUES
    age_s = long_s + ago_s
    for finer in selectors.RESOLUTIONS_S[: selectors.RESOLUTIONS_S.index(grid.step_s)]:
        too_many = long_s / finer > min(MAX_POINTS, MAX_VALUES // series) - 2
        is_gone = (finer < 60 and age_s > 24 * 3600) or (finer < 900 and age_s > 14 * 24 * 3600)
        assert finer < wanted_s or too_many or is_gone


@pytest.mark.django_db
def test_the_records_since_a_moment_are_counted(run: Run) -> None:
    """Of the interval in which it lies by its share, and of the asked runs only."""
    add(run, every_5_s(NOW - MINUTE, NOW))
    add(run, every_5_s(NOW - MINUTE, NOW), operator="source")

    def records_read(begin: datetime, *runs: int) -> int | None:
        return selectors.records_read(runs or [run.pk], begin, NOW, is_flowing=False)

    assert records_read(NOW - timedelta(seconds=15)) == 150
    assert records_read(NOW - timedelta(seconds=12)) == 120
    assert records_read(NOW - HOUR, run.pk, run.pk + 1) == 600
    assert records_read(NOW - MINUTE, run.pk + 1) is None
    assert records_read(NOW + MINUTE) == 0, "the clock of the master is ahead"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("age", "is_flowing", "records"),
    [
        (timedelta(seconds=30), True, 300),
        (timedelta(seconds=8), True, 80),
        (timedelta(seconds=3), True, 30),
        (timedelta(seconds=30), False, 200),
        (HOUR, True, 36_000),
    ],
)
def test_the_seconds_after_the_newest_interval_count_at_the_present_rate(
    run: Run, age: timedelta, is_flowing: bool, records: int
) -> None:
    """The restore page left out up to 10 s of reading, which the page of the job counts. Of an hour: 10 s intervals."""
    add(run, every_5_s(NOW - HOUR, NOW - timedelta(seconds=10)))
    assert selectors.records_read([run.pk], NOW - age, NOW, is_flowing=is_flowing) == records
    stale = NOW + timedelta(seconds=12)
    assert selectors.records_read([run.pk], NOW - age, stale, is_flowing=True) == max(0, records - 100 * is_flowing), (
        "the numbers are too old to count on"
    )


@pytest.mark.django_db
@pytest.mark.parametrize(("since_s", "records"), [(120, 750), (50, 150), (10, 100)])
def test_a_pause_between_two_attempts_counts_for_nothing(run: Run, since_s: int, records: int) -> None:
    """Records flow until a minute ago, and again for 15 s. The last 5 s have no interval yet."""
    add(run, every_5_s(NOW - HOUR, NOW - MINUTE))
    add(run, every_5_s(NOW - timedelta(seconds=15), NOW - timedelta(seconds=5)))
    begin_attempt(run, NOW - timedelta(seconds=50), deployed=NOW - timedelta(seconds=15))
    assert selectors.records_read([run.pk], NOW - timedelta(seconds=since_s), NOW, is_flowing=True) == records


@pytest.mark.django_db
@pytest.mark.parametrize(("deployed_s", "records"), [(3, 530), (None, 610)])
def test_the_first_seconds_of_an_attempt_count_from_its_begin(run: Run, deployed_s: int | None, records: int) -> None:
    """The whole time since the newest interval, which is of the attempt before, counted at the present rate."""
    add(run, every_5_s(NOW - HOUR, NOW - timedelta(seconds=15)))
    deployed = None if deployed_s is None else NOW - timedelta(seconds=deployed_s)
    begin_attempt(run, NOW - timedelta(seconds=11), deployed)
    assert selectors.records_read([run.pk], NOW - timedelta(seconds=65), NOW, is_flowing=True) == records
    assert selectors.records_read([run.pk], NOW - timedelta(seconds=65), NOW, is_flowing=False) == 500


@pytest.mark.django_db
def test_rates_are_per_second_of_the_time_that_the_numbers_cover(run: Run) -> None:
    """An interval in which the run stood still for half of the time has half the numbers, at the same rate."""
    add(run, every_5_s(NOW - HOUR, NOW - 30 * MINUTE))
    Metrics.objects.filter(at__gte=NOW - 35 * MINUTE).update(span_ms=2_500, records_in=25)
    grid = choose_grid(NOW - HOUR, NOW, 60, 1, NOW)
    columns = history(run, grid).run
    assert columns is not None
    rates = columns["records_in_per_s"]
    assert rates[1:30] == [10.0] * 29
    assert rates[-29:] == [None] * 29
    assert (columns["busy"][1], columns["backpressured"][1], columns["idle"][1]) == (0.5, 0.25, 0.25)


@pytest.mark.django_db
def test_the_answer_is_the_same_whatever_is_rolled_up(run: Run) -> None:
    """Rows of 15 min, of 1 min and of 5 s each stand for the part that no coarser row covers, and none counts twice."""
    add(run, every_5_s(NOW - 8 * HOUR, NOW))
    add(run, every_5_s(NOW - 8 * HOUR, NOW), "sums", records=100)
    for rolled_up in (None, NOW - 2 * HOUR, NOW - HOUR, NOW - 20 * MINUTE, NOW):
        if rolled_up:
            rollup.roll_up(rolled_up)
        for step_s in (60, 900, 3_600):
            result = history(run, choose_grid(NOW - 6 * HOUR, NOW, step_s, 2, NOW))
            assert result.run is not None
            assert set(result.run["records_in_per_s"]) == {10.0}, rolled_up
            assert set(result.operators["sums"]["records_in_per_s"]) == {20.0}, rolled_up


@pytest.mark.django_db
def test_lines_and_load_of_the_plots_are_those_of_the_history(run: Run) -> None:
    """On grids of different intervals, with rows of all steps."""
    for operator in ("", "sums"):
        add(run, every_5_s(NOW - 6 * HOUR, NOW), operator)
    rollup.roll_up(NOW - 20 * MINUTE)
    lines, cells = (choose_grid(NOW - 5 * HOUR, NOW, step_s, 1, NOW) for step_s in (120, 300))
    totals, load = selectors.plot_history([run.pk], lines, cells)
    expected = history(run, lines).run
    assert expected is not None
    assert totals == {name: expected[name] for name in totals}
    columns = history(run, cells, "sums").operators["sums"]
    assert load == {"sums": {name: columns[name] for name in ("busy", "backpressured", "idle")}}
    assert selectors.plot_history([run.pk], lines, None) == (totals, {}), "a file of the numbers has no load"
    nothing, no_load = selectors.plot_history([], lines, cells)
    assert (set(nothing["busy"]), no_load) == ({None}, {})


@pytest.mark.django_db
def test_restarts_are_those_of_the_attempts(run: Run) -> None:
    """Also of attempts that failed before they had a number."""
    for token, ago in enumerate((50, 20, 20, 5), 1):
        attempt = Attempt.objects.create(run=run, token=token)
        Attempt.objects.filter(pk=attempt.pk).update(started_at=NOW - ago * MINUTE)
    columns = history(run, choose_grid(NOW - HOUR, NOW, 600, 1, NOW)).run
    assert columns is not None
    assert columns["restarts"] == [0, 0, 0, 0, 2, 0, 1]
    assert history(run, choose_grid(NOW - 12 * MINUTE, NOW, 600, 1, NOW)).run["restarts"] == [0, 1]  # type: ignore[index]


@pytest.mark.django_db
def test_numbers_of_subtasks_come_by_operator(run: Run) -> None:
    names = {"odd__name": 1, "0": 2}
    for n in range(3):
        operators = {
            uid: {name: [n * by, n] for name in ("index", *selectors.SUBTASK_NUMBERS)} for uid, by in names.items()
        }
        SubtaskMetrics.objects.create(run_id=run.pk, at=NOW - n * HOUR / 2, token=1, operators=operators)
    for uid, by in names.items():
        subtasks = selectors.subtask_history(run, uid, NOW)
        assert subtasks.at == [NOW - HOUR, NOW - HOUR / 2, NOW]
        assert subtasks.numbers["records_in"] == [[2 * by, 2], [by, 1], [0, 0]]
    assert selectors.subtask_history(run, "unknown", NOW).at == []


@pytest.mark.django_db
@pytest.mark.parametrize("parallelism", [4, 16, 128])
def test_numbers_of_many_subtasks_are_those_of_an_hour_too(run: Run, parallelism: int) -> None:
    """They were those of 17 min at parallelism 16. The newest interval is there."""
    run.parallelism = parallelism
    operators = {"sums": {name: [1] for name in ("index", *selectors.SUBTASK_NUMBERS)}}
    times = every_5_s(NOW - 2 * HOUR, NOW)
    SubtaskMetrics.objects.bulk_create(
        SubtaskMetrics(run_id=run.pk, at=at, token=1, operators=operators) for at in times
    )
    starts = selectors.subtask_history(run, "sums", NOW).at
    assert starts[-1] == times[-1]
    assert starts[0] - (NOW - HOUR) < HOUR / 20
    assert max(after - before for before, after in pairwise(starts)) < HOUR / 20
    assert len(starts) * parallelism * len(selectors.SUBTASK_NUMBERS) <= selectors.MAX_SUBTASK_VALUES
    assert selectors.subtask_history(run, "sums", NOW, intervals=2).at == times[-2:]
