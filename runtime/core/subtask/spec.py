"""The spec of a subtask, fixed at its start: channels, place in the graph, and restored state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from runtime.core.job.graph import JobGraph, Partitioning, Role, keyed_inputs
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.subtask.build_sides import joins_ahead
from runtime.core.subtask.termination import LoopPlace
from runtime.errors import JobRejected

_MAX_NAMED_STEPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpec:
    """The place of a subtask in the graph, and the state from which it starts."""

    id: SubtaskId
    inputs: Mapping[ChannelId, int] = field(default_factory=dict)  #: channel -> input number
    #: channels of a build side, which ends before other inputs are read
    build_channels: frozenset[ChannelId] = frozenset()
    opens_after: frozenset[OperatorId] = frozenset()  #: joins whose build sides end before it polls or fires timers
    reads_to_end: bool = False  #: a source on a build side: a drain lets it read to its end
    loop: LoopPlace | None = None  #: None outside loops
    replays_feedback: bool = False  #: the restored feedback log is replayed first
    replays_rows: bool = False  #: restored rows that were in flight are replayed first
    overtakes: bool = False  #: a barrier may overtake rows, as each of them belongs to a key group
    restored_watermark: int | None = None
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    finished_on_restore: bool = False  #: skip the operator, but forward barriers, watermarks and end events

    @property
    def regular_channels(self) -> tuple[ChannelId, ...]:
        """The channels without feedback: alignment and watermarks depend on them alone."""
        return tuple(channel for channel in self.inputs if channel not in self.feedback_channels)

    @property
    def feedback_channels(self) -> frozenset[ChannelId]:
        """The back-edges that end in this subtask."""
        return self.loop.back if self.loop is not None else frozenset()


def spec_of(
    graph: JobGraph,
    subtask: SubtaskId,
    watermark: int | None = None,
    finished: bool = False,
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE,
    replays: bool = False,
    replays_rows: bool = False,
) -> SubtaskSpec:
    """The spec of `subtask` in `graph`. `watermark`: the restored watermark, if any."""
    channels = graph.inputs[subtask]
    build = frozenset(channel for channel in channels if graph.edges[channel.edge].build)
    builds = feeds_build_side(graph, subtask.operator)
    # Without alignment a restore would deliver rows to a build side twice, and its keys are unique.
    aligned = bool(build) or builds
    return SubtaskSpec(
        id=subtask,
        inputs={channel: graph.input_of(channel) for channel in channels},
        build_channels=build,
        opens_after=joins_ahead(graph, subtask.operator),
        reads_to_end=builds and graph.by_uid[subtask.operator].role is Role.SOURCE,
        loop=loop_place_of(graph, subtask),
        replays_feedback=replays,
        replays_rows=replays_rows,
        overtakes=mode is CheckpointMode.EXACTLY_ONCE and not finished and may_overtake(graph, subtask.operator),
        restored_watermark=watermark,
        mode=CheckpointMode.EXACTLY_ONCE if aligned else mode,
        finished_on_restore=finished,
    )


def may_overtake(graph: JobGraph, uid: OperatorId) -> bool:
    """Whether a barrier may overtake rows before `uid`: every input is partitioned by key, and none is in a loop.

    A row that was in flight is then replayed by the subtask that owns its key group, at any parallelism.
    """
    return bool(keyed_inputs(graph.edges, uid)) and uid not in graph.loops


def check_overtaking(graph: JobGraph) -> None:
    """Refuses an alignment timeout for a job in which every barrier waits for rows.

    Raises:
        JobRejected: no step may be overtaken; the first steps are named, with the reason.
    """
    steps = [operator.uid for operator in graph.operators if operator.role is not Role.SOURCE]
    if not any(may_overtake(graph, uid) for uid in steps):
        reasons = "; ".join(_reason_to_align(graph, uid) for uid in steps[:_MAX_NAMED_STEPS])
        detail = f"a barrier overtakes rows only before a step whose inputs are all partitioned by key: {reasons}"
        raise JobRejected("nothing-to-overtake", "alignment_timeout_ms", detail)


def _reason_to_align(graph: JobGraph, uid: OperatorId) -> str:
    if uid in graph.loops:
        return f"{str(uid)!r} is in a loop"
    edge = next(
        each
        for each in graph.edges
        if each.target == uid and (each.build or each.partitioning is not Partitioning.HASH)
    )
    role = "as its build side" if edge.build else f"over a {edge.partitioning} edge"
    return f"{str(uid)!r} reads {str(edge.source)!r} {role}"


def loop_place_of(graph: JobGraph, subtask: SubtaskId) -> LoopPlace | None:
    """The place of `subtask` in a loop, or None."""
    around = graph.loops.get(subtask.operator)
    if around is None:
        return None
    inside = [channel for channel in graph.inputs[subtask] if graph.source(channel).operator in around]
    heads = {edge.target for edge in graph.edges if edge.feedback and edge.target in around}
    return LoopPlace(
        inside=frozenset(channel for channel in inside if not graph.is_feedback(channel)),
        back=frozenset(channel for channel in inside if graph.is_feedback(channel)),
        heads=sum(graph.by_uid[head].parallelism for head in heads),
    )


def feeds_build_side(graph: JobGraph, uid: OperatorId) -> bool:
    """Whether a path leads from `uid` to a build input."""
    uids, waiting = {uid}, [uid]
    while waiting:
        here = waiting.pop()
        out = [edge for edge in graph.edges if edge.source == here]
        if any(edge.build for edge in out):
            return True
        waiting += {edge.target for edge in out} - uids
        uids.update(edge.target for edge in out)
    return False
