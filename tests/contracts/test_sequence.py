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
from tests.manual_clock import ManualClock


def everything(source: SequenceSource, max_rows: int = 65_536, **reading: Any) -> pa.Table:
    reader = Reading(source, **reading)
    batches = list(iter(lambda: reader.poll(max_rows), None))
    assert reader.exhausted()
    return pa.Table.from_batches(batches, schema=SCHEMA)


@settings(max_examples=25, deadline=None)
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
    found = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *committed]))
    assert np.array_equal(found, np.arange(source.rows or 0))


@pytest.mark.parametrize("keys", [1, 7, 1_000, 100_003])
def test_an_even_spread_follows_the_formula(keys: int) -> None:
    found = everything(SequenceSource(rows=200_000, keys=keys), max_rows=5_000)
    wanted = [number * KEY_MULTIPLIER % keys for number in found["id"].to_pylist()]
    assert found["key"].to_pylist() == wanted


def test_a_skewed_spread_has_the_weights_of_its_power_law() -> None:
    """The weight of key k is the part of the law between k + 1 and k + 2."""
    found = everything(SequenceSource(rows=400_000, keys=1_000, zipf=1.2))["key"].to_numpy()
    assert found.min() == 0
    assert found.max() < 1_000
    ends = 1.0 - np.arange(1.0, 12.0) ** -0.2
    wanted = np.diff(ends) / (1.0 - 1_001.0**-0.2)
    shares = np.bincount(found, minlength=10)[:10] / len(found)
    assert np.allclose(shares, wanted, rtol=0.03)


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
    again = Reading(source, store=first.store, snapshots=[snapshot], clock=clock)
    clock.advance(1_999)
    batch = again.poll(10)
    assert batch is not None
    assert batch.column("id").to_pylist() == list(range(10, 20))
    clock.advance(1)
    assert again.exhausted()
    assert again.poll(10) is None


@pytest.mark.parametrize(
    ("field", "source"),
    [
        ("rows", SequenceSource(rows=-1)),
        ("duration_ms", SequenceSource(duration_ms=-1)),
        ("keys", SequenceSource(keys=0)),
        ("keys", SequenceSource(keys=2**32)),
        ("zipf", SequenceSource(zipf=1.0)),
        ("microseconds_per_row", SequenceSource(microseconds_per_row=0)),
        ("microseconds_per_row", SequenceSource(rows=2**40, microseconds_per_row=2**23)),
    ],
)
def test_bad_settings_are_refused_by_name(field: str, source: SequenceSource) -> None:
    """S3-01."""
    with pytest.raises(JobRejected) as refused:
        source.check()
    assert refused.value.field == field
