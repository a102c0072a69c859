"""Arrow rows as Spark columns: a Spark type for each Arrow type, and four columns for shuffle and sort.

Spark has fewer types than Arrow. A column travels as its *carrier*: a type that Spark supports and that holds every
value exactly (`timestamp[ms]` as `timestamp[us]`, `timestamp[ns]` as its integer). It is cast back before user code or
a sink sees it. So STREAMING and BATCH write the same types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import DataRejected, JobRejected
from spark_jobs.column_types import carrier_of, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OWNER_COLUMN: Final = "owner"  #: index of the target subtask
HASH_COLUMN: Final = "hash"  #: hash of the key
TIME_COLUMN: Final = "time"  #: event time, ms; of rows without a hash, the watermark of their source before them
ORDER_COLUMN: Final = "order"  #: emitting subtask and row number; negative: a marker that only names an owner
_SHUFFLE_SCHEMA: Final = pa.schema(
    [(OWNER_COLUMN, pa.int32()), (HASH_COLUMN, pa.int64()), (TIME_COLUMN, pa.int64()), (ORDER_COLUMN, pa.int64())]
)
_ORDER_BITS: Final = 40  #: low bits of `order` hold the row number within the emitting subtask, high bits its index

_SPECIAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9]")  #: characters that Spark may not read as part of a name


@dataclass(frozen=True)
class OwnerRows:
    """Rows of a single owner, as they arrive in a task."""

    batch: pa.RecordBatch
    owner: int
    hashes: npt.NDArray[np.int64]
    watermark: int = MIN_WATERMARK


@dataclass(frozen=True)
class WireSchema:
    """The columns of the rows that a step emits.

    Args:
        uid: uid of the step.
        schema: output schema of the step.

    Raises:
        JobRejected: Spark has no type for a column, or two columns have the same name; step and column are named.
    """

    uid: str
    schema: pa.Schema

    def __post_init__(self) -> None:
        if not len(self.schema):
            raise JobRejected("no-columns", self.uid, "its rows have no columns: Spark cannot carry them in BATCH")
        for name in self.schema.names:
            if self.schema.names.count(name) > 1:
                raise JobRejected("duplicate-column", self.uid, f"two columns of its rows are called {name!r}")
        for field in self.schema:
            if carrier_of(field.type) is None:
                detail = f"column {field.name!r} is {field.type}, and Spark has no type that holds it in BATCH"
                raise JobRejected("type-in-batch", self.uid, detail)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema within Spark: shuffle columns, then carriers under generated names, which cannot collide."""
        carriers = [pa.field(self.column(number), carrier_of(field.type)) for number, field in enumerate(self.schema)]
        return pa.schema([*_SHUFFLE_SCHEMA, *carriers])

    def spark_schema(self) -> StructType:
        return spark_schema(self.arrow_schema)

    def column(self, number: int) -> str:
        """The name of a column within Spark.

        Spark ignores the case of names, and `mapInArrow` looks columns up by unquoted names, in which dots and
        backticks have a meaning.
        """
        return f"{number}_{_SPECIAL_CHARACTERS.sub('_', self.schema.names[number])}"

    def encode(
        self, batch: pa.RecordBatch, owners: Any, hashes: Any, times: Any, index: int, first: int
    ) -> pa.RecordBatch:
        """Encodes rows for Spark.

        Args:
            owners, hashes, times: an array with a value per row each, or a single number for all rows.
            index: index of the emitting subtask.
            first: number of rows that the emitting subtask has emitted before `batch`.
        """
        rows = batch.num_rows
        order = (np.int64(index) << _ORDER_BITS) + first + np.arange(rows, dtype=np.int64)
        added = [_column(owners, np.int32, rows), _column(hashes, np.int64, rows), _column(times, np.int64, rows)]
        carriers = [self._encode_column(column, number) for number, column in enumerate(batch.columns)]
        return pa.RecordBatch.from_arrays([*added, pa.array(order), *carriers], schema=self.arrow_schema)

    def markers(self, owners: range) -> pa.RecordBatch:
        """A marker for each of `owners`, so that the owner's task runs even if it gets no row."""
        count = len(owners)
        added = [pa.array(owners, pa.int32()), *(pa.array([value] * count, pa.int64()) for value in (0, 0, -1))]
        nulls = [pa.nulls(count, field.type) for field in list(self.arrow_schema)[len(_SHUFFLE_SCHEMA) :]]
        return pa.RecordBatch.from_arrays([*added, *nulls], schema=self.arrow_schema)

    def decode(self, spark_batch: pa.RecordBatch, *, by_watermark: bool = False) -> Iterator[OwnerRows]:
        """The rows of each owner, in order. `by_watermark`: rows without a hash, by watermark too."""
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
        columns = [
            _decode_column(column, field.type)
            for column, field in zip(some.columns[len(_SHUFFLE_SCHEMA) :], self.schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return OwnerRows(batch, owner, some.column(1).to_numpy(), watermark)

    def _encode_column(self, column: pa.Array, number: int) -> pa.Array:
        carrier = self.arrow_schema.field(len(_SHUFFLE_SCHEMA) + number).type
        if column.type == carrier:
            return column
        try:
            return column.cast(carrier)
        except pa.ArrowException as error:
            name = self.schema.names[number]
            raise DataRejected(f"operator {self.uid!r}, column {name!r}: Spark cannot hold a value: {error}") from error


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
