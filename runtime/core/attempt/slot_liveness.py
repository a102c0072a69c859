"""Liveness of the slots: a slot fails if it has been silent for too long.

Silence is accumulated over checks in quick succession, as for the heartbeat of a master. A suspended master reads no
mail, so its suspension does not count as silence.
"""

from typing import Final

MAX_CHECK_INTERVAL_MS: Final = 1_000  #: checks lie further apart only if the master was suspended


class SlotLiveness:
    """Mutable, owned by the machine of an attempt."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._silence_ms: dict[int, int] = {}
        self._checked_at: int | None = None

    def on_message(self, slot: int) -> None:
        self._silence_ms[slot] = 0

    def silent_slot(self, at: int) -> int | None:
        """A slot without messages for longer than the time-out, or None. Call it after all messages were read."""
        passed_ms = 0 if self._checked_at is None else min(at - self._checked_at, MAX_CHECK_INTERVAL_MS)
        self._checked_at = at
        for slot in self._silence_ms:
            self._silence_ms[slot] += passed_ms
        return next((slot for slot, silence_ms in self._silence_ms.items() if silence_ms > self._timeout_ms), None)
