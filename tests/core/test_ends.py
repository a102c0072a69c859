"""What became of the latest checkpoints."""

from runtime.core.checkpoint.recent_checkpoints import REMEMBERED, RecentEnds
from runtime.core.effects import LateAnswer
from runtime.core.job.ids import CheckpointId
from runtime.core.snapshot.manifest import FailureReason, Fate
from tests.core.builders import subtask

A = subtask("a/0")


def test_each_end_is_remembered_with_its_reason() -> None:
    """S2-43, S2-48."""
    ends = RecentEnds()
    ends.completed(CheckpointId(1))
    ends.failed(CheckpointId(2), FailureReason.EXPIRED)
    assert [ends.late(A, CheckpointId(n), declined=n == 3) for n in (1, 2, 3)] == [
        LateAnswer(A, CheckpointId(1), False, Fate.COMPLETED),
        LateAnswer(A, CheckpointId(2), False, Fate.FAILED, FailureReason.EXPIRED),
        LateAnswer(A, CheckpointId(3), True, Fate.UNKNOWN),
    ]


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    """S2-43."""
    ends = RecentEnds()
    for number in range(REMEMBERED + 1):
        ends.completed(CheckpointId(number))
    fates = [ends.late(A, CheckpointId(n), declined=False).fate for n in (0, 1, REMEMBERED)]
    assert fates == [Fate.UNKNOWN, Fate.COMPLETED, Fate.COMPLETED]
