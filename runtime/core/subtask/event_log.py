"""The last events of a subtask, for the report of a failed attempt. Records and state are reduced to their sizes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Records
from runtime.core.subtask.events import (
    FeedbackReplayed,
    MessageArrived,
    MessageOvertaken,
    RowsReplayed,
    SourceAdvanced,
    SubtaskEvent,
)

MAX_LOGGED_EVENTS: Final = 40


@dataclass(frozen=True, slots=True)
class LoggedRecords:
    """The size of received records, without their values."""

    channel: ChannelId | None  #: None: from the restored log of a loop
    rows: int
    nbytes: int
    kind: Literal["arrived", "recorded", "replayed"] = "arrived"  #: recorded rows arrive, or are replayed, too


LoggedEvent = SubtaskEvent | LoggedRecords


class EventLog:
    """Mutable, owned by a subtask. Iterates from the oldest event to the latest."""

    def __init__(self) -> None:
        self._events: deque[LoggedEvent] = deque(maxlen=MAX_LOGGED_EVENTS)

    def __iter__(self) -> Iterator[LoggedEvent]:
        return iter(self._events)

    @property
    def newest(self) -> LoggedEvent:
        return self._events[-1]

    def __len__(self) -> int:
        return len(self._events)

    def append(self, event: SubtaskEvent) -> None:
        match event:
            case SourceAdvanced():
                return
            case MessageArrived(channel, Records(rows=rows, nbytes=nbytes)):
                self._events.append(LoggedRecords(channel, rows, nbytes))
            case MessageOvertaken(channel, Records(rows=rows, nbytes=nbytes)):
                self._events.append(LoggedRecords(channel, rows, nbytes, "recorded"))
            case RowsReplayed(channel, Records(rows=rows, nbytes=nbytes)):
                self._events.append(LoggedRecords(channel, rows, nbytes, "replayed"))
            case FeedbackReplayed(Records(rows=rows, nbytes=nbytes)):
                self._events.append(LoggedRecords(None, rows, nbytes))
            case _:
                self._events.append(event)
