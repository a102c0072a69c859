"""Topics of a Kafka-compatible broker."""

from __future__ import annotations

import json
from pathlib import Path

import weir
from runtime.ports import Sink
from tests.contracts.sinks.targets.target import Target
from tests.kafka import Broker


class KafkaTopic(Target):
    """A transaction per checkpoint; rows are those of committed transactions by the markers of the log."""

    servers = ("kafka_broker",)

    def create(self) -> None:
        self._broker.topic(3, self.place.name)

    def sink(self) -> Sink:
        format_ = weir.KafkaJson()
        return weir.KafkaSink(
            self._broker.servers, self.place.name, format_, key="name", id_prefix=self.place.name.replace("-", "_")
        )

    def settle(self) -> None:
        self._broker.settle(self.place.name, 3)

    def ids(self) -> list[int]:
        return [json.loads(value)["id"] for value in self._broker.committed_values(self.place.name, 3)]

    def leftovers(self) -> list[str]:
        """Open transactions hold back the last stable offset of a partition."""
        ends = [
            [self._broker.end(self.place.name, each, stable=stable) for stable in (True, False)] for each in range(3)
        ]
        return [f"open transaction in partition {number}" for number, (stable, end) in enumerate(ends) if stable < end]

    @property
    def _broker(self) -> Broker:
        return Broker(self.place.servers["kafka_broker"])


class StagedKafkaTopic(KafkaTopic):
    """Rows in files, written to the topic in one transaction after their checkpoint."""

    def sink(self) -> Sink:
        return weir.KafkaSink(
            self._broker.servers,
            self.place.name,
            weir.KafkaJson(),
            key="name",
            commit="staged",
            id_prefix=self.place.name.replace("-", "_"),
            folder=str(self._folder),
        )

    def leftovers(self) -> list[str]:
        return [*super().leftovers(), *(path.name for path in self._folder.rglob("*.p*"))]

    @property
    def _folder(self) -> Path:
        return self.place.folder / "held"
