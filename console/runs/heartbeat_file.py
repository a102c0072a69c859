"""Heartbeat of a job master: a file whose modification time advances while the master's main loop runs.

A master that hangs keeps its process, its stdin and its lease, so only the file reveals it. Silence is the sum of the
times between checks, each counted up to a limit: time in which this process was suspended too is no silence.
"""

import time
from pathlib import Path

#: Longest time counted between two checks; a longer gap means that this process did not run.
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
        """Seconds without a heartbeat. Call it about once a second."""
        beat, now = self._read(), time.monotonic()
        self._silent_s = 0.0 if beat != self._beat else self._silent_s + min(now - self._looked, _MAX_CHECK_GAP_S)
        self._beat, self._looked = beat, now
        return self._silent_s

    def _read(self) -> int:
        try:
            return self.file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
