"""When the subtasks of a source with two parts begin the second."""

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId
from runtime.core.subtask.source_parts import Histories
from tests.core.builders import edge, sink, source, subtask


def test_a_live_part_opens_when_the_last_subtask_of_its_source_has_read_the_history() -> None:
    histories = Histories(JobGraph((source("a", 2), source("b", 2), sink("o")), (edge("a", "o"), edge("b", "o"))))
    assert histories.complete(subtask("a/1")) is None
    assert histories.complete(subtask("b/0")) is None
    assert histories.complete(subtask("a/1")) is None, "said again"
    assert histories.complete(subtask("a/0")) == OperatorId("a")
    assert histories.complete(subtask("b/1")) == OperatorId("b")
