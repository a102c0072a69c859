"""Keyed tables by themselves: types that settle late, slots, validity, compaction of texts."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime.errors import JobRejected
from runtime.state.index.interned import InternedCodec
from runtime.state.keyed_table import KeyedTable
from runtime.state.rows import TableRows
from runtime.state.schema import OPEN_TYPE, TableSchema, namespace_field


def table(keys: dict[str, Any], values: dict[str, Any]) -> KeyedTable:
    return KeyedTable(TableSchema("t", pa.schema(list(keys.items())), pa.schema(list(values.items()))), 128)


def test_new_keys_start_with_zeroes_that_are_not_valid() -> None:
    counts = table({"k": pa.string()}, {"n": pa.int64()})
    first = counts.upsert([pa.array(["a", "b"])])
    counts.column("n")[first] = [7, 8]
    counts.valid("n")[first] = True
    counts.delete(first)
    slots = counts.upsert([pa.array(["c", "a"])])
    assert counts.value_column("n", slots).to_pylist() == [None, None]
    assert counts.column("n")[slots].tolist() == [0, 0]


def test_slots_are_stable_while_the_table_grows() -> None:
    counts = table({"k": pa.int64()}, {"n": pa.int64()})
    first = counts.upsert([pa.array([1, 2, 3])])
    counts.column("n")[first] = [10, 20, 30]
    counts.upsert([pa.array(range(100, 5000))])
    assert counts.find([pa.array([3, 1, 2, 99])]).tolist() == [first[2], first[0], first[1], -1]
    assert counts.column("n")[first].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, -5], pa.int8()),
        pa.array([2**64 - 1, None, 0], pa.uint64()),
        pa.array([1.5, None, float("inf")], pa.float32()),
        pa.array([True, None, False]),
        pa.array(["a", None, ""], pa.large_string()),
        pa.array([b"\xff", None, b""], pa.binary()),
        pa.array([b"ab", None, b"cd"], pa.binary(2)),
        pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal128(6, 2)),
        pa.array([dt.date(1969, 1, 1), None, dt.date(2013, 1, 1)]),
        pa.array([-(10**15), None, 10**15], pa.timestamp("us")),
        pa.array([dt.time(1), None, dt.time(2)], pa.time32("s")),
    ],
    ids=lambda values: str(values.type),
)
def test_every_key_type_comes_back_as_it_went_in(values: pa.Array) -> None:
    counts = table({"k": OPEN_TYPE, "n": pa.int32()}, {"v": pa.int64()})
    counts.bind_types([values.type, pa.int32()], [pa.int64()])
    slots = counts.upsert([values, pa.array([1, None, 3], pa.int32())])
    assert counts.key_column("k", slots).equals(values)
    assert counts.key_column("n", slots).to_pylist() == [1, None, 3]


def test_encodings_of_one_key_meet_in_one_slot() -> None:
    counts = table({"k": pa.string()}, {"n": pa.int64()})
    slots = counts.upsert([pa.array(["a", None])])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert counts.upsert([pa.array(["a", None]).cast(kind)]).tolist() == slots.tolist()


def test_a_table_becomes_as_wide_as_a_key_that_its_type_cannot_hold() -> None:
    """A snapshot could not be written otherwise, for ever."""
    counts = table({"k": pa.int8()}, {"n": pa.int64()})
    slots = counts.upsert([pa.array([300], pa.int64())])
    assert counts.key_column("k", slots).to_pylist() == [300]
    with pytest.raises(JobRejected, match="column 'k' is int64 in the state and uint64 in the data"):
        counts.upsert([pa.array([2**64 - 1], pa.uint64())])


def test_a_type_that_changes_is_refused_with_its_column() -> None:
    counts = table({"k": OPEN_TYPE}, {"n": OPEN_TYPE})
    counts.bind_types([pa.int32()], [pa.int64()])
    counts.bind_types([pa.int64()], [pa.int64()])  # it becomes wider
    with pytest.raises(JobRejected, match="column 'k' is int64 in the state and string in the data"):
        counts.bind_types([pa.string()], [pa.int64()])
    with pytest.raises(JobRejected, match="column 'n' is int64 in the state and double in the data"):
        counts.bind_types([pa.int32()], [pa.float64()])


def test_rows_cannot_come_before_their_types() -> None:
    with pytest.raises(JobRejected, match="k null"):
        table({"k": OPEN_TYPE}, {"n": pa.int64()}).upsert([pa.nulls(1)])


def test_a_value_without_a_fixed_width_is_refused() -> None:
    with pytest.raises(TypeError, match="string"):
        table({"k": pa.int64()}, {"v": pa.string()})


def test_a_namespace_does_not_move_a_key_to_another_group() -> None:
    schema = pa.schema([("k", pa.string()), namespace_field("window", pa.int64())])
    windows = KeyedTable(TableSchema("t", schema, pa.schema([("n", pa.int64())])), 128)
    windows.upsert([pa.array(["a"] * 50), pa.array(range(50))])
    (rows,) = windows.capture_changes()
    assert len(np.unique(rows.groups)) == 1


@pytest.mark.parametrize("capture", [KeyedTable.capture_all, KeyedTable.capture_changes])
def test_texts_of_deleted_keys_are_forgotten_with_the_next_capture(
    capture: Callable[[KeyedTable], list[TableRows]],
) -> None:
    """A large state never gets a new base at a barrier, and must not grow by keys that are gone."""
    counts = table({"k": pa.string(), "j": pa.string()}, {"n": pa.int64()})
    slots = counts.upsert([pa.array(["kept", None]), pa.array([None, "kept"])])
    for start in range(0, 5000, 1000):
        names = [f"gone {number}" for number in range(start, start + 1000)]
        removals = counts.upsert([pa.array(names), pa.array(names)])
        counts.capture_changes()
        counts.delete(removals)  # the tombstones use the texts until the next capture
    counts.touch(slots)
    *_, rows = capture(counts)
    assert rows.to_batch(np.arange(2)).column("k").to_pylist() == ["kept", None]
    assert counts.find([pa.array(["kept", None]), pa.array([None, "kept"])]).tolist() == slots.tolist()
    codecs = [codec for codec in counts.copy_all().codecs if isinstance(codec, InternedCodec)]
    assert [len(codec) for codec in codecs] == [1, 1]


def test_texts_of_deleted_keys_are_forgotten_without_captures() -> None:
    """A job may take no snapshots."""
    counts = table({"k": pa.string()}, {"n": pa.int64()})
    slots = counts.upsert([pa.array(["kept", None])])
    for number in range(100):
        counts.delete(counts.upsert([pa.array([f"{number} {place}" for place in range(100)])]))
    (codec,) = counts._codecs
    assert isinstance(codec, InternedCodec)
    assert len(codec) < 2_000
    assert counts.find([pa.array(["kept", None, "99 99"])]).tolist() == [*slots.tolist(), -1]


def test_a_copy_shows_nothing_that_happened_after_it() -> None:
    counts = table({"k": pa.string()}, {"n": pa.int64()})
    slots = counts.upsert([pa.array(["a", "b"])])
    counts.column("n")[slots] = [1, 2]
    copy = counts.copy_all()
    counts.column("n")[slots] = 99
    counts.delete(slots)
    counts.upsert([pa.array(["c"])])
    assert copy.to_batch(np.arange(2)).column("k").to_pylist() == ["a", "b"]
    assert copy.values is not None
    assert copy.values[0].values.tolist() == [1, 2]
