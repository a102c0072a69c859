"""Row numbers: batches are cut where receivers have processed them; repeated rows are dropped and counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records
from runtime.core.snapshot.row_numbers import ProcessedRows, Receipts, RepeatedRows, SplitNumbers

CHANNEL = ChannelId(0, 1, 2)
RESTORED = 7  #: the restored checkpoint


def batch(split: str, end: int, rows: int) -> Records:
    return Records([], rows, 0, split, end)


def test_a_receiver_knows_the_ends_of_its_rows_and_their_number_at_each_barrier() -> None:
    """S4-46."""
    receipts = Receipts()
    receipts.on_records(CHANNEL, batch("a", 4, 3))
    receipts.on_barrier(CHANNEL, CheckpointId(6))
    receipts.on_records(CHANNEL, batch("b", 2, 2))
    receipts.on_barrier(CHANNEL, CheckpointId(RESTORED))
    receipts.on_records(CHANNEL, batch("a", 9, 1))
    receipts.on_records(CHANNEL, Records([], 5, 0))  # rows without numbers
    (processed,) = receipts.processed([CHANNEL, ChannelId(0, 0, 2)])
    assert processed == ProcessedRows(CHANNEL, {"a": 9, "b": 2}, 6, {6: 3, RESTORED: 5})
    assert processed.rows_since(RESTORED) == 1
    assert processed.rows_since(5) == 6, "checkpoint 5 was restored at the deployment"


def test_a_receiver_forgets_barriers_that_no_restore_needs() -> None:
    receipts = Receipts()
    receipts.on_records(CHANNEL, batch("a", 1, 1))
    for checkpoint in (6, 7, 8):
        receipts.on_barrier(CHANNEL, CheckpointId(checkpoint))
    receipts.on_completed(CheckpointId(7))
    receipts.on_aborted(CheckpointId(8))
    assert receipts.processed([CHANNEL])[0].rows_at == {7: 1}


def test_a_source_cuts_its_batches_until_it_has_repeated_its_rows() -> None:
    numbers = SplitNumbers({"a": 10}, [("a", 14), ("a", 12), ("a", 12), ("a", 10), ("b", 1)])
    batches = [("a", 3), ("a", 5), ("b", 1)]
    pieces = [(list(numbers.pieces(split, rows)), numbers.repeats) for split, rows in batches]
    assert pieces == [
        ([(0, 2, 12), (2, 1, 13)], True),
        ([(0, 1, 14), (1, 4, 18)], True),  # split b is behind
        ([(0, 1, 1)], False),
    ]
    assert numbers.by_split == {"a": 18, "b": 1}


def test_a_step_that_does_not_repeat_itself_is_noticed() -> None:
    for sent, words in ((1, "1 rows fewer were repeated"), (3, "1 rows more were repeated")):
        repeated = RepeatedRows({"a": 4}, rows=2)
        assert repeated.drops("a", 3, sent)
        assert not repeated.drops("a", 5, 1)
        assert not repeated.drops("b", 1, 1)
        with pytest.raises(ValueError, match=words):
            repeated.check()
    repeated = RepeatedRows({"a": 4}, rows=2)
    repeated.drops("a", 4, 2)
    repeated.check()


@given(st.lists(st.integers(1, 9)), st.lists(st.integers(1, 9)), st.lists(st.booleans(), min_size=60, max_size=60))
def test_rows_arrive_once_however_the_batches_are_divided(
    first: list[int], second: list[int], is_sent: list[bool]
) -> None:
    """S4-45: row n goes to the receiver if `is_sent[n]`. The second attempt reads from the first row again."""
    total = min(60, sum(second))
    receipts, processed = Receipts(), list[int]()

    def send(numbers: SplitNumbers, rows: int, repeated: RepeatedRows | None) -> None:
        for _, count, end in numbers.pieces("a", rows):
            found = [row for row in range(end - count, end) if is_sent[row]]
            if found and (repeated is None or not repeated.drops("a", end, len(found))):
                processed.extend(found)
                receipts.on_records(CHANNEL, batch("a", end, len(found)))

    numbers = SplitNumbers({})
    for rows in first:
        send(numbers, min(rows, total - numbers.by_split.get("a", 0)), None)
    known = receipts.processed([CHANNEL])
    ends = known[0].ends if known else {}
    again, repeated = SplitNumbers({}, ends.items()), RepeatedRows(ends, known[0].rows if known else 0)
    for rows in second:
        send(again, min(rows, total - again.by_split.get("a", 0)), repeated)
    assert not again.repeats
    repeated.check()
    assert processed == [row for row in range(total) if is_sent[row]]
