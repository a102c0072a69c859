"""Output side of a subtask: partitions batches over the channels of each edge and spends their credits.

Back-edges of an iteration cost no credit, or the iteration would wait for itself. An edge whose receiver takes
pre-aggregated rows has a combiner. Rows in it are sent before every control message that they must not follow. If only
sinks follow such a receiver (a window), the edge forwards a watermark only when it closes a pane; no other watermark
makes the window fire.

The slot's `send` routes a message by its channel. Credits decide when a subtask may run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning, Role
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, Control, Idle, Message, Records, Watermark
from runtime.core.subtask.credits import Credits
from runtime.dataflow.plan import Folding
from runtime.errors import DataRejected, JobRejected, WeirError
from runtime.operators.partition import Partitioner, by_function, by_key_group
from runtime.operators.windows.pre_aggregation import Combiner, rows_of
from runtime.state.encodings import takeable
from runtime.state.index.key_types import check_keys

Send = Callable[[ChannelId, Message], None]
Parts = list[pa.RecordBatch]


@dataclass(slots=True)
class _Edge:
    spec: EdgeSpec
    channels: tuple[ChannelId, ...]
    combiner: Combiner | None
    pane_ms: int | None  #: forward watermarks at pane ends only; None: forward all
    turn: int = 0
    told: int | None = None  #: last forwarded watermark; None before the first and after `Idle`

    def worded(self, message: Control) -> Control | None:
        """Control message for the receiver; None for a watermark that closes no pane."""
        if isinstance(message, Idle):
            self.told = None
        if self.pane_ms is None or not isinstance(message, Watermark):
            return message
        time = _whole_panes(message.time, self.pane_ms)
        if self.told is not None and time <= self.told:
            return None
        self.told = time
        return Watermark(time)


@dataclass
class Outputs:
    """Owned by the loop of a single subtask."""

    graph: JobGraph
    subtask: SubtaskId
    send: Send
    partitioners: Mapping[int, Partitioner] = field(default_factory=dict)  #: by edge number
    foldings: Mapping[int, Folding] = field(default_factory=dict)  #: by edge number
    credits: Credits = field(init=False)
    records: int = 0
    schema: pa.Schema | None = None  #: of the first batch
    _aside: bool = False  #: idle: the watermark advances without this subtask

    def __post_init__(self) -> None:
        channels = self.graph.outputs[self.subtask]
        self.credits = Credits(channel for channel in channels if not self.graph.is_feedback(channel))
        numbers = dict.fromkeys(channel.edge for channel in channels)
        self._edges = [
            self._edge(number, tuple(channel for channel in channels if channel.edge == number)) for number in numbers
        ]

    def _edge(self, number: int, channels: tuple[ChannelId, ...]) -> _Edge:
        spec, folding = self.graph.edges[number], self.foldings.get(number)
        if folding is None:
            return _Edge(spec, channels, None, None)
        return _Edge(spec, channels, folding.make(), folding.pane_ms if self._ends_behind(spec.target) else None)

    def _ends_behind(self, uid: OperatorId) -> bool:
        """Whether only sinks read the operator's output."""
        behind = (self.graph.by_uid[edge.target] for edge in self.graph.edges if edge.source == uid)
        return all(operator.role is Role.SINK for operator in behind)

    def emit(self, batch: pa.RecordBatch) -> None:
        """Sends `batch` on every edge, without views and run-end encoding (`takeable`). Drops empty batches.

        Raises:
            WeirError: the columns differ from earlier batches.
            JobRejected: a receiver's key column is missing, or its type cannot be a key.
        """
        if batch.num_rows == 0:
            return
        batch = self._alike(batch)
        self.records += batch.num_rows
        for edge in self._edges:
            if edge.combiner is None:
                self._deal(edge, batch)
            else:
                self._deal_parts(edge, partial(edge.combiner.add, batch))
                if self._aside:  # receivers do not wait for an idle subtask: a watermark would overtake buffered rows
                    self._deal_parts(edge, edge.combiner.flush)

    def broadcast(self, message: Control) -> None:
        """Sends a control message on every channel. Control messages cost no credit."""
        if isinstance(message, Watermark | Idle):
            self._aside = isinstance(message, Idle)
        for edge in self._edges:
            if edge.combiner is not None:
                time = message.time if isinstance(message, Watermark) else None
                due = edge.combiner.flush if time is None else partial(edge.combiner.advance, time)
                self._deal_parts(edge, due)
            worded = edge.worded(message)
            if worded is not None:
                for channel in edge.channels:
                    self.send(channel, worded)

    def _alike(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Converts the batch to types whose rows can be taken. Checks the schema here, where the operator is known."""
        if self.schema is not None and (batch.schema is self.schema or batch.schema.equals(self.schema)):
            return batch
        batch = takeable(batch)
        schema = batch.schema
        if self.schema is None:
            for edge in self._edges:
                if edge.spec.partitioning is Partitioning.HASH:
                    check_keys(schema, edge.spec.keys, edge.spec.target)
            self.schema = schema
        before, now = _columns(self.schema), _columns(schema)
        if list(before.items()) != list(now.items()):
            uid = self.subtask.operator
            raise WeirError(f"operator {uid!r} changed the columns of its output: {_difference(before, now)}")
        return batch

    def _deal(self, edge: _Edge, batch: pa.RecordBatch) -> None:
        match edge.spec.partitioning:
            case Partitioning.FORWARD:
                self._put(edge.channels[0], batch)
            case Partitioning.HASH:
                groups = self.graph.max_parallelism
                self._put_parts(edge, by_key_group(batch, edge.spec.keys, groups, len(edge.channels)))
            case Partitioning.CUSTOM:
                function = self.partitioners[edge.channels[0].edge]
                parts = by_function(batch, edge.spec.keys, function, edge.spec.target, len(edge.channels))
                self._put_parts(edge, parts)
            case Partitioning.BROADCAST:
                for channel in edge.channels:
                    self._put(channel, batch)
            case Partitioning.REBALANCE:
                self._put(edge.channels[edge.turn], batch)
                edge.turn = (edge.turn + 1) % len(edge.channels)

    def _deal_parts(self, edge: _Edge, due: Callable[[], Parts]) -> None:
        """Sends rows of the combiner. A batch counts as the number of rows that it pre-aggregates."""
        try:
            found = due()
        except DataRejected as error:
            raise DataRejected(f"operator {edge.spec.target!r}: {error}") from error
        except JobRejected as error:
            raise JobRejected(error.code, error.field, f"{error.detail} (operator {edge.spec.target!r})") from error
        for parts in found:
            dealt = by_key_group(parts, edge.spec.keys, self.graph.max_parallelism, len(edge.channels))
            for channel, part in zip(edge.channels, dealt, strict=True):
                if part is not None:
                    self._put(channel, part, rows_of(part))

    def _put_parts(self, edge: _Edge, parts: Sequence[pa.RecordBatch | None]) -> None:
        for channel, part in zip(edge.channels, parts, strict=True):
            if part is not None:
                self._put(channel, part)

    def _put(self, channel: ChannelId, batch: pa.RecordBatch, rows: int | None = None) -> None:
        nbytes = batch.nbytes
        if not self.graph.is_feedback(channel):
            self.credits.spend(channel, nbytes)
        self.send(channel, Records(batch, batch.num_rows if rows is None else rows, nbytes))


class Gatekeeper:
    """Collector of an operator: forwards batches, and raises where output would be lost."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._refusing: str | None = None

    def emit(self, batch: pa.RecordBatch) -> None:
        if self._refusing is not None:
            raise WeirError(f"output {self._refusing} is refused: it would be lost")
        self._outputs.emit(batch)

    def refuse(self, when: str | None) -> str | None:
        """Rejects output from now on (`when` is the reason), or accepts it (None). Returns the previous setting."""
        before, self._refusing = self._refusing, when
        return before

    @contextmanager
    def refusing(self, when: str) -> Iterator[None]:
        before = self.refuse(when)
        try:
            yield
        finally:
            self.refuse(before)


def _whole_panes(time: int, pane_ms: int) -> int:
    """Watermark up to which panes are complete at `time`. The minimum and maximum watermarks stay unchanged."""
    return (time + 1) // pane_ms * pane_ms - 1 if MIN_WATERMARK < time < MAX_WATERMARK else time


def _columns(schema: pa.Schema) -> dict[str, str]:
    """Names and types, in order. Nullability may differ between batches of a stream."""
    return {item.name: str(item.type) for item in schema}


def _difference(before: dict[str, str], now: dict[str, str]) -> str:
    gone = [f"{name!r} is missing" for name in before if name not in now]
    new = [f"{name!r} is new" for name in now if name not in before]
    changed = [
        f"{name!r} was {before[name]} and is {now[name]}" for name in now if before.get(name, now[name]) != now[name]
    ]
    return "; ".join(gone + new + changed) or f"their order was {', '.join(before)} and is {', '.join(now)}"
