"""Row numbers: surviving subtasks know which rows they have processed, and restarted senders do not send them again.

A source names for each row its split and its number there (`ports.NumbersRows`), a function of the row's position in
the input: the offset of a message, the row of a file. So a row that is read again has the same number. Every batch has
the number of its last row (`Records.end`), which row-wise and batch-wise steps pass on.

1. A receiver stores by channel and split the end of the last batch since each barrier (`ProcessedRows`).
2. After a restart the source cuts its batches at these ends, so a batch lies on one side of each of them (`SplitCuts`).
3. A restarted sender drops the batches up to the end (`RepeatedRows`), and compares the number and the keys of dropped
   rows with those that the receiver has processed since the restored checkpoint. A step that does not repeat itself, or
   an input that has changed, fails there.
4. A source holds barriers until it has repeated its rows. A checkpoint therefore never lies between numbers, and a
   snapshot needs no numbers: a restored receiver has processed the rows before the barrier, or replays them.

(Carbone et al. 2015, section 3.5, after SDGs, Fernandez et al. 2014.)
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records

_DEPLOYMENT = 0  #: in place of a checkpoint
KEY_SUMS: Final = 1 << 64  #: sums of hashes of keys are modulo this number


class RowNumbers(Protocol):
    """Ascending integers, such as an array of numpy."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class ChannelRows(msgspec.Struct):
    """Rows of a channel. `ends`: by split, the end of the last batch. `keys`: as `Records.keys`."""

    ends: dict[str, int] = {}
    rows: int = 0
    keys: int = 0

    def add(self, later: "ChannelRows") -> None:
        self.ends.update(later.ends)
        self.rows += later.rows
        self.keys = (self.keys + later.keys) % KEY_SUMS


class RepeatedChannel(msgspec.Struct, frozen=True):
    """The rows of a channel that its sender repeats after a restart, and must not send again; see `ChannelRows`."""

    channel: ChannelId
    ends: dict[str, int]
    rows: int
    keys: int


class ProcessedRows(msgspec.Struct, frozen=True):
    """The rows of a channel that a surviving receiver has processed.

    Args:
        by_barrier: the rows from a barrier to the next, by checkpoint, oldest first; 0: from the deployment on.
        completed: the newest checkpoint whose completion the receiver knows; it may have no older rows.
    """

    channel: ChannelId
    by_barrier: dict[int, ChannelRows]
    completed: int = 0

    def since(self, checkpoint: int) -> RepeatedChannel:
        """The rows since the barrier of `checkpoint`, or since the deployment if it restored it."""
        total = ChannelRows()
        for barrier, rows in self.by_barrier.items():
            if barrier >= checkpoint or checkpoint not in self.by_barrier:
                total.add(rows)
        return RepeatedChannel(self.channel, total.ends, total.rows, total.keys)


class Receipts:
    """The numbers of the rows that a subtask has processed. Mutable, owned by the loop of a slot."""

    def __init__(self) -> None:
        self._by_barrier: dict[ChannelId, dict[int, ChannelRows]] = {}
        self._newest: dict[ChannelId, ChannelRows] = {}
        self._completed = 0

    def on_records(self, channel: ChannelId, records: Records) -> None:
        if records.end:
            if channel not in self._newest:
                self._begin(channel, _DEPLOYMENT)
            newest = self._newest[channel]
            newest.rows += records.rows
            newest.keys = (newest.keys + records.keys) % KEY_SUMS
            if records.end > 0:  # else a failure may lose the rest: the sender's check notices the rows of this part
                newest.ends[records.split] = records.end

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> None:
        if channel in self._newest:
            self._begin(channel, checkpoint)

    def _begin(self, channel: ChannelId, barrier: int) -> None:
        self._newest[channel] = self._by_barrier.setdefault(channel, {})[barrier] = ChannelRows()

    def on_completed(self, checkpoint: CheckpointId) -> None:
        """No restore needs rows before the checkpoint: with an older one all subtasks restart."""
        self._completed = max(self._completed, checkpoint)
        for by_barrier in self._by_barrier.values():
            if checkpoint in by_barrier:
                for older in [each for each in by_barrier if each < checkpoint]:
                    del by_barrier[older]

    def on_aborted(self, checkpoint: CheckpointId) -> None:
        """Joins the rows of the checkpoint with those before its barrier."""
        for channel, by_barrier in self._by_barrier.items():
            before = [each for each in by_barrier if each < checkpoint]
            if before and checkpoint in by_barrier:
                rows, joined = by_barrier.pop(checkpoint), by_barrier[before[-1]]
                joined.add(rows)
                if self._newest[channel] is rows:
                    self._newest[channel] = joined

    def processed(self, channels: Collection[ChannelId]) -> list[ProcessedRows]:
        return [
            ProcessedRows(channel, dict(self._by_barrier[channel]), self._completed)
            for channel in sorted(self._by_barrier.keys() & set(channels))
        ]


class RepeatedRows:
    """The rows that a restarted sender must not send again on a channel. Mutable, owned by the loop of a slot.

    Args:
        ends: by split, the end of the rows that the receiver has processed.
        rows, keys: the number of these rows since the restored checkpoint, and the sum of their keys.
    """

    def __init__(self, ends: Mapping[str, int], rows: int, keys: int) -> None:
        self._ends = dict(ends)
        self._missing_rows, self._missing_keys = rows, keys

    def drops(self, split: str, end: int, rows: int, keys: int) -> bool:
        """Whether the receiver has processed these rows, up to row `end` of `split`; see `Records`."""
        if abs(end) > self._ends.get(split, 0):
            return False
        self._missing_rows -= rows
        self._missing_keys = (self._missing_keys - keys) % KEY_SUMS
        return True

    def check(self) -> None:
        """Called once all rows were repeated. Raises ValueError: they are others than before the restart."""
        if self._missing_rows:
            count, kind = abs(self._missing_rows), "fewer" if self._missing_rows > 0 else "more"
            raise ValueError(f"{count} rows {kind} were repeated than the receiver had processed")
        if self._missing_keys:
            raise ValueError("as many rows were repeated as the receiver had processed, but with other keys")


class SplitCuts:
    """Where a source subtask cuts its batches. Mutable, owned by the loop of a slot.

    Args:
        ends: by split, the ends that survivors have processed.
    """

    def __init__(self, ends: Iterable[tuple[str, int]] = ()) -> None:
        self._ends: dict[str, list[int]] = {}
        for split, end in sorted(set(ends)):
            self._ends.setdefault(split, []).append(end)

    @property
    def repeats(self) -> bool:
        """Whether survivors have processed rows that are still to be read again."""
        return bool(self._ends)

    def awaits(self, split: str) -> bool:
        return split in self._ends

    def pieces(self, split: str, numbers: RowNumbers) -> list[tuple[int, int, int]]:
        """Cuts rows with these numbers. Returns the offset, the number of rows and the end of each piece."""
        ends = self._ends.pop(split, [])
        passed = bisect_right(ends, numbers[-1])
        if ends[passed:]:
            self._ends[split] = ends[passed:]
        stops = sorted({*(bisect_right(numbers, end) for end in ends[:passed]), len(numbers)} - {0})
        return [(start, stop - start, int(numbers[stop - 1])) for start, stop in zip([0, *stops], stops, strict=False)]
