"""A whole job that writes a changelog: what was committed, folded, is the table of results, crashes or not."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count, Max, Min, Sum
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, running
from tests.jobs.numbers import Numbers, committed, expected_counts

WINDOW_MS, GAP_MS, LAST_MS = 20, 6, 63


def changes(source: Any, output: Path, bomb: Any = None) -> Dataflow:
    """The step that fails comes behind the aggregate: changes that were sent, but not committed, are made again."""
    flow = Dataflow("changes")
    counted = flow.source("numbers", source).key_by("key").aggregate(
        "counts", {"n": Count(), "total": Sum("value")}, changelog=True
    )  # fmt: skip
    (counted if bomb is None else counted.map_batches("bomb", bomb)).sink("out", ParquetSink(str(output)))
    return flow


def chained(source: Any, output: Path, bomb: Any = None) -> Dataflow:
    """The changes of counts become changes of groups of equal counts, of which there are few."""
    flow = Dataflow("chained")
    counted = flow.source("numbers", source).key_by("key").aggregate(
        "counts", {"n": Count(), "total": Sum("value"), "high": Max("value")}, changelog=True
    )  # fmt: skip
    stream = counted.with_columns("grouped", key=pc.bit_wise_and(pc.field("n"), 3))
    groups = stream.key_by("key").aggregate(
        "groups", {"n": Count(), "total": Sum("total"), "least": Min("n"), "most": Max("high")}, changelog=True
    )  # fmt: skip
    (groups if bomb is None else groups.map_batches("bomb", bomb)).sink("out", ParquetSink(str(output)))
    return flow


def expected_groups(source: Numbers) -> dict[int, tuple[int, int, int, int]]:
    """By group: number of keys, sum of their totals, the smallest count, the largest value."""
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for n, total, high in _numbers_of_keys(source).values():
        groups.setdefault(n & 3, []).append((n, total, high))
    return {group: _summary(keys) for group, keys in groups.items()}


def _numbers_of_keys(source: Numbers) -> dict[int, tuple[int, int, int]]:
    """By key: the number of rows, their sum, the largest."""
    rows = [((v * 31 + split) % source.keys, v) for split in range(source.splits) for v in range(source.total)]
    high = dict(sorted(rows))
    return {key: (n, total, high[key]) for key, (n, total) in expected_counts(source).items()}


def _summary(keys: Sequence[tuple[int, int, int]]) -> tuple[int, int, int, int]:
    return len(keys), sum(total for _, total, _ in keys), min(n for n, _, _ in keys), max(high for _, _, high in keys)


def windowed(source: Any, output: Path, slide_ms: int | None, bomb: Any = None) -> Dataflow:
    """Keys in windows of their sums (modulo 64), which change with every row. `slide_ms` None: sessions."""
    flow = Dataflow("windowed")
    counted = flow.source("numbers", source).key_by("key").aggregate(
        "counts", {"n": Count(), "total": Sum("value"), "high": Max("value")}, changelog=True
    )  # fmt: skip
    stream = counted if bomb is None else counted.map_batches("bomb", bomb)
    key, at = (pc.bit_wise_and(pc.field("total"), bits) for bits in (1, LAST_MS))
    groups = stream.with_columns("grouped", key=key, at=at).key_by("key")
    aggregates = {"keys": Count(), "total": Sum("total"), "least": Min("n"), "most": Max("high")}
    size, gap = timedelta(milliseconds=WINDOW_MS), timedelta(milliseconds=GAP_MS)
    if slide_ms is None:
        windows = groups.session_window("windows", gap, "at", aggregates)
    else:
        windows = groups.window("windows", size, "at", aggregates, slide=timedelta(milliseconds=slide_ms))
    windows.sink("out", ParquetSink(str(output)))
    return flow


def expected_windows(source: Numbers, slide_ms: int | None) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """By group and start of the window, as `expected_groups`."""
    groups: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    sessions: dict[int, tuple[int, int]] = {}  # by group, the first and last time of its last session
    for n, total, high in sorted(_numbers_of_keys(source).values(), key=lambda row: row[1] & LAST_MS):
        group, at = total & 1, total & LAST_MS
        if slide_ms is not None:
            starts = range((at - WINDOW_MS) // slide_ms * slide_ms + slide_ms, at + 1, slide_ms)
        else:
            first, last = sessions.get(group, (at, at))
            sessions[group] = (first if at - last <= GAP_MS else at), at
            starts = range(sessions[group][0], sessions[group][0] + 1)
        for start in starts:
            groups.setdefault((group, start), []).append((n, total, high))
    return {group: _summary(keys) for group, keys in groups.items()}


def left_of(output: Path) -> dict[int, tuple[int, ...]]:
    """The table of groups that the committed rows leave behind, whatever their order."""
    rows: Counter[tuple[int, ...]] = Counter()
    for change in committed(output):
        sign = -1 if change["op"] in ("update_before", "delete") else 1
        rows[change["key"], change["n"], change["total"], change["least"], change["most"]] += sign
    left = {row: count for row, count in rows.items() if count}
    assert set(left.values()) <= {1}, f"not a table: {left}"
    assert len({row[0] for row in left}) == len(left), f"two rows of one key: {left}"
    return {row[0]: row[1:] for row in left}


def folded(output: Path) -> dict[int, tuple[int, int]]:
    """The table that the committed rows leave behind, whatever their order; a row lost or doubled would stay over."""
    rows: Counter[tuple[int, int, int]] = Counter()
    for change in committed(output):
        is_retraction = change["op"] in ("update_before", "delete")
        rows[change["key"], change["n"], change["total"]] += -1 if is_retraction else 1
    left = {row: count for row, count in rows.items() if count}
    assert set(left.values()) <= {1}, f"not a table: {left}"
    assert len({key for key, _, _ in left}) == len(left), f"two rows of one key: {left}"
    return {key: (n, total) for key, n, total in left}


def newest(output: Path) -> dict[int, tuple[int, int]]:
    """What each key has come to; counts only rise."""
    return {row["key"]: (row["n"], row["total"]) for row in sorted(committed(output), key=lambda row: row["n"])}


def test_a_bounded_job_leaves_its_table(tmp_path: Path) -> None:
    """S0-07: with many updates on the way."""
    source = Numbers(total=2_000)
    run_local(changes(source, tmp_path / "out"), parallelism=2, storage=str(tmp_path / "state"), settings=FAST)
    assert folded(tmp_path / "out") == expected_counts(source)
    assert {row["op"] for row in committed(tmp_path / "out")} == {"insert", "update_before", "update_after"}


def test_the_committed_changes_are_exact_after_a_crash_and_a_rescale(tmp_path: Path) -> None:
    """S0-07: exactly once. Twice the job fails with changes on their way, then it goes on with other subtasks."""
    output, storage, bomb, source = tmp_path / "out", tmp_path / "state", Bomb(), Gated(total=50)
    job = changes(source, output, bomb).compile(2)
    with running(job, storage, restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        for total in (100, 150):
            run.wait_for(lambda: newest(output) == expected_counts(source.numbers))
            assert folded(output) == newest(output)
            bomb.arm()
            source.total = total
        run.wait_for(lambda: newest(output) == expected_counts(source.numbers))
        savepoint = run.end("stop")
        assert sum(outcome == "failed" for _, outcome, _ in run.records.attempts) == 2
    records = MemoryRunStore(token=Token(9), restore_from=savepoint)
    numbers = Numbers(total=200)
    run_local(changes(numbers, output), parallelism=3, storage=str(storage), settings=FAST, records=records)
    assert records.state is RunState.FINISHED
    assert folded(output) == expected_counts(numbers)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_an_aggregate_of_a_changelog_is_exact_after_a_crash_and_a_rescale(
    tmp_path: Path, before: int, after: int
) -> None:
    """S0-07: keys move between groups with every row, and groups lose all their keys."""
    output, storage, bomb, source = tmp_path / "out", tmp_path / "state", Bomb(), Gated(total=50)
    job = chained(source, output, bomb).compile(before)
    with running(job, storage, restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: left_of(output) == expected_groups(source.numbers))
        bomb.arm()
        source.total = 101
        run.wait_for(lambda: left_of(output) == expected_groups(source.numbers))
        savepoint = run.end("stop")
        assert [outcome for _, outcome, _ in run.records.attempts].count("failed") == 1
    records = MemoryRunStore(token=Token(9), restore_from=savepoint)
    numbers = Numbers(total=203)
    run_local(chained(numbers, output), parallelism=after, storage=str(storage), settings=FAST, records=records)
    assert records.state is RunState.FINISHED
    assert left_of(output) == expected_groups(numbers)
    assert {row["op"] for row in committed(output)} == {"insert", "update_before", "update_after", "delete"}


@pytest.mark.parametrize("slide_ms", [WINDOW_MS, WINDOW_MS // 4, None], ids=["tumbling", "sliding", "session"])
def test_windows_of_a_changelog_are_exact_after_a_crash_and_a_rescale(
    tmp_path: Path, slide_ms: int | None, jobs: Jobs
) -> None:
    """S0-07: keys move between windows and groups with every row; the windows fire at the end of the input."""
    output, storage, bomb, source = tmp_path / "out", tmp_path / "state", Bomb(), Gated(total=50)
    job = windowed(source, output, slide_ms, bomb).compile(2)
    with jobs.running(job, storage, restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) == 4 * 50)
        run.checkpoints(1)
        bomb.arm()
        source.total = 101
        run.wait_for(lambda: [outcome for _, outcome, _ in run.records.attempts].count("failed") == 1)
        run.checkpoints(1)
        savepoint = run.end("stop")
    assert committed(output) == []
    records = MemoryRunStore(token=Token(9), restore_from=savepoint)
    numbers = Numbers(total=203)
    jobs.run_to_end(windowed(numbers, output, slide_ms).compile(3), storage, records)
    fired = {
        (row["key"], round(row["window_start"].replace(tzinfo=UTC).timestamp() * 1_000)): (
            row["keys"], row["total"], row["least"], row["most"]
        )
        for row in committed(output)
    }  # fmt: skip
    assert len(fired) == len(committed(output))
    assert fired == expected_windows(numbers, slide_ms)
