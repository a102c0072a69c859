"""Names as people read them in journals and errors."""

from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId


def test_a_subtask_reads_as_operator_and_index() -> None:
    assert str(SubtaskId(OperatorId("count"), 2)) == "count/2"


def test_a_channel_reads_as_edge_source_and_target() -> None:
    assert str(ChannelId(3, 0, 1)) == "3:0>1"
