"""A folder of files as a source, bounded or watched continuously.

A split is a file. Files are assigned to subtasks by the key group of their name. Positions (file, next row) are
therefore keyed state and move with their key groups at a rescale. Each subtask reads its own files in name order.

A file is read as soon as it is seen, so writers must rename finished files into the folder. Names that begin with "."
or "_" are ignored: unfinished files can have such names. A file that was read to its end is never opened again.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa

from runtime.connectors.dead_letters import DeadLetters
from runtime.connectors.formats import Format, Malformed, MalformedFile
from runtime.connectors.sources.event_clock import BoundedOutOfOrderness, check_event_time
from runtime.connectors.sources.open_file import OpenFile
from runtime.data_roots import CheckedFolder, descriptor_path
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.ports import OperatorContext, SourceReader
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.keyed_table import KeyedTable

MALFORMED_RECORDS: Final = "malformed_records"
_CHUNKS_PER_POLL: Final = 16  #: chunks without a valid row per poll, so that a bad file cannot block the subtask's loop

OnMalformed = Literal["fail", "skip", "dead_letter"]


@dataclass(frozen=True)
class DirectorySource:
    """Reads the files of a folder.

    Args:
        path: the folder. A watched folder may be created later.
        format: format of the files.
        event_time: column of event times; None: the source emits no watermarks.
        max_disorder_ms: bound of out-of-orderness: how far a row's event time may lie behind the largest event time
            that the same subtask has read.
        bounded: read the files that exist at the start, then end. After a restart the folder is listed again.
        on_malformed: a row that cannot be read fails the job, is skipped and counted, or is stored as a dead letter.
        dead_letter_path: folder for dead letters.
        discovery_interval_ms: how often a watched folder is listed.
        idle_after_ms: a subtask without input becomes idle after this time and no longer holds back the watermark; rows
            that it reads later may be late. None: never. A subtask that has had no file at all is always idle.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str
    format: Format
    event_time: str | None = None
    max_disorder_ms: int = 0
    bounded: bool = False
    on_malformed: OnMalformed = "fail"
    dead_letter_path: str | None = None
    discovery_interval_ms: int = 200
    idle_after_ms: int | None = None

    def output_columns(self) -> pa.Schema | None:
        return self.format.columns()

    def reader(self) -> "DirectoryReader":
        return DirectoryReader(self)

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "must name the folder to read")
        if self.discovery_interval_ms < 1:
            raise JobRejected("bad-interval", "discovery_interval_ms", "must be at least 1 ms")
        if self.idle_after_ms is not None and self.idle_after_ms < 1:
            raise JobRejected("bad-interval", "idle_after_ms", "must be at least 1 ms")
        self._check_policy()
        self.format.check()
        check_event_time(self.event_time, self.max_disorder_ms, self.format.columns())

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

    def folders(self) -> Mapping[str, str]:
        letters = {"dead_letter_path": self.dead_letter_path} if self.dead_letter_path else {}
        return {"path": self.path, **letters}

    def _check_policy(self) -> None:
        if self.on_malformed not in ("fail", "skip", "dead_letter"):
            raise JobRejected(
                "bad-policy", "on_malformed", f"must be fail, skip or dead_letter, not {self.on_malformed!r}"
            )
        if self.on_malformed != "dead_letter":
            return
        if not self.dead_letter_path:
            raise JobRejected("missing-folder", "dead_letter_path", "the policy dead_letter needs a folder")
        if Path(self.dead_letter_path).resolve() == Path(self.path).resolve():
            raise JobRejected("same-folder", "dead_letter_path", "dead letters would be read as input")


@dataclass(slots=True)
class FilePosition:
    """How far a file has been read."""

    next_row: int = 0
    done: bool = False
    size_bytes: int = 0


class DirectoryReader(SourceReader):
    """Reads the files of a subtask's key groups."""

    def __init__(self, source: DirectorySource) -> None:
        self._source = source
        self._folder = Path(source.path)
        self._checked = CheckedFolder.of("path", source.path)
        self._positions: dict[str, FilePosition] = {}
        self._changed: set[str] = set()  #: files whose newest position is not in the keyed table yet
        self._pending: list[str] = []  #: known files that are not begun, by descending name
        self._known: set[str] = set()
        self._listed_at: int | None = None
        self._idle_since: int | None = None  #: time of the first poll without rows to read
        self._current: OpenFile | None = None
        self._schema: pa.Schema | None = source.format.columns()
        self._clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms)
        self._letters: DeadLetters | None = None

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._table: KeyedTable = context.state.keyed_table("files", _KEY_SCHEMA, _VALUE_SCHEMA)
        slots = self._table.row_ids()
        columns = [self._table.value_column(name, slots).to_pylist() for name in _VALUE_SCHEMA.names]
        for name, *values in zip(self._table.key_column("file", slots).to_pylist(), *columns, strict=True):
            self._positions[name] = FilePosition(*values)
        if self._source.on_malformed == "dead_letter":
            assert self._source.dead_letter_path, "the source was checked"
            self._letters = DeadLetters(Path(self._source.dead_letter_path), context)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._discover()
        for _ in range(_CHUNKS_PER_POLL):
            if self._current is None and not self._begin_next():
                self._idle_since = self._context.now_ms() if self._idle_since is None else self._idle_since
                return None
            self._idle_since = None
            batch = self._advance(max_rows)
            if batch is not None:
                self._clock.on_batch(batch)
                return batch
        return None

    @property
    def exhausted(self) -> bool:
        nothing_left = self._current is None and not self._pending
        return self._source.bounded and self._listed_at is not None and nothing_left

    @property
    def idle(self) -> bool:
        """True if the subtask has had no file at all, or no rows to read for `idle_after_ms`."""
        if self._idle_since is None:
            return False
        if not self._positions:
            return True
        after_ms = self._source.idle_after_ms
        return after_ms is not None and self._context.now_ms() - self._idle_since >= after_ms

    def watermark(self) -> int | None:
        return self._clock.watermark

    def snapshot(self, checkpoint: int) -> None:
        if self._letters is not None:
            self._letters.sync()
        names = sorted(self._changed)
        if not names:
            return
        slots = self._table.upsert([pa.array(names, pa.string())])
        found = [self._positions[name] for name in names]
        self._table.column("next_row")[slots] = [position.next_row for position in found]
        self._table.column("done")[slots] = [position.done for position in found]
        self._table.column("size_bytes")[slots] = [position.size_bytes for position in found]
        self._table.touch(slots)
        self._changed.clear()

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        if self._letters is not None:
            self._letters.close()

    # ------------------------------------------------------------ files

    def _discover(self) -> None:
        """Lists the folder for new files if `discovery_interval_ms` has passed."""
        now = self._context.now_ms()
        if self._listed_at is not None:
            waited = now - self._listed_at
            if self._source.bounded or 0 <= waited < self._source.discovery_interval_ms:
                return
        first = self._listed_at is None
        self._listed_at = now
        new = self._new_names()
        if first:
            self._check_begun_files(new)
        self._known.update(new)
        mine = [name for name in self._own_names(new) if not self._position(name).done]
        if mine:
            self._pending = sorted([*self._pending, *mine], reverse=True)

    def _new_names(self) -> list[str]:
        try:
            with self._checked.open_folder() as folder, os.scandir(folder) as entries:
                new = (entry for entry in entries if entry.name not in self._known)
                return [self._check_name(entry.name) for entry in new if entry.name[0] not in "._" and entry.is_file()]
        except FileNotFoundError:
            if self._source.bounded:
                raise EnvironmentFailure(f"there is no folder {self._folder}") from None
            return []
        except NotADirectoryError:
            raise JobRejected("bad-path", "path", f"{self._folder} is a file: name the folder that holds it") from None

    def _check_name(self, name: str) -> str:
        """The name, if it can be a key of the positions. Raises DataRejected unless the name is UTF-8."""
        if not name.isascii() and name.encode(errors="replace").decode() != name:
            raise DataRejected(f"{self._folder}: the name of the file {name!r} is not UTF-8: rename it")
        return name

    def _check_begun_files(self, names: list[str]) -> None:
        """Raises EnvironmentFailure if a partly read file is missing: its remaining rows would be lost silently."""
        begun = {name for name, position in self._positions.items() if not position.done}
        for name in sorted(begun.difference(names)):
            raise _missing_file_error(self._folder / name)

    def _own_names(self, names: list[str]) -> list[str]:
        if not names:
            return []
        groups = key_groups_of_hashes(hash_columns([pa.array(names, pa.string())]), self._context.max_parallelism)
        own = self._context.key_groups
        return [name for name, group in zip(names, groups.tolist(), strict=True) if group in own]

    def _position(self, name: str) -> FilePosition:
        return self._positions.get(name) or FilePosition()

    def _begin_next(self) -> bool:
        if not self._pending:
            return False
        name = self._pending.pop()
        path, position = self._folder / name, self._positions.setdefault(name, FilePosition())
        try:
            descriptor = self._checked.open_to_read(name)
        except FileNotFoundError:
            raise _missing_file_error(path) from None
        if descriptor is None:
            raise DataRejected(f"{path}: this link leads out of the folders that jobs may read (WEIR_DATA_ROOTS)")
        chunks = self._source.format.read(descriptor_path(descriptor), position.next_row)
        self._current = OpenFile(path, descriptor, chunks)
        size = os.fstat(descriptor).st_size
        if position.next_row and size != position.size_bytes:
            was = f"it has {size} bytes and had {position.size_bytes}"
            raise DataRejected(f"{path}: the file has changed since row {position.next_row} of it was read: {was}")
        position.size_bytes = size
        return True

    # ------------------------------------------------------------ rows

    def _advance(self, max_rows: int) -> pa.RecordBatch | None:
        """Rows of the current file; None at its end or if the next piece has no valid row."""
        assert self._current is not None, "a file has been begun"
        file = self._current
        try:
            piece = file.next_piece(max_rows, self._source.event_time)
        except MalformedFile as error:
            self._on_malformed(file, [Malformed(row=None, column="", reason=str(error), text="")])
            piece = None
        except FileNotFoundError:
            raise _missing_file_error(file.path) from None
        position = self._positions[file.path.name]
        self._changed.add(file.path.name)
        if piece is None:
            position.done = True
            file.close()
            self._current = None
            return None
        if piece.malformed:
            self._on_malformed(file, piece.malformed)
        position.next_row = piece.next_row
        return self._check_columns(piece.batch, file.path) if piece.batch.num_rows else None

    def _on_malformed(self, file: OpenFile, rows: Any) -> None:
        if self._source.on_malformed == "fail":
            raise DataRejected(f"{file.path}: {_shorten(str(rows[0]))}")
        if self._letters is not None:
            self._letters.write(str(file.path), rows)
        self._context.count(MALFORMED_RECORDS, len(rows))

    def _check_columns(self, batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
        """The batch. Raises DataRejected if the schema differs from the stream's schema (default: the first file's)."""
        if self._schema is None:
            self._schema = batch.schema
        if batch.schema.equals(self._schema):
            return batch
        raise DataRejected(
            f"{path}: its columns differ from the columns of earlier files: {batch.schema} / {self._schema}"
        )


def _shorten(message: str) -> str:
    """The message, shortened for the console: a parser may quote a value of any size."""
    return message if len(message) <= 1_000 else f"{message[:700]} … {message[-300:]}"


def _missing_file_error(path: Path) -> EnvironmentFailure:
    return EnvironmentFailure(f"{path}: the file is gone before it was read to its end")


_KEY_SCHEMA: Final = pa.schema([pa.field("file", pa.string())])
_VALUE_SCHEMA: Final = pa.schema(
    [
        pa.field("next_row", pa.int64(), nullable=False),
        pa.field("done", pa.bool_(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)
