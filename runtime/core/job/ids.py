"""Identifiers of operators, subtasks, channels, checkpoints and attempts."""

from dataclasses import dataclass
from typing import Final, NewType

OperatorId = NewType("OperatorId", str)  #: the operator's `uid` in the pipeline; maps state across versions
CheckpointId = NewType("CheckpointId", int)  #: increases within a job over all its runs; ids may be skipped
Token = NewType("Token", int)  #: attempt token, issued by Postgres in increasing order; fences older attempts

MAX_ABORTED_IDS: Final = 128  #: as Flink's `SubtaskCheckpointCoordinatorImpl`


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """A parallel instance of an operator. Subtask `index` runs in slot `index`."""

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


def add_aborted_id(aborted: frozenset[CheckpointId], checkpoint: CheckpointId) -> frozenset[CheckpointId]:
    """Adds an id to `aborted`. The set is bounded by `MAX_ABORTED_IDS`; the oldest id is evicted first.

    A late barrier with an evicted id starts an alignment for an aborted checkpoint, which the next barrier supersedes.
    """
    grown = aborted | {checkpoint}
    return grown if len(grown) <= MAX_ABORTED_IDS else grown - {min(grown)}
