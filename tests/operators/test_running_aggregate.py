"""The changelog of running aggregates, folded row by row, against plain Python and against their plain output."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, Count, Max, Mean, Min, Sum
from runtime.operators.partition import partition_by_key_group
from runtime.operators.running_aggregate import RunningAggregate
from tests.operators.harness import Harness

ALL: dict[str, Aggregate] = {"rows": Count(), "total": Sum("v"), "low": Min("v"), "high": Max("v"), "mean": Mean("v")}
EXTREMES: dict[str, Aggregate] = {"low": Min("v"), "high": Max("v")}
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.none() | st.integers(-9, 9)), max_size=12)

Table = dict[Any, dict[str, Any]]


def batch(rows: Sequence[tuple[str | None, int | None]]) -> pa.RecordBatch:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    return pa.record_batch({"k": pa.array(keys, pa.string()), "v": pa.array(values, pa.int64())})


def fold(table: Table, changes: list[dict[str, Any]]) -> None:
    """Applies changes as strictly as a database would: what is withdrawn must stand there, what is new must not."""
    for change in changes:
        row = {name: value for name, value in change.items() if name != "op"}
        match change["op"]:
            case "insert" | "update_after":
                assert row["k"] not in table, f"{row} is given out beside {table[row['k']]}"
                table[row["k"]] = row
            case "update_before":
                assert table.pop(row["k"], None) == row


@given(batches=st.lists(ROWS, max_size=6), aggregates=st.sampled_from([ALL, EXTREMES]))
def test_folding_the_changes_gives_the_table(
    batches: list[list[tuple[str | None, int | None]]], aggregates: dict[str, Aggregate]
) -> None:
    """S0-07: after every batch; a key is inserted once, and is not mentioned where nothing changed."""
    plain = Harness(RunningAggregate(["k"], aggregates))
    harness = Harness(RunningAggregate(["k"], aggregates, changelog=True))
    table: Table = {}
    expected: Table = {}
    for rows in batches:
        new = {row["k"]: row for row in plain.process(batch(rows))}
        changed = {key for key, row in new.items() if expected.get(key) != row}
        inserted = new.keys() - expected.keys()
        expected |= new
        changes = harness.process(batch(rows))
        assert {row["k"] for row in changes} == changed
        assert {row["k"] for row in changes if row["op"] == "insert"} == inserted
        fold(table, changes)
        assert table == expected


def test_a_key_is_withdrawn_right_before_it_comes_again() -> None:
    """S0-07: rows stand by key, so that keyed steps behind see both together."""
    harness = Harness(RunningAggregate(["k"], {"n": Count()}, changelog=True))
    harness.process(batch([("b", 1), ("a", 1)]))
    changes = harness.process(batch([("a", 1), ("c", 1), ("b", 1), ("a", 1)]))
    assert [(row["k"], row["n"], row["op"]) for row in changes] == [
        ("a", 1, "update_before"),
        ("a", 3, "update_after"),
        ("c", 1, "insert"),
        ("b", 1, "update_before"),
        ("b", 2, "update_after"),
    ]


def test_nothing_is_sent_where_nothing_changed() -> None:
    harness = Harness(RunningAggregate(["k"], EXTREMES, changelog=True))
    harness.process(batch([("a", 1), ("a", None), ("b", None)]))
    sent = len(harness.out.batches)
    assert harness.process(batch([("a", 1), ("b", None)])) == []
    assert len(harness.out.batches) == sent
    (before, after) = harness.process(batch([("b", 5)]))
    assert (before["low"], after["low"]) == (None, 5)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_keys_are_known_after_a_restore(parallelism: int) -> None:
    """S0-07, S3-20: what was given out before is withdrawn, not inserted again."""
    rows = [(f"key {number % 20}", number) for number in range(60)]
    first, table = Harness(RunningAggregate(["k"], ALL, changelog=True)), Table()
    fold(table, first.process(batch(rows)))
    snapshot = first.snapshot("chk-1")
    for index in range(parallelism):
        part = Harness(
            RunningAggregate(["k"], ALL, changelog=True),
            store=first.store, snapshots=[snapshot], index=index, parallelism=parallelism,
        )  # fmt: skip
        share = partition_by_key_group(batch(rows), ["k"], 16, parallelism)[index]
        if share is not None:
            fold(table, part.process(share))
    assert {key: row["rows"] for key, row in table.items()} == {f"key {number}": 6 for number in range(20)}


def test_a_column_may_not_be_called_like_the_one_of_the_changelog() -> None:
    RunningAggregate(["op"], {"n": Count()})
    with pytest.raises(JobRejected, match="must differ"):
        RunningAggregate(["op"], {"n": Count()}, changelog=True)


def test_what_is_no_number_stays_what_it_is() -> None:
    harness = Harness(RunningAggregate(["k"], {"total": Sum("v")}, changelog=True))
    not_a_number = pa.record_batch({"k": ["a"], "v": [float("nan")]})
    assert [row["op"] for row in harness.process(not_a_number)] == ["insert"]
    assert harness.process(not_a_number) == []


def test_a_changelog_without_aggregates_is_refused_when_the_job_is_built() -> None:
    with pytest.raises(JobRejected, match="a changelog needs at least one aggregate"):
        RunningAggregate(["k"], {}, changelog=True)


@given(batches=st.lists(ROWS, max_size=6), changelog=st.booleans())
def test_sorted_input_gives_the_last_values_once(
    batches: list[list[tuple[str | None, int | None]]], changelog: bool
) -> None:
    """S0-07, S0-10: what BATCH emits is the table to which the changes of STREAMING fold, as inserts."""
    table: Table = {}
    streaming = Harness(RunningAggregate(["k"], ALL, changelog=True))
    for rows in batches:
        fold(table, streaming.process(batch(rows)))
    sorted_rows = sorted((row for rows in batches for row in rows), key=lambda row: str(row[0]))
    harness = Harness(RunningAggregate(["k"], ALL, changelog))
    for start in range(0, len(sorted_rows), 3):
        harness.operator.process_sorted(batch(sorted_rows[start : start + 3]), harness.out)
    assert harness.out.batches == []
    last: Table = {}
    output = harness.finish()
    fold(last, output if changelog else [row | {"op": "insert"} for row in output])
    assert last == table
    assert all(row["op"] == "insert" for row in output if changelog)
