"""Rolled-up rows against a recount in Python, over passes at any time and rows that come late."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.metrics import rollup
from console.metrics.models import Metrics, RollUp

pytestmark = pytest.mark.django_db
START = datetime(2026, 11, 23, 9, 50, tzinfo=UTC)
SUMS = ("span_ms", "records_in", "records_out", "bytes_in", "bytes_out", "checkpoints", "cpu_ms")
MAXIMA = (
    "watermark",
    "processing_lag_ms",
    "in_flight_bytes",
    "state_bytes",
    "sync_ms",
    "checkpoint_ms",
    "memory_bytes",
)

Row = dict[str, Any]


@st.composite
def rows(draw: st.DrawFn) -> Row:
    maybe = st.none() | st.integers(0, 10**12)
    numbers: Row = {name: draw(st.integers(0, 10**6)) for name in SUMS}
    numbers |= {name: draw(maybe) for name in MAXIMA}
    # As a master writes them. The mean of means in 15 min is exact only if numbers without weight are the only nulls.
    eighths = {name: draw(st.integers(0, 8)) for name in ("busy", "backpressured", "skew")}
    has_records = numbers["records_in"] + numbers["records_out"] > 0
    operator = draw(st.sampled_from(["", "a"]))
    numbers["checkpoint_ms" if operator else "sync_ms"] = None  # the phases of a run belong to its longest checkpoint
    return {
        "run_id": draw(st.integers(1, 2)),
        "at": START + timedelta(seconds=5 * draw(st.integers(0, 500))),
        "operator": operator,
        "token": draw(st.integers(7, 8)),
        **numbers,
        **{name: value / 8 if name != "skew" or has_records else None for name, value in eighths.items()},
        "span_ms": draw(st.integers(1, 5_000)),
    }


def unique(rows: Iterable[Row]) -> list[Row]:
    return list({(row["run_id"], row["at"], row["operator"], row["token"]): row for row in rows}.values())


def expected(rows: list[Row], step_s: int, until: datetime) -> dict[tuple[int, datetime, str], Row]:
    groups: dict[tuple[int, datetime, str], list[Row]] = {}
    for row in rows:
        at = datetime.fromtimestamp(row["at"].timestamp() // step_s * step_s, UTC)
        if at < until:
            groups.setdefault((row["run_id"], at, row["operator"]), []).append(row)
    return {key: aggregated(group) for key, group in groups.items()}


def aggregated(group: list[Row]) -> Row:
    def mean(name: str, weight: Any) -> float | None:
        with_value = [row for row in group if row[name] is not None]
        total = sum(weight(row) for row in with_value)
        return sum(row[name] * weight(row) for row in with_value) / total if total else None

    return {
        **{name: sum(row[name] for row in group) for name in SUMS},
        **{name: max((row[name] for row in group if row[name] is not None), default=None) for name in MAXIMA},
        "busy": mean("busy", lambda row: row["span_ms"]),
        "backpressured": mean("backpressured", lambda row: row["span_ms"]),
        "skew": mean("skew", lambda row: row["records_in"] + row["records_out"]),
    }


def insert(rows: Iterable[Row]) -> None:
    Metrics.objects.bulk_create([Metrics(step_s=5, **row) for row in rows])


def equals(value: Any, reference: Any) -> bool:
    """Columns of type real have six digits."""
    if value is None or reference is None:
        return value is reference
    return math.isclose(value, reference, rel_tol=1e-5, abs_tol=1e-6)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(rows(), max_size=40).map(unique),
    st.sets(st.integers(0, 3_600), max_size=4),
    st.integers(0, 9),
)
def test_rolled_up_rows_equal_a_recount(rows: list[Row], passes: set[int], late_minutes: int) -> None:
    """Each row is inserted by the first pass `late_minutes` after its time, as after an outage of the database."""
    Metrics.objects.all().delete()
    RollUp.objects.all().delete()
    waiting = sorted(rows, key=lambda row: row["at"])
    for second in [*sorted(passes), 3_600, 7_200]:
        now = START + timedelta(seconds=second)
        come = [row for row in waiting if row["at"] + timedelta(minutes=late_minutes) <= now]
        waiting = [row for row in waiting if row not in come]
        insert(come)
        rollup.roll_up(now)
    assert waiting == []
    for step_s in rollup.STEPS_S[1:]:
        until = rollup.rolled_until(step_s)
        assert (until is None) == (not rows)
        if until is None:
            continue
        assert until >= START + timedelta(seconds=3_600)
        aggregates = expected(rows, step_s, until)
        stored = {(row.run_id, row.at, row.operator): row for row in Metrics.objects.filter(step_s=step_s)}
        assert stored.keys() == aggregates.keys()
        for key, row in stored.items():
            for name, value in aggregates[key].items():
                assert equals(getattr(row, name), value), (step_s, key, name, getattr(row, name), value)


def test_a_clock_that_was_ahead_hides_no_rows() -> None:
    """A pass of a host whose clock is a day ahead: the passes after it roll up what comes until then."""
    numbers = {"span_ms": 5_000, "records_in": 3, "records_out": 3, "bytes_in": 0, "bytes_out": 0}
    insert([{"run_id": 1, "at": START - timedelta(hours=1), "operator": "", "token": 1, **numbers}])
    rollup.roll_up(START + timedelta(days=1))
    insert([{"run_id": 1, "at": START, "operator": "", "token": 1, **numbers}])
    now = START + timedelta(minutes=30)
    rollup.roll_up(now)
    for step_s in rollup.STEPS_S[1:]:
        until = rollup.rolled_until(step_s)
        assert until is not None
        assert START < until <= now
        assert sum(row.records_in for row in Metrics.objects.filter(step_s=step_s)) == 6


def test_an_interval_that_is_not_over_is_not_rolled_up() -> None:
    numbers = {"span_ms": 5_000, "records_in": 3, "records_out": 3, "bytes_in": 0, "bytes_out": 0}
    insert([{"run_id": 1, "at": START, "operator": "", "token": 1, **numbers}])
    rollup.roll_up(START + timedelta(seconds=60) + rollup.GRACE - timedelta(seconds=1))
    assert not Metrics.objects.filter(step_s=60).exists()
    rollup.roll_up(START + timedelta(seconds=60) + rollup.GRACE)
    assert Metrics.objects.get(step_s=60).records_in == 3


def test_a_rolled_up_row_has_the_commit_of_its_longest_checkpoint() -> None:
    numbers = {"span_ms": 5_000, "records_in": 3, "records_out": 3, "bytes_in": 0, "bytes_out": 0}
    checkpoints = enumerate([(90, 80), (300, 20), (None, None), (200, 70)])
    insert(
        {"run_id": 1, "at": START + timedelta(seconds=5 * n), "operator": "", "token": 1, **numbers,
         "checkpoint_ms": lasted_ms, "commit_ms": commit_ms}
        for n, (lasted_ms, commit_ms) in checkpoints
    )  # fmt: skip
    rollup.roll_up(START + timedelta(hours=1))
    for step_s in rollup.STEPS_S[1:]:
        row = Metrics.objects.get(step_s=step_s)
        assert (row.checkpoint_ms, row.commit_ms) == (300, 20)


def test_a_rolled_up_row_has_the_phases_of_its_longest_checkpoint() -> None:
    """Rows of operators have no checkpoints: theirs are the longest phases."""
    numbers = {"span_ms": 5_000, "records_in": 3, "records_out": 3, "bytes_in": 0, "bytes_out": 0}
    for n, (lasted_ms, alignment_ms, async_ms) in enumerate([(90, 70, 5), (300, 10, 250), (None, None, None)]):
        phases = {"alignment_ms": alignment_ms, "async_ms": async_ms}
        columns = {"run_id": 1, "at": START + timedelta(seconds=5 * n), "token": 1, **numbers, **phases}
        insert([{**columns, "operator": "", "checkpoint_ms": lasted_ms}, {**columns, "operator": "window"}])
    rollup.roll_up(START + timedelta(hours=1))
    for step_s in rollup.STEPS_S[1:]:
        run, window = Metrics.objects.filter(step_s=step_s).order_by("operator")
        assert (run.alignment_ms, run.async_ms) == (10, 250)
        assert (window.alignment_ms, window.async_ms) == (70, 250)
