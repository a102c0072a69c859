"""Production's operators with state by key. Their output becomes rows of the simulator again.

The state is production's too, so a seed covers the whole life of state: captures, merges of files, restores.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.dataflow.plan import PreAggregation
from runtime.operators.aggregates import Aggregate, Count
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide
from runtime.operators.joins.window import WINDOW_COLUMNS, WindowJoin
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.deduplicate import Deduplicate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.session import SessionWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import RowInput
from runtime.ports import Collector, Operator, OperatorContext
from runtime.simulation.model import (
    GAP_MS,
    LATE,
    PAIR_MS,
    SCHEMA,
    SLIDE_MS,
    WINDOW_MS,
    OnSnapshot,
    Row,
    Rows,
    batch_of,
)

_KEYS: Final = ("key",)
_SIDES: Final = (JoinSide(_KEYS, "time"), JoinSide(_KEYS, "time"))
_COUNT: Final[Mapping[str, Aggregate]] = {"n": Count()}
_PANES: Final = partial(WindowPreAggregator, _KEYS, "time", WINDOW_MS, _COUNT)
_ROW_INPUT: Final = RowInput("time", WINDOW_MS, OutputTag("late", SCHEMA), _PANES)
#: By kind of window: rows are pre-aggregated before it, or by it if it has an output for late rows.
PRE_AGGREGATIONS: Final[Mapping[str, PreAggregation]] = {
    "window": PreAggregation(WINDOW_MS, _PANES),
    "straggler_window": PreAggregation(WINDOW_MS, _PANES, in_window=True),
}

ToRows = Callable[[pa.RecordBatch], Rows]


def window_name(key: str, time: int) -> str:
    """The name of the tumbling window of a row."""
    return f"{key.lower()}@{time - time % WINDOW_MS}"


@dataclass(frozen=True, slots=True)
class Kind:
    """An operator of production. `to_rows`: its output as rows; `max_rows`: the largest batch that it gets."""

    make: Callable[[], Operator]
    to_rows: ToRows
    max_rows: int = 3


@dataclass(slots=True)
class _Collected:
    """Implements `ports.Collector`."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    late: list[pa.RecordBatch] = field(default_factory=list)

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        self.late.append(batch)


class ProductionOperator(Operator):
    """Runs an operator of production. Asserts that no row is late, except stragglers where they may be."""

    def __init__(self, kind: Kind, may_straggle: bool, on_snapshot: OnSnapshot) -> None:
        self._kind, self._may_straggle, self._on_snapshot = kind, may_straggle, on_snapshot
        self._operator = kind.make()
        self._watermark = MIN_WATERMARK

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._operator.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        for start in range(0, batch.num_rows, self._kind.max_rows):
            with self._converted(out) as converted:
                self._operator.process(input, batch.slice(start, self._kind.max_rows), converted)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        assert watermark > self._watermark, "the watermark went back"
        self._watermark = watermark
        with self._converted(out) as converted:
            self._operator.on_watermark(watermark, converted)

    def snapshot(self, checkpoint: int) -> None:
        self._operator.snapshot(checkpoint)
        self._on_snapshot(self._context, checkpoint)

    def end_input(self, input: int, out: Collector) -> None:
        with self._converted(out) as converted:
            self._operator.end_input(input, converted)

    def finish(self, out: Collector) -> None:
        assert self._watermark == MAX_WATERMARK, "finish came before the maximum watermark"
        with self._converted(out) as converted:
            self._operator.finish(converted)

    def close(self) -> None:
        self._operator.close()

    @contextmanager
    def _converted(self, out: Collector) -> Iterator[Collector]:
        """Emits what the operator has emitted, as rows of the simulator."""
        collected = _Collected()
        yield collected
        rows = [row for batch in collected.batches for row in self._kind.to_rows(batch)]
        late = [row for batch in collected.late for row in batch.to_pylist()]
        dropped = self._context.counters.get(LATE_RECORDS_COUNTER, 0)
        may_be_late = self._may_straggle and all(row["name"].isupper() for row in late)
        assert may_be_late or not (late or dropped), f"a late record behind {self._watermark}: {late}"
        rows += [(LATE + window_name(row["key"], row["time"]), 1) for row in late]
        if rows:
            out.emit(batch_of(rows))


def _columns(batch: pa.RecordBatch, *names: str) -> Iterable[Row]:
    """Rows of a text column and a column of integers or times (ms)."""
    texts, numbers = (batch.column(name) for name in names)
    return zip(texts.to_pylist(), numbers.cast(pa.int64()).to_pylist(), strict=True)


def _counted(batch: pa.RecordBatch) -> Rows:
    return list(_columns(batch, "key", "n"))


def _windows(batch: pa.RecordBatch) -> Rows:
    starts = batch.column("window_start").cast(pa.int64()).to_pylist()
    return [(f"{key}@{start}", n) for (key, n), start in zip(_counted(batch), starts, strict=True)]


def _pairs(batch: pa.RecordBatch) -> Rows:
    return list(_columns(batch, "key", "pair_time"))


def _window_pairs(batch: pa.RecordBatch) -> Rows:
    """A pair has the last time of its window, at which it is emitted."""
    return [(key, end - 1) for key, end in _columns(batch, "key", "window_end")]


def _first_rows(batch: pa.RecordBatch) -> Rows:
    """Any row of a key and window may be the first."""
    return [(window_name(key, time), 1) for key, time in _columns(batch, "key", "time")]


def _interval_join() -> Operator:
    columns = JoinColumns((("key", "key"),), ("_first", "_second"), ("pair_time",))
    return IntervalJoin(_SIDES, Interval(-PAIR_MS, PAIR_MS), columns, bucket_ms=WINDOW_MS)


def _window_join() -> Operator:
    columns = JoinColumns((("key", "key"),), ("_first", "_second"), WINDOW_COLUMNS)
    return WindowJoin(_SIDES, WINDOW_MS, SLIDE_MS, columns)


KINDS: Final[Mapping[str, Kind]] = {
    "count": Kind(partial(RunningAggregate, _KEYS, _COUNT), _counted, max_rows=1),  # a batch emits its last values only
    "pairs": Kind(_interval_join, _pairs),
    "window_pairs": Kind(_window_join, _window_pairs),
    "window": Kind(partial(TumblingWindow, _KEYS, WINDOW_MS, _COUNT), _windows),
    #: emits a row for each late straggler
    "straggler_window": Kind(partial(TumblingWindow, _KEYS, WINDOW_MS, _COUNT, _ROW_INPUT), _windows),
    "session": Kind(partial(SessionWindow, _KEYS, GAP_MS, "time", _COUNT), _windows),
    "distinct": Kind(partial(Deduplicate, _KEYS, WINDOW_MS, "time"), _first_rows),
}
