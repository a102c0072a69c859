"""Arrow rows as Spark columns: a Spark type for each Arrow type, and four columns for shuffle and sort.

Spark has fewer types than Arrow. A column travels as its *carrier*: a type that Spark supports and that holds every
value exactly (`timestamp[ms]` as `timestamp[us]`, `timestamp[ns]` as its integer). It is cast back before user code or
a sink sees it. So STREAMING and BATCH write the same types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.state.index.hashing import hash_values
from spark_jobs.batch.counts import RowSum
from spark_jobs.batch.failures import RowsRejected
from spark_jobs.column_types import carrier_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OWNER_COLUMN: Final = "owner"  #: index of the target subtask
HASH_COLUMN: Final = "hash"  #: hash of the key
TIME_COLUMN: Final = "time"  #: event time, ms; of rows without a hash, the watermark of their source before them
ORDER_COLUMN: Final = "order"  #: stream, branch, subtask and row number: unique; negative: a marker, which has no row
_SHUFFLE_SCHEMA: Final = pa.schema(
    [(OWNER_COLUMN, pa.int32()), (HASH_COLUMN, pa.int64()), (TIME_COLUMN, pa.int64()), (ORDER_COLUMN, pa.int64())]
)
_ROW_BITS: Final = 34  #: low bits of `order` hold the row number within the emitting subtask
_INDEX_BITS: Final = 15  #: the next bits hold the index of the subtask
_BRANCH_BITS: Final = 6  #: the next bits hold the branch: several stages emit a stream before a union
_BRANCH_SHIFT: Final = _ROW_BITS + _INDEX_BITS
STREAM_SHIFT: Final = _BRANCH_SHIFT + _BRANCH_BITS  #: the high bits hold the number of the stream
MAX_BRANCHES: Final = 1 << _BRANCH_BITS
MAX_STREAMS: Final = 1 << (63 - STREAM_SHIFT)

Hashes = npt.NDArray[np.int64]
Inputs = npt.NDArray[np.int64]

_SPECIAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9]")  #: characters that Spark may not read as part of a name


@dataclass(frozen=True)
class OwnerRows:
    """Rows of a single owner, as they arrive in a task.

    Args:
        batches: by input, its rows in order.
        sums: the sum of the rows of each stream.
        inputs: by row in order, the input; None: all rows are of input 0.
    """

    batches: tuple[pa.RecordBatch, ...]
    owner: int
    hashes: Hashes
    sums: Mapping[int, RowSum]
    inputs: Inputs | None = None
    watermark: int = MIN_WATERMARK

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows of input 0."""
        return self.batches[0]

    def slice(self, start: int, stop: int) -> OwnerRows:
        if self.inputs is None:
            batches: tuple[pa.RecordBatch, ...] = (self.batch.slice(start, stop - start),)
            return replace(self, batches=batches, hashes=self.hashes[start:stop])
        before, within = (
            np.bincount(self.inputs[rows], minlength=len(self.batches)) for rows in (slice(start), slice(start, stop))
        )
        batches = tuple(b.slice(int(first), int(n)) for b, first, n in zip(self.batches, before, within, strict=True))
        return replace(self, batches=batches, inputs=self.inputs[start:stop], hashes=self.hashes[start:stop])

    def runs(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows in order, as an input and consecutive rows of it."""
        if self.inputs is None:
            yield 0, self.batch
            return
        borders = [0, *(np.flatnonzero(np.diff(self.inputs)) + 1), len(self.inputs)]
        for start, stop in pairwise(borders):
            if start < stop:
                number = int(self.inputs[start])
                yield number, self.slice(start, stop).batches[number]


@dataclass(frozen=True)
class WireSchema:
    """The columns of a stream: the rows that a step emits to one of its outputs.

    Args:
        uid: uid of the step.
        schema: columns of the rows.
        number: number of the stream among the streams of a frame.

    Raises:
        JobRejected: Spark has no type for a column, or two columns have the same name; step and column are named.
    """

    uid: str
    schema: pa.Schema
    number: int = 0

    def __post_init__(self) -> None:
        if not len(self.schema):
            raise JobRejected("no-columns", self.uid, "its rows have no columns: Spark cannot carry them in BATCH")
        if self.number >= MAX_STREAMS:
            raise JobRejected("outputs-in-batch", self.uid, f"BATCH carries at most {MAX_STREAMS} outputs of a step")
        for name in self.schema.names:
            if self.schema.names.count(name) > 1:
                raise JobRejected("duplicate-column", self.uid, f"two columns of its rows are called {name!r}")
        for field in self.schema:
            if carrier_of(field.type) is None:
                detail = f"column {field.name!r} is {field.type}, and Spark has no type that holds it in BATCH"
                raise JobRejected("type-in-batch", self.uid, detail)

    @cached_property
    def carriers(self) -> pa.Schema:
        """The columns within Spark, under generated names, which cannot collide."""
        return pa.schema(
            [pa.field(self.column(number), carrier_of(field.type)) for number, field in enumerate(self.schema)]
        )

    def column(self, number: int) -> str:
        """The name of a column within Spark.

        Spark ignores the case of names, and `mapInArrow` looks columns up by unquoted names, in which dots and
        backticks have a meaning.
        """
        return f"{self.number}_{number}_{_SPECIAL_CHARACTERS.sub('_', self.schema.names[number])}"

    def encode(
        self, batch: pa.RecordBatch, owners: Any, hashes: Any, times: Any, index: int, first: int, branch: int = 0
    ) -> pa.RecordBatch:
        """Encodes rows for Spark.

        Args:
            owners, hashes, times: an array with a value per row each, or a single number for all rows.
            index: index of the emitting subtask.
            first: number of rows that the emitting subtask has emitted before `batch`.
            branch: number of the emitting stage among those that emit the stream to a union.
        """
        rows = batch.num_rows
        first_order = (self.number << STREAM_SHIFT) + (branch << _BRANCH_SHIFT)
        first_order += ((index % (1 << _INDEX_BITS)) << _ROW_BITS) + first
        order = first_order + np.arange(rows, dtype=np.int64)
        added = [_column(owners, np.int32, rows), _column(hashes, np.int64, rows), _column(times, np.int64, rows)]
        carriers = [self._encode_column(column, number) for number, column in enumerate(batch.columns)]
        schema = pa.schema([*_SHUFFLE_SCHEMA, *self.carriers])
        return pa.RecordBatch.from_arrays([*added, pa.array(order), *carriers], schema=schema)

    def decode(self, carriers: list[pa.Array]) -> pa.RecordBatch:
        """The rows of the stream, from its columns within Spark."""
        columns = [_decode_column(column, field.type) for column, field in zip(carriers, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _encode_column(self, column: pa.Array, number: int) -> pa.Array:
        carrier = self.carriers.field(number).type
        if column.type == carrier:
            return column
        try:
            return column.cast(carrier)
        except pa.ArrowException as error:
            name = self.schema.names[number]
            detail = f"operator {self.uid!r}, column {name!r}: Spark cannot hold a value: {error}"
            raise RowsRejected(self.uid, detail) from error


@dataclass(frozen=True)
class FrameSchema:
    """The columns of a DataFrame with rows of one or several streams: shuffle columns, then those of each stream.

    A row has nulls in the columns of the other streams.
    """

    streams: tuple[WireSchema, ...]

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([*_SHUFFLE_SCHEMA, *(field for stream in self.streams for field in stream.carriers)])

    def spark_schema(self) -> StructType:
        return spark_schema(self.arrow_schema)

    def with_all_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Encoded rows of a stream, with the columns of the other streams."""
        if len(self.streams) == 1:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        return pa.RecordBatch.from_arrays(
            [columns.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in self.arrow_schema],
            schema=self.arrow_schema,
        )

    def markers(self, owners: range) -> pa.RecordBatch:
        """A marker for each of `owners`, so that the owner's task runs even if it gets no row."""
        count = len(owners)
        added = [pa.array(owners, pa.int32()), *(pa.array([value] * count, pa.int64()) for value in (0, 0, -1))]
        nulls = [pa.nulls(count, field.type) for field in list(self.arrow_schema)[len(_SHUFFLE_SCHEMA) :]]
        return pa.RecordBatch.from_arrays([*added, *nulls], schema=self.arrow_schema)

    def decode(self, spark_batch: pa.RecordBatch, *, by_watermark: bool = False) -> Iterator[OwnerRows]:
        """The rows of each owner, in order. `by_watermark`: rows without a hash, by watermark too.

        Several streams are inputs of a step, with their number.
        """
        owners, times = (spark_batch.column(number).to_numpy() for number in (0, 2))
        differs = owners[1:] != owners[:-1]
        if by_watermark:
            differs |= times[1:] != times[:-1]
        borders = np.flatnonzero(differs) + 1
        for begin, end in zip([0, *borders], [*borders, len(owners)], strict=True):
            if begin < end:
                watermark = int(times[begin]) if by_watermark else MIN_WATERMARK
                yield self._rows(spark_batch.slice(begin, end - begin), int(owners[begin]), watermark)

    def _rows(self, some: pa.RecordBatch, owner: int, watermark: int) -> OwnerRows:
        order = some.column(3).to_numpy()
        if (order < 0).any():
            some = some.filter(pa.array(order >= 0))
            order = some.column(3).to_numpy()
        hashes = some.column(1).to_numpy()
        if len(self.streams) == 1:
            (stream,) = self.streams
            carriers = some.columns[len(_SHUFFLE_SCHEMA) :]
            sums = {stream.number: row_sum(some, carriers)}
            return OwnerRows((stream.decode(carriers),), owner, hashes, sums, watermark=watermark)
        inputs = order >> STREAM_SHIFT
        batches, sums, start = list[pa.RecordBatch](), {}, len(_SHUFFLE_SCHEMA)
        for stream in self.streams:
            rows = some.filter(pa.array(inputs == stream.number))
            carriers = rows.columns[start : start + len(stream.carriers)]
            batches.append(stream.decode(carriers))
            sums[stream.number] = row_sum(rows, carriers)
            start += len(stream.carriers)
        return OwnerRows(tuple(batches), owner, hashes, sums, inputs, watermark)


def row_sum(encoded: pa.RecordBatch, carriers: Sequence[pa.Array]) -> RowSum:
    """The sum of encoded rows. `carriers`: the columns of their stream, hashed where the exchange has no keys."""
    hashes = encoded.column(1).to_numpy()
    if not hashes.any():
        hashes = hash_values(carriers, encoded.num_rows).view(np.int64)
    return RowSum.of(encoded.column(0).to_numpy(), hashes)


def to_stream(batch: pa.RecordBatch) -> bytes:
    """The batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def from_stream(stream: bytes) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = pa.ipc.open_stream(stream).read_all().to_batches()
    return batches


def _decode_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_null(kind):
        return pa.nulls(len(column))
    if pa.types.is_dictionary(kind):
        array = _decode_column(column, kind.value_type).dictionary_encode()
        indices = array.indices.cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, array.dictionary, ordered=kind.ordered)
    return column.cast(kind)


def _column(values: Any, dtype: Any, rows: int) -> pa.Array:
    return pa.array(np.full(rows, values, dtype) if np.isscalar(values) else np.asarray(values, dtype))
