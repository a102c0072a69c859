"""What a subtask is told before it lives: its channels, its place in the graph, its past.

It decides nothing at run time. It does not know the machine that obeys it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.core.checkpoint import CheckpointMode
from runtime.core.graph import JobGraph, Role
from runtime.core.ids import ChannelId, OperatorId, SubtaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskSpec:
    """What a subtask must know about its place in the graph and about its past."""

    id: SubtaskId
    inputs: Mapping[ChannelId, int] = field(default_factory=dict)  #: input number of each channel
    build: frozenset[ChannelId] = frozenset()  #: channels to be read to their end before all others
    completes: bool = False  #: a bounded source on a build side is never stopped half-way
    restored_watermark: int | None = None
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    finished_on_restore: bool = False  #: skip the operator; still send what successors need


def spec_of(
    graph: JobGraph,
    subtask: SubtaskId,
    watermark: int | None = None,
    finished: bool = False,
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE,
) -> SubtaskSpec:
    """The spec of `subtask` in `graph`, restored at `watermark` where it had got to one."""
    channels = graph.inputs[subtask]
    return SubtaskSpec(
        id=subtask,
        inputs={channel: graph.input_of(channel) for channel in channels},
        build=frozenset(channel for channel in channels if graph.edges[channel.edge].build),
        completes=graph.by_uid[subtask.operator].role is Role.SOURCE and feeds_build_side(graph, subtask.operator),
        restored_watermark=watermark,
        mode=mode,
        finished_on_restore=finished,
    )


def feeds_build_side(graph: JobGraph, uid: OperatorId) -> bool:
    """Whether a path leads from `uid` to a build input."""
    out = [edge for edge in graph.edges if edge.source == uid]
    return any(edge.build or feeds_build_side(graph, edge.target) for edge in out)
