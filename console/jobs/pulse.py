"""The pulse of a job master: a file whose modification time moves while its loop turns.

A master that hangs keeps its process, its stdin and its lease, so only this tells that it does nothing any more.
Silence is added up from looks that lie close together: what stopped this process too (a suspended machine) is none.
"""

import time
from pathlib import Path

#: Two looks lie further apart only when this process could not look.
_LOOK_S_MAX = 15.0


class Pulse:
    """Counts from its construction on. The file need not exist yet."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        self.file = file
        self._beat = 0
        self._looked = time.monotonic()
        self._silent_s = 0.0

    def silent_s(self) -> float:
        """For how long no beat was seen. To be asked every second or so."""
        beat, now = self._read(), time.monotonic()
        self._silent_s = 0.0 if beat != self._beat else self._silent_s + min(now - self._looked, _LOOK_S_MAX)
        self._beat, self._looked = beat, now
        return self._silent_s

    def _read(self) -> int:
        try:
            return self.file.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
