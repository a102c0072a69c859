"""How many checkpoints may fail in a row before the attempt is failed (Flink's `CheckpointFailureManager`).

`FailureReason.counts` names the reasons that count: no id, a trigger that raised, a snapshot or a manifest that could
not be stored, expiry. Of savepoints only snapshots that could not be stored count; elsewhere a restart would not help.
A checkpoint older than the newest completed one counts neither way.
"""

from runtime.core.job.ids import CheckpointId
from runtime.core.snapshot.manifest import FailureReason


class Tolerance:
    """Counts failures since the newest completed checkpoint.

    Args:
        tolerable: the number of failures in a row that do not fail the attempt; None: any number.
    """

    def __init__(self, tolerable: int | None) -> None:
        self._tolerable = tolerable
        self._failures = 0
        self._newest = CheckpointId(0)

    def completed(self, checkpoint: CheckpointId) -> None:
        if checkpoint > self._newest:
            self._newest, self._failures = checkpoint, 0

    def failed(
        self, reason: FailureReason, detail: str, *, checkpoint: CheckpointId | None = None, savepoint: bool = False
    ) -> str | None:
        """Why the attempt must be failed; None while it may go on. Counting starts again after that.

        Args:
            checkpoint: its id; None if it failed before it had one.
            savepoint: whether it was one.
        """
        older = checkpoint is not None and checkpoint < self._newest
        if older or not reason.counts or (savepoint and reason is not FailureReason.ASYNC_FAILED):
            return None
        self._failures += 1
        if self._tolerable is None or self._failures <= self._tolerable:
            return None
        self._failures = 0
        return f"more than {self._tolerable} checkpoints in a row failed, the last one: {reason}: {detail}"
