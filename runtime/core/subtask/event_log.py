"""The last events of a subtask, for the report of a failed attempt. Records and state are reduced to their sizes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from runtime.core.events import FeedbackReplayed, MessageArrived, SnapshotStored, SourceAdvanced, SubtaskEvent
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records
from runtime.core.snapshot.manifest import SnapshotTimings

STORY_LENGTH: Final = 40


@dataclass(frozen=True, slots=True)
class Heard:
    """The size of received records, without their values."""

    channel: ChannelId | None  #: None: from the restored log of a loop
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored snapshot, without its state."""

    checkpoint: CheckpointId
    timings: SnapshotTimings


class Story:
    """Mutable, owned by a subtask. Iterates from the oldest to the latest."""

    def __init__(self) -> None:
        self._told: deque[SubtaskEvent | Heard | Stored] = deque(maxlen=STORY_LENGTH)

    def __iter__(self) -> Iterator[SubtaskEvent | Heard | Stored]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def note(self, event: SubtaskEvent) -> None:
        match event:
            case SourceAdvanced():
                return
            case MessageArrived(channel, Records(rows=rows, nbytes=nbytes)):
                self._told.append(Heard(channel, rows, nbytes))
            case FeedbackReplayed(Records(rows=rows, nbytes=nbytes)):
                self._told.append(Heard(None, rows, nbytes))
            case SnapshotStored(checkpoint, _, timings):
                self._told.append(Stored(checkpoint, timings))
            case _:
                self._told.append(event)
