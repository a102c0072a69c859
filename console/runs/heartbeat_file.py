"""Heartbeat of a job master: a file whose modification time advances while the master's main loop runs.

A master that hangs keeps its process, its stdin and its lease, so only the file reveals the hang. Silence is the sum of
the times between checks, each up to a limit: a suspension of the supervisor's own process is no silence.
"""

import time
from pathlib import Path

#: Longest time counted between two checks, in seconds; a longer gap means that the supervisor did not run.
_MAX_CHECK_GAP_S = 15.0


class HeartbeatFile:
    """Measures silence from its construction on. The file need not exist yet."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        self.file = file
        self._beat = 0
        self._looked = time.monotonic()
        self._silent_s = 0.0

    def silent_s(self) -> float:
        """Seconds since the newest heartbeat. Call it about once a second."""
        beat, now = self._read(), time.monotonic()
        self._silent_s = 0.0 if beat != self._beat else self._silent_s + min(now - self._looked, _MAX_CHECK_GAP_S)
        self._beat, self._looked = beat, now
        return self._silent_s

    def _read(self) -> int:
        try:
            return self.file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
