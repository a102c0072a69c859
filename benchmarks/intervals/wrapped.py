"""Sources of the benchmark that change one thing about another source."""

from dataclasses import dataclass

import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import OperatorContext, Source, SourceReader


@dataclass(frozen=True)
class WrappedSource:
    """`source`; a subclass has its own `reader`."""

    source: Source

    @property
    def bounded(self) -> bool:
        return self.source.bounded

    @property
    def guarantee(self) -> str:
        return self.source.guarantee

    def check(self) -> None:
        self.source.check()


class WrappedReader(SourceReader):
    """Passes every call to the reader of the wrapped source."""

    def __init__(self, reader: SourceReader) -> None:
        self._reader = reader

    def open(self, context: OperatorContext) -> None:
        self._reader.open(context)

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        return self._reader.poll(max_rows)

    @property
    def exhausted(self) -> bool:
        return self._reader.exhausted

    @property
    def idle(self) -> bool:
        return self._reader.idle

    def watermark(self) -> int | None:
        return self._reader.watermark()

    @property
    def max_disorder_ms(self) -> int:
        return self._reader.max_disorder_ms

    def snapshot(self, checkpoint: int) -> None:
        self._reader.snapshot(checkpoint)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._reader.checkpoint_completed(permit)

    def close(self) -> None:
        self._reader.close()
