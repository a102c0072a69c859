"""The subtasks of a checkpoint on the time since its trigger, from the acknowledgements in its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runtime.core.checkpoint.acknowledgements import PHASES

#: Name of each phase of `PHASES` in legends.
PHASE_NAMES: Final = {phase: phase.replace("_", " ") for phase in PHASES} | {"pre_barrier": "pre-barrier"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A subtask that takes part in a checkpoint.

    Args:
        at_ms: time from the trigger to the acknowledgement. None: the acknowledgement is missing.
        phases_ms: duration of each phase of `PHASES`; zeros while the acknowledgement is missing.
    """

    operator: str
    index: int
    at_ms: int | None
    phases_ms: tuple[float, ...]
    written_bytes: int | None
    state_bytes: int | None

    def phase_ms(self, phase: str) -> float:
        return self.phases_ms[PHASES.index(phase)]

    @property
    def barriers_ms(self) -> float:
        """Time from the trigger until the barrier had arrived on every input."""
        return self.phase_ms("start_delay") + self.phase_ms("alignment")

    @property
    def forwarded_ms(self) -> float:
        """Time from the trigger until the subtask sent the barrier to its outputs."""
        return self.barriers_ms + self.phase_ms("pre_barrier")


def lanes_of(acknowledgements: Mapping[str, Mapping[str, Sequence[Any]]], order: Sequence[str]) -> tuple[Lane, ...]:
    """The lanes by operator, in the given order of operators, and by index. Unknown operators come last."""
    places = {uid: place for place, uid in enumerate(order)}
    uids = sorted(acknowledgements, key=lambda uid: places.get(uid, len(places)))
    return tuple(lane for uid in uids for lane in _lanes(uid, acknowledgements[uid]))


def _lanes(uid: str, columns: Mapping[str, Sequence[Any]]) -> list[Lane]:
    return [
        Lane(
            operator=uid,
            index=index,
            at_ms=columns["at_ms"][place],
            phases_ms=tuple(columns[f"{phase}_ms"][place] or 0.0 for phase in PHASES),
            written_bytes=columns["written_bytes"][place],
            state_bytes=columns["state_bytes"][place],
        )
        for place, index in enumerate(columns["index"])
    ]
