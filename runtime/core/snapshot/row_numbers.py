"""Row numbers: surviving subtasks know which rows they have processed, and restarted senders do not send them again.

A source counts the rows of each split. Every batch has the number of its last row (`Records.end`), which row-wise and
batch-wise steps pass on. The numbers are part of the snapshot of the source, so they continue after a restore.

1. A receiver stores by channel and split the end of the last batch (`ProcessedRows`).
2. After a restart the source cuts its batches at these ends, so a batch lies on one side of each of them.
3. A restarted sender drops the batches up to the end (`RepeatedRows`), and compares the number of dropped rows with the
   number that the receiver has processed since the restored checkpoint. A step that does not repeat itself fails there.
4. A source holds barriers until it has repeated its rows. A checkpoint therefore never lies between numbers, and a
   snapshot needs no numbers of receivers: a restored receiver has processed the rows before the barrier.

(Carbone et al. 2015, section 3.5, after SDGs, Fernandez et al. 2014.)
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records


class ProcessedRows(msgspec.Struct, frozen=True):
    """The rows of a channel that a surviving receiver has processed.

    Args:
        ends: by split, the end of the last batch.
        rows: the number of rows since the receiver was deployed.
        rows_at: by checkpoint, this number at the barrier.
    """

    channel: ChannelId
    ends: dict[str, int]
    rows: int
    rows_at: dict[int, int]

    def rows_since(self, checkpoint: int) -> int:
        """The number of rows since the barrier of `checkpoint`, or since the deployment if it restored it."""
        return self.rows - self.rows_at.get(checkpoint, 0)


class RepeatedChannel(msgspec.Struct, frozen=True):
    """The rows of a channel that its sender repeats after a restart, and must not send again; see `ProcessedRows`."""

    channel: ChannelId
    ends: dict[str, int]
    rows: int  #: since the restored checkpoint


class Receipts:
    """The numbers of the rows that a subtask has processed. Mutable, owned by the loop of a slot."""

    def __init__(self) -> None:
        self._ends: dict[ChannelId, dict[str, int]] = {}
        self._rows: dict[ChannelId, int] = {}
        self._rows_at: dict[ChannelId, dict[int, int]] = {}

    def on_records(self, channel: ChannelId, records: Records) -> None:
        if records.end:
            self._ends.setdefault(channel, {})[records.split] = records.end
            self._rows[channel] = self._rows.get(channel, 0) + records.rows

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> None:
        if channel in self._rows:
            self._rows_at.setdefault(channel, {})[checkpoint] = self._rows[channel]

    def on_completed(self, checkpoint: CheckpointId) -> None:
        """No restore needs an older checkpoint."""
        for marks in self._rows_at.values():
            for older in [each for each in marks if each < checkpoint]:
                del marks[older]

    def on_aborted(self, checkpoint: CheckpointId) -> None:
        for marks in self._rows_at.values():
            marks.pop(checkpoint, None)

    def processed(self, channels: Collection[ChannelId]) -> list[ProcessedRows]:
        return [
            ProcessedRows(channel, dict(self._ends[channel]), self._rows[channel], dict(self._rows_at.get(channel, {})))
            for channel in sorted(self._rows.keys() & set(channels))
        ]


class RepeatedRows:
    """The rows that a restarted sender must not send again on a channel. Mutable, owned by the loop of a slot.

    Args:
        ends: by split, the end of the rows that the receiver has processed.
        rows: the number of these rows since the restored checkpoint.
    """

    def __init__(self, ends: Mapping[str, int], rows: int) -> None:
        self._ends = dict(ends)
        self._missing_rows = rows

    def drops(self, split: str, end: int, rows: int) -> bool:
        """Whether the receiver has processed `rows` rows up to row `end` of `split`."""
        if end > self._ends.get(split, 0):
            return False
        self._missing_rows -= rows
        return True

    def check(self) -> None:
        """Called once all rows were repeated. Raises ValueError: their number is another than before the restart."""
        if self._missing_rows:
            count, kind = abs(self._missing_rows), "fewer" if self._missing_rows > 0 else "more"
            raise ValueError(f"{count} rows {kind} were repeated than the receiver had processed")


class SplitNumbers:
    """The numbers of the rows of a source subtask. Mutable, owned by the loop of a slot.

    Args:
        restored: by split, the number of its last row before the restored checkpoint.
        ends: by split, the ends that survivors have processed.
    """

    def __init__(self, restored: Mapping[str, int], ends: Iterable[tuple[str, int]] = ()) -> None:
        self.by_split = dict(restored)
        self._cuts: dict[str, list[int]] = {}
        for split, end in sorted(set(ends)):
            if end > self.by_split.get(split, 0):
                self._cuts.setdefault(split, []).append(end)

    @property
    def repeats(self) -> bool:
        """Whether survivors have processed rows that are still to be read again."""
        return bool(self._cuts)

    def pieces(self, split: str, rows: int) -> Iterator[tuple[int, int, int]]:
        """Cuts a batch of `rows` rows. Yields the offset, the number of rows and the end of each piece."""
        offset = 0
        while offset < rows:
            before = self.by_split.get(split, 0)
            cuts = self._cuts.get(split)
            count = rows - offset if not cuts else min(rows - offset, cuts[0] - before)
            end = self.by_split[split] = before + count
            if cuts and end == cuts[0]:
                del cuts[0]
                if not cuts:
                    del self._cuts[split]
            yield offset, count, end
            offset += count
