"""Rows that wait for a COPY: small batches are copied together, in their order, and nothing stays behind."""

import pyarrow as pa

from runtime.connectors.postgres.pending_rows import MAX_BYTES, MAX_ROWS, PendingRows


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": range(first, first + count)})


def test_small_batches_are_copied_together_and_in_order() -> None:
    copied: list[pa.RecordBatch] = []
    pending = PendingRows(copied.append)
    for number in range(MAX_ROWS // 100):
        assert copied == []
        pending.add(numbers(number * 100, 100))
    assert [each.column(0).to_pylist() for each in copied] == [list(range(MAX_ROWS))]
    pending.flush()
    assert len(copied) == 1, "nothing was left"


def test_a_flush_and_many_bytes_copy_at_once() -> None:
    copied: list[pa.RecordBatch] = []
    pending = PendingRows(copied.append)
    pending.add(numbers(0, 3))
    pending.flush()
    pending.add(pa.RecordBatch.from_pydict({"text": ["x" * MAX_BYTES]}))
    assert [each.num_rows for each in copied] == [3, 1]


def test_batches_with_other_columns_or_types_are_copied_apart() -> None:
    copied: list[pa.RecordBatch] = []
    pending = PendingRows(copied.append)
    pending.add(numbers(0, 3))
    pending.add(pa.RecordBatch.from_pydict({"id": ["a"]}))
    pending.add(pa.RecordBatch.from_pydict({"id": ["b"], "more": [1]}))
    pending.flush()
    assert [each.schema.names for each in copied] == [["id"], ["id"], ["id", "more"]]
