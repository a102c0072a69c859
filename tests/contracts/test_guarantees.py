"""Every connector says what it guarantees; there is none that only seems to."""

import importlib
import pkgutil
from typing import Any

import pytest

from runtime import connectors
from runtime.connectors.kafka.formats import KafkaText
from runtime.connectors.kafka.sink import KafkaSink
from runtime.connectors.postgres.sink import PostgresSink
from runtime.connectors.sinks.webhook import Webhook
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.connectors.sources.hybrid import HybridSource, then
from runtime.connectors.sources.sequence import SequenceSource

PREFIX = "runtime.connectors."
#: connectors whose settings decide the guarantee
BY_SETTINGS: dict[type, list[Any]] = {
    KafkaSink: [
        KafkaSink("h:1", "t", KafkaText(), commit="transaction"),
        KafkaSink("h:1", "t", KafkaText(), commit="immediate"),
    ],
    PostgresSink: [
        PostgresSink("postgresql://h/d", "t"),
        PostgresSink("postgresql://h/d", "t", commit="prepared"),
        PostgresSink("postgresql://h/d", "t", key=["id"], commit="immediate"),
    ],
    HybridSource: [then(SequenceSource(rows=1), SequenceSource())],
    WriteAheadSink: [WriteAheadSink(Webhook("http://h/"), folder="/held")],
}


def shipped() -> list[type]:
    """Every source and sink class below `runtime.connectors`: those that make readers or writers."""
    modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(connectors.__path__, PREFIX)]
    classes = {name: value for module in modules for name, value in vars(module).items() if isinstance(value, type)}
    own = [kind for _, kind in sorted(classes.items()) if kind.__module__.startswith(PREFIX)]
    return [kind for kind in own if hasattr(kind, "reader") or hasattr(kind, "writer")]


def test_they_are_found() -> None:
    assert {"ParquetSink", "PrintSink", "ParquetSource", "DirectorySource"} <= {kind.__name__ for kind in shipped()}


@pytest.mark.parametrize("connector", shipped(), ids=lambda connector: connector.__name__)
def test_every_connector_declares_its_guarantee(connector: Any) -> None:
    """S1-01."""
    for variant in BY_SETTINGS.get(connector, [connector]):
        assert variant.guarantee in ("exactly-once", "at-least-once")
