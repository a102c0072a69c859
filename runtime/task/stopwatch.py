"""Total duration of a condition that is sampled from time to time. The caller passes the time."""


class Stopwatch:
    """Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.total_ms = 0.0  #: total time for which the condition held
        self._since: float | None = None

    def sample(self, is_so: bool, now: float) -> None:
        """The time since the previous call is attributed to the previous value."""
        if self._since is not None:
            self.total_ms += now - self._since
        self._since = now if is_so else None
