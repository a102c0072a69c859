"""Output side of a subtask: partitions batches over the channels of each edge and spends their credits.

Back-edges of an iteration cost no credit, or the iteration would wait for itself. An edge whose receiver takes
pre-aggregated rows has a pre-aggregator, whose rows are sent before every control message that they must not follow. If
only sinks follow such a receiver (a window), the edge forwards a watermark only when it closes a pane; no other
watermark makes the window fire.

Rows with numbers (`core.snapshot.row_numbers`) are sent as a single batch per channel and number, or as parts of it if
they are large. A receiver that has processed them does not get them again.

The slot's `send` routes a message by its channel. Credits decide when a subtask may run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, SubtaskId
from runtime.core.job.messages import Barrier, Control, Idle, Message, Records, Watermark
from runtime.core.snapshot.row_numbers import KEY_SUMS, RepeatedRows
from runtime.core.subtask.credits import Credits, FlowControl
from runtime.core.subtask.watermark_valve import PaneEndWatermarks
from runtime.dataflow.plan import Edge
from runtime.errors import JobRejected, OperatorFailure, RowsNotRepeated, WeirError
from runtime.operators.column_difference import check_distinct_columns, column_difference, columns_of
from runtime.operators.partition import partition_by_function, partition_by_key_group, partition_with_key_sums
from runtime.operators.windows.pre_aggregation import PreAggregator, input_row_count
from runtime.state.encoded_texts import columns_with_many_values, decode
from runtime.state.encodings import NullableRows, schema_without_views, without_views
from runtime.state.index.key_types import check_keys

MAX_JOINED_BYTES: Final = 64 << 20  #: a column of 2 GiB of text cannot be joined
Send = Callable[[ChannelId, Message], None]
Parts = list[pa.RecordBatch]


@dataclass(slots=True)
class _Edge:
    compiled: Edge
    channels: tuple[ChannelId, ...]
    pre_aggregator: PreAggregator | None
    pane_ends: PaneEndWatermarks | None  #: None: all watermarks are forwarded
    sent_columns: list[int] | None = None  #: numbers of the columns to send, from the first batch on; None: all
    next_channel: int = 0

    @property
    def spec(self) -> EdgeSpec:
        return self.compiled.spec


@dataclass
class Outputs:
    """Owned by the loop of a single subtask."""

    graph: JobGraph
    subtask: SubtaskId
    send: Send
    edges: Sequence[Edge]  #: of the job, by number
    columns: Mapping[str, pa.Schema] = field(default_factory=dict)  #: declared columns by output; "": the main output
    flow: FlowControl = FlowControl()
    repeated: Mapping[ChannelId, RepeatedRows] = field(default_factory=dict)  #: channels to surviving receivers
    credits: Credits = field(init=False)
    records: int = 0
    bytes: int = 0  #: over all channels: a broadcast batch counts once per receiver
    repeated_rows: int = 0  #: rows that were not sent again
    _split: str = ""  #: of the rows that are being emitted
    _end: int = 0  #: number of the last of these rows; 0: they have no numbers
    #: The rows with this number, and the sums of the hashes of their keys.
    _numbered: dict[ChannelId, list[tuple[pa.RecordBatch, int]]] = field(default_factory=dict)
    #: By output, the schema of the last batch without views, and the form in which it was sent.
    _schemas: dict[str, tuple[pa.Schema, NullableRows]] = field(default_factory=dict)
    _is_idle: bool = False  #: idle: the watermark advances without this subtask

    def __post_init__(self) -> None:
        channels = self.graph.outputs[self.subtask]
        charged = [channel for channel in channels if not self.graph.is_feedback(channel)]
        self.credits = Credits(charged, self.flow.min_bytes)
        numbers = dict.fromkeys(channel.edge for channel in channels)
        self._edges = [
            self._edge(number, tuple(channel for channel in channels if channel.edge == number)) for number in numbers
        ]

    def _edge(self, number: int, channels: tuple[ChannelId, ...]) -> _Edge:
        edge = self.edges[number]
        if (folding := edge.pre_aggregation) is None:
            return _Edge(edge, channels, None, None)
        pane_ends = PaneEndWatermarks(folding.pane_ms) if self.graph.is_followed_by_sinks(edge.spec.target) else None
        return _Edge(edge, channels, None if folding.in_window else folding.create(), pane_ends)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Sends `batch` on every edge of `output`: without views and run-end encoding, all columns nullable.

        Drops empty batches.

        Raises:
            WeirError: the columns differ from earlier batches.
            JobRejected: two columns have the same name, the columns differ from the declared columns, a receiver's key
                column is missing, or its type cannot be a key.
            OperatorFailure: the pre-aggregation for a receiver raised; it names the receiver.
        """
        if batch.num_rows == 0:
            return
        batch = self._convert(batch, output)
        self.records += batch.num_rows
        for edge in self._edges:
            if edge.spec.output != output:
                continue
            if edge.pre_aggregator is None:
                self._partition(edge, batch)
            else:
                self._send_pre_aggregates(edge, partial(edge.pre_aggregator.add, batch))
                if self._is_idle:  # receivers do not wait for an idle subtask: a watermark would overtake buffered rows
                    self._send_pre_aggregates(edge, edge.pre_aggregator.flush)

    @contextmanager
    def numbering(self, split: str, end: int) -> Iterator[None]:
        """The rows that are emitted meanwhile have the number `end` in `split`."""
        self._split, self._end = split, end
        try:
            yield
            self._send_numbered()
        finally:
            self._split, self._end = "", 0
            self._numbered.clear()

    def _send_numbered(self) -> None:
        for channel, emitted in self._numbered.items():
            batches, sums = zip(*emitted, strict=True)
            rows, keys, repeated = sum(map(len, batches)), sum(sums) % KEY_SUMS, self.repeated.get(channel)
            if repeated is not None and repeated.drops(self._split, self._end, rows, keys):
                self.repeated_rows += rows
                continue
            is_joined = len(batches) > 1 and sum(batch.nbytes for batch in batches) <= MAX_JOINED_BYTES
            parts = [(pa.concat_batches(batches), keys)] if is_joined else emitted
            for number, (batch, batch_keys) in enumerate(parts, 1):
                end = self._end if number == len(parts) else -abs(self._end)
                self._send(channel, batch, batch.num_rows, self._split, end, batch_keys)

    def broadcast(self, message: Control) -> None:
        """Sends a control message on every channel. Control messages cost no credit.

        Raises:
            RowsNotRepeated: before a barrier, rows that a receiver has processed were not repeated.
        """
        if isinstance(message, Barrier):
            self._check_repeated_rows()
        if isinstance(message, Watermark | Idle):
            self._is_idle = isinstance(message, Idle)
        for edge in self._edges:
            if edge.pre_aggregator is not None:
                time = message.time if isinstance(message, Watermark) else None
                due = edge.pre_aggregator.flush if time is None else partial(edge.pre_aggregator.advance, time)
                self._send_pre_aggregates(edge, due)
            forwarded = message if edge.pane_ends is None else edge.pane_ends.forwarded(message)
            if forwarded is not None:
                for channel in edge.channels:
                    self.send(channel, forwarded)

    def _check_repeated_rows(self) -> None:
        for channel, repeated in self.repeated.items():
            try:
                repeated.check()
            except ValueError as error:
                receiver = self.graph.label(self.graph.target(channel))
                detail = f"{self.graph.label(self.subtask)} sends other rows to {receiver} after a restart: {error}"
                raise RowsNotRepeated(detail) from error

    def _convert(self, batch: pa.RecordBatch, output: str) -> pa.RecordBatch:
        """Removes views and run ends from the types, and makes all columns nullable.

        Checks the columns here, where the operator is known.
        """
        if (last := self._schemas.get(output)) is not None:
            seen, sent = last
            if batch.schema is seen or batch.schema.equals(seen, check_metadata=True):
                return sent.of(batch)
        check_distinct_columns(batch.schema, self.subtask.operator)
        batch = without_views(batch)
        now = NullableRows(batch.schema)
        if last is None:
            self._check_first(now.schema, output)
        else:
            self._check_unchanged(last[1].schema, now.schema)
        self._schemas[output] = batch.schema, now
        return now.of(batch)

    def _check_unchanged(self, sent: pa.Schema, schema: pa.Schema) -> None:
        before, now = columns_of(sent), columns_of(schema)
        if list(before.items()) != list(now.items()):
            uid = self.subtask.operator
            raise WeirError(f"operator {uid!r} changed the columns of its output: {column_difference(before, now)}")

    def _check_first(self, schema: pa.Schema, output: str) -> None:
        """Checks the columns of the first batch against the declared columns, and the key columns of receivers.

        Determines the columns that each edge sends.
        """
        for edge in self._edges:
            if edge.spec.output != output:
                continue
            used = edge.compiled.used_columns
            edge.sent_columns = None if used is None else used_positions(schema, used)
            if edge.spec.partitioning is Partitioning.HASH:
                check_keys(schema, edge.spec.keys, edge.spec.target)
        if output not in self.columns:
            return
        declared = columns_of(schema_without_views(self.columns[output]))
        found = columns_of(schema)
        if list(declared.items()) != list(found.items()):
            which = f"side output {output!r}" if output else "output"
            detail = (
                f"the columns of its {which} differ from the declared columns: {column_difference(declared, found)}"
            )
            raise JobRejected("wrong-columns", self.subtask.operator, detail)

    def _partition(self, edge: _Edge, batch: pa.RecordBatch) -> None:
        if edge.sent_columns is not None:
            batch = batch.select(edge.sent_columns)
        if edge.compiled.is_encoded:
            batch = decode(batch, columns_with_many_values(batch))  # credits count a dictionary with each batch
        elif edge.spec.partitioning is not Partitioning.HASH:
            batch = decode(batch)
        match edge.spec.partitioning:
            case Partitioning.FORWARD:
                self._send_batch(edge.channels[0], batch)
            case Partitioning.HASH:
                self._send_by_key(edge, batch)
            case Partitioning.CUSTOM:
                function = edge.compiled.partitioner
                assert function is not None, "a custom edge has a partitioner"
                parts = partition_by_function(batch, edge.spec.keys, function, edge.spec.target, len(edge.channels))
                self._send_parts(edge, parts)
            case Partitioning.BROADCAST:
                for channel in edge.channels:
                    self._send_batch(channel, batch)
            case Partitioning.REBALANCE:
                self._send_batch(edge.channels[edge.next_channel], batch)
                edge.next_channel = (edge.next_channel + 1) % len(edge.channels)

    def _send_by_key(self, edge: _Edge, batch: pa.RecordBatch) -> None:
        arguments = batch, edge.spec.keys, self.graph.max_parallelism, len(edge.channels)
        if self._end:
            parts, key_sums = partition_with_key_sums(*arguments)
        else:
            parts, key_sums = partition_by_key_group(*arguments), []
        self._send_parts(edge, [None if part is None else decode(part) for part in parts], key_sums)

    def _send_pre_aggregates(self, edge: _Edge, due: Callable[[], Parts]) -> None:
        """Sends the pre-aggregated rows that `due` returns. A batch counts as the rows that it pre-aggregates.

        Raises:
            OperatorFailure: the pre-aggregation raised. It names the window, whose arguments are at fault.
        """
        try:
            found = due()
        except Exception as error:
            hook = f"pre-aggregation after {edge.spec.source!r}"
            raise OperatorFailure(edge.spec.target, self.subtask.index, hook, error) from error
        for parts in found:
            partitioned = partition_by_key_group(parts, edge.spec.keys, self.graph.max_parallelism, len(edge.channels))
            for channel, part in zip(edge.channels, partitioned, strict=True):
                if part is not None:
                    self._send(channel, part, input_row_count(part))

    def _send_parts(self, edge: _Edge, parts: Sequence[pa.RecordBatch | None], key_sums: Sequence[int] = ()) -> None:
        for channel, part, keys in zip(edge.channels, parts, key_sums or [0] * len(parts), strict=True):
            if part is not None:
                self._send_batch(channel, part, keys)

    def _send_batch(self, channel: ChannelId, batch: pa.RecordBatch, keys: int = 0) -> None:
        if self._end:
            self._numbered.setdefault(channel, []).append((batch, keys))
        else:
            self._send(channel, batch, batch.num_rows)

    def _send(
        self, channel: ChannelId, batch: pa.RecordBatch, rows: int, split: str = "", end: int = 0, keys: int = 0
    ) -> None:
        nbytes = batch.nbytes
        self.bytes += nbytes
        if not self.graph.is_feedback(channel):
            self.credits.spend(channel, nbytes)
        self.send(channel, Records(batch, rows, nbytes, split, end, keys))


class GuardedCollector:
    """Collector of an operator: forwards batches, and raises where output would be lost."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._rejection_reason: str | None = None

    def emit(self, batch: pa.RecordBatch) -> None:
        if self._rejection_reason is not None:
            raise WeirError(f"output {self._rejection_reason} is refused: it would be lost")
        self._outputs.emit_to("", batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        if self._rejection_reason is not None:
            raise WeirError(f"output {self._rejection_reason} is refused: it would be lost")
        self._outputs.emit_to(output, batch)

    def reject_output(self, when: str | None) -> str | None:
        """Rejects output from now on (`when` is the reason), or accepts it (None). Returns the previous setting."""
        before, self._rejection_reason = self._rejection_reason, when
        return before

    @contextmanager
    def rejecting_output(self, when: str) -> Iterator[None]:
        before = self.reject_output(when)
        try:
            yield
        finally:
            self.reject_output(before)


def used_positions(schema: pa.Schema, used: frozenset[str]) -> list[int] | None:
    """The numbers of the used columns; None: all. At least one, since a batch without columns has no rows."""
    found = [number for number, name in enumerate(schema.names) if name in used]
    return None if len(found) == len(schema) else found or [0]
