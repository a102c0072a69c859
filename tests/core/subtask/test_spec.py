"""The place of a subtask in the graph, as it is told."""

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, OperatorId
from runtime.core.subtask.spec import SubtaskSpec, feeds_build_side, spec_of
from runtime.core.subtask.termination import LoopPlace
from tests.core.builders import back, edge, looped, operator, sink, source, subtask


def test_the_spec_of_a_subtask_is_read_off_the_graph() -> None:
    graph = JobGraph(
        (source("s"), source("t", bounded=True), operator("m"), operator("j"), sink("k")),
        (edge("s", "j"), edge("t", "m"), edge("m", "j", input=1, build=True), edge("j", "k")),
    )
    spec = spec_of(graph, subtask("j/0"), watermark=5)
    assert spec == SubtaskSpec(
        id=subtask("j/0"),
        inputs={ChannelId(0, 0, 0): 0, ChannelId(2, 0, 0): 1},
        build_channels=frozenset({ChannelId(2, 0, 0)}),
        restored_watermark=5,
    )
    assert (spec.regular_channels, spec.feedback_channels) == (tuple(spec.inputs), frozenset())
    assert spec_of(graph, subtask("t/0")).reads_to_end, "it feeds the build side through another operator"
    assert not spec_of(graph, subtask("s/0")).reads_to_end
    assert feeds_build_side(graph, OperatorId("m"))
    opens_after = {str(subtask_id): spec_of(graph, subtask_id).opens_after for subtask_id in graph.subtasks}
    assert {uid for uid, joins in opens_after.items() if joins} == {"s/0"}
    assert opens_after["s/0"] == {OperatorId("j")}
    assert spec_of(graph, subtask("m/0"), finished=True).finished_on_restore


def test_a_build_side_is_aligned_in_at_least_once_mode_too() -> None:
    """Its keys are unique, so a row that comes again after a restore would fail the job."""
    graph = JobGraph(
        (source("s"), source("t", bounded=True), operator("m"), operator("j"), sink("k")),
        (edge("s", "j"), edge("t", "m"), edge("m", "j", input=1, build=True), edge("j", "k")),
    )
    modes = {
        str(subtask_id): spec_of(graph, subtask_id, mode=CheckpointMode.AT_LEAST_ONCE).mode
        for subtask_id in graph.subtasks
    }
    assert {uid for uid, mode in modes.items() if mode is CheckpointMode.EXACTLY_ONCE} == {"t/0", "m/0", "j/0"}


def test_the_place_in_a_loop_tells_what_comes_round_from_what_comes_in() -> None:
    """S4-33: barriers are awaited on the regular channels only."""
    graph = looped(heads=2, body=2)
    head, body = spec_of(graph, subtask("h/1"), replays=True), spec_of(graph, subtask("b/0"))
    round_ = frozenset({ChannelId(2, 0, 1), ChannelId(2, 1, 1)})
    assert (head.loop, head.regular_channels) == (LoopPlace(back=round_, heads=2), (ChannelId(0, 0, 1),))
    assert head.loop is not None
    assert head.loop.is_entry
    assert head.replays_feedback
    assert body.loop == LoopPlace(inside=frozenset({ChannelId(1, 0, 0), ChannelId(1, 1, 0)}), heads=2)
    assert not body.loop.is_entry
    assert spec_of(graph, subtask("c/0")).loop is None


def test_a_loop_in_a_loop_is_not_entered_from_outside() -> None:
    """Its head waits for the outer one, and both count."""
    operators = (source("a"), operator("o"), operator("i"), operator("b"), sink("c"))
    edges = (edge("a", "o"), edge("o", "i"), edge("i", "b"), back("b", "i"), back("b", "o"), edge("b", "c"))
    inner = spec_of(JobGraph(operators, edges), subtask("i/0")).loop
    assert inner == LoopPlace(inside=frozenset({ChannelId(1, 0, 0)}), back=frozenset({ChannelId(3, 0, 0)}), heads=2)
    assert not inner.is_entry


def test_only_sources_of_a_build_side_read_to_its_end_at_a_drain() -> None:
    """A loop on the way comes to its end at every drain."""
    operators = (source("a", bounded=True), operator("h"), operator("b"), source("p"), operator("j"), sink("k"))
    loop = (edge("a", "h"), edge("h", "b"), back("b", "h"), edge("b", "j", input=1, build=True))
    graph = JobGraph(operators, (*loop, edge("p", "j"), edge("j", "k")))
    completes = {str(subtask_id): spec_of(graph, subtask_id).reads_to_end for subtask_id in graph.subtasks}
    assert [uid for uid, complete in completes.items() if complete] == ["a/0"]


def test_a_barrier_overtakes_rows_only_where_each_belongs_to_a_key_group() -> None:
    operators = (source("s", 2), operator("keyed", 2), operator("mixed", 2), operator("head", 2), sink("k", 2))
    edges = (
        edge("s", "keyed", Partitioning.HASH),
        edge("keyed", "mixed", Partitioning.HASH),
        edge("s", "mixed", Partitioning.BROADCAST, input=1),
        edge("mixed", "head", Partitioning.HASH),
        back("head", "head"),
        edge("head", "k", Partitioning.FORWARD),
    )
    graph = JobGraph(operators, edges)
    able = {uid for uid in graph.by_uid if spec_of(graph, subtask(uid)).overtakes}
    assert able == {"keyed"}, "not a source, with rows for all subtasks, in a loop, or behind a forward edge"
    keyed = subtask("keyed/0")
    assert not spec_of(graph, keyed, mode=CheckpointMode.AT_LEAST_ONCE).overtakes
    assert not spec_of(graph, keyed, finished=True).overtakes
