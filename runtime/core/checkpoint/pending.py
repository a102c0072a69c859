"""A pending checkpoint: its acknowledgements, and the manifest once they are complete.

The coordinator decides when a checkpoint starts or fails. (Flink's `PendingCheckpoint`.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.checkpoint.plan import CheckpointPlan, finished_state
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.messages import Barrier
from runtime.core.snapshot.control import Acknowledgement
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot


@dataclass(slots=True)
class PendingCheckpoint:
    """Mutable, owned by the coordinator."""

    barrier: Barrier
    plan: CheckpointPlan
    operation: str | None
    expires_at: int
    acks: dict[SubtaskId, Acknowledgement] = field(default_factory=dict)
    _progress: dict[SubtaskId, SubtaskProgress] = field(default_factory=dict)
    storing: bool = False  #: the manifest is being stored: neither expiry nor a decline can fail the checkpoint

    @property
    def complete(self) -> bool:
        return len(self.acks) == len(self.plan.wait_for)

    @property
    def releases_all(self) -> bool:
        """Whether every subtask had finished its logic, so that completion lets all subtasks end."""
        return all(ack.snapshot.finished for ack in self.acks.values())

    def acknowledge(self, at: int, subtask: SubtaskId, ack: Acknowledgement) -> bool:
        """Stores an acknowledgement. Returns False if it is repeated or the subtask takes no part."""
        if subtask not in self.plan.wait_for or subtask in self.acks:
            return False
        self.acks[subtask] = ack
        at_ms = max(0, at - self.barrier.triggered_at)
        state_bytes = sum(segment.nbytes for segment in ack.snapshot.segments())
        self._progress[subtask] = SubtaskProgress(subtask, at_ms, ack.timings, state_bytes)
        return True

    def report(self, at: int, reason: FailureReason | None = None, detail: str = "") -> ReportCheckpoint:
        """The progress, or the failure with `reason`, for display."""
        barrier = self.barrier
        acknowledged, subtasks = len(self.acks), len(self.plan.wait_for)
        return ReportCheckpoint(
            checkpoint=barrier.checkpoint,
            kind=barrier.kind,
            triggered_at=barrier.triggered_at,
            at=at,
            acknowledged=acknowledged,
            subtasks=subtasks,
            reason=reason,
            detail=detail,
            progress=self.progress(),
        )

    def progress(self) -> tuple[SubtaskProgress, ...]:
        """The subtasks that take part, by operator and index, with the acknowledgements that have arrived."""
        return tuple(self._progress.get(each) or SubtaskProgress(each) for each in sorted(self.plan.wait_for))

    def manifest(self, job: str, token: Token, graph: JobGraph, last: Mapping[SubtaskId, SubtaskSnapshot]) -> Manifest:
        """The manifest of the acknowledged snapshots. `last`: the last snapshots of subtasks that have ended."""
        assert self.complete, "a manifest needs every acknowledgement"
        operators = {}
        for operator in graph.operators:
            subtasks = [SubtaskId(operator.uid, i) for i in range(operator.parallelism)]
            snapshots = {s.index: self.acks[s].snapshot if s in self.acks else last[s] for s in subtasks}
            finished_count = sum(snapshot.finished for snapshot in snapshots.values())
            state = finished_state(operator.parallelism, finished_count)
            operators[str(operator.uid)] = OperatorSnapshot(
                parallelism=operator.parallelism,
                finished=state,
                subtasks=snapshots,
                durations=dict(operator.durations),
                keys=graph.keys_of(operator.uid),
                aggregates=operator.aggregates,
                times=operator.times,
            )
        return Manifest(
            job=job,
            checkpoint=self.barrier.checkpoint,
            kind=self.barrier.kind,
            token=token,
            triggered_at=self.barrier.triggered_at,
            max_parallelism=graph.max_parallelism,
            operators=operators,
        )


def partly_finished_union(manifest: Manifest, operator_names: Mapping[str, str]) -> str | None:
    """The reason why a checkpoint with union lists must fail; None if it may complete (FLIP-147).

    A restore gives every subtask the union list entries of all subtasks. A finished subtask takes no part in later
    checkpoints: its entries would be lost, or outdated. The checkpoint therefore fails while some subtasks of the
    operator have finished and others have not.
    """
    for uid, operator in manifest.operators.items():
        names = sorted({name for snapshot in operator.subtasks.values() for name in snapshot.unions})
        if operator.finished is FinishedState.PARTLY and names:
            finished_count = sum(snapshot.finished for snapshot in operator.subtasks.values())
            has = f"{operator_names[uid]} has union lists ({', '.join(names)})"
            return f"{has}, and {finished_count} of its {operator.parallelism} subtasks have finished"
    return None
