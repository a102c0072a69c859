"""Idle subtasks of a source follow the watermarks of its active subtasks."""

from collections.abc import Sequence

from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.snapshot.control import FollowWatermark, SourceReport
from runtime.core.subtask.events import SourceAdvanced, SourceExhausted, SourceIdle, SubtaskStarted
from runtime.core.subtask.idle_sources import MIN_REPORT_INTERVAL_MS, IdleSources, WatermarkFollower
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.subtask import Subtask
from tests.core.builders import subtask


def report(sources: IdleSources, index: int, time: int, idle: bool, discoveries: int = 0) -> Sequence[FollowWatermark]:
    return list(sources.on_report(subtask(f"s/{index}"), SourceReport(time, idle, discoveries)))


def follow(index: int, time: int, discoveries: int = 0) -> FollowWatermark:
    return FollowWatermark(subtask(f"s/{index}"), time, discoveries)


def test_an_idle_subtask_follows_the_slowest_active_one() -> None:
    sources = IdleSources()
    assert report(sources, 0, 30, idle=False, discoveries=1) == []
    assert report(sources, 1, 20, idle=False, discoveries=2) == []
    assert report(sources, 2, 5, idle=True) == [follow(2, 20, 3)]
    assert report(sources, 0, 40, idle=False, discoveries=1) == [], "it has been sent"
    assert report(sources, 1, 25, idle=False, discoveries=2) == [follow(2, 25, 3)]


def test_when_all_are_idle_they_follow_the_fastest() -> None:
    sources = IdleSources()
    report(sources, 0, 30, idle=False)
    assert report(sources, 1, 5, idle=True) == [follow(1, 30)]
    assert report(sources, 0, 50, idle=True) == [follow(1, 50)]
    assert report(sources, 1, 50, idle=True) == []


def test_a_subtask_that_has_resumed_gets_the_message_again_when_it_is_idle() -> None:
    sources = IdleSources()
    report(sources, 0, 30, idle=False)
    assert report(sources, 1, 5, idle=True) == [follow(1, 30)]
    assert report(sources, 1, 7, idle=False) == []
    assert report(sources, 1, 9, idle=True) == [follow(1, 30)]


def test_sources_follow_no_other_source() -> None:
    sources = IdleSources()
    report(sources, 0, 30, idle=False)
    assert list(sources.on_report(subtask("t/1"), SourceReport(5, True, 0))) == []


class Reader:
    def __init__(self) -> None:
        self.discoveries, self.has_looked, self.looks = 0, True, 0

    def look_for_splits(self) -> None:
        self.has_looked, self.looks = False, self.looks + 1


def follower(parallelism: int = 2) -> tuple[Subtask, Reader, WatermarkFollower]:
    machine, reader = Subtask(SubtaskSpec(id=subtask("s/0"))), Reader()
    machine.handle(SubtaskStarted())
    return machine, reader, WatermarkFollower(machine, reader, parallelism)


def test_a_subtask_follows_after_a_look_that_began_after_the_discovery() -> None:
    _, reader, watermarks = follower()
    watermarks.on_message(follow(0, 10, 1))
    assert reader.looks == 1
    assert watermarks.take_due() is None
    reader.has_looked = True
    assert watermarks.take_due() == follow(0, 10, 1)
    assert watermarks.take_due() is None
    watermarks.on_message(follow(0, 20, 1))
    assert watermarks.take_due() == follow(0, 20, 1), "it has looked since"
    assert reader.looks == 1


def test_a_subtask_with_new_rows_forgets_the_message() -> None:
    _, _, watermarks = follower()
    watermarks.on_message(follow(0, 10))
    watermarks.on_rows()
    assert watermarks.take_due() is None


def test_reports_are_few_but_a_change_of_idleness_is_reported_at_once() -> None:
    machine, reader, watermarks = follower()
    assert watermarks.report_due(0) == SourceReport(MIN_WATERMARK, False, 0)
    assert watermarks.report_due(100) is None, "nothing has changed"
    machine.handle(SourceAdvanced(7))
    reader.discoveries = 1
    assert watermarks.report_due(100) == SourceReport(7, False, 1)
    machine.handle(SourceAdvanced(8))
    assert watermarks.report_due(101) is None
    machine.handle(SourceIdle())
    assert watermarks.report_due(101) == SourceReport(8, True, 1)
    machine.handle(SourceAdvanced(9))
    assert watermarks.report_due(102) == SourceReport(9, False, 1)
    machine.handle(SourceAdvanced(10))
    assert watermarks.report_due(102) is None
    assert watermarks.report_due(102 + MIN_REPORT_INTERVAL_MS) == SourceReport(10, False, 1)
    machine.handle(SourceExhausted())
    assert watermarks.report_due(123) == SourceReport(10, True, 1), "not the end of time"


def test_a_source_with_a_single_subtask_reports_nothing() -> None:
    _, _, watermarks = follower(parallelism=1)
    assert watermarks.report_due(0) is None
