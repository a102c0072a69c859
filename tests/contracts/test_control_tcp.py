"""What only real control connections can show: killed and hanging peers, limits, strangers, threads."""

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.errors import ProtocolViolation
from runtime.io.control import connection as link
from runtime.io.control import endpoints
from runtime.io.control.endpoints import ControlClient, Hello
from tests.contracts.wiring import (
    PATIENCE_S,
    SECRET,
    TOKEN,
    Blob,
    Ear,
    Order,
    ToSlot,
    Wiring,
)


@pytest.fixture
def tcp() -> Iterator[Wiring]:
    wiring = Wiring()
    yield wiring
    wiring.close()


def raw(tcp: Wiring) -> socket.socket:
    host, _, port = tcp.server.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def frame(value: Any) -> bytes:
    data = msgspec.msgpack.encode(value)
    return struct.pack(">I", len(data)) + data


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(4096):
            received += data
    except ConnectionError:
        pass
    return received


def greet(tcp: Wiring, slot: int = 1) -> socket.socket:
    """A slot that has said hello and does nothing more."""
    connection = raw(tcp)
    connection.sendall(frame(Hello(token=TOKEN, secret=SECRET, slot=slot, pid=1, host="here", address="none")))
    tcp.master.wait("hello", slot)
    return connection


def test_a_slot_whose_process_is_killed_is_lost_at_once(tcp: Wiring) -> None:
    here = Path(__file__)
    process = subprocess.Popen(
        [sys.executable, str(here.with_name("control_process.py")), tcp.server.address, str(TOKEN), SECRET, "5"],
        env={**os.environ, "PYTHONPATH": str(here.parents[2])},
    )
    try:
        assert len(tcp.master.wait("message", 5, 100)) == 100
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        tcp.master.wait("lost", 5)
        assert time.monotonic() - killed_at < 8, "no heartbeat is needed for this"
    finally:
        process.kill()
        process.wait()
    assert len(tcp.master.of("lost", 5)) == 1


def test_a_slot_that_does_not_read_holds_up_neither_the_sender_nor_its_neighbours(tcp: Wiring) -> None:
    with greet(tcp, slot=1):
        tcp.client(slot=2)
        tcp.master.wait("hello", 2)
        blob = Blob(bytes(1_000_000))
        for number in range(100):  # far beyond what sockets buffer
            tcp.server.send(1, blob)
            tcp.server.send(2, Order(number))
        assert len(tcp.slots.wait("message", 2, 100)) == 100
        started = time.monotonic()
        tcp.server.close()
        assert time.monotonic() - started < 8, "an end does not wait for it either"


def test_a_slot_that_never_reads_is_given_up_before_it_eats_the_memory(
    tcp: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_QUEUED_BYTES", 30_000_000)
    with greet(tcp):
        for _ in range(60):
            tcp.server.send(1, Blob(bytes(1_000_000)))
        assert "bytes unread" in tcp.master.wait("lost")[0]


def test_a_slot_that_reads_may_be_told_any_amount(tcp: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_QUEUED_BYTES", 5_000_000)
    tcp.client()
    tcp.master.wait("hello")
    for count in range(1, 21):
        tcp.server.send(1, Blob(bytes(1_000_000)))
        tcp.slots.wait("message", 1, count)
    assert not tcp.master.of("lost", 1)


def test_a_refusal_is_heard_by_a_slot_that_goes_on_talking(tcp: Wiring) -> None:
    client = tcp.client(secret="guess")
    for _ in range(20):
        client.send(Blob(bytes(1_000_000)))
    assert "wrong secret" in tcp.slots.wait("lost")[0]


def test_a_client_that_never_says_hello_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "HELLO_TIMEOUT_S", 0.3)
    tcp = Wiring()
    with raw(tcp) as silent, raw(tcp) as slow:
        slow.sendall(b"\x00\x00")  # half a length is no hello
        assert until_closed(silent) == b""
        assert until_closed(slow) == b""
    assert tcp.master.heard == []
    tcp.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 3) + b"\xc1\xc1\xc1", frame({"a": 1})])
def test_whoever_says_something_else_first_is_turned_away(tcp: Wiring, data: bytes) -> None:
    with raw(tcp) as connection:
        connection.sendall(data)
        until_closed(connection)
    tcp.client(slot=2)
    tcp.master.wait("hello", 2)
    assert [event[1] for event in tcp.master.heard] == [2]


def test_a_frame_beyond_the_limit_ends_the_connection_before_it_is_read(tcp: Wiring) -> None:
    with greet(tcp) as connection:
        connection.sendall(struct.pack(">I", 2**32 - 1) + b"x")
        assert "exceeds the limit" in tcp.master.wait("lost")[0]


def test_a_hello_may_not_be_large(tcp: Wiring) -> None:
    hello = Hello(token=TOKEN, secret=SECRET, slot=1, pid=1, host="x" * 100_000, address="none")
    with raw(tcp) as connection:
        connection.sendall(frame(hello))
        until_closed(connection)
    assert tcp.master.heard == []


def test_a_message_beyond_the_limit_is_refused_to_its_sender(tcp: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_FRAME_BYTES", 1000)
    client = tcp.client()
    with pytest.raises(ProtocolViolation, match=r"Blob of 20.. bytes exceeds the frame limit of 1000"):
        client.send(Blob(bytes(2000)))


def test_close_joins_every_thread(tcp: Wiring) -> None:
    before = set(threading.enumerate())
    wiring = Wiring()
    for slot in range(4):
        wiring.client(slot)
        wiring.master.wait("hello", slot)
    idle = raw(wiring)
    wiring.close()
    idle.close()
    assert set(threading.enumerate()) <= before


def test_a_failing_callback_ends_the_connection(tcp: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    client: list[ControlClient] = []

    def fail(message: Any) -> None:
        raise ZeroDivisionError("in the callback")

    hello = Hello(token=TOKEN, secret=SECRET, slot=1, pid=1, host="here", address="none")
    lost = Ear()
    client.append(
        ControlClient(
            tcp.server.address, hello, ToSlot, on_message=fail, on_lost=lambda reason: lost.hear("lost", 1, reason)
        )
    )
    tcp.master.wait("hello")
    tcp.server.send(1, Order(1))
    assert lost.wait("lost") == ["the callback failed"]
    tcp.master.wait("lost")
    client[0].close()
    assert failures[0].exc_type is ZeroDivisionError


# ---------------------------------------------------------------- strangers


def test_strangers_cost_no_threads_and_keep_no_slot_out(tcp: Wiring) -> None:
    """Each connection was worth three threads; 300 of them are more than may wait, and the oldest make room."""
    before = threading.active_count()
    strangers = [raw(tcp) for _ in range(300)]
    for number, stranger in enumerate(strangers):
        stranger.sendall(b"\x00" * (number % 4))
    tcp.client(slot=2)
    tcp.master.wait("hello", 2)
    assert threading.active_count() <= before + 4, "those of the slot and its server end"
    assert until_closed(strangers[0]) == b""
    for stranger in strangers:
        stranger.close()


def test_who_is_refused_costs_no_threads_either(tcp: Wiring) -> None:
    hello = Hello(token=TOKEN, secret="guess", slot=1, pid=1, host="here", address="none")
    before = threading.active_count()
    strangers = [raw(tcp) for _ in range(50)]
    for stranger in strangers:
        stranger.sendall(frame(hello))
    assert b"wrong secret" in strangers[-1].recv(4096)
    assert threading.active_count() <= before
    for stranger in strangers:
        stranger.close()


def test_a_master_without_descriptors_accepts_again_when_it_has_some(tcp: Wiring) -> None:
    """The accept thread died for good at the first EMFILE, and no slot could ever connect again."""
    client = raw(tcp)
    descriptors: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        _take_all_descriptors(descriptors)
        host, _, port = tcp.server.address.rpartition(":")
        waiting.connect((host, int(port)))
        waiting.sendall(frame(Hello(token=TOKEN, secret=SECRET, slot=3, pid=1, host="here", address="none")))
        client.close()  # a descriptor of this process, as the server's end of it is
        time.sleep(0.5)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    tcp.master.wait("hello", 3)
    waiting.close()
    tcp.client(slot=4)
    tcp.master.wait("hello", 4)


def _take_all_descriptors(descriptors: list[int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            descriptors.append(os.dup(0))
