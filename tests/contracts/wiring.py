"""What the control tests share: messages, an ear that remembers, and a master with its slots."""

import os
import threading
from typing import Any

import msgspec

from runtime.core.job.ids import Token
from runtime.io.control.endpoints import ControlClient, ControlServer, Hello

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
            return [value for event, whose, value in self.heard if (event, whose) == (kind, slot)]

    def wait(self, kind: str, slot: int = 1, count: int = 1) -> list[Any]:
        with self.changed:
            is_complete = self.changed.wait_for(lambda: len(self.of(kind, slot)) >= count, PATIENCE_S)
            assert is_complete, f"waited in vain for {count} {kind} of slot {slot}; heard {self.heard[-5:]}"
        return self.of(kind, slot)


class Wiring:
    """One master and its slots, over TCP."""

    def __init__(self) -> None:
        self.master = Ear()
        self.slots = Ear()
        self.made: list[ControlServer | ControlClient] = []
        self.server = ControlServer(
            TOKEN,
            SECRET,
            ToMaster,
            on_hello=lambda slot, hello: self.master.hear("hello", slot, hello),
            on_message=lambda slot, message: self.master.hear("message", slot, message),
            on_lost=lambda slot, reason: self.master.hear("lost", slot, reason),
        )

    def client(self, slot: int = 1, token: int = TOKEN, secret: str = SECRET) -> ControlClient:
        client = ControlClient(
            self.server.address,
            Hello(token=token, secret=secret, slot=slot, pid=os.getpid(), host="here", address=f"grpc://here:{slot}"),
            ToSlot,
            on_message=lambda message: self.slots.hear("message", slot, message),
            on_lost=lambda reason: self.slots.hear("lost", slot, reason),
        )
        self.made.append(client)
        return client

    def close(self) -> None:
        for client in self.made:
            client.close()
        self.server.close()
