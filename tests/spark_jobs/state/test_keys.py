"""Which part of a state a filter on a key reads: the key group of the key, as the runtime computes it, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, In

from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot
from runtime.io.filesystem import FileStore
from runtime.state.index.hashing import key_groups
from runtime.state.object_table import ObjectTable
from spark_jobs.savepoints.state_tables import write_table
from spark_jobs.state.keys import MAX_KEY_COMBINATIONS
from spark_jobs.state.rows import (
    PARTITION_BYTES,
    OpenedCheckpoint,
    arrow_type,
    find_state,
    open_checkpoint,
    partitions_by_size,
)
from spark_jobs.state.source import GroupPartition, StateReader, StateSource
from tests.spark_jobs.savepoints.stored_savepoint import MAX_PARALLELISM, Stored, store_savepoint

COUNT = 400
MOMENT = datetime(2013, 1, 2, 3, tzinfo=UTC)
NUMBERS = pa.RecordBatch.from_pydict({
    "name": [f"name {number}" for number in range(COUNT)],
    "number": pa.array(range(COUNT), pa.int16()),
    "pane": pa.array([number % 3 for number in range(COUNT)], pa.int64()),
    "total": pa.array(range(COUNT), pa.int64()),
})  # fmt: skip


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    states = {("counts", "totals"): Stored(NUMBERS, ["name", "number"], ["pane"])}
    return store_savepoint(tmp_path_factory.mktemp("state") / "7", states, parallelism=4)


def reader_of(path: Path, operator: str, state: str, count: int = 8) -> StateReader:
    opened = open_checkpoint(str(path))
    return StateReader(find_state(opened, operator, state), count)


def ranges_of(reader: StateReader, filters: Sequence[Filter] = ()) -> list[tuple[range, ...]]:
    assert list(reader.narrow(list(filters))) == list(filters), "Spark checks every filter"
    return [part.ranges for part in reader.partitions() if isinstance(part, GroupPartition)]


def group_of(row: int) -> int:
    return int(key_groups(NUMBERS.slice(row, 1), ["name", "number"], MAX_PARALLELISM)[0])


def test_a_whole_key_is_read_from_its_group_and_its_file(savepoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, read = reader_of(savepoint, "counts", "totals"), list[str]()
    filters = [EqualTo(("name",), "name 12"), EqualNullSafe(("number",), 12), GreaterThan(("total",), 3)]
    group = group_of(12)
    assert ranges_of(reader, filters) == [(range(group, group + 1),)]
    for name in ("get", "get_range"):
        plain = getattr(FileStore, name)

        def noted(store: FileStore, path: str, *arguments: Any, plain: Any = plain) -> Any:
            read.append(path)
            return plain(store, path, *arguments)

        monkeypatch.setattr(FileStore, name, noted)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["total"] for row in rows if (row["name"], row["number"]) == ("name 12", 12)] == [12]
    assert {row["key_group"] for row in rows} == {group}
    assert len(set(read)) == 1, "one of four subtasks has the key"


def test_values_in_a_list_are_read_from_their_groups(savepoint: Path) -> None:
    reader = reader_of(savepoint, "counts", "totals")
    parts = ranges_of(reader, [In(("name",), ("name 1", "name 2")), In(("number",), (1, 2))])
    groups = [each.start for part in parts for each in part]
    assert groups == sorted(groups)
    assert {group_of(1), group_of(2)} <= set(groups)
    assert len(groups) <= 4, "of all combinations"


@pytest.mark.parametrize(
    "filters",
    [
        [],
        [EqualTo(("name",), "name 1")],  # the other column may have any value
        [EqualTo(("number",), 1), EqualTo(("pane",), 1)],  # a window does not decide the group
        [EqualTo(("name",), "name 1"), EqualTo(("number",), "x")],  # no number
        [EqualTo(("name",), "name 1"), In(("number",), tuple(range(MAX_KEY_COMBINATIONS + 1)))],
        [EqualTo(("outer", "name"), "name 1"), EqualTo(("number",), 1)],
    ],
)
def test_what_is_no_whole_key_reads_everything(savepoint: Path, filters: list[Filter]) -> None:
    ranges = ranges_of(reader_of(savepoint, "counts", "totals"), filters)
    assert [group for part in ranges for each in part for group in each] == list(range(MAX_PARALLELISM))


def test_a_key_and_a_range_of_key_groups_that_exclude_each_other_read_nothing(savepoint: Path) -> None:
    filters = [EqualTo(("name",), "name 1"), EqualTo(("number",), 1), GreaterThan(("key_group",), group_of(1))]
    assert ranges_of(reader_of(savepoint, "counts", "totals"), filters) == [()]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (pa.array([7], pa.int8()), 7),
        (pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1)),  # as Spark has it
        (pa.array([True]), True),
        (pa.array(["ä" * 100], pa.large_string()), "ä" * 100),
        (pa.array([b"\0\1"]), b"\0\1"),
        (pa.array([-0.0]), 0.0),
        (pa.array([date(2013, 1, 2)]), date(2013, 1, 2)),
        (pa.array([MOMENT], pa.timestamp("ms")), MOMENT.replace(tzinfo=None)),
        (pa.array([MOMENT], pa.timestamp("ms", "UTC")), MOMENT),
        (pa.array([Decimal("1.50")], pa.decimal128(12, 2)), Decimal("1.5")),
        (pa.array([None], pa.int64()), None),
    ],
)  # fmt: skip
def test_a_value_of_spark_hashes_as_the_value_in_the_state(values: pa.Array, value: object, tmp_path: Path) -> None:
    """Each type goes through its own arithmetic; a wrong group would lose the row in silence."""
    rows = pa.RecordBatch.from_pydict({"key": values, "n": [1]})
    path = store_savepoint(tmp_path / "7", {("op", "state"): Stored(rows, ["key"])})
    group = int(key_groups(rows, ["key"], MAX_PARALLELISM)[0])
    assert ranges_of(reader_of(path, "op", "state"), [EqualNullSafe(("key",), value)]) == [(range(group, group + 1),)]


def objects(root: Path, keys: list[Any], types: dict[str, str]) -> OpenedCheckpoint:
    """State of Python functions; each entry in a key group that its number gives."""
    table, store = ObjectTable("seen"), FileStore(str(root))
    for number, key in enumerate(keys):
        table.put((number, msgspec.msgpack.encode(key), None), 1)
    snapshot = write_table(store, "seen", table, types)
    operator = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: snapshot})
    empty = open_checkpoint(str(store_savepoint(root / "7", {})))
    return OpenedCheckpoint(str(root), msgspec.structs.replace(empty.manifest, operators={"op": operator}))


@pytest.mark.parametrize(
    ("types", "values", "text", "is_narrowed"),
    [
        ({"k": "int64"}, [5], "5", True),
        ({"k": "string", "n": "int32"}, ["a", 5], '["a",5]', True),
        ({"k": "binary"}, [b"a"], '"YQ=="', False),  # base 64 in JSON
        ({"k": "timestamp[ms]"}, [5], "5", False),
        ({"k": "int64"}, [5], '"5"', False),
        ({}, [5], "5", False),  # an operator without typed keys
    ],
)
def test_keys_of_python_functions_are_json(
    types: dict[str, str], values: list[Any], text: str, *, is_narrowed: bool, tmp_path: Path
) -> None:
    opened = objects(tmp_path, [values], types)
    parts = ranges_of(StateReader(find_state(opened, "op", "seen"), 1), [EqualTo(("key",), text)])
    if not is_narrowed:
        assert parts == [(range(MAX_PARALLELISM),)]
        return
    columns = {name: pa.array([value], arrow_type(types[name])) for name, value in zip(types, values, strict=True)}
    group = int(key_groups(pa.RecordBatch.from_pydict(columns), list(types), MAX_PARALLELISM)[0])
    assert parts == [(range(group, group + 1),)]


def test_what_operators_keep_by_key_group_is_read_whole(tmp_path: Path) -> None:
    """Its entries are in every group under one name, whatever that hashes to."""
    opened = objects(tmp_path, ["pane"] * MAX_PARALLELISM, {"k": "string"})
    reader = StateReader(find_state(opened, "op", "seen"), 1)
    assert ranges_of(reader, [EqualTo(("key",), '"pane"')]) == [(range(MAX_PARALLELISM),)]


def test_a_state_is_cut_by_its_size(savepoint: Path) -> None:
    source = StateSource({"path": str(savepoint), "operator": "counts", "state": "totals"})
    assert PARTITION_BYTES == 64 * 1024 * 1024
    assert len(source.reader(source.schema()).partitions()) == 1
    nbytes = sum(path.stat().st_size for path in savepoint.glob("counts-*/*"))
    assert find_state(open_checkpoint(str(savepoint)), "counts", "totals").nbytes == nbytes
    assert 1 < partitions_by_size(nbytes, MAX_PARALLELISM, 8 * 1024) == -(-nbytes // (8 * 1024))
    assert partitions_by_size(1 << 60, MAX_PARALLELISM) == MAX_PARALLELISM


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.large_binary(), pa.binary(16),
        pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.duration("ns"), pa.timestamp("ms"),
        pa.timestamp("us", "Europe/Berlin"), pa.decimal128(12, -2), pa.null(),
    ],
)  # fmt: skip
def test_types_are_read_as_arrow_prints_them(kind: pa.DataType) -> None:
    assert arrow_type(str(kind)) == kind
