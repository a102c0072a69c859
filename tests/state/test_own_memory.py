"""Rows that are held for long keep no more than twice their size alive."""

import pyarrow as pa
import pytest

from runtime.state.own_memory import ALWAYS_KEPT_BYTES, memory_kept_alive, with_own_memory
from tests.received import received, wide

VALUES = [
    pa.array(["some text"] * 9_000),
    pa.array([[1, 2, 3]] * 9_000),
    pa.array([{"a": 1, "b": "x"}] * 9_000),
    pa.array([[("a", 1)]] * 9_000, pa.map_(pa.string(), pa.int64())),
    pa.array([True, None, False] * 300_000),
    pa.array([7] * 9_000, pa.decimal128(9, 2)),
]


def test_a_column_of_a_received_batch_keeps_all_columns_alive_until_it_is_copied() -> None:
    batch = wide()
    column = batch.select(["k"])
    assert memory_kept_alive(column) > 19 * column.nbytes
    copied = with_own_memory(column)
    assert copied == column
    assert memory_kept_alive(copied) < 1.1 * column.nbytes


def test_a_received_batch_that_is_held_as_a_whole_is_not_copied() -> None:
    batch = wide()
    most = batch.slice(0, 12_000)
    assert with_own_memory(batch) is batch
    assert with_own_memory(most) is most


def test_a_small_batch_is_not_copied() -> None:
    row = received(pa.record_batch({"k": [1, 2], "v": ["a", "b"]})).slice(1, 1)
    assert memory_kept_alive(row) < ALWAYS_KEPT_BYTES
    assert with_own_memory(row) is row


@pytest.mark.parametrize("values", VALUES, ids=lambda values: str(values.type))
def test_a_slice_of_any_type_is_copied_without_the_rest(values: pa.Array) -> None:
    row = pa.record_batch({"v": values}).slice(4_000, 3)
    copied = with_own_memory(row)
    assert copied == row
    assert memory_kept_alive(copied) < 1_000
