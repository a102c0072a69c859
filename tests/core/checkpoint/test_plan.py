"""Whom a checkpoint concerns when some subtasks have ended."""

import itertools

import pytest

from runtime.core.checkpoint.plan import finished_state, plan_checkpoint
from runtime.core.job.graph import JobGraph
from runtime.core.snapshot.manifest import FinishedState
from tests.core.builders import chain, edge, looped, operator, sink, source, subtask

GRAPH = chain()


@pytest.mark.parametrize(
    ("ended", "trigger"),
    [([], ["a/0"]), (["a/0"], ["b/0"]), (["a/0", "b/0"], ["c/0"]), (["b/0"], ["a/0", "c/0"])],
)
def test_running_subtasks_whose_predecessors_have_ended_are_triggered(ended: list[str], trigger: list[str]) -> None:
    """S0-19, S3-52: not always the sources. S0-44: ended tasks do not forbid a checkpoint."""
    plan = plan_checkpoint(GRAPH, {subtask(name) for name in ended})
    assert plan.trigger == {subtask(name) for name in trigger}
    assert plan.wait_for == set(GRAPH.subtasks) - {subtask(name) for name in ended}
    assert plan.notify == plan.wait_for


def test_every_plan_reaches_every_running_subtask() -> None:
    """S0-45: whatever has ended, each running subtask is triggered or fed by one that is."""
    graph = JobGraph(
        (source("s"), source("t"), operator("u"), sink("v"), sink("w")),
        (edge("s", "u"), edge("t", "u", input=1), edge("u", "v"), edge("t", "w")),
    )
    for count in range(len(graph.subtasks) + 1):
        for ended in itertools.combinations(graph.subtasks, count):
            plan = plan_checkpoint(graph, set(ended))
            reached = set(plan.trigger)
            for member in graph.subtasks:
                if member in plan.wait_for and any(
                    graph.source(channel) in reached for channel in graph.inputs[member]
                ):
                    reached.add(member)
            assert reached == plan.wait_for


@pytest.mark.parametrize(("ended", "trigger"), [([], ["a/0"]), (["a/0"], ["h/0", "h/1"]), (["a/0", "h/0"], ["h/1"])])
def test_the_head_of_a_loop_is_triggered_whatever_runs_in_the_loop(ended: list[str], trigger: list[str]) -> None:
    """S4-41: once what feeds it from outside has ended."""
    plan = plan_checkpoint(looped(heads=2), {subtask(name) for name in ended})
    assert plan.trigger == {subtask(name) for name in trigger}


@pytest.mark.parametrize(
    ("total", "finished", "expected"),
    [(3, 0, FinishedState.RUNNING), (3, 2, FinishedState.PARTLY), (3, 3, FinishedState.FINISHED)],
)
def test_the_three_classes_of_an_operator(total: int, finished: int, expected: FinishedState) -> None:
    """S0-50, S0-51."""
    assert finished_state(total, finished) is expected
