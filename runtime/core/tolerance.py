"""How many checkpoints may fail in a row before the attempt is failed. It does not know why each of them failed."""

from runtime.core.checkpoint import FailureReason


class Tolerance:
    """Counts failures since the last checkpoint that completed.

    Args:
        tolerable: so many in a row are borne; None: any number.
    """

    def __init__(self, tolerable: int | None) -> None:
        self._tolerable = tolerable
        self._failures = 0

    def completed(self) -> None:
        self._failures = 0

    def failed(self, reason: FailureReason, detail: str) -> str | None:
        """Why the attempt must be failed; None while it may go on. Counting starts again after that."""
        self._failures += reason.counts
        if self._tolerable is None or self._failures <= self._tolerable:
            return None
        self._failures = 0
        return f"more than {self._tolerable} checkpoints in a row failed, the last one: {reason}: {detail}"
