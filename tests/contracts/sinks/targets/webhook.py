"""An HTTP server that takes batches once by their idempotency keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Final
from urllib.request import urlopen

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Server, Target
from tests.waiting import until
from tests.webhook_server import Received

_STATUS: Final = {"full": 507, "overloaded": 429, "read-only": 403, "deleted": 410}


class HeldWebhook(Target):
    """Batches that a server takes once by their idempotency keys, held back until their checkpoint has completed."""

    servers = ("webhook_server",)
    prepares_there = False
    obstructions: ClassVar[Mapping[str, str]] = {
        "full": r"answers with status 507 \(Insufficient Storage\)",
        "overloaded": r"answers with status 429 \(Too Many Requests\)",
    }
    refusals: ClassVar[Mapping[str, str]] = {
        "read-only": r"Webhook http://\S+ refuses a batch with status 403 \(Forbidden\): check the credentials",
        "deleted": r"Webhook http://\S+ refuses a batch with status 410 \(Gone\): correct the URL",
    }
    expiries: ClassVar[Mapping[str, str]] = {"late answer": ""}

    def sink(self) -> Sink:
        hook = weir.Webhook(self._url, batch_rows=20, timeout_s=1.0, guarantee="exactly-once")
        return weir.WriteAheadSink(hook, str(self._folder))

    def ids(self) -> list[int]:
        with urlopen(self._url) as answer:
            return [row["id"] for row in json.load(answer)]

    def leftovers(self) -> list[str]:
        return [path.name for path in self._folder.rglob("*.p*")]

    def stalled(self) -> AbstractContextManager[None]:
        return self._server.stall.closed()

    def expire(self, name: str) -> None:
        """The server takes rows, and its answer comes after the time-out of the sink and after a repetition."""
        received = self._received
        before = len(received.requests) - len(received.batches)
        with self.stalled():
            until(lambda: len(received.requests) - len(received.batches) > before)

    @contextmanager
    def obstructed(self, name: str) -> Iterator[None]:
        self._received.answer = lambda count: _STATUS[name]
        try:
            yield
        finally:
            self._received.answer = lambda count: 200

    @property
    def _url(self) -> str:
        return f"{self._server.address}/{self.place.name}"

    @property
    def _server(self) -> Server:
        return self.place.servers["webhook_server"]

    @property
    def _received(self) -> Received:
        endpoint: Received = self._server.controls.at(f"/{self.place.name}")
        return endpoint

    @property
    def _folder(self) -> Path:
        return self.place.folder / "held"
