"""W9: the cost of a checkpoint by state size, while 1 % of the keys change between checkpoints.

A job on the real runtime fills its state, then changes a part of its keys after each barrier. State has two forms: a
value of 100 bytes per key of a row-wise function, and twelve columns of eight bytes of running aggregates. Slots are
threads of this process, which share the interpreter lock. State and manifests are synced to a real disk.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import disk
from benchmarks.figures import Figure, MeasurementPlan, Report
from runtime.connectors.sinks.discard import DiscardSink
from runtime.core.checkpoint.statistics import distribution
from runtime.core.job.restart_strategy import NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.stream import Stream
from runtime.launch.local import run_local
from runtime.operators.aggregates import Sum
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.ports import OperatorContext, SourceReader
from runtime.run_store import CompletedCheckpoint
from runtime.state.index.hashing import mix

TITLE: Final = "checkpoint time against the size of the state, 1 % of the keys changed between checkpoints"
TIME_BOX_S: Final = 900.0
STEP_S: Final = 95.0

PARALLELISM: Final = 2
VALUE_BYTES: Final = 100
COLUMNS: Final = 12
ROUNDS_PER_STATE: Final = 100  #: rounds until every key has changed once: a round changes 1 % of the keys
POSITION: Final = "changed"
STATEFUL: Final = "state"

MAX_P99_MS: Final = 1_000.0  #: target for the p99 of checkpoints of the largest state
MAX_SYNC_P99_MS: Final = 20.0
MB: Final = 1_000_000

_STRIDE: Final = 2_654_435_761  #: spreads the keys that change together over the whole state
_SAMPLE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of the measurement."""

    form: str
    megabytes: int
    checkpoints: int
    interval_ms: int

    @property
    def keys(self) -> int:
        return self.megabytes * MB // VALUE_BYTES

    @property
    def name(self) -> str:
        return f"{self.form}, {self.megabytes} MB"


CASES: Final = tuple(
    Case(form=form, megabytes=megabytes, checkpoints=checkpoints, interval_ms=interval_ms)
    for form in ("columns", "values")
    for megabytes, checkpoints, interval_ms in ((10, 100, 200), (100, 100, 400), (1_000, 100, 1_000))
)


# ---------------------------------------------------------------- the job


@dataclass(frozen=True, kw_only=True)
class ChangingSource:
    """Emits every key once, then 1 % of the keys after each snapshot."""

    guarantee: ClassVar[str] = "at-least-once"
    bounded: ClassVar[bool] = True

    keys: int
    rounds: int
    columns: int

    def reader(self) -> "ChangingReader":
        return ChangingReader(self)

    def check(self) -> None:
        """Accepts all settings."""


class ChangingReader(SourceReader):
    def __init__(self, source: ChangingSource) -> None:
        self._source = source
        self._emitted_rows = 0  #: emitted rows, including the rounds after the fill
        self._emit_limit = 0  #: limit of `_emitted_rows` before the next snapshot

    def open(self, context: OperatorContext) -> None:
        self._state = context.state.list_state(POSITION)
        self._mine = self._emit_limit = self._source.keys // context.parallelism
        self._first = self._mine * context.index
        self._round = self._mine // ROUNDS_PER_STATE
        self._end = self._mine + self._round * self._source.rounds

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        count = min(max_rows, self._emit_limit - self._emitted_rows)
        if not count:
            return None
        numbers = np.arange(self._emitted_rows, self._emitted_rows + count)
        self._emitted_rows += count
        return _rows(self._first + numbers * _STRIDE % self._mine, self._emitted_rows, self._source.columns)

    @property
    def exhausted(self) -> bool:
        return self._emitted_rows >= self._end

    def snapshot(self, checkpoint: int) -> None:
        if self._emitted_rows == self._emit_limit:
            self._emit_limit = min(self._end, self._emitted_rows + self._round)
        self._state.replace([self._emitted_rows - self._mine])


def _rows(keys: npt.NDArray[np.int64], salt: int, columns: int) -> pa.RecordBatch:
    """Rows with incompressible values."""
    values = {}
    for column in range(columns):
        mixed = mix((keys * (columns + 1) + column).view(np.uint64) + np.uint64(salt << 40))
        values[f"v{column}"] = pa.array((mixed >> np.uint64(8)).view(np.int64))
    return pa.RecordBatch.from_pydict({"key": pa.array(keys), **values})


class StoreValue(KeyedProcessFunction):
    """Stores a value of 100 bytes per key."""

    def open(self, context: ProcessContext) -> None:
        self.value = context.value_state("value")
        self.sample = np.random.default_rng(1).bytes(_SAMPLE_BYTES)

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        start = row["v0"] % (_SAMPLE_BYTES - VALUE_BYTES)
        self.value.update(self.sample[start : start + VALUE_BYTES])


def job(case: Case) -> Dataflow:
    flow = Dataflow("state-size")
    columns = COLUMNS if case.form == "columns" else 1
    rows = flow.source("changes", ChangingSource(keys=case.keys, rounds=case.checkpoints, columns=columns))
    _stateful(rows, case).sink("out", DiscardSink())
    return flow


def _stateful(rows: Stream, case: Case) -> Stream:
    keyed = rows.key_by("key")
    if case.form == "columns":
        return keyed.aggregate(STATEFUL, {f"sum{column}": Sum(f"v{column}") for column in range(COLUMNS)})
    return keyed.process(STATEFUL, StoreValue, pa.schema([("key", pa.int64())]))


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """The cost of a checkpoint; 1 % of the keys have changed since its predecessor."""

    duration_ms: float
    sync_ms: float
    async_ms: float
    written_bytes: int
    files: int  #: files that no earlier checkpoint names
    named_files: int
    changed_bytes: int


def measure_case(case: Case, folder: Path) -> list[CheckpointCost]:
    """The costs of the checkpoints between which 1 % of the keys changed, in order.

    A subtask that fills longer than the other has its rounds later: checkpoints with a round of only one of them, the
    first and last, do not count.
    """
    settings = CoordinatorSettings(interval_ms=case.interval_ms, min_pause_ms=0)
    flow, storage = job(case), str(folder)
    records = run_local(flow, parallelism=PARALLELISM, storage=storage, settings=settings, restart=NoRestart())
    return [
        _cost(after, _files(after) - _files(before), VALUE_BYTES * changed_rows)
        for before, after in pairwise(records.completed)
        if min(_changed_rows(before), default=-1) >= 0
        and (changed_rows := sum(_changed_rows(after)) - sum(_changed_rows(before))) == case.keys // ROUNDS_PER_STATE
    ]


def _changed_rows(completed: CompletedCheckpoint) -> list[int]:
    """By source subtask, the number of rows emitted after the fill; negative during the fill."""
    subtasks = completed.manifest.operators["changes"].subtasks.values()
    return [number for subtask in subtasks for number in subtask.lists[POSITION]]


def _files(completed: CompletedCheckpoint) -> set[str]:
    return {segment.path for segment in completed.manifest.files()}


def _cost(completed: CompletedCheckpoint, new_files: set[str], changed_bytes: int) -> CheckpointCost:
    (stateful,) = (row for row in completed.operators if row["uid"] == STATEFUL)
    return CheckpointCost(
        duration_ms=completed.at - completed.manifest.triggered_at,
        sync_ms=stateful["max_sync_ms"],
        async_ms=stateful["max_async_ms"],
        written_bytes=completed.written_bytes,
        files=len(new_files),
        named_files=len(_files(completed)),
        changed_bytes=changed_bytes,
    )


# ---------------------------------------------------------------- reporting


def steps(plan: MeasurementPlan) -> int:
    return len(CASES)


def run(plan: MeasurementPlan) -> Report:
    figures, lines, details = [], [], []
    for case in CASES:
        folder = plan.folder / case.name.replace(", ", "-").replace(" ", "")
        folder.mkdir()
        rate = disk.write_rate(folder)
        short_case = case if plan.rounds is None else replace(case, checkpoints=plan.rounds)
        costs = measure_case(short_case, folder)
        shutil.rmtree(folder)  # several gigabytes for the largest state
        figures += _figures(case, costs)
        lines.append(_line(case, costs, rate))
        details.append({"case": case.name, "disk_bytes_per_s": rate, "checkpoints": [asdict(cost) for cost in costs]})
        plan.step(case.name)
        report = Report(figures=tuple(figures), lines=tuple(lines), details={"cases": list(details)})
        plan.report_partial(report)
    return report


def _figures(case: Case, costs: Sequence[CheckpointCost]) -> list[Figure]:
    largest = case.megabytes == max(each.megabytes for each in CASES)
    duration, sync = distribution([cost.duration_ms for cost in costs]), distribution([cost.sync_ms for cost in costs])
    factor = sum(cost.written_bytes for cost in costs) / sum(cost.changed_bytes for cost in costs)
    p99 = MAX_P99_MS if largest else None
    return [
        Figure(name=f"{case.name}: checkpoint, p99", value=duration.p99, unit="ms", digits=0, at_most=p99),
        Figure(
            name=f"{case.name}: synchronous part, p99", value=sync.p99, unit="ms", digits=1, at_most=MAX_SYNC_P99_MS
        ),
        Figure(name=f"{case.name}: bytes written per byte changed", value=factor, unit="times", digits=1),
    ]


def _line(case: Case, costs: Sequence[CheckpointCost], rate: float) -> str:
    duration = distribution([cost.duration_ms for cost in costs])
    sync = distribution([cost.sync_ms for cost in costs])
    written = distribution([cost.written_bytes / MB for cost in costs])
    return (
        f"{case.name}: {len(costs)} checkpoints, p50 {duration.p50:.0f} ms, most {duration.most:.0f} ms;"
        f" synchronous p50 {sync.p50:.1f} ms, most {sync.most:.1f} ms;"
        f" {written.mean:.2f} MB written on average, {written.most:.1f} MB at most;"
        f" {sum(cost.files for cost in costs) / len(costs):.1f} new files,"
        f" {max(cost.named_files for cost in costs)} named at most;"
        f" the disk took {rate / MB:.0f} MB/s beside it"
    )
