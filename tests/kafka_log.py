"""The log of a Kafka partition with its markers of transactions, read by the Fetch request (v4), without a library."""

import socket
import struct
from dataclasses import dataclass
from typing import Literal

_FETCH = 1
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass(frozen=True)
class Entry:
    offset: int
    producer: int
    transactional: bool
    marker: Literal["commit", "abort"] | None
    value: bytes


def read_log(address: tuple[str, int], topic: str, partition: int) -> list[Entry]:
    """All entries, those of open transactions and markers too. Batches must not be compressed."""
    entries: list[Entry] = []
    with socket.create_connection(address, 30) as connection:
        while batch := _fetch(connection, topic, partition, entries[-1].offset + 1 if entries else 0):
            entries += batch
    return entries


def _fetch(connection: socket.socket, topic: str, partition: int, offset: int) -> list[Entry]:
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 50, 1, 1 << 24, 0) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, partition, offset, 1 << 24)
    message = struct.pack(">hhih", _FETCH, 4, 1, -1) + body
    connection.sendall(struct.pack(">i", len(message)) + message)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    data = _receive(connection, size)
    place = 4 + 4 + 4  # correlation, throttle, number of topics
    (length,) = struct.unpack_from(">h", data, place)
    place += 2 + length + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", data, place)
    assert error == 0, f"Fetch: error {error}"
    place += 26 + max(aborted, 0) * 16
    (size,) = struct.unpack_from(">i", data, place)
    records = data[place + 4 : place + 4 + max(size, 0)]
    return [entry for entry in _batches(records) if entry.offset >= offset]


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker has closed the connection"
        data += part
    return data


def _batches(data: bytes) -> list[Entry]:
    """Record batches of message format 2."""
    entries, start = list[Entry](), 0
    while start + 12 <= len(data):
        base, length = struct.unpack_from(">qi", data, start)
        if start + 12 + length > len(data):
            break
        flags, producer, count = (
            struct.unpack_from(">h", data, start + 21)[0],
            struct.unpack_from(">q", data, start + 43)[0],
            struct.unpack_from(">i", data, start + 57)[0],
        )
        assert not flags & 0x07, "the batch is compressed"
        place = start + 61
        for _ in range(count):
            size, place = _varint(data, place)
            entries.append(_record(data[place : place + size], base, producer, flags))
            place += size
        start += 12 + length
    return entries


def _record(data: bytes, base: int, producer: int, flags: int) -> Entry:
    _, place = _varint(data, 1)
    delta, place = _varint(data, place)
    key, place = _bytes(data, place)
    value, place = _bytes(data, place)
    marker: Literal["commit", "abort"] | None = None
    if flags & _CONTROL:
        marker = "commit" if struct.unpack(">hh", key)[1] == 1 else "abort"
    return Entry(base + delta, producer, bool(flags & _TRANSACTIONAL), marker, value)


def _bytes(data: bytes, place: int) -> tuple[bytes, int]:
    size, place = _varint(data, place)
    size = max(size, 0)
    return data[place : place + size], place + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A zigzag number and the place behind it."""
    bits = shift = 0
    while True:
        byte = data[place]
        place += 1
        bits |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (bits >> 1) ^ -(bits & 1), place
        shift += 7
