"""Buffered rows of an operator as keyed state: an Arrow stream per key group, so rows move with their groups."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from runtime.state.object_table import Entry, ObjectTable

_NO_KEY: Final = msgspec.msgpack.encode(None)


class BufferedRows:
    """Rows that are stored at a snapshot and read after a restore."""

    def __init__(self, table: ObjectTable) -> None:
        self._table = table

    def read(self) -> list[pa.RecordBatch]:
        """The restored batches in the order of key groups."""
        stored = sorted((entry[0], data) for entry, data in self._table.items())
        return [batch for _, data in stored for batch in pa.ipc.open_stream(data).read_all().to_batches()]

    def replace(self, parts: Mapping[int, pa.Table]) -> None:
        """Replaces all stored rows by `parts`, which holds a table of rows per key group."""
        for group in [entry[0] for entry, _ in self._table.items() if entry[0] not in parts]:
            self._table.delete(_entry(group))
        for group, rows in parts.items():
            self._table.put(_entry(group), _encode(rows))


def concat_batches(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """A table of batches with the same columns; nullability may differ."""
    return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")


def _entry(group: int) -> Entry:
    return group, _NO_KEY, None


def _encode(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
