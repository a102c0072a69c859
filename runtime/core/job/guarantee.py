"""The end-to-end guarantee of a job: the weakest of its checkpoint mode, sources and sinks.

Pages and API share the sentences of this module. Connectors declare their own guarantee. In exactly-once mode the state
inside the job is exact, whatever the end-to-end guarantee is.
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

_CONNECTOR_REASONS: Final = {
    (Role.SOURCE, Guarantee.AT_LEAST_ONCE): "Source {} may repeat records after a restart.",
    (Role.SOURCE, Guarantee.NONE): "Source {} cannot rewind to a position, so a restart loses records in flight.",
    (
        Role.SINK,
        Guarantee.AT_LEAST_ONCE,
    ): "Sink {} publishes records before their checkpoint: a restart may repeat them.",
    (Role.SINK, Guarantee.NONE): "Sink {} may lose records in a restart.",
}
_MODE_REASON: Final = "The checkpoint mode is at least once: a restart may process records again."


@dataclass(frozen=True, slots=True)
class ConnectorGuarantee:
    """The guarantee of a source or of an operator with a sink; `name` is its display name."""

    name: str
    role: Role
    guarantee: Guarantee


@dataclass(frozen=True, slots=True)
class EndToEndGuarantee:
    """The guarantee of a job. `reasons`: sentences on why it is weaker than exactly once; empty for exactly once."""

    guarantee: Guarantee
    reasons: tuple[str, ...] = ()


def is_weaker(guarantee: Guarantee, other: Guarantee) -> bool:
    return _STRONGEST_FIRST.index(guarantee) > _STRONGEST_FIRST.index(other)


def end_to_end_guarantee(mode: CheckpointMode, ends: Iterable[ConnectorGuarantee]) -> EndToEndGuarantee:
    """The weakest guarantee of mode, sources and sinks, with a sentence for each that is weaker than exactly once."""
    weak = [end for end in ends if end.guarantee is not Guarantee.EXACTLY_ONCE]
    reasons = [
        _CONNECTOR_REASONS[Role.SOURCE if end.role is Role.SOURCE else Role.SINK, end.guarantee].format(end.name)
        for end in weak
    ]
    guarantees = [Guarantee.EXACTLY_ONCE, *(end.guarantee for end in weak)]
    if mode is CheckpointMode.AT_LEAST_ONCE:
        guarantees.append(Guarantee.AT_LEAST_ONCE)
        reasons.insert(0, _MODE_REASON)
    return EndToEndGuarantee(max(guarantees, key=_STRONGEST_FIRST.index), tuple(reasons))
