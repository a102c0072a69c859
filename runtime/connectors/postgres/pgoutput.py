"""Decoder of `pgoutput`, protocol version 1: the messages of logical replication (Postgres manual, section 54.9).

The decoder does no I/O. A transaction is Begin, its changes, Commit. A Relation precedes the first change of a table
and follows each change of its columns. Values are text, null, or `UNCHANGED`.
"""

import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from runtime.errors import DataRejected


class Unchanged(Enum):
    """The type of `UNCHANGED`: a large value that an update has not changed is not in the log."""

    UNCHANGED = auto()


UNCHANGED: Final = Unchanged.UNCHANGED
Row = tuple[str | Unchanged | None, ...]  #: values in the order of the relation's columns


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column; `type` is an oid of `pg_type`, `modifier` as `atttypmod`."""

    name: str
    type: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    table: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """`commit_lsn`: position of the transaction's commit record. `time_us` since the epoch. `xid` has 32 bits."""

    commit_lsn: int
    time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn`: position behind the commit record."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """`key`: the old key if it has changed; `old`: the whole old row, with REPLICA IDENTITY FULL."""

    relation: int
    key: Row | None
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """`row`: the key, other columns null; the whole row with REPLICA IDENTITY FULL."""

    relation: int
    row: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


_EPOCH_US: Final = 946_684_800_000_000  #: 2000-01-01, the epoch of Postgres
Message = Relation | Begin | Commit | Insert | Update | Delete | Truncate


def is_change(data: bytes) -> bool:
    """Whether the message is an insert, update or deletion of a row."""
    return data[:1] in (b"I", b"U", b"D")


def decode(data: bytes) -> Message | None:
    """The message; None for a kind without changes (origin, type, logical message).

    Raises:
        DataRejected: the message is damaged, or of a later protocol version.
    """
    try:
        return _decode(_Bytes(data))
    except (struct.error, IndexError, ValueError) as error:
        raise DataRejected(f"Postgres: a message of pgoutput cannot be read: {error}: {data[:100]!r}") from error


def _decode(message: "_Bytes") -> Message | None:
    kind = message.take("c")
    match kind:
        case b"B":
            return Begin(message.take("q"), message.take("q") + _EPOCH_US, message.take("I"))
        case b"C":
            message.take("bq")
            return Commit(message.take("q"))
        case b"R":
            return _relation(message)
        case b"I":
            oid = message.take("I")
            message.expect(b"N")
            return Insert(oid, message.row())
        case b"U":
            return _update(message)
        case b"D":
            oid = message.take("I")
            message.expect(b"KO")
            return Delete(oid, message.row())
        case b"T":
            count = message.take("I")
            message.take("b")
            return Truncate(tuple(message.take("I") for _ in range(count)))
        case b"O" | b"Y" | b"M":
            return None
        case _:
            raise ValueError(f"unknown kind {kind!r}")


def _relation(message: "_Bytes") -> Relation:
    oid, schema, table = message.take("I"), message.text(), message.text()
    message.take("c")  # replica identity
    columns = []
    for _ in range(message.take("h")):
        message.take("b")  # flags
        columns.append(RelationColumn(message.text(), message.take("I"), message.take("i")))
    return Relation(oid, schema or "pg_catalog", table, tuple(columns))


def _update(message: "_Bytes") -> Update:
    oid = message.take("I")
    kind = message.expect(b"KON")
    before = None
    if kind != b"N":
        before = message.row()
        message.expect(b"N")
    return Update(oid, before if kind == b"K" else None, before if kind == b"O" else None, message.row())


class _Bytes:
    """A message and the position of the next field."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, layout: str) -> Any:
        """The last field of `layout` (`struct`, network order)."""
        values = struct.unpack_from(f"!{layout}", self._data, self._at)
        self._at += struct.calcsize(f"!{layout}")
        return values[-1]

    def expect(self, kinds: bytes) -> bytes:
        kind = self._data[self._at : self._at + 1]
        if not kind or kind not in kinds:
            raise ValueError(f"{kind!r} instead of one of {kinds!r}")
        self._at += 1
        return kind

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def row(self) -> Row:
        values: list[str | Unchanged | None] = []
        for _ in range(self.take("h")):
            match self.take("c"):
                case b"n":
                    values.append(None)
                case b"u":
                    values.append(UNCHANGED)
                case b"t":
                    size = self.take("I")
                    text = self._data[self._at : self._at + size]
                    if len(text) < size:
                        raise ValueError("a value is cut off")
                    values.append(text.decode())
                    self._at += size
                case kind:
                    raise ValueError(f"unknown kind of value {kind!r}")
        return tuple(values)
