"""The job of the contract suite: rows with distinct ids into a sink, from the newest checkpoint of its folder."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import weir
from runtime.clock import SystemClock
from runtime.core.job.ids import OperatorId
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.dataflow.plan import CompiledJob
from runtime.io.filesystem import FileStore
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.operators.sink import SinkOperator
from runtime.ports import Sink, StageFolders
from tests.contracts.sinks.kills import RELEASE_FILE, Kill, WatchedSink
from tests.contracts.sinks.run_files import FileRunStore
from tests.jobs.numbers import Numbers

SPLITS: Final = 4
ROWS_PER_SPLIT: Final = 600
TOTAL: Final = SPLITS * ROWS_PER_SPLIT
KEYS: Final = 7
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("day", pa.string()),
        pa.field("amount", pa.float64()),
    ]
)
SINK: Final = OperatorId("out")
EARLY_SOURCE: Final = OperatorId("early")


@dataclass(frozen=True)
class JobSpec:
    """A job of `TOTAL` rows with distinct ids, and the window at which its process dies."""

    sink: Sink
    folder: Path
    window: str = ""
    fraction: float = 0.5
    parallelism: int = 2
    outages: int = 0  #: commits that fail; behind the last one the source hurries
    overlapping: int = 1  #: checkpoints at a time
    waits: bool = False  #: gives single rows, a few for each checkpoint, until a test calls `release`
    attempts: int = 5  #: restarts before the job fails
    timeout_ms: int = 60_000  #: of a checkpoint
    ends_early: bool = False  #: a quarter of the rows come from `EARLY_SOURCE`, which ends at once
    drops_rows: bool = False  #: no further row reaches the sink


def rows_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a distinct `id` and other columns that are functions of it."""
    key, value = (np.asarray(batch.column(name)) for name in ("key", "value"))
    split = (key - value * 31) % KEYS
    ids = pa.array(split * ROWS_PER_SPLIT + value)
    names = pc.binary_join_element_wise("row", pc.cast(ids, pa.string()), " ")
    days = pc.binary_join_element_wise("2026-11-0", pc.cast(pa.array(np.asarray(ids) % 3 + 1), pa.string()), "")
    return pa.RecordBatch.from_arrays([ids, names, days, pc.divide(pc.cast(ids, pa.float64()), 4.0)], schema=SCHEMA)


def without_first_split(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater_equal(batch.column("id"), ROWS_PER_SPLIT))


def no_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return rows_of(batch).slice(0, 0)


def compiled(spec: JobSpec, kill: Kill) -> CompiledJob:
    folders = StageFolders(columns=str(spec.folder / "columns"), streams=str(spec.folder / "streams"))
    before = STAGE_FOLDERS.set(folders)
    try:
        flow = weir.Dataflow("job", max_parallelism=16)
        # A job that is to die must not end before its third checkpoint, however long the target takes to commit.
        dies = spec.window not in ("", "away")
        batch = {"": 50, "away": 5}.get(spec.window, 2)
        source = Numbers(
            total=ROWS_PER_SPLIT, splits=SPLITS, batch=batch, keys=KEYS,
            slow_until=str(spec.folder / RELEASE_FILE), hurry=20, polls_per_row=6 if spec.waits or dies else 0,
            fast_rows=0 if spec.waits else ROWS_PER_SPLIT // 2,
        )  # fmt: skip
        rows = flow.source("numbers", source).map_batches("rows", no_rows if spec.drops_rows else rows_of)
        if spec.ends_early:
            early = flow.source(EARLY_SOURCE, Numbers(total=ROWS_PER_SPLIT, splits=1, keys=KEYS))
            rows = rows.map_batches("rest", without_first_split).union("all", early.map_batches("early-rows", rows_of))
        rows.sink(SINK, spec.sink)
        job = flow.compile(spec.parallelism)
    finally:
        STAGE_FOLDERS.reset(before)
    watched = WatchedSink(job.sinks[SINK], kill)
    return replace(job, sinks={SINK: watched}, operators={**job.operators, SINK: lambda: SinkOperator(watched)})


def run_job(spec: JobSpec) -> int:
    """Runs the job in this process to its end, unless the process dies before. Returns 0 if the job has succeeded."""
    kill = Kill(
        spec.window, armed=spec.window == "restore", fraction=spec.fraction, outages=spec.outages, folder=spec.folder
    )
    records = FileRunStore.take_over(spec.folder / "run", kill)
    storage = spec.folder / "storage"
    config = MasterConfig(
        job_id="job", token=records.token, job=compiled(spec, kill), storage=str(storage),
        coordinator=CoordinatorSettings(
            interval_ms=60, timeout_ms=spec.timeout_ms, min_pause_ms=0, max_concurrent=spec.overlapping
        ),
        restart=FixedDelay(attempts=spec.attempts, delay_ms=100),
    )  # fmt: skip
    ended = JobMaster(config, records, FileStore(str(storage)), LocalLauncher(), SystemClock()).run()
    if records.failure is not None:
        sys.stderr.write(f"{records.failure}\n")
        return 1
    return ended.value
