"""Late records, and the watermark up to which windows have fired: a window that has fired never opens or fires again.

A record is late if the last window that would contain it has fired. Late records are counted, and dropped or sent to a
side output as they are. Rows must not be aggregated before the shuffle then: only the window knows which rows are late,
because after a restore its watermark is ahead of the watermarks of its inputs.

The window state does not show which windows have fired, so the watermark of each key group is state
(`operators.group_watermarks`).
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.operators.event_time import Times
from runtime.operators.group_watermarks import GroupWatermarks
from runtime.operators.late_rows import count_late_rows
from runtime.operators.windows.pre_aggregation import input_row_count
from runtime.ports import OperatorContext

_MAX_CLIPPED_MS: Final = 3 << 61  #: beyond all event times by more than a window
_encode: Final = msgspec.msgpack.encode


class FiredWatermarks:
    """The fired watermarks of an operator subtask.

    Args:
        keys: key columns.
        size_ms: length of a window.
        slide_ms: distance between the starts of two consecutive windows. Restored state of tumbling windows (the slide
            is the size) must be of windows of the same size.
    """

    def __init__(self, context: OperatorContext, keys: Sequence[str], size_ms: int, slide_ms: int) -> None:
        self._context = context
        self._keys = tuple(keys)
        self._size_ms, self._slide_ms = size_ms, slide_ms
        name = _encode(size_ms if slide_ms == size_ms else None)
        self._groups = GroupWatermarks(context, context.state.object_table("fired"), name)
        for restored_name in self._groups.restored_names:
            self._check_window_size(restored_name, name)
        self.min_watermark = self._groups.min_watermark  #: lowest of own key groups
        self.max_watermark = self._groups.max_watermark  #: highest of all restored key groups

    def restored_watermarks(self, keys: pa.RecordBatch) -> Times:
        """By row, the restored watermark of the row's key group."""
        return self._groups.restored_watermarks(keys, self._keys)

    def drop_late(self, parts: pa.RecordBatch, time: int) -> pa.RecordBatch:
        """The rows of `parts` whose last window has not fired at watermark `time`. Counts the other rows as late."""
        late = self._late_rows(parts, parts.column(len(self._keys)).to_numpy(), time)
        if late is None:
            return parts
        count_late_rows(self._context, input_row_count(parts.filter(late)), has_output=False)
        return parts.filter(pc.invert(late))

    def split_late(
        self, rows: pa.RecordBatch, panes: Times, time: int, *, has_output: bool
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The rows whose last window has not fired at watermark `time`, and the late rows, which are counted.

        Args:
            rows: unaggregated rows.
            panes: start of the pane of each row.
            has_output: the caller emits the late rows to a side output.
        """
        late = self._late_rows(rows, panes, time)
        if late is None:
            return rows, None
        dropped = rows.filter(late)
        count_late_rows(self._context, dropped.num_rows, has_output=has_output)
        return rows.filter(pc.invert(late)), dropped

    def _late_rows(self, rows: pa.RecordBatch, panes: Times, time: int) -> pa.Array | None:
        """Whether each row is late at watermark `time`; None if no row is."""
        if not len(panes) or int(panes.min()) >= self._first_open_pane(np.array(max(time, self.max_watermark))):
            return None
        times = np.maximum(self.restored_watermarks(rows), time) if self.max_watermark > time else np.array(time)
        late = panes < self._first_open_pane(times)
        return pa.array(late) if late.any() else None

    def store(self, time: int) -> None:
        """Puts watermark `time` into the state, before a snapshot."""
        self._groups.store(time)

    def _first_open_pane(self, times: npt.NDArray[np.int64]) -> Any:
        """The first pane of the earliest window that has not fired, for each watermark in `times`."""
        reached = np.clip(times, -_MAX_CLIPPED_MS, _MAX_CLIPPED_MS) + 1 - self._size_ms
        return reached // self._slide_ms * self._slide_ms + self._slide_ms

    def _check_window_size(self, restored_name: bytes, name: bytes) -> None:
        if restored_name != name:
            was, now = msgspec.msgpack.decode(restored_name), msgspec.msgpack.decode(name)
            detail = f"the state holds windows of {was} ms, not of {now} ms: its rows would be emitted in other windows"
            raise JobRejected("window-changed", self._context.uid, detail)
