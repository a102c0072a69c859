"""Names of things: who is meant when two parts of the system talk about the same subtask, channel or checkpoint."""

from dataclasses import dataclass
from typing import Final, NewType

OperatorId = NewType("OperatorId", str)  #: the `uid` an author gives; state is mapped by it across versions
CheckpointId = NewType("CheckpointId", int)  #: increases within a job over all its runs; ids may be burnt
Token = NewType("Token", int)  #: attempt token, handed out by Postgres in increasing order; fences zombies

MAX_ABORTED_IDS: Final = 128  #: as Flink's `SubtaskCheckpointCoordinatorImpl`


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One parallel instance of an operator. Subtask `index` runs in slot `index`."""

    operator: OperatorId
    index: int

    def __str__(self) -> str:
        return f"{self.operator}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class ChannelId:
    """The FIFO channel from subtask `source` to subtask `target` of the graph's edge number `edge`."""

    edge: int
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.edge}:{self.source}>{self.target}"


def with_aborted(aborted: frozenset[CheckpointId], checkpoint: CheckpointId) -> frozenset[CheckpointId]:
    """`aborted` with one id more, bounded: the oldest id is forgotten first.

    A late barrier with a forgotten id begins an alignment that no checkpoint needs; the next barrier overtakes it.
    """
    grown = aborted | {checkpoint}
    return grown if len(grown) <= MAX_ABORTED_IDS else grown - {min(grown)}
