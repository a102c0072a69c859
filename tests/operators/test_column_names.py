"""Names that an author chooses, where they are also those of columns of our own."""

from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.messages import MAX_WATERMARK
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Aggregate, Count, CountIf, Max, Mean, Sum
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.partition import partition_by_key_group
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator, input_row_count
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import Operator
from runtime.state.files.segments import read_segment
from runtime.state.rows import segment_column_names
from tests.operators.combined import Combined
from tests.operators.harness import Harness

SIZE = 10
KEYS = ["k", "", ":", ":pane", "::pane", ":count", "::count", "n:count", "n:sum", "pane_5_ms", ":pane_5_ms", "-"]
NAMED: list[dict[str, Aggregate]] = [
    {"": Count()},
    {"": Sum("v")},
    {"": Mean("v"), ":": Sum("v"), ":n": Mean("v")},
    {"": CountIf("even"), ":": Count()},
    {"n": Mean("v"), ":n": Max("v"), ":pane": Count()},
    {"n": Count()},
]


def tumbling(keys: list[str], aggregates: dict[str, Aggregate]) -> Operator:
    return Combined(WindowPreAggregator(keys, "t", SIZE, aggregates), TumblingWindow(keys, SIZE, aggregates))


def sliding(keys: list[str], aggregates: dict[str, Aggregate]) -> Operator:
    return Combined(
        WindowPreAggregator(keys, "t", SIZE // 2, aggregates), SlidingWindow(keys, SIZE, SIZE // 2, aggregates)
    )


def running(keys: list[str], aggregates: dict[str, Aggregate]) -> Operator:
    return RunningAggregate(keys, aggregates)


def rows(keys: list[str]) -> pa.RecordBatch:
    """Two of one key, one of another, in one pane."""
    columns = {key: pa.array([number, number, number + 1]) for number, key in enumerate(keys)}
    values = {"t": pa.array([1, 2, 3]), "v": pa.array([4, 6, 9]), "even": pa.array([True, True, False])}
    return pa.record_batch({**columns, **values})


def value(aggregate: Aggregate, values: list[int]) -> Any:
    match aggregate:
        case Mean():
            return sum(values) / len(values)
        case CountIf():
            return sum(value % 2 == 0 for value in values)
        case Max():
            return max(values)
        case Sum():
            return sum(values)
    return len(values)


def expected(keys: list[str], aggregates: dict[str, Aggregate]) -> list[dict[str, Any]]:
    """Without the times."""
    return [
        {key: number + offset for number, key in enumerate(keys)}
        | {name: value(aggregate, values) for name, aggregate in aggregates.items()}
        for offset, values in [(0, [4, 6]), (1, [9])]
    ]


def _without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: cell for name, cell in row.items() if not name.startswith("window_")} for row in rows]


def columns(keys: list[str], aggregates: dict[str, Aggregate]) -> list[str]:
    """Those keys that no aggregate is called like: the output has both."""
    return [key for key in keys if key not in aggregates]


@pytest.mark.parametrize("aggregates", NAMED, ids=lambda names: " ".join(map(repr, names)))
@pytest.mark.parametrize("make", [tumbling, sliding])
def test_windows_take_any_names(make: Any, aggregates: dict[str, Aggregate]) -> None:
    """Also restored, from whole snapshots and from changes."""
    for keys in [[key] for key in columns(KEYS, aggregates)] + [columns(KEYS, aggregates)]:
        store = MemorySnapshotStore()
        before = Harness(make(keys, aggregates), store=store)
        before.process(rows(keys).slice(0, 1))
        before.snapshot("1")
        before.process(rows(keys).slice(1))
        after = Harness(make(keys, aggregates), store=store, snapshots=[before.snapshot("2")])
        after.process(rows(keys).slice(0, 0))
        after.watermark(SIZE - 1)
        fired = _without_times(after.out.rows())[-2:]  # sliding: there was one before
        assert sorted(fired, key=lambda row: row[keys[0]]) == expected(keys, aggregates)
        assert after.out.batches[0].schema.names == [*keys, "window_start", "window_end", *aggregates]
        after.process(rows(keys))
        assert after.watermark(MAX_WATERMARK) == []
        assert after.context.counters == {LATE_RECORDS_COUNTER: 3}


@pytest.mark.parametrize("aggregates", NAMED, ids=lambda names: " ".join(map(repr, names)))
def test_what_goes_to_windows_can_be_dealt_by_its_keys(aggregates: dict[str, Aggregate]) -> None:
    keys = columns(KEYS, aggregates)
    aggregator = WindowPreAggregator(keys, "t", SIZE, aggregates)
    aggregator.add(rows(keys))
    (parts,) = aggregator.flush()
    assert len(set(parts.schema.names)) == parts.num_columns
    dealt = [part for part in partition_by_key_group(parts, keys, 16, 16) if part is not None]
    assert sorted(map(input_row_count, dealt)) == [1, 2]


@pytest.mark.parametrize(
    ("make", "state", "names"),
    [
        (tumbling, "windows", ["k", "window_start", "total:sum", "mean:sum", "mean:count", "mean:carry"]),
        (sliding, "panes", ["k", "pane_5_ms", "total:sum", "mean:sum", "mean:count", "mean:carry", ":count"]),
    ],
)
def test_names_in_checkpoints_stay_what_they_were(make: Any, state: str, names: list[str]) -> None:
    """Or checkpoints could not be restored."""
    store = MemorySnapshotStore()
    harness = Harness(make(["k"], {"total": Sum("v"), "mean": Mean("v")}), store=store)
    harness.process(rows(["k"]))
    (table,) = harness.snapshot("1", full=True).keyed[state]
    assert segment_column_names(read_segment(store, table, range(16))) == names


@pytest.mark.parametrize("aggregates", NAMED, ids=lambda names: " ".join(map(repr, names)))
def test_running_aggregates_take_any_names(aggregates: dict[str, Aggregate]) -> None:
    keys, store = columns(KEYS, aggregates), MemorySnapshotStore()
    before = Harness(running(keys, aggregates), store=store)
    before.process(rows(keys).slice(0, 1))
    before.snapshot("1")
    after = Harness(running(keys, aggregates), store=store, snapshots=[before.snapshot("2")])
    assert after.process(rows(keys).slice(1)) == expected(keys, aggregates)


@pytest.mark.parametrize("key", ["window_start", "window_end", "n"])
def test_two_columns_of_one_name_in_the_output_are_refused(key: str) -> None:
    for make in (tumbling, sliding):
        with pytest.raises(JobRejected, match="output columns must differ") as error:
            make([key], {"n": Count()})
        assert error.value.code == "duplicate-column"
