"""The control connection, over TCP: hello and refusal, order, losses."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.errors import EnvironmentFailure
from runtime.io.control.endpoints import ControlClient, Hello
from tests.contracts.wiring import (
    PATIENCE_S,
    SECRET,
    TOKEN,
    Blob,
    Note,
    Order,
    ToSlot,
    Wiring,
)


@pytest.fixture
def wiring() -> Iterator[Wiring]:
    wiring = Wiring()
    yield wiring
    wiring.close()


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
    """S1-12."""
    client = wiring.client(token=token, secret=secret)
    client.send(Note(1))
    (loss,) = wiring.slots.wait("lost")
    assert reason in loss
    wiring.client(slot=2)
    wiring.master.wait("hello", 2)
    assert not [event for event in wiring.master.heard if event[1] == 1]


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
    client: list[ControlClient] = []

    def close_on(message: Any) -> None:
        client[0].close()
        closed.set()

    hello = Hello(token=TOKEN, secret=SECRET, slot=1, pid=1, host="here", address="none")
    client.append(ControlClient(wiring.server.address, hello, ToSlot, on_message=close_on, on_lost=lambda reason: None))
    wiring.master.wait("hello")
    wiring.server.send(1, Order(1))
    assert closed.wait(PATIENCE_S)
    wiring.master.wait("lost")
