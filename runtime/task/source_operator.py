"""Source readers in the form of operators: a task drives both alike, except that it polls a reader."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import Operator, OperatorContext, SourceReader


class SourceOperator(Operator):
    def __init__(self, reader: SourceReader, *, confirms: bool = True) -> None:
        """`confirms`: the reader tells the source's server which rows a checkpoint covers."""
        self.reader = reader
        self._confirms = confirms

    def open(self, context: OperatorContext) -> None:
        self.reader.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Any) -> None:
        raise AssertionError("a source has no input")

    def snapshot(self, checkpoint: int) -> None:
        self.reader.snapshot(checkpoint)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        if self._confirms:
            self.reader.checkpoint_completed(permit)

    def close(self) -> None:
        self.reader.close()


def concat_alike(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """The batches as a single batch, if they have the same columns and Arrow can join them."""
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except (
        pa.ArrowNotImplementedError,
        pa.ArrowInvalid,
    ):  # other columns, no kernel for the type, 2 GiB
        return batches
