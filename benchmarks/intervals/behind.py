"""Event time behind the rows, as with sources whose rows may be out of order: windows are open at every barrier."""

from dataclasses import dataclass

from benchmarks.intervals.wrapped import WrappedReader, WrappedSource
from runtime.ports import SourceReader


@dataclass(frozen=True)
class Behind(WrappedSource):
    """`source` with watermarks that are `lag_ms` of event time behind those of the source."""

    lag_ms: int

    def reader(self) -> "BehindReader":
        return BehindReader(self.source.reader(), self.lag_ms)


class BehindReader(WrappedReader):
    def __init__(self, reader: SourceReader, lag_ms: int) -> None:
        super().__init__(reader)
        self._lag_ms = lag_ms

    def watermark(self) -> int | None:
        watermark = super().watermark()
        return None if watermark is None else watermark - self._lag_ms

    @property
    def max_disorder_ms(self) -> int:
        return super().max_disorder_ms + self._lag_ms
