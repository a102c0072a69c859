"""A whole job that writes a changelog: what was committed, folded, is the table of results, crashes or not."""

from collections import Counter
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
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, running
from tests.jobs.numbers import Numbers, committed, expected_counts


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
    rows = [((v * 31 + split) % source.keys, v) for split in range(source.splits) for v in range(source.total)]
    high = {key: max(v for k, v in rows if k == key) for key, _ in rows}
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for key, (n, total) in expected_counts(source).items():
        groups.setdefault(n & 3, []).append((n, total, high[key]))
    return {
        group: (len(keys), sum(total for _, total, _ in keys), min(n for n, _, _ in keys), max(h for _, _, h in keys))
        for group, keys in groups.items()
    }


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
