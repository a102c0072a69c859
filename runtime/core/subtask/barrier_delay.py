"""Delays a barrier at a source until the end of the current pane, if that end is near. (No counterpart in Flink.)

A checkpoint is cheapest right after a pane has ended: pre-aggregation buffers are empty, windows have fired, and there
is little state to copy. A source that reads a backlog crosses pane ends within milliseconds. It holds the barrier until
the next pane end; its siblings choose the same pane end, as far as their watermarks are known in its slot. A source
that reads in real time crosses pane ends rarely, so it does not delay barriers.

The watermark stays behind the newest rows by the disorder of the source. If that is half a pane or more, the pane of
the newest rows counts. In the middle of that pane, pre-aggregation would emit an entry for nearly every key before the
barrier, and again at its end. A small disorder leaves few rows behind the pane of the watermark, which then counts.

The delay looks like a slow trigger message and changes nothing else. Only sources all of whose rows wait for windows
delay barriers (`waiting_edges`): the output of other sources would become visible later.
"""

import math
from collections.abc import Sequence
from typing import Final

from runtime.core.job.messages import MIN_WATERMARK, Barrier
from runtime.core.subtask.watermark_alignment import ChannelDrift

MAX_PANE_WALL_MS: Final = 150.0  #: longest wall time of the previous pane for which the next pane end counts as near
MAX_HOLD_MS: Final = 200.0  #: longest wall time for which a barrier is held
#: a batch that is shortened to end with a pane keeps at least 1 / MAX_BATCH_REDUCTION of the normal size
MAX_BATCH_REDUCTION: Final = 16


class BarrierDelay:
    """Mutable, owned by a source subtask. `now` is monotonic milliseconds."""

    def __init__(self, drifts: Sequence[ChannelDrift] = ()) -> None:
        self._drifts = drifts
        self._pane_ms = max((drift.max_drift_ms for drift in drifts), default=0)
        self._lead_ms = 0  #: of the newest rows over watermarks; 0 if it is small
        self._time = MIN_WATERMARK  #: watermark + lead
        self._rows_per_ms = 0.0  #: per millisecond of event time
        self._pane_ended_at = -math.inf  #: wall time at which the last pane end was crossed
        self._is_pane_end_near = False
        self._held: Barrier | None = None
        self._pane_end, self._hold_until = 0, 0.0
        self._is_agreed = False  #: the pane end has been moved behind siblings that crossed it before their barrier

    def hold(self, barrier: Barrier, now: float) -> bool:
        """Holds `barrier` if a pane end is near. At most one barrier is held at a time. Returns whether it is held."""
        if not self._is_pane_end_near or now - self._pane_ended_at > MAX_PANE_WALL_MS:
            return False
        self._held, self._hold_until = barrier, now + MAX_HOLD_MS
        self._pane_end, self._is_agreed = self._pane_end_after(max(self._time, self._max_time)), False
        return True

    def due_in(self, now: float) -> float | None:
        """Milliseconds until the held barrier must be injected; None if no barrier is held."""
        if self._held is None:
            return None
        return 0.0 if self._time + 1 >= self._pane_end else max(0.0, self._hold_until - now)

    def release(self) -> Barrier | None:
        barrier, self._held = self._held, None
        return barrier

    def limit_rows(self, rows: int) -> int:
        """The size of the next batch. A held barrier reduces `rows` to the rows expected before the pane end."""
        if self._held is None:
            return rows
        left = (self._pane_end - 1 - self._time) * self._rows_per_ms
        return min(rows, max(rows // MAX_BATCH_REDUCTION, math.ceil(left)))

    def on_batch(self, watermark: int, rows: int, now: float, disorder_ms: int = 0) -> None:
        """A batch of `rows` has advanced the source's watermark (ms), `disorder_ms` behind the newest row."""
        self._lead_ms = disorder_ms if 2 * disorder_ms >= self._pane_ms else 0
        time = watermark + self._lead_ms
        if time <= self._time or not self._pane_ms:
            return
        if self._pane_number(time) > self._pane_number(self._time):
            self._is_pane_end_near, self._pane_ended_at = (
                rows > 0 and now - self._pane_ended_at <= MAX_PANE_WALL_MS,
                now,
            )
        self._rows_per_ms = rows / (time - self._time)
        self._time = time
        if self._held and time + 1 >= self._pane_end and not self._is_agreed:
            self._pane_end, self._is_agreed = max(self._pane_end, self._pane_end_after(self._max_time)), True

    def on_empty(self) -> None:
        """The backlog is empty: the time of the next pane end is unknown, so a held barrier is due at once."""
        self._is_pane_end_near, self._hold_until = False, 0.0

    @property
    def _max_time(self) -> int:
        """Of siblings: at least this, since edges forward watermarks at pane ends only."""
        return max(drift.max_watermark for drift in self._drifts) + self._lead_ms

    def _pane_end_after(self, time: int) -> int:
        return (self._pane_number(time) + 1) * self._pane_ms

    def _pane_number(self, time: int) -> int:
        """The number of the pane to which the next row after watermark `time` may belong."""
        return (time + 1) // self._pane_ms
