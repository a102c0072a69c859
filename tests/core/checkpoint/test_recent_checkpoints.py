"""What became of the latest checkpoints."""

from runtime.core.checkpoint.effects import CheckpointStatus, LateAnswer
from runtime.core.checkpoint.recent_checkpoints import MAX_RECENT_CHECKPOINTS, RecentCheckpoints
from runtime.core.job.ids import CheckpointId
from runtime.core.snapshot.failure_reason import FailureReason
from tests.core.builders import subtask

A = subtask("a/0")


def test_each_end_is_remembered_with_its_reason() -> None:
    """S2-43, S2-48."""
    ends = RecentCheckpoints()
    ends.on_completed(CheckpointId(1))
    ends.on_failed(CheckpointId(2), FailureReason.EXPIRED)
    assert [ends.late_answer(A, CheckpointId(n), declined=n == 3) for n in (1, 2, 3)] == [
        LateAnswer(A, CheckpointId(1), False, CheckpointStatus.COMPLETED),
        LateAnswer(A, CheckpointId(2), False, CheckpointStatus.FAILED, FailureReason.EXPIRED),
        LateAnswer(A, CheckpointId(3), True, CheckpointStatus.UNKNOWN),
    ]


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    """S2-43."""
    ends = RecentCheckpoints()
    for number in range(MAX_RECENT_CHECKPOINTS + 1):
        ends.on_completed(CheckpointId(number))
    fates = [ends.late_answer(A, CheckpointId(n), declined=False).status for n in (0, 1, MAX_RECENT_CHECKPOINTS)]
    assert fates == [CheckpointStatus.UNKNOWN, CheckpointStatus.COMPLETED, CheckpointStatus.COMPLETED]
