"""The control connection, over the in-memory twin and TCP: hello and refusal, order, losses, peers that misbehave."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from runtime.core.ids import Token
from runtime.errors import EnvironmentFailure, ProtocolViolation
from runtime.io import control, link
from runtime.io.control import ControlClient, ControlServer, Hello
from runtime.io.memory import MemoryControlClient, MemoryControlServer

TOKEN = Token(7)
SECRET = "between slots"
PATIENCE_S = 30.0  #: for things that must happen; only a failing test waits this long


class Order(msgspec.Struct, frozen=True, tag=True):
    number: int


class Blob(msgspec.Struct, frozen=True, tag=True):
    data: bytes


class Note(msgspec.Struct, frozen=True, tag=True):
    number: int
    text: str = ""


ToSlot = Order | Blob
ToMaster = Note | Blob


class Ear:
    """Remembers callbacks as (kind, slot, value), in order, and lets a test wait for them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.heard: list[tuple[str, int, Any]] = []

    def hear(self, kind: str, slot: int, value: Any) -> None:
        with self.changed:
            self.heard.append((kind, slot, value))
            self.changed.notify_all()

    def of(self, kind: str, slot: int) -> list[Any]:
        with self.changed:
            return [value for heard, whose, value in self.heard if (heard, whose) == (kind, slot)]

    def wait(self, kind: str, slot: int = 1, count: int = 1) -> list[Any]:
        with self.changed:
            done = self.changed.wait_for(lambda: len(self.of(kind, slot)) >= count, PATIENCE_S)
            assert done, f"waited in vain for {count} {kind} of slot {slot}; heard {self.heard[-5:]}"
        return self.of(kind, slot)


class Server(Protocol):
    def send(self, slot: int, message: Any) -> None: ...
    def close(self) -> None: ...


class Client(Protocol):
    def send(self, message: Any) -> None: ...
    def close(self) -> None: ...


class Wiring:
    """One master and its slots, over TCP."""

    make_server: Any = ControlServer
    make_client: Any = ControlClient

    def __init__(self) -> None:
        self.master = Ear()
        self.slots = Ear()
        self.made: list[Server | Client] = []
        self.server = self.make_server(
            TOKEN,
            SECRET,
            ToMaster,
            on_hello=lambda slot, hello: self.master.hear("hello", slot, hello),
            on_message=lambda slot, message: self.master.hear("message", slot, message),
            on_lost=lambda slot, reason: self.master.hear("lost", slot, reason),
        )

    @property
    def where(self) -> Any:
        return self.server.address

    def client(self, slot: int = 1, token: int = TOKEN, secret: str = SECRET) -> Client:
        made: Client = self.make_client(
            self.where,
            Hello(token=token, secret=secret, slot=slot, pid=os.getpid(), host="here", address=f"grpc://here:{slot}"),
            ToSlot,
            on_message=lambda message: self.slots.hear("message", slot, message),
            on_lost=lambda reason: self.slots.hear("lost", slot, reason),
        )
        self.made.append(made)
        return made

    def close(self) -> None:
        for client in self.made:
            client.close()
        self.server.close()


class MemoryWiring(Wiring):
    make_server = MemoryControlServer
    make_client = MemoryControlClient

    @property
    def where(self) -> Any:
        return self.server


@pytest.fixture(params=[MemoryWiring, Wiring], ids=["memory", "tcp"])
def wiring(request: pytest.FixtureRequest) -> Iterator[Wiring]:
    made: Wiring = request.param()
    yield made
    made.close()


@pytest.fixture
def tcp() -> Iterator[Wiring]:
    made = Wiring()
    yield made
    made.close()


# ---------------------------------------------------------------- contract


def test_a_slot_says_who_it_is_and_the_secret_goes_no_further(wiring: Wiring) -> None:
    wiring.client(slot=3)
    (hello,) = wiring.master.wait("hello", 3)
    assert (hello.token, hello.slot, hello.pid, hello.address) == (7, 3, os.getpid(), "grpc://here:3")
    assert SECRET not in repr(hello)


@pytest.mark.parametrize(
    ("token", "secret", "reason"),
    [(6, SECRET, "token 6 is older than 7"), (8, SECRET, "token 8 is newer than 7"), (7, "guess", "wrong secret")],
)
def test_strangers_are_refused_and_told(wiring: Wiring, token: int, secret: str, reason: str) -> None:
    client = wiring.client(token=token, secret=secret)
    client.send(Note(1))
    (told,) = wiring.slots.wait("lost")
    assert reason in told
    wiring.client(slot=2)
    wiring.master.wait("hello", 2)
    assert not [heard for heard in wiring.master.heard if heard[1] == 1]


def test_a_slot_that_was_there_before_is_refused(wiring: Wiring) -> None:
    """Whoever lost its connection belongs to an attempt that has failed."""
    wiring.client().close()
    wiring.master.wait("lost")
    wiring.client()
    assert "slot 1 of this attempt has connected before" in wiring.slots.wait("lost")[0]
    assert len(wiring.master.wait("hello")) == 1


def test_messages_keep_their_order_both_ways_and_their_slots_apart(wiring: Wiring) -> None:
    clients = {slot: wiring.client(slot) for slot in (1, 2)}
    for slot in clients:
        wiring.master.wait("hello", slot)
    for number in range(3000):
        for slot, client in clients.items():
            client.send(Note(number, "x" * (number % 50)))
            wiring.server.send(slot, Order(number * slot))
    for slot in clients:
        assert [note.number for note in wiring.master.wait("message", slot, 3000)] == list(range(3000))
        assert [order.number for order in wiring.slots.wait("message", slot, 3000)] == [n * slot for n in range(3000)]


def test_what_a_slot_says_is_heard_after_its_hello_and_before_its_loss(wiring: Wiring) -> None:
    client = wiring.client()
    for number in range(500):
        client.send(Note(number))
    client.close()
    wiring.master.wait("lost")
    kinds = [kind for kind, _, _ in wiring.master.heard]
    assert kinds == ["hello", *["message"] * 500, "lost"]
    assert not wiring.slots.of("lost", 1), "whoever closes knows"


def test_a_master_that_closes_has_said_everything_and_is_lost_once(wiring: Wiring) -> None:
    wiring.client()
    wiring.master.wait("hello")
    for number in range(500):
        wiring.server.send(1, Order(number))
    wiring.server.close()
    wiring.slots.wait("lost")
    assert [kind for kind, _, _ in wiring.slots.heard] == [*["message"] * 500, "lost"]
    assert not wiring.master.of("lost", 1), "whoever closes knows"


def test_large_messages_pass(wiring: Wiring) -> None:
    client = wiring.client()
    wiring.master.wait("hello")
    blob = Blob(os.urandom(20_000_000))
    client.send(blob)
    wiring.server.send(1, blob)
    assert wiring.master.wait("message") == [blob]
    assert wiring.slots.wait("message") == [blob]


def test_an_unreadable_message_ends_the_connection(wiring: Wiring) -> None:
    client = wiring.client()
    wiring.master.wait("hello")
    client.send(Order(1))  # not among the messages that a master understands
    assert "unreadable message" in wiring.master.wait("lost")[0]
    wiring.slots.wait("lost")


def test_what_is_sent_to_a_slot_that_is_gone_goes_nowhere(wiring: Wiring) -> None:
    client = wiring.client()
    client.close()
    wiring.master.wait("lost")
    wiring.server.send(1, Order(1))
    wiring.server.send(42, Order(1))
    client.send(Note(1))


def test_nobody_connects_to_a_closed_master(wiring: Wiring) -> None:
    wiring.server.close()
    with pytest.raises(EnvironmentFailure, match="cannot reach the master"):
        wiring.client()


def test_a_callback_may_close_its_own_connection(wiring: Wiring) -> None:
    closed = threading.Event()
    client: list[Client] = []

    def close_on(message: Any) -> None:
        client[0].close()
        closed.set()

    hello = Hello(token=TOKEN, secret=SECRET, slot=1, pid=1, host="here", address="none")
    client.append(wiring.make_client(wiring.where, hello, ToSlot, on_message=close_on, on_lost=lambda reason: None))
    wiring.master.wait("hello")
    wiring.server.send(1, Order(1))
    assert closed.wait(PATIENCE_S)
    wiring.master.wait("lost")


# ---------------------------------------------------------------- TCP alone


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
        assert time.monotonic() - killed_at < 5, "far below any heartbeat"
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
        assert time.monotonic() - started < 2.5, "an end does not wait for it either"


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
    monkeypatch.setattr(control, "HELLO_TIMEOUT_S", 0.3)
    tcp = Wiring()
    with raw(tcp) as silent, raw(tcp) as slow:
        slow.sendall(b"\x00\x00")  # half a length is no hello
        assert until_closed(silent) == b""
        assert until_closed(slow) == b""
    assert tcp.master.heard == []
    tcp.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 3) + b"\xc1\xc1\xc1", frame({"a": 1})])
def test_whoever_says_something_else_first_is_turned_away(tcp: Wiring, said: bytes) -> None:
    with raw(tcp) as connection:
        connection.sendall(said)
        until_closed(connection)
    tcp.client(slot=2)
    tcp.master.wait("hello", 2)
    assert [heard[1] for heard in tcp.master.heard] == [2]


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
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
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
    assert seen[0].exc_type is ZeroDivisionError
