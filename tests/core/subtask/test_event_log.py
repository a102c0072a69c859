"""What is kept of the last events of a subtask: none of their records, and nothing of their memory."""

import weakref

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Records
from runtime.core.subtask.event_log import MAX_LOGGED_EVENTS, EventLog, LoggedRecords
from runtime.core.subtask.events import (
    FeedbackReplayed,
    MessageArrived,
    MessageOvertaken,
    RowsReplayed,
    SourceAdvanced,
    SubtaskStarted,
)

LEFT = ChannelId(0, 0, 0)


class Payload:
    """Stands for a batch."""


def test_the_story_of_the_last_events_is_kept_and_bounded() -> None:
    story = EventLog()
    for _ in range(MAX_LOGGED_EVENTS + 5):
        story.append(MessageArrived(LEFT, Records("rows", 1, 10)))
    assert len(story) == MAX_LOGGED_EVENTS


def test_the_story_keeps_no_records() -> None:
    """It outlives the batches by far, and people read it."""
    story, payload = EventLog(), Payload()
    reference = weakref.ref(payload)
    story.append(SubtaskStarted())
    story.append(FeedbackReplayed(Records(payload, 2, 20)))
    story.append(MessageArrived(LEFT, Records(payload, 3, 30)))
    del payload
    assert reference() is None
    assert list(story) == [
        SubtaskStarted(),
        LoggedRecords(None, 2, 20),
        LoggedRecords(LEFT, 3, 30),
    ]


def test_the_recording_of_rows_differs_from_their_arrival() -> None:
    story, records = EventLog(), Records("rows", 1, 10)
    story.append(MessageOvertaken(LEFT, records))
    story.append(MessageArrived(LEFT, records))
    story.append(RowsReplayed(LEFT, records))
    assert [each.kind for each in story if isinstance(each, LoggedRecords)] == ["recorded", "arrived", "replayed"]


def test_the_story_is_not_filled_with_the_time_of_a_source() -> None:
    story = EventLog()
    story.append(SubtaskStarted())
    for time in range(MAX_LOGGED_EVENTS):
        story.append(SourceAdvanced(time))
    assert list(story) == [SubtaskStarted()]
