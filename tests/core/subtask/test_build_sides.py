"""When what leads to the probe side of a join may begin."""

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId
from runtime.core.subtask.build_sides import BuildSides, joins_ahead
from tests.core.builders import back, edge, operator, sink, source, subtask

J, K = OperatorId("j"), OperatorId("k")


def test_a_probe_side_opens_when_the_last_subtask_of_the_join_has_its_build_side() -> None:
    operators = (source("s"), source("t", bounded=True), operator("j", 2), sink("o"))
    sides = BuildSides(JobGraph(operators, (edge("s", "j"), edge("t", "j", input=1, build=True), edge("j", "o"))))
    assert sides.complete(subtask("j/1")) is None
    assert sides.complete(subtask("j/1")) is None, "said again"
    assert sides.complete(subtask("j/0")) == J


def test_a_path_to_a_probe_side_leads_through_joins_and_loops_but_not_through_build_sides() -> None:
    """s goes round a loop, through the probe side of j, to that of k."""
    operators = (
        source("s"),
        operator("h"),
        operator("b"),
        source("t", bounded=True),
        source("u", bounded=True),
        operator("j"),
        operator("k"),
        sink("o"),
    )
    edges = (
        edge("s", "h"),
        edge("h", "b"),
        back("b", "h"),
        edge("b", "j"),
        edge("t", "j", input=1, build=True),
        edge("j", "k"),
        edge("u", "k", input=1, build=True),
        edge("k", "o"),
    )
    graph = JobGraph(operators, edges)
    ahead = {uid: joins_ahead(graph, OperatorId(uid)) for uid in ("s", "h", "b", "j", "k", "t", "u")}
    assert ahead == {"s": {J, K}, "h": {J, K}, "b": {J, K}, "j": {K}, "k": set(), "t": set(), "u": set()}
