"""Stop-the-world snapshots: the protocol with which the paper on asynchronous barrier snapshotting (ABS) compares.

A wrapped source emits no rows from its snapshot until the checkpoint is completed. Data in flight drains in the
meantime, and no row is processed before the snapshot is durable everywhere. The wrapper uses the product's own hooks
and exists for the benchmark only.
"""

from dataclasses import dataclass

import pyarrow as pa

from benchmarks.intervals.wrapped import WrappedReader, WrappedSource
from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import SourceReader


@dataclass(frozen=True)
class StopTheWorld(WrappedSource):
    """`source`, paused during each checkpoint.

    A reader gets no notice of an aborted checkpoint: it stays paused until the next checkpoint is completed.
    """

    def reader(self) -> "StoppedReader":
        return StoppedReader(self.source.reader())


class StoppedReader(WrappedReader):
    def __init__(self, reader: SourceReader) -> None:
        super().__init__(reader)
        self._stopped_for: int | None = None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        return super().poll(max_rows) if self._stopped_for is None else None

    @property
    def exhausted(self) -> bool:
        return self._stopped_for is None and super().exhausted

    @property
    def idle(self) -> bool:
        return self._stopped_for is None and super().idle

    def snapshot(self, checkpoint: int) -> None:
        super().snapshot(checkpoint)
        self._stopped_for = checkpoint

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        super().checkpoint_completed(permit)
        if self._stopped_for is not None and permit.checkpoint >= self._stopped_for:
            self._stopped_for = None
