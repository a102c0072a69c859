"""Whole jobs over files: splits of large files, partitions, filters and a frozen listing, with an end by SIGKILL."""

import os
import signal
import threading
import time
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.connectors.formats import JsonLinesFormat, ParquetFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.parquet import ParquetSource
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import WeirError
from runtime.launch.local import run_local
from tests.contracts.files import Reading, drop
from tests.jobs.conftest import Jobs
from tests.jobs.live import FAST
from tests.jobs.numbers import committed
from tests.shared import Shared

DAYS = pa.schema([("day", pa.date32())])
ROWS = 3_000  #: of each day
KILLED_AT = 9  #: batch of the job
AGAIN = FixedDelay(attempts=100, delay_ms=30)


class Events(Shared):
    """At the second batch of the job, a file arrives that no attempt may read. A later batch ends its process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.batches, self.home = folder, 0, os.getpid()
        self._lock = threading.Lock()

    def next_batch(self) -> int:
        with self._lock:
            self.batches += 1
            if self.batches == 2:
                drop(self.folder / "day=2024-01-01", "later.jsonl", '{"id": -1}\n')
            return self.batches


class Step:
    """Small batches, so that several checkpoints are taken."""

    def __init__(self, events: Events) -> None:
        self._events, self._home = events, os.getpid()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(0.02)
        if self._events.next_batch() == KILLED_AT:
            if os.getpid() != self._home:
                os.kill(os.getpid(), signal.SIGKILL)
            raise WeirError("the process ends")
        return batch


def write_days(folder: Path) -> None:
    """Two large files and one that the filter leaves out."""
    for day in (1, 2, 3):
        rows = range(day * ROWS, (day + 1) * ROWS)
        drop(folder / f"day=2024-01-0{day}", "rows.jsonl", "".join(f'{{"id": {row}}}\n' for row in rows))


def job(folder: Path, output: Path, events: Events) -> CompiledJob:
    flow = Dataflow("files")
    source = DirectorySource(
        str(folder),
        JsonLinesFormat(pa.schema([("id", pa.int64())])),
        bounded=True,
        filter=(pc.field("day") < pa.scalar(date(2024, 1, 3))) & (pc.field("id") != ROWS + 1),
        partition_by=DAYS,
        split_bytes=1_000,
    )
    rows = flow.source("in", source).map_batches("step", Step(events))
    rows.sink("out", ParquetSink(str(output), partition_by=("day",)))
    return flow.compile(2)


def test_a_bounded_job_over_cut_files_survives_a_kill(tmp_path: Path, jobs: Jobs) -> None:
    """S1-22, S4-50: the rows of the first listing, each once, and read back from the output by its partitions."""
    folder, output = tmp_path / "in", tmp_path / "out"
    write_days(folder)
    events = Events(folder)
    records = jobs.run_to_end(job(folder, output, events), tmp_path / "state", restart=AGAIN)
    assert events.batches > KILLED_AT
    assert len(records.attempts) > 1
    assert (folder / "day=2024-01-01" / "later.jsonl").exists()
    back = ParquetSource(str(output), pa.schema([("id", pa.int64())]), partition_by=DAYS)
    rows = sorted((row["id"], row["day"]) for row in Reading(back).rows())
    assert rows == [(row, date(2024, 1, row // ROWS)) for row in range(ROWS, 3 * ROWS) if row != ROWS + 1]


def test_files_of_writers_that_differ_in_nullability_are_copied_together(tmp_path: Path) -> None:
    """Arrow writes required columns as such, and Spark none. Each attempt failed when the sink closed its file."""
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(8):
        item = pa.field("id", pa.int64(), nullable=number % 2 == 1)
        schema = pa.schema([item, ("struct", pa.struct([item])), ("list", pa.list_(item.with_name("item")))])
        row = {"id": number, "struct": {"id": number}, "list": [number]}
        pq.write_table(pa.Table.from_pylist([row], schema), folder / f"{number}.parquet")
    flow = Dataflow("copy")
    source = DirectorySource(str(folder), ParquetFormat(), bounded=True)
    flow.source("in", source).sink("out", ParquetSink(str(output)))
    run_local(flow, parallelism=1, storage=str(tmp_path / "state"), settings=FAST)
    rows = sorted(committed(output), key=lambda row: row["id"])
    assert rows == [{"id": number, "struct": {"id": number}, "list": [number]} for number in range(8)]
