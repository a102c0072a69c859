"""The job of the recovery benchmark: a running count and sum over many keys at a steady rate, which raises on order.

It is a registered pipeline, so that the console starts it as any other job.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import pyarrow as pa

import weir
from runtime.ports import NumberedRows

NAME = "recovery-benchmark"
TOTALS = {"count": weir.Count(), "sum": weir.Sum("id"), "first": weir.Min("id"), "last": weir.Max("id")}
RAISE, RAISED, HURRY = "raise", "raised", "hurry"  #: files in the orders folder


class RecoveryParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`began_ms`: start of the pace (Unix time). The first `keys` rows, a row per key, are due at once.

    `keeps_state`: a failure restarts the job in part.
    """

    output_dir: str
    orders_dir: str
    keys: int
    rows: int
    rows_per_second: int
    began_ms: int
    keeps_state: bool = False

    def due(self, now_ms: float) -> int:
        """The number of rows that are due at `now_ms`."""
        return self.keys + int((now_ms - self.began_ms) * self.rows_per_second / 1000)


@dataclass(frozen=True, kw_only=True)
class PacedSequence:
    """The sequence, paced by the wall clock. After an interruption it catches up at full speed."""

    guarantee: ClassVar[str] = "exactly-once"
    bounded: ClassVar[bool] = True
    numbers_rows: ClassVar[bool] = True

    params: RecoveryParams

    @property
    def sequence(self) -> weir.SequenceSource:
        """The sequence; a row's event time in milliseconds is its number."""
        return weir.SequenceSource(rows=self.params.rows, keys=self.params.keys, microseconds_per_row=1000)

    def reader(self) -> weir.spi.SourceReader:
        return PacedReader(self)

    def check(self) -> None:
        self.sequence.check()


class PacedReader(weir.spi.SourceReader):
    def __init__(self, source: PacedSequence) -> None:
        self._params = source.params
        self._sequence = source.sequence.reader()
        self._hurry = Path(source.params.orders_dir, HURRY)

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._sequence.open(context)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        position = (self._sequence.watermark() or 0) + 1
        if position >= self._params.due(time.time() * 1000) and not self._hurry.exists():
            return None
        return self._sequence.poll(max_rows)

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        return self._sequence.numbered_rows

    @property
    def exhausted(self) -> bool:
        return self._sequence.exhausted

    def watermark(self) -> int | None:
        return self._sequence.watermark()

    def snapshot(self, checkpoint: int) -> None:
        self._sequence.snapshot(checkpoint)


def raises_on_order(orders_dir: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that raises in a single subtask per order: the subtask that succeeds in renaming the order file."""
    order, raised = Path(orders_dir, RAISE), Path(orders_dir, RAISED)

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        with contextlib.suppress(FileNotFoundError):
            order.rename(raised)
            raise ValueError("as ordered")
        return batch

    return step


def build(params: RecoveryParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow(NAME)
    step = raises_on_order(params.orders_dir)
    rows = flow.source("numbers", PacedSequence(params=params)).map_batches("step", step, repeatable=params.keeps_state)
    totals = rows.key_by("key").aggregate("totals", TOTALS)
    totals.sink("out", weir.ParquetSink(params.output_dir))
    return flow


PIPELINE = weir.Pipeline(
    name=NAME,
    description="A running aggregate with much state, to be interrupted.",
    params=RecoveryParams,
    build=build,
)
