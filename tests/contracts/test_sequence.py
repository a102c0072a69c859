"""The sequence source: every number once across restores at any parallelism, its keys and times, its end."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.sources.sequence import KEY_MULTIPLIER, SCHEMA, SequenceSource
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.contracts.files import Reading
from tests.example_counts import examples
from tests.manual_clock import ManualClock


def everything(source: SequenceSource, max_rows: int = 65_536, **reading: Any) -> pa.Table:
    reader = Reading(source, **reading)
    batches = list(iter(lambda: reader.poll(max_rows), None))
    assert reader.exhausted()
    return pa.Table.from_batches(batches, schema=SCHEMA)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_number_is_given_once_across_restores_at_any_parallelism(seed: int) -> None:
    """S1-22, S4-50: rows emitted after the last snapshot are emitted again after the restore; none is missing."""
    random_ = random.Random(seed)
    source = SequenceSource(rows=random_.randrange(0, 3_000_000))
    store, clock, committed = MemorySnapshotStore(), ManualClock(1_000_000), list[Any]()
    snapshots: list[Any] = []
    for attempt in range(4):
        parallelism = random_.randrange(1, 5)
        readers = [
            Reading(source, store=store, snapshots=snapshots, index=i, parallelism=parallelism, clock=clock)
            for i in range(parallelism)
        ]
        uncommitted = []
        for _ in range(random_.randrange(0, 12)):
            batch = random_.choice(readers).poll(random_.randrange(1, 70_000))
            uncommitted += [batch.column("id").to_numpy()] if batch is not None else []
        if random_.random() < 0.7:
            snapshots = [reader.snapshot(f"chk-{attempt}") for reader in readers]
            committed += uncommitted
    last = [Reading(source, store=store, snapshots=snapshots, index=i, parallelism=3, clock=clock) for i in range(3)]
    for reader in last:
        while (batch := reader.poll(65_536)) is not None:
            committed.append(batch.column("id").to_numpy())
        assert reader.exhausted()
    ids = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *committed]))
    assert np.array_equal(ids, np.arange(source.rows or 0))


@pytest.mark.parametrize("keys", [1, 7, 1_000, 100_003])
def test_an_even_spread_follows_the_formula(keys: int) -> None:
    table = everything(SequenceSource(rows=200_000, keys=keys), max_rows=5_000)
    expected = [number * KEY_MULTIPLIER % keys for number in table["id"].to_pylist()]
    assert table["key"].to_pylist() == expected


def test_times_follow_the_numbers_and_no_row_is_late() -> None:
    source = SequenceSource(rows=900_000, microseconds_per_row=250)
    for index in range(2):
        reader = Reading(source, index=index, parallelism=2)
        promised = reader.reader.watermark()
        while (batch := reader.poll(65_536)) is not None:
            times = batch.column("time").view(pa.int64()).to_numpy()
            assert np.array_equal(times, batch.column("id").to_numpy() * 250)
            assert promised is not None
            assert times.min() // 1_000 > promised
            promised = reader.reader.watermark()
        assert promised is not None
        assert promised >= 900_000 * 250 // 1_000 - 1


def test_subtasks_share_evenly_and_stay_close_to_each_other() -> None:
    source = SequenceSource(rows=None)
    readers = [Reading(source, index=index, parallelism=2) for index in range(2)]
    for _ in range(40):
        for reader in readers:
            assert reader.poll(65_536) is not None
    marks = [reader.reader.watermark() or 0 for reader in readers]
    assert abs(marks[0] - marks[1]) <= 1_100  # milliseconds, at 1,000 rows each
    assert min(marks) > 3_500


@settings(max_examples=15, deadline=None)
@given(rate=st.floats(1, 100_000), parallelism=st.integers(1, 4), steps=st.lists(st.integers(0, 400), max_size=40))
def test_a_rate_bounds_the_rows_of_all_subtasks_together(rate: float, parallelism: int, steps: list[int]) -> None:
    """Any pauses between polls: at most the rate in wall time, and all of it if polls come often enough."""
    source, clock = SequenceSource(rows_per_second=rate), ManualClock(1_000_000)
    readers = [Reading(source, index=index, parallelism=parallelism, clock=clock) for index in range(parallelism)]
    assert all(reader.poll(1) is None for reader in readers), "the budget begins with the first poll"
    count, passed = 0, 0
    for step in steps:
        clock.advance(step)
        passed += step
        for reader in readers:
            while (batch := reader.poll(65_536)) is not None:
                count += batch.num_rows
    assert count <= rate * passed / 1_000 + 1e-6
    assert count > rate * passed / 1_000 - parallelism - 1e-6
    assert not any(reader.exhausted() for reader in readers)


def test_a_pause_is_made_up_for_by_the_rows_of_a_second_at_most_and_a_restore_starts_anew() -> None:
    source, clock, store = SequenceSource(rows_per_second=100.0), ManualClock(1_000_000), MemorySnapshotStore()
    reader = Reading(source, clock=clock, store=store)
    assert reader.poll(65_536) is None
    clock.advance(60_000)
    first = reader.poll(65_536)
    assert first is not None
    assert first.num_rows == 100
    assert reader.poll(65_536) is None
    clock.advance(500)
    successor = Reading(source, clock=clock, store=store, snapshots=[reader.snapshot("chk-1")])
    assert successor.poll(65_536) is None
    clock.advance(100)
    rows = successor.poll(65_536)
    assert rows is not None
    assert rows["id"].to_pylist() == list(range(100, 110)), "a rate changes no row"


@pytest.mark.parametrize("rows", [1, 300, 40_000, 1_000_000])
def test_subtasks_with_a_rate_end_together_and_stay_close_to_each_other(rows: int) -> None:
    """The whole rate is used also by a short sequence, which is in the splits of few subtasks."""
    source, clock = SequenceSource(rows=rows, rows_per_second=rows / 4), ManualClock(1_000_000)
    readers = [Reading(source, index=index, parallelism=2, clock=clock) for index in range(2)]
    ids = list[int]()
    for _ in range(6):  # a second more than needed, for parts of rows
        for reader in readers:
            while (batch := reader.poll(65_536)) is not None:
                ids += batch["id"].to_pylist()
        assert max(ids, default=0) <= len(ids) + 16 * 16
        clock.advance(1_000)
    assert sorted(ids) == list(range(rows))
    assert all(reader.exhausted() for reader in readers)


def test_a_rate_is_neither_added_nor_removed_at_a_restore() -> None:
    plain, paced = SequenceSource(), SequenceSource(rows_per_second=9.0)
    for before, after in ((plain, paced), (paced, plain)):
        reader = Reading(before)
        reader.poll(10)
        with pytest.raises(JobRejected, match="neither add nor remove"):
            Reading(after, store=reader.store, snapshots=[reader.snapshot("chk-1")])


def test_another_number_of_key_groups_is_refused_also_by_a_later_checkpoint() -> None:
    """The splits would be others: ids would be repeated and skipped."""
    store, before = MemorySnapshotStore(), list[Any]()
    for attempt in range(2):  # the second is of a job that was restored
        reader = Reading(SequenceSource(), store=store, snapshots=before, groups=16)
        reader.poll(10)
        before = [reader.snapshot(f"chk-{attempt}")]
        with pytest.raises(JobRejected, match="split by 16 key groups, and 32 would repeat and skip ids") as error:
            Reading(SequenceSource(), store=store, snapshots=before, groups=32)
        assert (error.value.code, error.value.field) == ("changed-key-groups", "files")


def test_keys_may_be_text() -> None:
    source = SequenceSource(rows=20, keys=3, text_keys=True)
    reader = Reading(source)
    batch = reader.poll(100)
    assert batch is not None
    assert batch.schema == source.output_columns()
    assert batch["key"].to_pylist() == [f"key-{number * KEY_MULTIPLIER % 3}" for number in range(20)]


def test_a_sequence_without_an_end_is_not_bounded() -> None:
    assert not SequenceSource().bounded
    assert SequenceSource(rows=0).bounded
    assert everything(SequenceSource(rows=0)).num_rows == 0


def test_a_duration_ends_each_subtask_and_counts_from_the_first_start() -> None:
    """A restore does not start the time anew."""
    source, clock = SequenceSource(duration_ms=5_000), ManualClock(1_000_000)
    assert source.bounded
    first = Reading(source, clock=clock)
    clock.advance(3_000)
    assert first.poll(10) is not None
    snapshot = first.snapshot("chk-1")
    successor = Reading(source, store=first.store, snapshots=[snapshot], clock=clock)
    clock.advance(1_999)
    batch = successor.poll(10)
    assert batch is not None
    assert batch.column("id").to_pylist() == list(range(10, 20))
    clock.advance(1)
    assert successor.exhausted()
    assert successor.poll(10) is None


@pytest.mark.parametrize(
    ("field", "source"),
    [
        ("rows", SequenceSource(rows=-1)),
        ("duration_ms", SequenceSource(duration_ms=-1)),
        ("keys", SequenceSource(keys=0)),
        ("keys", SequenceSource(keys=2**32)),
        ("microseconds_per_row", SequenceSource(microseconds_per_row=0)),
        ("rows_per_second", SequenceSource(rows_per_second=0.0)),
        ("rows_per_second", SequenceSource(rows_per_second=float("nan"))),
        ("microseconds_per_row", SequenceSource(rows=2**40, microseconds_per_row=2**23)),
    ],
)
def test_bad_settings_are_refused_by_name(field: str, source: SequenceSource) -> None:
    with pytest.raises(JobRejected) as error:
        source.check()
    assert error.value.field == field
