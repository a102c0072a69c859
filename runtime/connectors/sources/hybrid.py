"""A bounded source and then another source, as a single stream: a history and the live part. (Flink: `HybridSource`.)

A subtask reads its share of the history, then waits for its siblings (`core.subtask.source_parts`), then opens the live
source. The switch lies between two checkpoints, and each checkpoint holds it in all subtasks or in none. So a live
reader restores either no state or the state of all its splits.

State: that of the history under `history.`, that of the live source under `live.`, and by key group whether the live
part has begun. A restore after the switch drops the state of the history and does not open it: its input may be gone.
A restore before the switch begins the live part where the first run would have begun it: the state holds the listing of
the live source (`ports.ListsInput`).

The stream has the larger of both disorders. Until the switch its watermark therefore stays behind that of the history
by the rest of the live disorder. A watermark of the history passes no live row that is behind the history's last row by
no more than the disorder.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.connectors.sources.split_groups import keys_of_groups
from runtime.core.job.graph import Guarantee
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.plan import emits_watermarks, source_with_input
from runtime.errors import DataRejected, JobRejected
from runtime.operators.column_difference import column_difference, columns_of
from runtime.ports import (
    BindsUid,
    DescribesColumns,
    EmitsChangelog,
    EncodesTexts,
    HasParts,
    LeavesOutColumns,
    ListsInput,
    OperatorContext,
    ReadsAlone,
    ReleasesInput,
    RepeatsOrder,
    Source,
    SourceReader,
    StatesDisorder,
    StateStore,
    UsesFolders,
    UsesUrls,
)
from runtime.state.encodings import nullable_schema
from runtime.state.keyed_table import KeyedTable

HISTORY: Final = "history"
LIVE: Final = "live"
_KEYS: Final = pa.schema([pa.field("group", pa.int64())])
_VALUES: Final = pa.schema([pa.field("is_live", pa.bool_(), nullable=False)])
_LISTING: Final = "listing"  #: key in the broadcast state
_IS_LIVE: Final = "is_live"  #: key in the broadcast state, equal to the value of every key group


def then(history: Source, live: Source) -> "HybridSource":
    """A source that reads `history` to its end, and then `live`: a backfill before the newest rows.

    No subtask begins `live` before all have read their share of `history`. The position in both is part of the same
    checkpoint. Rows that both sources have come twice, and rows between them never: the caller chooses the cut, for
    example by `KafkaSource(start=...)` at the time up to which the files of `history` go.

    Args:
        history: a bounded source.
        live: a source with the same columns, in most cases an unbounded one. Where a run begins it is decided at the
            first start of the run, for example at which offsets of Kafka.

    Both have event times, or neither. At least one declares its columns. Errors are raised by `Dataflow.source`.
    """
    return HybridSource(history, live)


@dataclass(frozen=True)
class HybridSource:
    """The source of `then`. Optional abilities are those of both parts."""

    history: Source
    live: Source
    live_listing: bytes | None = field(default=None, kw_only=True, repr=False)  #: by `with_input`

    @property
    def parts(self) -> Mapping[str, Source]:
        return {HISTORY: self.history, LIVE: self.live}

    @property
    def bounded(self) -> bool:
        return self.live.bounded

    @property
    def guarantee(self) -> str:
        """The weaker guarantee of both parts."""
        order = [str(guarantee) for guarantee in Guarantee]
        return max((part.guarantee for part in self.parts.values()), key=lambda text: ([*order, text]).index(text))

    def reader(self) -> "HybridReader":
        return HybridReader(self)

    def check(self) -> None:
        for name, part in self.parts.items():
            _check_part(name, part)
        if not self.history.bounded:
            detail = "must be bounded, since the live part begins at its end: set bounded=True, or swap the arguments"
            raise JobRejected("unbounded-history", HISTORY, detail)
        timed = {name for name, part in self.parts.items() if emits_watermarks(part)}
        if len(timed) == 1:
            (lacking,) = self.parts.keys() - timed
            detail = "has no event times, unlike the other part: set event_time in both, or in neither"
            raise JobRejected("no-event-time", lacking, detail)
        history = self.history
        if timed and not self.live.bounded and isinstance(history, StatesDisorder) and history.max_disorder_ms is None:
            detail = "set max_disorder_ms, 0 for rows in order: a job without end drops late rows instead of failing"
            raise JobRejected("no-disorder", HISTORY, detail)
        self._check_columns()

    def _check_columns(self) -> None:
        known = [columns_of(columns) for columns in map(_columns, self.parts.values()) if columns is not None]
        if not known:
            detail = "its columns must be known before it reads: declare them in the format, or those of the live part"
            raise JobRejected("unknown-columns", HISTORY, detail)
        if list(known[0].items()) != list(known[-1].items()):
            difference = column_difference(known[0], known[-1])
            raise JobRejected("wrong-columns", LIVE, f"its columns differ from those of the history: {difference}")

    # ------------------------------------------------------------ optional abilities

    def output_columns(self) -> pa.Schema | None:
        known = (columns for columns in map(_columns, self.parts.values()) if columns is not None)
        columns = next(known, None)
        return None if columns is None else nullable_schema(columns)

    @property
    def has_event_time(self) -> bool:
        return emits_watermarks(self.live)

    @property
    def max_disorder_ms(self) -> int | None:
        """None: the rows of a part must be in order."""
        stated = [part.max_disorder_ms for part in self.parts.values() if isinstance(part, StatesDisorder)]
        known = [disorder_ms for disorder_ms in stated if disorder_ms is not None]
        return max(known, default=0) if len(known) == len(stated) else None

    @property
    def emits_changelog(self) -> bool:
        """The history of a changelog may be a file of inserts, whose reader does not know the meaning of `op`."""
        return any(isinstance(part, EmitsChangelog) and part.emits_changelog for part in self.parts.values())

    @property
    def exclusive(self) -> bool:
        return any(isinstance(part, ReadsAlone) and part.exclusive for part in self.parts.values())

    def with_used_columns(self, used: frozenset[str]) -> "HybridSource":
        """Leaves out the columns that both parts can leave out."""
        if not (isinstance(self.history, LeavesOutColumns) and isinstance(self.live, LeavesOutColumns)):
            return self
        narrow = replace(self, history=self.history.with_used_columns(used), live=self.live.with_used_columns(used))
        columns = [_columns(part) for part in narrow.parts.values()]
        names = [None if schema is None else schema.names for schema in columns]
        return narrow if names[0] is not None and names[0] == names[1] else self

    def with_encoded_texts(self) -> "HybridSource":
        return self._with(lambda part: part.with_encoded_texts() if isinstance(part, EncodesTexts) else part)

    def in_order(self) -> "HybridSource":
        return self._with(lambda part: part.in_order() if isinstance(part, RepeatsOrder) else part)

    def _with(self, change: Any) -> "HybridSource":
        return replace(self, history=change(self.history), live=change(self.live))

    def folders(self) -> Mapping[str, str]:
        return {
            f"{name}.{argument}": folder
            for name, part in self.parts.items()
            if isinstance(part, UsesFolders)
            for argument, folder in part.folders().items()
        }

    def urls(self) -> Mapping[str, str]:
        return {
            f"{name}.{argument}": url
            for name, part in self.parts.items()
            if isinstance(part, UsesUrls)
            for argument, url in part.urls().items()
        }

    def list_input(self) -> bytes | None:
        """The listings of both parts. The live part is listed now, before the history is read."""
        listings = [part.list_input() if isinstance(part, ListsInput) else None for part in self.parts.values()]
        return None if listings == [None, None] else msgspec.msgpack.encode(listings)

    def with_input(self, listing: bytes) -> "HybridSource":
        history, live = msgspec.msgpack.decode(listing, type=tuple[bytes | None, bytes | None])
        return replace(
            self,
            history=source_with_input(self.history, history),
            live=source_with_input(self.live, live),
            live_listing=live,
        )

    def release(self, retained: Sequence[Mapping[str, Sequence[Any]]]) -> int:
        return sum(
            part.release([_states_of(name, states) for states in retained])
            for name, part in self.parts.items()
            if isinstance(part, ReleasesInput)
        )


def _check_part(name: str, part: Source) -> None:
    """Raises JobRejected, naming the part and its setting."""
    if isinstance(part, HasParts):
        raise JobRejected("nested-parts", name, "must be a source without parts of its own: `then` takes two")
    if isinstance(part, BindsUid):
        detail = f"{type(part).__name__} has a PySpark stage, which feeds a source that stands alone"
        raise JobRejected("staged-part", name, f"{detail}: let Spark write files, and read their folder")
    try:
        part.check()
    except JobRejected as error:
        raise JobRejected(error.code, f"{name}.{error.field}", error.detail) from error


def _columns(part: Source) -> pa.Schema | None:
    return part.output_columns() if isinstance(part, DescribesColumns) else None


def _disorder_ms(part: Source) -> int | None:
    return part.max_disorder_ms if isinstance(part, StatesDisorder) else None


def _states_of(part: str, states: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """The list states of a part, by the names that its reader declares."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): entries for name, entries in states.items() if name.startswith(prefix)}


class _PartState:
    """The state of a part: each name has a prefix, since both parts may be sources of the same kind."""

    def __init__(self, state: StateStore, part: str) -> None:
        self._state, self._prefix = state, f"{part}."

    def keyed_table(self, name: str, keys: pa.Schema, values: pa.Schema) -> Any:
        return self._state.keyed_table(self._prefix + name, keys, values)

    def object_table(self, name: str) -> Any:
        return self._state.object_table(self._prefix + name)

    def list_state(self, name: str) -> Any:
        return self._state.list_state(self._prefix + name)

    def union_list_state(self, name: str) -> Any:
        return self._state.union_list_state(self._prefix + name)

    def broadcast_map(self, name: str) -> MutableMapping[Any, Any]:
        return self._state.broadcast_map(self._prefix + name)

    def broadcast_table(self, name: str) -> Any:
        return self._state.broadcast_table(self._prefix + name)

    def discard(self, prefix: str) -> None:
        self._state.discard(self._prefix + prefix)


class HybridReader(SourceReader):
    """Reads the history, waits for `begin_live`, and reads the live source."""

    def __init__(self, source: HybridSource) -> None:
        self._source = source
        self._history: SourceReader | None = None  #: None: it was read before the restore
        self._live: SourceReader | None = None  #: None: it is not open yet
        self._is_history_read = self._reads_live = False
        self._watermark: int | None = None  #: the highest so far
        self._columns = source.output_columns()
        self._checked: pa.Schema | None = None  #: the last columns that were compared with the declared columns
        lead_ms = (_disorder_ms(source.live) or 0) - (_disorder_ms(source.history) or 0)
        self._lag_ms = max(lead_ms, 0)  #: of the watermark of the history

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._table: KeyedTable = context.state.keyed_table("parts", _KEYS, _VALUES)
        self._live_input = context.state.broadcast_map("live_input")
        if _LISTING not in self._live_input:
            self._live_input[_LISTING] = self._source.live_listing
        groups = [keys_of_groups(context.max_parallelism, context.key_groups)]
        known = self._table.find(groups) >= 0
        self._row_ids = self._table.upsert(groups)
        if not known.all():
            self._table.column("is_live")[self._row_ids[~known]] = False
            self._table.touch(self._row_ids[~known])
        is_live = self._table.column("is_live")[self._row_ids]
        if (is_live != self._live_input.setdefault(_IS_LIVE, False)).any():
            detail = "the checkpoint holds the live part of some key groups, and the history of others"
            raise JobRejected("mixed-parts", context.uid, f"{detail}: restore another checkpoint")
        if is_live.all():
            self._is_history_read = self._reads_live = True
            context.state.discard(f"{HISTORY}.")
            self._live = self._open(LIVE, self._source.live, restored=True)
        else:
            self._history = self._open(HISTORY, self._source.history, restored=context.restored)

    def _open(self, part: str, source: Source, *, restored: bool) -> SourceReader:
        reader, state = source.reader(), _PartState(self._context.state, part)
        try:
            reader.open(replace(self._context, state=state, restored=restored))
        except BaseException:
            reader.close()
            raise
        return reader

    @property
    def awaits_live(self) -> bool:
        return self._is_history_read and not self._reads_live

    def begin_live(self) -> None:
        """Opens the live source. Its state is part of the next snapshot."""
        assert self.awaits_live, "a part of the history is unread"
        live = source_with_input(self._source.live, self._live_input[_LISTING])
        self._live = self._open(LIVE, live, restored=False)
        self._live_input[_IS_LIVE] = True
        self._table.column("is_live")[self._row_ids] = True
        self._table.touch(self._row_ids)
        self._reads_live = True

    @property
    def _reader(self) -> SourceReader:
        """The reader of the present part."""
        reader = self._live if self._reads_live else self._history
        assert reader is not None, "a part is open"
        return reader

    # ------------------------------------------------------------ rows

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.awaits_live:
            return None
        batch = self._reader.poll(max_rows)
        if batch is None:
            self._is_history_read = self._is_history_read or self._reader.exhausted
            return None
        return self._with_declared_columns(batch)

    def _with_declared_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch. Raises DataRejected: its columns are not those of the stream."""
        if self._checked is None or not batch.schema.equals(self._checked):
            assert self._columns is not None, "the source was checked"
            declared, actual = columns_of(self._columns), columns_of(batch.schema)
            if list(declared.items()) != list(actual.items()):
                part = LIVE if self._reads_live else HISTORY
                difference = column_difference(declared, actual)
                raise DataRejected(
                    f"{self._context.uid}, {part}: its columns are not those of the stream: {difference}"
                )
            self._checked = batch.schema
        return batch

    @property
    def exhausted(self) -> bool:
        return self._reads_live and self._reader.exhausted

    def watermark(self) -> int | None:
        watermark = self._reader.watermark()
        if watermark is not None:
            watermark -= 0 if self._reads_live else self._lag_ms
            self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)
        return self._watermark

    @property
    def max_disorder_ms(self) -> int:
        return self._reader.max_disorder_ms + (0 if self._reads_live else self._lag_ms)

    @property
    def idle(self) -> bool:
        return not self.awaits_live and self._reader.idle

    @property
    def discoveries(self) -> int:
        return sum(reader.discoveries for reader in self._open_readers)

    def look_for_splits(self) -> None:
        if not self.awaits_live:
            self._reader.look_for_splits()

    @property
    def has_looked(self) -> bool:
        return self.awaits_live or self._reader.has_looked

    # ------------------------------------------------------------ checkpoints

    @property
    def _open_readers(self) -> list[SourceReader]:
        return [reader for reader in (self._history, self._live) if reader is not None]

    def snapshot(self, checkpoint: int) -> None:
        for reader in self._open_readers:
            reader.snapshot(checkpoint)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        for reader in self._open_readers:
            reader.checkpoint_completed(permit)

    def close(self) -> None:
        """The master may still ask a closed reader for its splits, as any other."""
        with ExitStack() as stack:
            for reader in self._open_readers:
                stack.callback(reader.close)
