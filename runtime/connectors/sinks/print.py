"""Prints rows on standard output as JSON lines, for debugging. A restart may print rows again."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.ports import OperatorContext, SinkWriter


@dataclass(frozen=True)
class PrintSink:
    """Prints rows without waiting for a checkpoint.

    Args:
        prefix: text before each line.
    """

    guarantee: ClassVar[str] = "at-least-once"

    prefix: str = ""

    def writer(self) -> "PrintWriter":
        return PrintWriter(self.prefix)

    def committer(self) -> NoCommitter:
        return NoCommitter()

    def check(self) -> None:
        """Never raises: every prefix is valid."""


class PrintWriter(SinkWriter):
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def open(self, context: OperatorContext) -> None:
        """Opens nothing: standard output is already open."""

    def write(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            sys.stdout.write(f"{self._prefix}{msgspec.json.encode(row, enc_hook=str).decode()}\n")

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        sys.stdout.flush()
        return ()
