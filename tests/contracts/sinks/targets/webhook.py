"""An HTTP server that takes batches once by their idempotency keys."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target


class HeldWebhook(Target):
    """Batches that a server takes once by their idempotency keys, held back until their checkpoint has completed."""

    servers = ("webhook_server",)

    def sink(self) -> Sink:
        url = f"{self.place.servers['webhook_server']}/{self.place.name}"
        return weir.WriteAheadSink(weir.Webhook(url, batch_rows=20, guarantee="exactly-once"), str(self._folder))

    def ids(self) -> list[int]:
        with urlopen(f"{self.place.servers['webhook_server']}/{self.place.name}") as answer:
            return [row["id"] for row in json.load(answer)]

    def leftovers(self) -> list[str]:
        return [path.name for path in self._folder.rglob("*.p*")]

    @property
    def _folder(self) -> Path:
        return self.place.folder / "held"
