"""Messages of pgoutput, written by the test from the manual's tables and read by the decoder."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.postgres import pgoutput
from runtime.connectors.postgres.pgoutput import UNCHANGED
from runtime.errors import DataRejected

OIDS = st.integers(0, 2**32 - 1)
LSNS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=8)
ROWS = st.lists(st.none() | st.just(UNCHANGED) | st.text(st.characters(blacklist_categories=["Cs"])), max_size=4).map(
    tuple
)


def row(values: tuple[Any, ...]) -> bytes:
    data = struct.pack("!h", len(values))
    for value in values:
        if value is None or value is UNCHANGED:
            data += b"n" if value is None else b"u"
        else:
            text = value.encode()
            data += b"t" + struct.pack("!I", len(text)) + text
    return data


@given(OIDS, ROWS, ROWS)
def test_changes(oid: int, new: Any, old: Any) -> None:
    head = struct.pack("!I", oid)
    assert pgoutput.decode(b"I" + head + b"N" + row(new)) == pgoutput.Insert(oid, new)
    assert pgoutput.decode(b"U" + head + b"N" + row(new)) == pgoutput.Update(oid, None, None, new)
    assert pgoutput.decode(b"U" + head + b"K" + row(old) + b"N" + row(new)) == pgoutput.Update(oid, old, None, new)
    assert pgoutput.decode(b"U" + head + b"O" + row(old) + b"N" + row(new)) == pgoutput.Update(oid, None, old, new)
    for kind in (b"K", b"O"):
        assert pgoutput.decode(b"D" + head + kind + row(old)) == pgoutput.Delete(oid, old)


@given(LSNS, LSNS)
def test_transactions(lsn: int, end: int) -> None:
    assert pgoutput.decode(b"B" + struct.pack("!qqI", lsn, 7, 9)) == pgoutput.Begin(lsn, 946_684_800_000_007, 9)
    assert pgoutput.decode(b"C" + struct.pack("!bqqq", 0, lsn, end, 7)) == pgoutput.Commit(end)


@given(OIDS, NAMES, NAMES, st.lists(st.tuples(NAMES, OIDS, st.integers(-1, 2**31 - 1)), max_size=4))
def test_relations(oid: int, schema: str, table: str, columns: list[Any]) -> None:
    data = b"R" + struct.pack("!I", oid) + schema.encode() + b"\0" + table.encode() + b"\0d"
    data += struct.pack("!h", len(columns))
    for name, kind, modifier in columns:
        data += b"\1" + name.encode() + b"\0" + struct.pack("!Ii", kind, modifier)
    relation_columns = tuple(pgoutput.RelationColumn(*column) for column in columns)
    assert pgoutput.decode(data) == pgoutput.Relation(oid, schema, table, relation_columns)


def test_truncate_and_messages_without_changes() -> None:
    assert pgoutput.decode(b"T" + struct.pack("!IbII", 2, 0, 5, 6)) == pgoutput.Truncate((5, 6))
    assert [pgoutput.decode(kind + b"rest") for kind in (b"O", b"Y", b"M")] == [None] * 3


@given(st.integers(0, 30))
def test_a_message_that_is_cut_off_is_an_error(size: int) -> None:
    message = b"U" + struct.pack("!I", 7) + b"K" + row(("key", None)) + b"N" + row(("key", "text"))
    with pytest.raises(DataRejected, match="cannot be read"):
        pgoutput.decode(message[: min(size, len(message) - 1)])


def test_an_unknown_message_is_an_error() -> None:
    with pytest.raises(DataRejected, match="unknown kind b'S'"):
        pgoutput.decode(b"S123")
