"""Splits of a listing: an equal share of bytes for every subtask, in turns, also at another parallelism."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.formats import JsonLinesFormat, LineFormat
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.split_groups import assign_groups
from runtime.core.job.key_groups import key_group_owner
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes, salts_for
from tests.contracts.files import Reading, drop

MAX_PARALLELISM = 128


def owners(groups: list[int], parallelism: int) -> list[int]:
    return [key_group_owner(group, MAX_PARALLELISM, parallelism) for group in groups]


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 9))
def test_each_subtask_gets_its_share_up_to_a_split_at_any_point_of_the_listing(lengths: list[int], slots: int) -> None:
    groups = assign_groups(lengths, slots, MAX_PARALLELISM).tolist()
    loads = [0] * slots
    for owner, length in zip(owners(groups, slots), lengths, strict=True):
        loads[owner] += length
        assert max(loads) - min(loads) <= max(lengths)


@pytest.mark.parametrize(("slots", "later"), [(2, 4), (2, 3), (4, 2), (8, 16), (8, 3), (1, 2)])
def test_any_rest_of_the_listing_is_spread_at_another_parallelism(slots: int, later: int) -> None:
    subtasks = owners(assign_groups([1] * 200, slots, MAX_PARALLELISM).tolist(), later)
    for start in range(0, 200, 20):
        counts = np.bincount(subtasks[start:], minlength=later)
        assert max(counts) - min(counts) <= 4, (start, counts)


@given(st.lists(st.tuples(st.text(), st.integers(0, 2**62), st.integers(0, 96)), min_size=1), st.integers(97, 32_768))
def test_salts_put_keys_into_their_key_groups(keys: list[tuple[str, int, int]], max_parallelism: int) -> None:
    texts, starts, groups = zip(*keys, strict=True)
    columns = [pa.array(texts, pa.string()), pa.array(starts, pa.int64())]
    salts = pa.array(salts_for(hash_columns(columns), np.array(groups), max_parallelism))
    assert tuple(key_groups_of_hashes(hash_columns([*columns, salts]), max_parallelism)) == groups


def test_subtasks_read_a_listing_in_turns_and_a_rescale_shares_the_rest(tmp_path: Path) -> None:
    names = [f"{number:02}" for number in range(24)]
    for name in names:
        drop(tmp_path, name, f"{name}\n")
    source = DirectorySource(str(tmp_path), LineFormat(), bounded=True)
    store = MemorySnapshotStore()
    readers = [Reading(source, store=store, index=index, parallelism=3) for index in range(3)]
    read = [[row["line"] for _ in range(4) for row in batch_of(reader)] for reader in readers]
    assert read == [names[index:12:3] for index in range(3)]
    snapshots = [reader.snapshot("chk-1") for reader in readers]
    restored = [
        Reading(source, store=store, snapshots=snapshots, index=index, parallelism=2, token=2) for index in range(2)
    ]
    remainders = [[row["line"] for row in reader.rows()] for reader in restored]
    assert sorted(remainders[0] + remainders[1]) == names[12:]
    assert abs(len(remainders[0]) - len(remainders[1])) <= 2


def test_a_bounded_source_does_not_become_a_watched_one(tmp_path: Path) -> None:
    """The subtask of a file would be another one, and read the file again."""
    drop(tmp_path, "a", "row\n")
    bounded = DirectorySource(str(tmp_path), LineFormat(), bounded=True)
    store = MemorySnapshotStore()
    snapshot = Reading(bounded, store=store).snapshot("chk-1")
    with pytest.raises(JobRejected, match=r"bounded source.*choose another uid"):
        Reading(replace(bounded, bounded=False), store=store, snapshots=[snapshot], token=2)


def batch_of(reader: Reading) -> list[dict[str, str]]:
    """The next file's only row. A file's end takes a poll of its own."""
    batch = reader.poll(1)
    return [] if batch is None else batch.to_pylist()


SCHEMA = pa.schema([("at", pa.int64())])


@pytest.mark.parametrize(
    ("change", "size"),
    [
        ({}, 16 << 20),
        ({"split_bytes": 1 << 20}, 1 << 20),
        ({"split_bytes": None}, None),
        ({"bounded": False}, 128 << 20),
        ({"event_time": None}, 128 << 20),
        ({"path": "s3://bucket/folder"}, 128 << 20),
    ],
    ids=["aligned", "author's", "whole files", "watched", "no event time", "remote"],
)
def test_subtasks_share_files_where_their_event_times_are_aligned(change: dict[str, Any], size: int | None) -> None:
    source = DirectorySource("/folder", JsonLinesFormat(SCHEMA), event_time="at", bounded=True)
    assert replace(source, **change).largest_split_bytes == size
