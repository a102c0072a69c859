"""The phases of an operation on its page: the request, the start, the phases that it entered, and the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Final

from console.checkpoints.models import Checkpoint
from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.models import Operation
from console.operations.registry import operation_type

_TAKEN: Final = "asked"  #: phase of an operation that its job master has taken


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase from `at` to `until`; the last has no end."""

    label: str
    at: datetime
    until: datetime | None

    @property
    def started(self) -> str:
        """With milliseconds: phases of a savepoint follow each other within a second."""
        return f"{self.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{self.at.microsecond // 1000:03d}"


def operation_phases(operation: Operation, checkpoint: Checkpoint | None) -> tuple[Phase, ...]:
    """The phases in order; the end is the last. Empty for an operation that took effect at its request.

    `checkpoint`: the savepoint in its result.
    """
    if operation.ended_at == operation.created_at:
        return ()
    begun = sorted(_moments(operation, checkpoint), key=itemgetter(1))
    ends = [at for _, at in begun[1:]]
    return tuple(Phase(label, at, until) for (label, at), until in zip(begun, [*ends, None], strict=True))


def _moments(operation: Operation, checkpoint: Checkpoint | None) -> Iterator[tuple[str, datetime]]:
    kind = operation_type(operation.kind)
    yield "Requested", operation.created_at
    if operation.started_at is not None:
        yield "Taken by the job master" if isinstance(kind, DelegatedOperation) else "Started", operation.started_at
    for entered in operation.phases:
        at = datetime.fromisoformat(entered["at"])
        is_before_end = operation.ended_at is None or at < operation.ended_at  # the end may be written with a phase
        if entered["phase"] != _TAKEN and is_before_end:
            yield entered["phase"].replace("_", " ").capitalize(), at
    if checkpoint is not None and kind.takes_savepoint:
        yield f"{str(checkpoint).capitalize()} triggered", checkpoint.triggered_at
        if checkpoint.completed_at is not None:
            yield f"{str(checkpoint).capitalize()} completed", checkpoint.completed_at
    if operation.ended_at is not None:
        yield operation.state.capitalize(), operation.ended_at
