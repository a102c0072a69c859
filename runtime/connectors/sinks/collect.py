"""Returns rows to the program that runs the job (Flink: `DataStream.executeAndCollect`).

Rows are part of the checkpoint that follows them, as committables: Arrow IPC streams in base64. When the checkpoint is
recorded, the job master adds them to the collection in its own process. Each committable has a name of its own, so a
repeated commit adds nothing. Restarts of slots and attempts therefore neither lose nor repeat a row. (Flink's
`CollectSinkFunction` also keeps its buffer in the checkpoint.)
"""

import base64
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from runtime.connectors.sinks.no_committer import foreign_output_error
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import JobRejected
from runtime.operators.functions.row_values import rows_of
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter, StageFolders

DEFAULT_MAX_ROWS: Final = 100_000
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024


class CollectedRows:
    """The rows of committed checkpoints. Thread-safe. A copy in another process is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, list[pa.Table]] = {}  #: by committable; columns may change between batches
        self._rows = self._bytes = 0

    def __reduce__(self) -> tuple[type["CollectedRows"], tuple[()]]:
        return CollectedRows, ()

    def add(self, name: str, texts: Sequence[str], max_rows: int, max_bytes: int) -> None:
        """Adds the rows of a committable, once. Raises JobRejected if a limit is exceeded."""
        with self._lock:
            if name in self._tables:
                return
            tables = [pa.Table.from_batches([_decode(text)]) for text in texts]
            rows, size = self._rows + sum(map(len, tables)), self._bytes + sum(map(len, texts))
            _check_limits(rows, size, max_rows, max_bytes)
            self._tables[name], self._rows, self._bytes = tables, rows, size

    def table(self) -> pa.Table:
        with self._lock:
            tables = [table for each in self._tables.values() for table in each]
        try:
            return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            detail = f"the collected rows do not fit into one table: {error}: cast the column before the sink"
            raise JobRejected("type-differs", "table", detail) from error


@dataclass(frozen=True)
class CollectSink:
    """Returns rows to the caller of `run_local`, of a bounded job or after a stop.

        totals = weir.CollectSink()
        counts.sink("totals", totals)
        weir.run_local(flow, storage="/tmp/job")
        totals.table()

    Rows lie in the memory of the caller and in manifests: this sink is for tests, notebooks and small results. It keeps
    the rows of all runs of this object. A job that the console starts has no caller, and is refused.

    Args:
        max_rows, max_bytes: limits of the collection, and of each subtask between two checkpoints. A job that exceeds
            a limit fails. Bytes are those of the encoded rows.
    """

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    max_rows: int = DEFAULT_MAX_ROWS
    max_bytes: int = DEFAULT_MAX_BYTES
    _collected: CollectedRows = field(default_factory=CollectedRows, init=False, repr=False, compare=False)

    def table(self) -> pa.Table:
        """The rows of all committed checkpoints. The rows of a subtask are in their order; without rows, no columns.

        Raises:
            JobRejected: a column has types that no type of Arrow unites.
        """
        return self._collected.table()

    def rows(self) -> list[dict[str, Any]]:
        """`table` as dictionaries. A time outside the years 1 to 9999 is a `numpy.datetime64`, in UTC."""
        return [row for batch in self.table().to_batches() for row in rows_of(batch, far_times=True)]

    def bind(self, uid: str, folders: StageFolders) -> "CollectSink":
        detail = "a job of the console has no caller that could collect rows: use a ParquetSink, or run_local"
        raise JobRejected("no-caller", uid, detail)

    def writer(self) -> "CollectWriter":
        return CollectWriter(self.max_rows, self.max_bytes)

    def committer(self) -> "CollectCommitter":
        return CollectCommitter(self._collected, self.max_rows, self.max_bytes)

    def check(self) -> None:
        for name, value in (("max_rows", self.max_rows), ("max_bytes", self.max_bytes)):
            if value < 1:
                raise JobRejected("bad-limit", name, f"must be at least 1, not {value}")


class _Collected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A committable: the rows of a subtask between two barriers."""

    name: str
    batches: list[str]


class CollectWriter(SinkWriter):
    """Buffers the rows between two barriers."""

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._limits = max_rows, max_bytes
        self._encoded: list[str] = []
        self._rows = self._bytes = 0

    def open(self, context: OperatorContext) -> None:
        self._owner = f"{context.uid}-{context.token}-{context.index}"

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        text = _encode(batch)
        self._rows += batch.num_rows
        self._bytes += len(text)
        _check_limits(self._rows, self._bytes, *self._limits)
        self._encoded.append(text)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._encoded:
            return ()
        prepared = _Collected(name=f"{self._owner}-{checkpoint}", batches=self._encoded)
        self._encoded, self._rows, self._bytes = [], 0, 0
        return (msgspec.to_builtins(prepared),)


class CollectCommitter(SinkCommitter):
    def __init__(self, collected: CollectedRows, max_rows: int, max_bytes: int) -> None:
        self._collected, self._limits = collected, (max_rows, max_bytes)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Commits nothing: the collection is in the process of the job master, and slots cannot reach it."""
        return 0

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        try:
            collected = [msgspec.convert(each, _Collected) for each in committables]
        except msgspec.ValidationError as error:
            raise foreign_output_error() from error
        for each in collected:
            self._collected.add(each.name, each.batches, *self._limits)


def _check_limits(rows: int, size: int, max_rows: int, max_bytes: int) -> None:
    for name, count, limit in (("max_rows", rows, max_rows), ("max_bytes", size, max_bytes)):
        if count > limit:
            advice = "collect an aggregate, raise the limit, or write to a ParquetSink"
            raise JobRejected("too-many-rows", name, f"{count} exceeds the limit of {limit}: {advice}")


def _encode(batch: pa.RecordBatch) -> str:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(stream.getvalue()).decode()


def _decode(text: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_next_batch()
