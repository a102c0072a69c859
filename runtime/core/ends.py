"""What became of the latest checkpoints, so that an answer that comes too late is told apart from a wrong one.

It decides nothing. A late acknowledgement is no error, and the files that it names are not deleted: segments of a
checkpoint that was given up are the deltas on which the next ones build, so within an attempt nothing that a subtask
has written may go; the clean-up after the attempt knows what no manifest names. (Flink remembers expired ids only.)
"""

from collections import OrderedDict
from typing import Final

from runtime.core.checkpoint import FailureReason, Fate
from runtime.core.effects import LateAnswer
from runtime.core.ids import CheckpointId, SubtaskId

REMEMBERED: Final = 64


class RecentEnds:
    """Mutable, owned by the coordinator. Holds the latest `REMEMBERED` ends."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[CheckpointId, FailureReason | None] = OrderedDict()

    def completed(self, checkpoint: CheckpointId) -> None:
        self._remember(checkpoint, None)

    def failed(self, checkpoint: CheckpointId, reason: FailureReason) -> None:
        self._remember(checkpoint, reason)

    def late(self, subtask: SubtaskId, checkpoint: CheckpointId, *, declined: bool) -> LateAnswer:
        """What an answer to `checkpoint`, which is not pending, comes down to."""
        if checkpoint not in self._reasons:
            return LateAnswer(subtask, checkpoint, declined, Fate.UNKNOWN)
        reason = self._reasons[checkpoint]
        return LateAnswer(subtask, checkpoint, declined, Fate.COMPLETED if reason is None else Fate.FAILED, reason)

    def _remember(self, checkpoint: CheckpointId, reason: FailureReason | None) -> None:
        self._reasons[checkpoint] = reason
        if len(self._reasons) > REMEMBERED:
            self._reasons.popitem(last=False)
