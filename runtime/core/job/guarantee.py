"""What a job promises from end to end: no more than its mode, its sources and its sinks.

It decides the sentences too, so that page and API say the same. It does not know connectors: each declares its own
guarantee. State inside the job is exact in exactly-once mode whatever this says (S1-02).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runtime.core.job.graph import Guarantee, Role


class CheckpointMode(StrEnum):
    """The guarantee of job state for records in flight at a restore."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"  #: no record is lost, some may be processed again; barriers block no channel


_STRONGEST_FIRST: Final = tuple(Guarantee)

_WHY: Final = {
    (Role.SOURCE, Guarantee.AT_LEAST_ONCE): "Source {} may give records again after a restart.",
    (Role.SOURCE, Guarantee.NONE): "Source {} cannot go back to a position, so a restart loses what was on its way.",
    (
        Role.SINK,
        Guarantee.AT_LEAST_ONCE,
    ): "Sink {} shows records before their checkpoint, so a restart may repeat them.",
    (Role.SINK, Guarantee.NONE): "Sink {} may lose records in a restart.",
}
_WHY_MODE: Final = "The checkpoint mode is at least once: records that flowed past a barrier are handled again."


@dataclass(frozen=True, slots=True)
class End:
    """A source or sink, by the name that people know."""

    name: str
    role: Role
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class Promise:
    """What a job promises. `reasons` says why it is not exactly once; empty where it is."""

    guarantee: Guarantee
    reasons: tuple[str, ...] = ()


def promise(mode: CheckpointMode, ends: Iterable[End]) -> Promise:
    """The weakest of mode, sources and sinks, with a sentence for each that is weaker than exactly once."""
    weak = [end for end in ends if end.guarantee is not Guarantee.EXACTLY_ONCE]
    reasons = [_WHY[end.role, end.guarantee].format(end.name) for end in weak]
    found = [Guarantee.EXACTLY_ONCE, *(end.guarantee for end in weak)]
    if mode is CheckpointMode.AT_LEAST_ONCE:
        found.append(Guarantee.AT_LEAST_ONCE)
        reasons.insert(0, _WHY_MODE)
    return Promise(max(found, key=_STRONGEST_FIRST.index), tuple(reasons))
