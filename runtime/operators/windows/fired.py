"""The watermark up to which windows have fired, by key group: a window that has fired never opens or fires again.

Subtasks of an operator may have different watermarks at a barrier. Restored into one subtask they start from the
lowest, and the window state does not show which windows have fired. So the watermark per key group is state. Savepoints
taken before this state existed restore without it.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.event_time import Times
from runtime.operators.windows.pre_aggregation import rows_of
from runtime.ports import OperatorContext
from runtime.state.index.hashing import key_groups
from runtime.state.object_table import ObjectTable

LATE_RECORDS: Final = "late_records"
_FAR: Final = 3 << 61  #: beyond all event times by more than a window
_encode: Final = msgspec.msgpack.encode


class FiredTimes:
    """The fired watermarks of an operator subtask.

    Args:
        keys: key columns.
        size_ms: length of a window.
        slide_ms: distance between the starts of two consecutive windows.
        only_size_ms: refuse restored state of windows of another size; None: the size may differ.
    """

    def __init__(
        self, context: OperatorContext, keys: Sequence[str], size_ms: int, slide_ms: int, only_size_ms: int | None
    ) -> None:
        self._context = context
        self._keys = tuple(keys)
        self._size_ms, self._slide_ms = size_ms, slide_ms
        self._table: ObjectTable = context.state.object_table("fired")
        self._name = _encode(only_size_ms)
        self._before = np.full(context.max_parallelism, MIN_WATERMARK)  #: restored watermark by key group
        for (group, name, _), at in self._table.items():
            assert isinstance(at, bytes), "watermarks are stored as bytes"
            self._check(name)
            self._before[group] = msgspec.msgpack.decode(at)
        self.least = int(self._before[list(context.key_groups)].min())  #: reached by all key groups
        self.greatest = int(self._before.max())  #: exceeded by no key group

    def before(self, keys: pa.RecordBatch) -> Times:
        """By row, the restored watermark of its key group."""
        return self._before[key_groups(keys, self._keys, self._context.max_parallelism)]

    def without_late(self, parts: pa.RecordBatch, time: int) -> pa.RecordBatch:
        """The rows whose last window has not fired at watermark `time`. The other rows are counted as late."""
        starts = parts.column(len(self._keys)).to_numpy()
        if not len(starts) or int(starts.min()) >= self._open_from(np.array(max(time, self.greatest))):
            return parts
        times = np.maximum(self.before(parts), time) if self.greatest > time else np.array(time)
        late = starts < self._open_from(times)
        if not late.any():
            return parts
        self._context.count(LATE_RECORDS, rows_of(parts.filter(pa.array(late))))
        return parts.filter(pc.invert(pa.array(late)))

    def keep(self, time: int) -> None:
        """Put watermark `time` into the state, before a snapshot."""
        for group in self._context.key_groups:
            at = _encode(max(time, int(self._before[group])))
            if self._table.under(group, self._name).get(None) != at:
                self._table.put((group, self._name, None), at)

    def _open_from(self, times: npt.NDArray[np.int64]) -> Any:
        """The first pane of the earliest window that has not fired, for each of these watermarks."""
        reached = np.clip(times, -_FAR, _FAR) + 1 - self._size_ms
        return reached // self._slide_ms * self._slide_ms + self._slide_ms

    def _check(self, name: bytes) -> None:
        if name != self._name:
            was, now = msgspec.msgpack.decode(name), msgspec.msgpack.decode(self._name)
            detail = f"the state holds windows of {was} ms, not of {now} ms: its rows would be emitted in other windows"
            raise JobRejected("window-changed", self._context.uid, detail)
