"""Small graphs, snapshots and manifests that the tests of the core share."""

from runtime.core.checkpoint.plan import finished_state
from runtime.core.job.graph import EdgeSpec, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import (
    FORMAT_VERSION,
    FinishedState,
    Manifest,
    OperatorSnapshot,
    RowsInFlight,
    Segment,
    SnapshotTimings,
    SubtaskSnapshot,
)

TIMINGS = SnapshotTimings()
SNAPSHOT = SubtaskSnapshot()
DONE = SubtaskSnapshot(finished=True)


def source(uid: str, parallelism: int = 1, bounded: bool = False) -> OperatorSpec:
    return OperatorSpec(uid=OperatorId(uid), name=uid, role=Role.SOURCE, parallelism=parallelism, bounded=bounded)


def operator(uid: str, parallelism: int = 1) -> OperatorSpec:
    return OperatorSpec(uid=OperatorId(uid), name=uid, role=Role.OPERATOR, parallelism=parallelism)


def sink(uid: str, parallelism: int = 1) -> OperatorSpec:
    return OperatorSpec(uid=OperatorId(uid), name=uid, role=Role.SINK, parallelism=parallelism)


def edge(
    start: str,
    end: str,
    partitioning: Partitioning = Partitioning.REBALANCE,
    input: int = 0,
    build: bool = False,
    feedback: bool = False,
) -> EdgeSpec:
    return EdgeSpec(
        source=OperatorId(start),
        target=OperatorId(end),
        input=input,
        partitioning=partitioning,
        keys=("key",) if partitioning is Partitioning.HASH else (),
        build=build,
        feedback=feedback,
    )


def back(start: str, end: str, input: int = 1) -> EdgeSpec:
    """An edge that closes a loop."""
    return edge(start, end, input=input, feedback=True)


def chain(parallelism: int = 1) -> JobGraph:
    """source a, operator b, sink c."""
    return JobGraph(
        (source("a", parallelism), operator("b", parallelism), sink("c", parallelism)),
        (edge("a", "b"), edge("b", "c")),
        max_parallelism=8,
    )


def looped(heads: int = 1, body: int = 1) -> JobGraph:
    """source a, the head h of a loop, its body b, sink c."""
    return JobGraph(
        (source("a"), operator("h", heads), operator("b", body), sink("c")),
        (edge("a", "h"), edge("h", "b", Partitioning.HASH), back("b", "h"), edge("b", "c")),
        max_parallelism=8,
    )


def subtask(text: str) -> SubtaskId:
    """From "a/0"."""
    uid, _, index = text.partition("/")
    return SubtaskId(OperatorId(uid), int(index or 0))


def segment(path: str) -> Segment:
    return Segment(path=path, rows=1, nbytes=10, checksum="blake2b:00", first_group=0, last_group=7)


def rows_in_flight(sender: str, path: str = "rows", keys: tuple[str, ...] = ("key",)) -> RowsInFlight:
    return RowsInFlight(
        source=sender,
        output="",
        input=0,
        keys=keys,
        is_aggregated=False,
        used=None,
        batches=1,
        segments=(segment(path),),
        proof={},
    )


def operator_snapshot(subtasks: list[SubtaskSnapshot]) -> OperatorSnapshot:
    finished_count = sum(snapshot.finished for snapshot in subtasks)
    state: FinishedState = finished_state(len(subtasks), finished_count)
    return OperatorSnapshot(parallelism=len(subtasks), finished=state, subtasks=dict(enumerate(subtasks)))


def manifest(
    operators: dict[str, list[SubtaskSnapshot]],
    checkpoint: int = 1,
    token: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    format: int = FORMAT_VERSION,
    max_parallelism: int = 8,
) -> Manifest:
    return Manifest(
        format=format,
        job="job",
        checkpoint=checkpoint,
        kind=kind,
        token=token,
        triggered_at=0,
        max_parallelism=max_parallelism,
        operators={uid: operator_snapshot(subtasks) for uid, subtasks in operators.items()},
    )
