"""Order by key, from the files in which records lie to the target: batches of many keys, crashes, rescales."""

from collections import defaultdict
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime.connectors.formats import CsvFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.ids import Token
from runtime.core.job.key_groups import DEFAULT_MAX_PARALLELISM, key_group_owner
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.functions.keyed_process import KeyedProcessFunction
from runtime.state.index.hashing import key_groups
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.shared import Notes, Shared

PARTITIONS, KEYS = 4, 12


class Partitions:
    """Files that grow in number; records of one key lie in one of `PARTITIONS`, in rising order over its files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._rows = folder, 0

    def write(self, rows: int) -> None:
        """So many more of each key. A partition is a file that is written once, so each call has files of its own."""
        upto = self._rows + rows
        for partition in range(PARTITIONS):
            keys = range(partition, KEYS, PARTITIONS)
            lines = ["key,value", *(f"{key},{value}" for value in range(self._rows, upto) for key in keys)]
            hidden = self._folder / ".writing"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self._folder / f"{upto:06}-{partition}.csv")
        self._rows = upto

    @property
    def rows(self) -> dict[int, list[int]]:
        return {key: list(range(self._rows)) for key in range(KEYS)}


def by_key(rows: Any) -> dict[int, list[int]]:
    values = defaultdict[int, list[int]](list)
    for row in rows:
        values[row["key"]].append(row["value"])
    return dict(values)


class Seen(Shared):
    """What the first operator saw, in its order."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.rows: list[dict[str, Any]] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._lock:
            self.rows += batch.to_pylist()
        return batch


def ordered(source: DirectorySource, output: Path, bomb: Any, log: Seen) -> Dataflow:
    flow = Dataflow("ordered")
    first = flow.source("files", source).map_batches("seen", log).map_batches("bomb", bomb)
    batches = first.key_by("key").batches("bulk", lambda batch: batch, max_rows=25, max_wait_ms=20)
    batches.sink("out", ParquetSink(str(output)))
    return flow


def test_the_target_has_each_key_in_the_order_of_its_partition(tmp_path: Path, jobs: Jobs) -> None:
    """S3-02, S3-03: over a crash and two rescales, every record once."""
    partitions, output, storage, folder = Partitions(tmp_path / "in"), tmp_path / "out", tmp_path / "state", ""
    source = DirectorySource(str(tmp_path / "in"), CsvFormat(SCHEMA), discovery_interval_ms=10)
    for number, parallelism in enumerate((2, 3, 1), start=1):
        partitions.write(40)
        bomb, log, records = Bomb(), Seen(), MemoryRunStore(token=Token(10 * number), restore_from=folder or None)
        job = ordered(source, output, bomb, log).compile(parallelism)
        with jobs.running(job, storage, records, restart=FixedDelay(attempts=3, delay_ms=10)) as run:
            run.wait_for(lambda: by_key(committed(output)) == partitions.rows)
            if number == 1:
                assert by_key(log.rows) == partitions.rows
            bomb.arm()
            partitions.write(40)
            run.wait_for(lambda: sum(map(len, by_key(committed(output)).values())) == KEYS * len(partitions.rows[0]))
            folder = run.end("stop")
            assert any(outcome == "failed" for _, outcome, _ in records.attempts)
        assert by_key(committed(output)) == partitions.rows


def test_a_subtask_batches_the_rows_of_many_keys(tmp_path: Path, jobs: Jobs) -> None:
    """S3-07: a thousand keys on two subtasks make two streams of batches."""
    batches = Notes()

    def bulk(batch: pa.RecordBatch) -> pa.RecordBatch:
        batches.add(batch)
        return batch

    flow = Dataflow("many")
    numbers = flow.source("numbers", Numbers(total=2_500, keys=1_000)).key_by("key")
    numbers.batches("bulk", bulk, max_rows=200, max_wait_ms=600_000).sink("out", ParquetSink(str(tmp_path / "out")))
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    streams = defaultdict[int, list[pa.RecordBatch]](list)
    for batch in batches.values:
        groups = np.unique(key_groups(batch, ["key"], DEFAULT_MAX_PARALLELISM))
        (owner,) = {key_group_owner(int(group), DEFAULT_MAX_PARALLELISM, 2) for group in groups}
        streams[owner].append(batch)
    assert sorted(streams) == [0, 1]
    full = [batch for stream in streams.values() for batch in stream[:-1]]
    assert {batch.num_rows for batch in full} == {200}
    assert min(len(batch["key"].unique()) for batch in full) > 50


class Home(KeyedProcessFunction):
    """Notes which keys come to which subtask."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def process(self, row: dict[str, Any], context: Any, out: Any) -> None:
        self._notes.add((context.index, row["key"]))


#: By parallelism, the keys 0 to 19 of each subtask, for 8 key groups. A checkpoint of any age relies on them.
HOMES = {
    2: {0: {0, 6, 19}, 1: set(range(20)) - {0, 6, 19}},
    3: {0: {0, 19}, 1: {1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 18}, 2: {2, 3, 8, 17}},
}


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_key_group_lies_with_one_subtask_by_a_hash_that_never_changes(
    tmp_path: Path, jobs: Jobs, parallelism: int
) -> None:
    """S3-12, S3-22: keys of a group are never apart, and each group is where it has always been."""
    notes, flow = Notes(), Dataflow("homes", max_parallelism=8)
    rows = flow.source("numbers", Numbers(total=40, keys=20)).key_by("key")
    rows.batches("same", lambda batch: batch, max_rows=1, max_wait_ms=0).key_by("key").process(
        "homes", lambda: Home(notes), SCHEMA
    ).sink("out", ParquetSink(str(tmp_path / "out")))
    jobs.run_to_end(flow.compile(parallelism), tmp_path / "state")
    homes = defaultdict[int, set[int]](set)
    for index, key in notes.values:
        homes[index].add(key)
    assert homes == HOMES[parallelism]
