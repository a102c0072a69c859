"""Report of a checkpoint that cannot be read, and of the earlier checkpoint that can be restored instead.

The job's policy decides whether to fall back, since output committed after the earlier checkpoint is repeated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFallback:
    """The missing or altered file of the checkpoint to restore, and the possible fallback."""

    file: str
    operator: str  #: owner of the state; "" for a manifest
    detail: str
    checkpoint: int | None  #: None if its folder's name has no number
    previous: int | None  #: newest completed checkpoint before it that can be restored
    age_ms: int = 0  #: since the trigger of `previous`
    limit_ms: int | None = None  #: greatest age of a checkpoint that is restored by policy
    #: completed checkpoints after `previous`; their output would be committed again
    repeated_checkpoints: tuple[int, ...]
    unusable_folders: tuple[str, ...]  #: folders of checkpoints that cannot be restored

    @property
    def is_usable(self) -> bool:
        """Whether the policy may restore `previous`."""
        return self.previous is not None and not self._is_too_old

    @property
    def _is_too_old(self) -> bool:
        return self.limit_ms is not None and self.age_ms > self.limit_ms

    @property
    def fallback_hint(self) -> str:
        if self.previous is None:
            return "No completed checkpoint before it can be restored."
        text = f"Checkpoint {self.previous}, completed before it, can be restored instead"
        if self.repeated_checkpoints:
            text = f"{text}; the output of {_join_numbers(self.repeated_checkpoints)} would be repeated"
        if self._is_too_old:
            return f"{text}. It was triggered {self.age_ms // 1000} s ago, more than `fallback_limit_ms` allows."
        return f"{text}."

    @property
    def failure(self) -> dict[str, Any]:
        """Failure of the run if the run ends, else detail of the failed attempt."""
        return {
            "code": "corrupt-state",
            "message": f"{self.detail}. {self.fallback_hint}",
            "operator": self.operator,
            "file": self.file,
            "checkpoint": self.checkpoint,
            "previous": self.previous,
            "repeated": list(self.repeated_checkpoints),
        }

    @property
    def fallback_reason(self) -> str:
        """Why the next attempt restores the previous checkpoint; recorded with the failed attempt."""
        return (
            f"{self.detail}. By policy checkpoint {self.previous} is restored instead, which repeats the output of "
            + (_join_numbers(self.repeated_checkpoints) or "none")
        )


def checkpoint_number(folder: str) -> int | None:
    """Checkpoint number in the name of a folder (`folder_of`), or None."""
    parts = folder.rsplit("/", 1)[-1].split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(f"checkpoint {number}" for number in numbers)
