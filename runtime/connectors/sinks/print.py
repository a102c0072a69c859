"""Prints rows as JSON lines, for debugging. A restart may print rows again."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar, TextIO

import msgspec
import pyarrow as pa

from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.operators.functions.row_values import rows_of
from runtime.ports import OperatorContext, SinkWriter


@dataclass(frozen=True)
class PrintSink:
    """Prints rows without waiting for a checkpoint, on standard output of the slots.

    With several subtasks each line begins with the number of its subtask, from 1, and `> ` (as in Flink).

    Args:
        prefix: text before each line.
        to_stderr: prints on standard error instead.
    """

    guarantee: ClassVar[str] = "at-least-once"
    has_independent_writers: ClassVar[bool] = True

    prefix: str = ""
    to_stderr: bool = False

    def writer(self) -> "PrintWriter":
        return PrintWriter(self)

    def committer(self) -> NoCommitter:
        return NoCommitter()

    def check(self) -> None:
        """Never raises: every prefix is valid."""


class PrintWriter(SinkWriter):
    def __init__(self, sink: PrintSink) -> None:
        self._sink = sink

    def open(self, context: OperatorContext) -> None:
        number = f"{context.index + 1}> " if context.parallelism > 1 else ""
        self._start = self._sink.prefix + number

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the lines in one call, so that the lines of other subtasks do not interrupt each other."""
        rows = rows_of(batch, far_times=True)
        lines = [f"{self._start}{msgspec.json.encode(row, enc_hook=str).decode()}\n" for row in rows]
        self._stream.write("".join(lines))

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._stream.flush()
        return ()

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._sink.to_stderr else sys.stdout
