"""How long something has been the case, seen at moments only. It reads no clock."""


class Stopwatch:
    """Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self.ms = 0.0  #: in all
        self._since: float | None = None

    def note(self, is_so: bool, now: float) -> None:
        """What was so at the last moment counts as so until now."""
        if self._since is not None:
            self.ms += now - self._since
        self._since = now if is_so else None
