"""W12: checkpoints behind a step that is slow from its first row on, with a backlog of files to read."""

import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import weir
from benchmarks.figures import Figure, MeasurementPlan, Report
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import local_master

TITLE: Final = "checkpoints before a slow step, 1 s apart"
TIME_BOX_S: Final = 600.0
STEP_S: Final = 75.0

PARALLELISM: Final = 2
FILES: Final = 4
ROWS: Final = 100_000  #: of each file
RUN_S: Final = 70.0
BLOCKS_AFTER_S: Final = 30.0
BLOCK_S: Final = 20.0
TIMEOUT_MS: Final = 60_000  #: of a checkpoint
SCHEMA: Final = pa.schema([("key", pa.string()), ("text", pa.string()), ("value", pa.int64())])


@dataclass(frozen=True, slots=True)
class Case:
    """`rows_per_s`: of a subtask of the slow step. `blocks`: whether it also stands still for `BLOCK_S`."""

    name: str
    rows_per_s: float
    at_most_ms: float
    blocks: bool = False

    def wait(self, began: float, row: dict[str, Any]) -> dict[str, Any]:
        blocked_s = time.monotonic() - began - BLOCKS_AFTER_S
        if self.blocks and 0 <= blocked_s < BLOCK_S:
            time.sleep(BLOCK_S - blocked_s)
        time.sleep(1 / self.rows_per_s)
        return row


CASES: Final = (
    Case("80 rows/s", 80, 2_000),
    Case("8 rows/s", 8, 2_000),
    Case("0.8 rows/s", 0.8, 2_000 + 2 * 1_250),
    Case("80 rows/s, blocked for 20 s", 80, 2_000 + 1_000 * BLOCK_S, blocks=True),
)


def steps(plan: MeasurementPlan) -> int:
    return len(CASES)


def run(plan: MeasurementPlan) -> Report:
    """Runs each case in turn; slots are threads of this process."""
    write_rows(plan.folder / "rows")
    figures = list[Figure]()
    for number, case in enumerate(CASES):
        durations_ms, failed = measure_case(case, plan.folder / "rows", plan.folder / str(number))
        longest = max(durations_ms, default=None)
        figures.append(
            Figure(name=f"{case.name}: longest checkpoint", value=longest, unit="ms", digits=0, at_most=case.at_most_ms)
        )
        figures.append(Figure(name=f"{case.name}: failed", value=failed, unit="checkpoints", digits=0, at_most=0))
        plan.step(case.name)
    return Report(figures=tuple(figures))


def write_rows(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        values = range(number * ROWS, (number + 1) * ROWS)
        columns = [[f"user-{v % 5_003:08d}" for v in values], [f"the text of row {v}" for v in values], list(values)]
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"{number}.parquet")


def measure_case(case: Case, rows: Path, folder: Path) -> tuple[list[int], int]:
    """The durations of the completed checkpoints in ms, with those still open, and the number of failed ones."""
    flow = weir.Dataflow("slow-step")
    stream = flow.source("rows", weir.ParquetSource(str(rows)))
    stream.map("slow", partial(case.wait, time.monotonic()), SCHEMA).sink("out", weir.DiscardSink())
    records = MemoryRunStore()
    settings = CoordinatorSettings(interval_ms=1_000, timeout_ms=TIMEOUT_MS)
    master = local_master(flow.compile(PARALLELISM), str(folder), records, settings)
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    time.sleep(RUN_S)
    now_ms, reports, completed = int(time.time() * 1000), list(records.reports), list(records.completed)
    records.operations.append(OperationRequest("cancel", "cancel"))
    master.poke()
    thread.join(TIMEOUT_MS / 1000)
    over = {report.checkpoint for report in reports if report.reason} | {c.manifest.checkpoint for c in completed}
    open_ms = {r.checkpoint: now_ms - r.triggered_at for r in reports if r.checkpoint not in over}
    failed = sum(report.reason is not None for report in reports)
    return [c.at - c.manifest.triggered_at for c in completed] + list(open_ms.values()), failed
