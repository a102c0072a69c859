"""Row numbers: batches are cut where receivers have processed them; repeated rows are dropped and counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records
from runtime.core.snapshot.row_numbers import KEY_SUMS, Receipts, RepeatedChannel, RepeatedRows, SplitCuts

CHANNEL = ChannelId(0, 1, 2)
RESTORED = 7  #: the restored checkpoint


def batch(split: str, end: int, rows: int) -> Records:
    return Records([], rows, 0, split, end)


def test_a_receiver_knows_the_ends_and_the_number_of_its_rows_since_each_barrier() -> None:
    """S4-46."""
    receipts = Receipts()
    receipts.on_records(CHANNEL, batch("a", 4, 3))
    receipts.on_barrier(CHANNEL, CheckpointId(6))
    receipts.on_records(CHANNEL, batch("b", 2, 2))
    receipts.on_barrier(CHANNEL, CheckpointId(RESTORED))
    receipts.on_records(CHANNEL, batch("a", 9, 1))
    receipts.on_records(CHANNEL, Records([], 5, 0))  # rows without numbers
    (processed,) = receipts.processed([CHANNEL, ChannelId(0, 0, 2)])
    assert processed.since(RESTORED) == RepeatedChannel(CHANNEL, {"a": 9}, 1, 0)
    assert processed.since(6) == RepeatedChannel(CHANNEL, {"a": 9, "b": 2}, 3, 0)
    all_rows = RepeatedChannel(CHANNEL, {"a": 9, "b": 2}, 6, 0)
    assert processed.since(5) == all_rows, "checkpoint 5 was restored at the deployment"


def test_a_receiver_forgets_rows_that_no_restore_needs() -> None:
    """A watched folder has more and more splits: their ends must not stay for ever."""
    receipts = Receipts()
    for checkpoint in (6, 7, 8):
        receipts.on_records(CHANNEL, batch(f"file {checkpoint}", 1, 1))
        receipts.on_barrier(CHANNEL, CheckpointId(checkpoint))
    receipts.on_completed(CheckpointId(7))
    receipts.on_records(CHANNEL, batch("file 9", 1, 1))
    (processed,) = receipts.processed([CHANNEL])
    assert {barrier: rows.ends for barrier, rows in processed.by_barrier.items()} == {
        7: {"file 8": 1},
        8: {"file 9": 1},
    }
    receipts.on_aborted(CheckpointId(8))
    receipts.on_records(CHANNEL, batch("file 9", 2, 1))
    (processed,) = receipts.processed([CHANNEL])
    assert processed.by_barrier.keys() == {7}
    assert processed.since(7) == RepeatedChannel(CHANNEL, {"file 8": 1, "file 9": 2}, 3, 0)


def test_a_source_cuts_its_batches_until_it_has_repeated_its_rows() -> None:
    cuts = SplitCuts([("a", 14), ("a", 12), ("a", 12), ("b", 1)])
    batches = [("a", [11, 12, 13]), ("a", [14, 15, 18]), ("b", [1])]
    assert [(cuts.pieces(*each), cuts.repeats) for each in batches] == [
        ([(0, 2, 12), (2, 1, 13)], True),
        ([(0, 1, 14), (1, 2, 18)], True),  # split b is behind
        ([(0, 1, 1)], False),
    ]


def test_a_row_that_is_gone_moves_no_number() -> None:
    """Compaction of a topic: the receiver has processed rows 1 to 5, and row 3 and row 5 are gone since."""
    cuts = SplitCuts([("a", 5)])
    assert cuts.pieces("a", [1, 2, 4, 6, 7]) == [(0, 3, 4), (3, 2, 7)]
    assert not cuts.repeats
    repeated = RepeatedRows({"a": 5}, rows=5, keys=0)
    assert repeated.drops("a", 4, 3, 0)
    assert not repeated.drops("a", 7, 2, 0)
    with pytest.raises(ValueError, match="2 rows fewer"):
        repeated.check()


def test_a_step_that_does_not_repeat_itself_is_noticed() -> None:
    for sent, words in ((1, "1 rows fewer were repeated"), (3, "1 rows more were repeated")):
        repeated = RepeatedRows({"a": 4}, rows=2, keys=0)
        assert repeated.drops("a", 3, sent, 0)
        assert not repeated.drops("a", 5, 1, 0)
        assert not repeated.drops("b", 1, 1, 0)
        with pytest.raises(ValueError, match=words):
            repeated.check()
    repeated = RepeatedRows({"a": 4}, rows=2, keys=0)
    repeated.drops("a", 4, 2, 0)
    repeated.check()


def test_other_keys_in_equal_numbers_are_noticed() -> None:
    """Sums of hashes wrap."""
    receipts = Receipts()
    for keys in (KEY_SUMS - 1, 5):
        receipts.on_records(CHANNEL, Records([], 1, 0, "a", 4, keys))
    (known,) = (each.since(0) for each in receipts.processed([CHANNEL]))
    assert known.keys == 4
    for first, is_equal in ((6, True), (7, False)):
        repeated = RepeatedRows(known.ends, known.rows, known.keys)
        assert repeated.drops("a", 3, 1, first)
        assert repeated.drops("a", 4, 1, KEY_SUMS - 2)
        if is_equal:
            repeated.check()
        else:
            with pytest.raises(ValueError, match="with other keys"):
                repeated.check()


@given(st.lists(st.integers(1, 9)), st.lists(st.integers(1, 9)), st.lists(st.booleans(), min_size=60, max_size=60))
def test_rows_arrive_once_however_the_batches_are_divided(
    first: list[int], second: list[int], is_sent: list[bool]
) -> None:
    """S4-45: row n goes to the receiver if `is_sent[n]`. The second attempt reads from the first row again."""
    total = min(60, sum(second))
    receipts, processed = Receipts(), list[int]()

    def send(cuts: SplitCuts, batches: list[int], total: int, repeated: RepeatedRows | None) -> None:
        start = 0
        for rows in batches:
            numbers = range(start + 1, min(start + rows, total) + 1)
            start += rows
            for offset, count, end in cuts.pieces("a", numbers) if numbers else ():
                assert end == numbers[offset + count - 1]
                sent = [row for row in range(end - count, end) if is_sent[row]]
                if sent and (repeated is None or not repeated.drops("a", end, len(sent), 0)):
                    processed.extend(sent)
                    receipts.on_records(CHANNEL, batch("a", end, len(sent)))

    send(SplitCuts(), first, total, None)
    known = [each.since(RESTORED) for each in receipts.processed([CHANNEL])]
    ends, rows = (known[0].ends, known[0].rows) if known else ({}, 0)
    again, repeated = SplitCuts(ends.items()), RepeatedRows(ends, rows, 0)
    send(again, second, total, repeated)
    assert not again.repeats
    repeated.check()
    assert processed == [row for row in range(total) if is_sent[row]]
