"""What is kept of the last events of a subtask: none of their records, and nothing of their memory."""

import weakref

from runtime.core.events import FeedbackReplayed, MessageArrived, SnapshotStored, SourceAdvanced, SubtaskStarted
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Records
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.core.subtask.event_log import STORY_LENGTH, Heard, Stored, Story
from tests.core.builders import TIMINGS

LEFT = ChannelId(0, 0, 0)


class Payload:
    """Stands for a batch."""


def test_the_story_of_the_last_events_is_kept_and_bounded() -> None:
    story = Story()
    for _ in range(STORY_LENGTH + 5):
        story.note(MessageArrived(LEFT, Records("rows", 1, 10)))
    assert len(story) == STORY_LENGTH


def test_the_story_keeps_no_records_and_no_state() -> None:
    """It outlives the batches by far, and people read it."""
    story, payload = Story(), Payload()
    gone = weakref.ref(payload)
    story.note(SubtaskStarted())
    story.note(FeedbackReplayed(Records(payload, 2, 20)))
    story.note(MessageArrived(LEFT, Records(payload, 3, 30)))
    del payload
    assert gone() is None
    story.note(SnapshotStored(CheckpointId(1), SubtaskSnapshot(lists={"l": ("a value",)}), TIMINGS))
    assert list(story) == [SubtaskStarted(), Heard(None, 2, 20), Heard(LEFT, 3, 30), Stored(CheckpointId(1), TIMINGS)]


def test_the_story_is_not_filled_with_the_time_of_a_source() -> None:
    story = Story()
    story.note(SubtaskStarted())
    for time in range(STORY_LENGTH):
        story.note(SourceAdvanced(time))
    assert list(story) == [SubtaskStarted()]
