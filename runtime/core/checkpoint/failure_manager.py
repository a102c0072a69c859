"""Limits consecutive checkpoint failures: beyond the limit the attempt fails (Flink's `CheckpointFailureManager`).

`FailureReason.is_counted` selects the reasons. Of savepoints, only a snapshot that could not be stored counts: a
restart would not help against the other reasons. A checkpoint older than the newest completed one does not count.
"""

from runtime.core.job.ids import CheckpointId
from runtime.core.snapshot.failure_reason import FailureReason


class CheckpointFailureManager:
    """Mutable, owned by the coordinator. Counts failures since the newest completed checkpoint.

    Args:
        tolerable: number of consecutive failures that do not fail the attempt; None: any number.
    """

    def __init__(self, tolerable: int | None) -> None:
        self._tolerable = tolerable
        self._failures = 0
        self._newest = CheckpointId(0)

    def on_completed(self, checkpoint: CheckpointId) -> None:
        if checkpoint > self._newest:
            self._newest, self._failures = checkpoint, 0

    def on_failed(
        self, reason: FailureReason, detail: str, *, checkpoint: CheckpointId | None = None, savepoint: bool = False
    ) -> str | None:
        """Counts a failure. Returns the reason to fail the attempt, after which counting starts again; else None.

        Args:
            checkpoint: id of the failed checkpoint; None if it failed before it had an id.
            savepoint: whether the failed checkpoint was a savepoint.
        """
        older = checkpoint is not None and checkpoint < self._newest
        if older or not reason.is_counted or (savepoint and reason is not FailureReason.ASYNC_FAILED):
            return None
        self._failures += 1
        if self._tolerable is None or self._failures <= self._tolerable:
            return None
        self._failures = 0
        return f"more than {self._tolerable} checkpoints in a row failed, the last one: {reason}: {detail}"
