"""Stop-the-world snapshots: the protocol with which the paper on asynchronous barrier snapshotting (ABS) compares.

A wrapped source emits no rows from its snapshot until the checkpoint is completed. Data in flight drains in the
meantime, and no row is processed before the snapshot is durable everywhere. The wrapper uses the product's own hooks
and exists for the benchmark only.
"""

from dataclasses import dataclass

import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import OperatorContext, Source, SourceReader


@dataclass(frozen=True)
class StopTheWorld:
    """`source`, paused during each checkpoint.

    A reader gets no notice of an aborted checkpoint: it stays paused until the next checkpoint is completed.
    """

    source: Source

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    @property
    def guarantee(self) -> str:
        return self.source.guarantee

    def reader(self) -> "StoppedReader":
        return StoppedReader(self.source.reader())

    def check(self) -> None:
        self.source.check()


class StoppedReader(SourceReader):
    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader
        self._stopped_for: int | None = None

    def open(self, context: OperatorContext) -> None:
        self._reader.open(context)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        return self._reader.poll(max_rows) if self._stopped_for is None else None

    @property
    def exhausted(self) -> bool:
        return self._stopped_for is None and self._reader.exhausted

    @property
    def idle(self) -> bool:
        return self._stopped_for is None and self._reader.idle

    def watermark(self) -> int | None:
        return self._reader.watermark()

    def snapshot(self, checkpoint: int) -> None:
        self._reader.snapshot(checkpoint)
        self._stopped_for = checkpoint

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._reader.checkpoint_completed(permit)
        if self._stopped_for is not None and permit.checkpoint >= self._stopped_for:
            self._stopped_for = None

    def close(self) -> None:
        self._reader.close()
