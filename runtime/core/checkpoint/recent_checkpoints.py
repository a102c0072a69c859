"""The outcome of recent checkpoints, which distinguishes a late acknowledgement or decline from an invalid one.

A late acknowledgement is no error, and its files are not deleted: later checkpoints build on the deltas of a failed
checkpoint. Within an attempt no file of a subtask may be deleted; the clean-up after the attempt deletes the files that
no manifest names. (Flink keeps expired ids only.)
"""

from collections import OrderedDict
from typing import Final

from runtime.core.checkpoint.effects import CheckpointStatus, LateAnswer
from runtime.core.job.ids import CheckpointId, SubtaskId
from runtime.core.snapshot.failure_reason import FailureReason

MAX_RECENT_CHECKPOINTS: Final = 64


class RecentCheckpoints:
    """Mutable, owned by the coordinator. Holds the outcome of the latest `MAX_RECENT_CHECKPOINTS` checkpoints."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[CheckpointId, FailureReason | None] = OrderedDict()

    def on_completed(self, checkpoint: CheckpointId) -> None:
        self._remember(checkpoint, None)

    def on_failed(self, checkpoint: CheckpointId, reason: FailureReason) -> None:
        self._remember(checkpoint, reason)

    def late_answer(self, subtask: SubtaskId, checkpoint: CheckpointId, *, declined: bool) -> LateAnswer:
        """The effect that reports a late acknowledgement or decline of `checkpoint`, which is not pending."""
        if checkpoint not in self._reasons:
            return LateAnswer(subtask, checkpoint, declined, CheckpointStatus.UNKNOWN)
        reason = self._reasons[checkpoint]
        return LateAnswer(
            subtask,
            checkpoint,
            declined,
            CheckpointStatus.COMPLETED if reason is None else CheckpointStatus.FAILED,
            reason,
        )

    def _remember(self, checkpoint: CheckpointId, reason: FailureReason | None) -> None:
        self._reasons[checkpoint] = reason
        if len(self._reasons) > MAX_RECENT_CHECKPOINTS:
            self._reasons.popitem(last=False)
