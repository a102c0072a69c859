"""One subtask: tables of events and the whole list of effects that follows."""

from collections.abc import Iterable
from typing import Any

import pytest

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId, Token
from runtime.core.job.messages import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Barrier,
    CancelBarrier,
    EndOfData,
    EndOfPartition,
    Idle,
    Message,
    Records,
    Watermark,
)
from runtime.core.job.messages import CheckpointKind as Kind
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import (
    Acknowledgement,
    BuildSideRead,
    CheckpointAborted,
    Decline,
    FollowWatermark,
    HistoryRead,
    LiveOpened,
    LogicFinished,
    ProbeSideOpened,
    SubtaskEnded,
)
from runtime.core.snapshot.failure_reason import FailureReason as Why
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.core.subtask.effects import (
    AdvanceWatermark,
    BeginLive,
    Broadcast,
    CaptureState,
    Close,
    CommitOutput,
    CompleteRecording,
    DropRecording,
    EndInput,
    Finish,
    ForgetCheckpoint,
    PreparePreBarrier,
    ProcessRecords,
    RecordRows,
    SubtaskEffect,
)
from runtime.core.subtask.events import (
    AlignmentTimedOut,
    CheckpointCompleted,
    HistoryEnded,
    HoldReleased,
    InputsRestarted,
    MessageArrived,
    MessageHeld,
    MessageOvertaken,
    ReplayEnded,
    RowsReplayed,
    SourceAdvanced,
    SourceExhausted,
    SourceIdle,
    SourceResumed,
    SubtaskEvent,
    SubtaskStarted,
    Triggered,
)
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.subtask import Subtask
from tests.core.builders import subtask

LEFT, RIGHT = ChannelId(0, 0, 0), ChannelId(1, 0, 0)
ROWS = Records("rows", 1, 10)
EXHAUSTED = [Broadcast(Watermark(MAX_WATERMARK)), Finish(), Broadcast(EndOfData(drain=True)), LogicFinished()]
JOB_DRAINS = EndOfData(drain=True, job_drains=True)
Effects = list[SubtaskEffect]


def barrier(checkpoint: int, kind: Kind = Kind.CHECKPOINT) -> Barrier:
    return Barrier(CheckpointId(checkpoint), kind, 0)


def permit(checkpoint: int) -> CheckpointCompleted:
    return CheckpointCompleted(CommitPermit("job", Token(1), CheckpointId(checkpoint), Token(1)))


def started(**spec: Any) -> Subtask:
    machine = Subtask(SubtaskSpec(id=subtask("b/0"), **spec))
    machine.handle(SubtaskStarted())
    return machine


def one_input(**spec: Any) -> Subtask:
    return started(inputs={LEFT: 0}, **spec)


def two_inputs(**spec: Any) -> Subtask:
    return started(inputs={LEFT: 0, RIGHT: 1}, **spec)


def hear(machine: Subtask, channel: ChannelId, *messages: Message) -> Effects:
    return [effect for message in messages for effect in machine.handle(MessageArrived(channel, message))]


def tell(machine: Subtask, events: Iterable[SubtaskEvent]) -> Effects:
    return [effect for event in events for effect in machine.handle(event)]


def taken(checkpoint: int, kind: Kind = Kind.CHECKPOINT, finished: bool = False, time: int = MIN_WATERMARK) -> Effects:
    """What a snapshot looks like: flush, barrier, capture, nothing in between."""
    cut = barrier(checkpoint, kind)
    return [PreparePreBarrier(CheckpointId(checkpoint)), Broadcast(cut), CaptureState(cut, finished, time)]


# ---------------------------------------------------------------- records and time


def test_records_go_to_the_operator() -> None:
    assert hear(one_input(), LEFT, ROWS) == [ProcessRecords(LEFT, ROWS)]


def test_time_is_first_given_to_the_operator_then_sent_on() -> None:
    """S0-65: what fires at a watermark precedes it."""
    machine = two_inputs()
    assert hear(machine, LEFT, Watermark(9)) == []
    assert hear(machine, RIGHT, Watermark(5)) == [AdvanceWatermark(5), Broadcast(Watermark(5))]
    assert machine.watermark == 5


def test_an_idle_input_is_set_aside_and_an_idle_subtask_says_so() -> None:
    machine = two_inputs()
    hear(machine, LEFT, Watermark(9))
    assert hear(machine, RIGHT, Idle()) == [AdvanceWatermark(9), Broadcast(Watermark(9))]
    assert hear(machine, LEFT, Idle()) == [Broadcast(Idle(9))]
    assert hear(machine, LEFT, Idle()) == [], "it is said once"


def test_the_last_input_that_becomes_idle_lets_time_rise_to_the_maximum() -> None:
    """The faster input was idle first. Successors see the time before they set this subtask aside."""
    machine = two_inputs()
    hear(machine, LEFT, Watermark(90))
    hear(machine, RIGHT, Watermark(5))
    assert hear(machine, LEFT, Idle()) == []
    assert hear(machine, RIGHT, Idle()) == [AdvanceWatermark(90), Broadcast(Idle(90))]


def test_an_idle_subtask_follows_its_idle_input() -> None:
    """Its windows may fire, and their rows count for event time."""
    machine = one_input()
    assert hear(machine, LEFT, Idle(5)) == [AdvanceWatermark(5), Broadcast(Idle(5))]
    assert hear(machine, LEFT, Idle(8)) == [Broadcast(Watermark(5)), AdvanceWatermark(8), Broadcast(Idle(8))]
    assert hear(machine, LEFT, Idle(7)) == []
    assert machine.is_idle


def test_an_idle_source_follows_its_siblings_until_it_resumes() -> None:
    machine = started()
    follow = FollowWatermark(subtask("b/0"), 30, 1)
    assert machine.handle(follow) == [], "it is active"
    machine.handle(SourceIdle())
    assert machine.handle(follow) == [Broadcast(Idle(30))]
    assert machine.handle(follow) == []
    assert machine.is_idle
    assert machine.handle(SourceResumed()) == [Broadcast(Watermark(30))]
    machine.handle(SourceExhausted())
    assert machine.handle(FollowWatermark(subtask("b/0"), 40, 1)) == []


def test_a_source_that_has_read_its_history_follows_its_siblings_and_holds_event_time() -> None:
    """It is not idle, since the rows of its live part must not be late: no sibling may go ahead of it unseen."""
    machine = started()
    machine.handle(SourceAdvanced(20))
    machine.handle(SourceIdle())
    assert machine.handle(HistoryEnded()) == [Broadcast(Watermark(20)), HistoryRead()]
    assert (machine.awaits_live, machine.is_idle) == (True, False)
    assert machine.handle(FollowWatermark(subtask("b/0"), 30, 1)) == [Broadcast(Watermark(30))]
    assert machine.handle(Triggered(barrier(1))) == taken(1, time=30)
    assert machine.handle(LiveOpened(OperatorId("another"))) == []
    assert machine.handle(LiveOpened(OperatorId("b"))) == [BeginLive()]
    assert machine.handle(LiveOpened(OperatorId("b"))) == [], "said again"
    assert machine.handle(FollowWatermark(subtask("b/0"), 40, 1)) == [], "it is active"
    assert not machine.awaits_live


def test_a_live_part_that_opens_before_the_history_is_read_is_a_fault() -> None:
    """Rows of the live part would come before rows of the history."""
    with pytest.raises(AssertionError, match="before this subtask had read its history"):
        started().handle(LiveOpened(OperatorId("b")))


def test_a_source_that_was_stopped_behind_its_history_does_not_begin_the_live_part() -> None:
    machine = started()
    machine.handle(HistoryEnded())
    machine.handle(Triggered(barrier(1, Kind.STOP)))
    assert machine.handle(LiveOpened(OperatorId("b"))) == []


def test_a_subtask_counts_again_before_it_puts_out_anything() -> None:
    """What fires when time goes on is output, so the successors must count this channel before."""
    machine = one_input()
    hear(machine, LEFT, Watermark(9), Idle())
    assert machine.is_idle
    effects = [Broadcast(Watermark(9)), AdvanceWatermark(12), Broadcast(Watermark(12))]
    assert hear(machine, LEFT, Watermark(12)) == effects
    assert not machine.is_idle


def test_a_subtask_wakes_its_successors_even_when_time_has_not_risen() -> None:
    machine = two_inputs()
    hear(machine, LEFT, Watermark(9), Idle())
    assert hear(machine, RIGHT, Idle()) == [AdvanceWatermark(9), Broadcast(Idle(9))]
    assert hear(machine, RIGHT, Watermark(5)) == [Broadcast(Watermark(9))]
    assert hear(machine, RIGHT, Idle()) == [Broadcast(Idle(9))]
    assert hear(machine, LEFT, Watermark(5)) == [Broadcast(Watermark(9))], "a channel does not go back"
    hear(machine, LEFT, Idle())
    assert hear(machine, RIGHT, Watermark(7)) == [Broadcast(Watermark(9))]


def test_when_an_idle_input_is_all_that_is_left_the_subtask_is_idle() -> None:
    """Its other input has ended; the end of time comes when both have."""
    machine = two_inputs()
    hear(machine, LEFT, Watermark(9))
    assert hear(machine, RIGHT, Idle()) == risen(9)
    assert hear(machine, LEFT, Watermark(MAX_WATERMARK)) == []
    assert hear(machine, LEFT, ROWS) == [ProcessRecords(LEFT, ROWS)], "what it flushed at its end"
    assert hear(machine, LEFT, EndOfData(drain=True)) == [EndInput(0), Broadcast(Idle(9))]
    assert hear(machine, RIGHT, Watermark(MAX_WATERMARK)) == [Broadcast(Watermark(9)), *risen(MAX_WATERMARK)]


def test_no_subtask_is_idle_while_the_job_drains() -> None:
    """Its open windows fire when the idle input ends, too. An idle subtask would not hold back the next window."""
    machine = two_inputs()
    hear(machine, LEFT, Watermark(9))
    hear(machine, RIGHT, Idle())
    assert hear(machine, LEFT, Watermark(MAX_WATERMARK), ROWS, JOB_DRAINS) == [ProcessRecords(LEFT, ROWS), EndInput(0)]
    assert not machine.is_idle
    assert hear(machine, RIGHT, Watermark(MAX_WATERMARK)) == risen(MAX_WATERMARK)
    assert hear(machine, RIGHT, JOB_DRAINS) == [EndInput(1), Finish(), Broadcast(JOB_DRAINS), LogicFinished()]


def test_a_subtask_that_is_idle_when_the_job_drains_marks_its_channels_active() -> None:
    machine = two_inputs()
    hear(machine, LEFT, Watermark(9), Idle())
    assert hear(machine, RIGHT, Idle()) == [AdvanceWatermark(9), Broadcast(Idle(9))]
    assert hear(machine, LEFT, Watermark(MAX_WATERMARK), JOB_DRAINS) == [Broadcast(Watermark(9)), EndInput(0)]
    assert hear(machine, RIGHT, Idle(20)) == risen(20), "its watermark counts as before its pause"


def risen(time: int) -> Effects:
    return [AdvanceWatermark(time), Broadcast(Watermark(time))]


def test_an_idle_source_says_so_once_and_counts_again_before_its_next_records() -> None:
    machine = started()
    assert machine.handle(SourceResumed()) == [], "it was not idle"
    assert machine.handle(SourceIdle()) == [Broadcast(Idle())]
    assert machine.handle(SourceIdle()) == []
    assert machine.is_idle
    assert machine.handle(SourceResumed()) == [Broadcast(Watermark(MIN_WATERMARK))]
    assert not machine.is_idle


def test_a_restored_source_that_is_idle_resumes_with_its_restored_time() -> None:
    machine = Subtask(SubtaskSpec(id=subtask("b/0"), restored_watermark=50))
    events: list[SubtaskEvent] = [SubtaskStarted(), SourceIdle(), SourceResumed()]
    assert tell(machine, events) == [Broadcast(Watermark(50)), Broadcast(Idle(50)), Broadcast(Watermark(50))]


def test_time_that_rises_ends_the_idleness_of_a_source() -> None:
    machine = started()
    machine.handle(SourceIdle())
    assert machine.handle(SourceAdvanced(7)) == [Broadcast(Watermark(7))]
    assert not machine.is_idle
    assert machine.handle(SourceIdle()) == [Broadcast(Idle(7))]


def test_a_source_that_is_done_cannot_be_idle() -> None:
    machine = started()
    machine.handle(SourceExhausted())
    with pytest.raises(AssertionError, match="being read"):
        machine.handle(SourceIdle())


def test_a_source_sends_its_own_time() -> None:
    machine = started()
    assert machine.handle(SourceAdvanced(7)) == [Broadcast(Watermark(7))]
    assert machine.handle(SourceAdvanced(7)) == []


def test_a_restored_subtask_tells_its_operator_and_its_successors_how_far_time_has_come() -> None:
    """A window that has fired must not open again; a quiet input would hold the successors' time back."""
    machine = Subtask(SubtaskSpec(id=subtask("b/0"), inputs={LEFT: 0}, restored_watermark=50))
    assert machine.handle(SubtaskStarted()) == [AdvanceWatermark(50), Broadcast(Watermark(50))]
    assert hear(machine, LEFT, Watermark(40)) == []


@pytest.mark.parametrize("time", [None, MIN_WATERMARK])
def test_without_a_restored_time_nothing_is_told(time: int | None) -> None:
    machine = Subtask(SubtaskSpec(id=subtask("b/0"), inputs={LEFT: 0}, restored_watermark=time))
    assert machine.handle(SubtaskStarted()) == []


def test_nothing_is_read_before_the_start_and_it_starts_once() -> None:
    machine = Subtask(SubtaskSpec(id=subtask("b/0"), inputs={LEFT: 0}))
    assert not machine.is_readable(LEFT)
    with pytest.raises(AssertionError, match="not readable"):
        hear(machine, LEFT, ROWS)
    machine.handle(SubtaskStarted())
    assert machine.is_readable(LEFT)
    with pytest.raises(AssertionError, match="starts once"):
        machine.handle(SubtaskStarted())


def test_a_message_from_nowhere_is_a_broken_protocol() -> None:
    with pytest.raises(AssertionError, match="unknown message"):
        hear(one_input(), LEFT, "hello")  # type: ignore[arg-type]


# ---------------------------------------------------------------- barriers


def test_a_source_takes_its_snapshot_in_one_step_when_triggered() -> None:
    """S2-31, S3-55, S4-21, S4-23: flush, barrier, capture, nothing in between."""
    assert started().handle(Triggered(barrier(1))) == taken(1)


def test_a_channel_that_delivered_its_barrier_is_blocked_until_the_other_has() -> None:
    """S4-20, S4-24..27, S3-51."""
    machine = two_inputs()
    assert hear(machine, LEFT, barrier(1)) == []
    assert not machine.is_readable(LEFT)
    assert (machine.aligning_checkpoint, machine.blocked_channels) == (CheckpointId(1), frozenset({LEFT}))
    assert hear(machine, RIGHT, ROWS) == [ProcessRecords(RIGHT, ROWS)]
    assert hear(machine, RIGHT, barrier(1)) == taken(1)
    assert machine.is_readable(LEFT)
    assert (machine.aligning_checkpoint, machine.blocked_channels) == (None, frozenset())


def test_the_snapshot_names_the_time_at_the_barrier() -> None:
    machine = one_input()
    hear(machine, LEFT, Watermark(30))
    assert hear(machine, LEFT, barrier(1)) == taken(1, time=30)


def test_a_barrier_that_is_overtaken_is_declined_downstream_too() -> None:
    machine = two_inputs()
    hear(machine, LEFT, barrier(1))
    assert hear(machine, RIGHT, barrier(2)) == [
        Decline(CheckpointId(1), Why.DECLINED_SUBSUMED, "a newer barrier overtook it"),
        Broadcast(CancelBarrier(CheckpointId(1))),
    ]


def test_a_cancel_from_upstream_is_passed_on_once() -> None:
    machine = two_inputs()
    hear(machine, LEFT, barrier(1))
    given_up = [
        Decline(CheckpointId(1), Why.DECLINED_CANCEL_BARRIER, "given up upstream"),
        Broadcast(CancelBarrier(CheckpointId(1))),
    ]
    assert hear(machine, RIGHT, CancelBarrier(CheckpointId(1))) == given_up
    assert hear(machine, LEFT, CancelBarrier(CheckpointId(1))) == []


def test_an_abort_unblocks_and_lets_the_operator_forget() -> None:
    machine = two_inputs()
    hear(machine, LEFT, barrier(1))
    assert machine.handle(CheckpointAborted(CheckpointId(1))) == [ForgetCheckpoint(CheckpointId(1))]
    assert machine.is_readable(LEFT)
    assert hear(machine, RIGHT, barrier(1)) == [], "a straggler"


def test_inputs_that_restart_end_the_alignment_of_the_last_attempt() -> None:
    """S4-46: else their channels would stay blocked, and the sources could not repeat their rows."""
    machine = two_inputs()
    hear(machine, LEFT, barrier(1))
    assert machine.handle(InputsRestarted(frozenset({LEFT, RIGHT}))) == []
    assert machine.is_readable(LEFT)
    hear(machine, LEFT, barrier(2))
    assert hear(machine, RIGHT, barrier(2)) == taken(2)


def test_an_input_that_restarts_is_active_at_its_last_watermark() -> None:
    machine = one_input()
    hear(machine, LEFT, Idle(20))
    assert machine.is_idle
    assert machine.handle(InputsRestarted(frozenset({LEFT}))) == [Broadcast(Watermark(20))]
    assert hear(machine, LEFT, Watermark(10)) == [], "the restarted sender is behind"
    assert hear(machine, LEFT, Watermark(30)) == risen(30)


def test_an_input_that_has_ended_cannot_restart() -> None:
    machine = two_inputs()
    assert not machine.has_ended(LEFT)
    hear(machine, LEFT, WHOLE)
    assert machine.has_ended(LEFT)
    with pytest.raises(AssertionError, match="not sent again"):
        machine.handle(InputsRestarted(frozenset({LEFT})))


def test_an_input_that_ends_while_its_barrier_is_awaited_is_no_longer_awaited() -> None:
    machine = two_inputs()
    hear(machine, LEFT, barrier(1))
    assert hear(machine, RIGHT, EndOfData(drain=True), EndOfPartition()) == [EndInput(1), *taken(1)]


def test_a_subtask_without_running_predecessors_waits_for_their_last_messages() -> None:
    """S0-19."""
    machine = one_input()
    assert machine.handle(Triggered(barrier(1))) == []
    effects = hear(machine, LEFT, ROWS, EndOfData(drain=True), EndOfPartition())
    assert effects[0] == ProcessRecords(LEFT, ROWS)
    assert effects[-3:] == taken(1, finished=True)


def test_a_trigger_before_the_start_is_declined() -> None:
    """S0-44, S2-33, S3-53."""
    machine = Subtask(SubtaskSpec(id=subtask("a/0")))
    assert machine.handle(Triggered(barrier(1))) == [
        Decline(CheckpointId(1), Why.DECLINED_TASK_NOT_READY, "the subtask is being deployed"),
        Broadcast(CancelBarrier(CheckpointId(1))),
    ]


def test_completion_is_passed_to_the_operator_once_and_in_order() -> None:
    """S1-34."""
    machine = one_input()
    assert machine.handle(permit(2)) == [CommitOutput(permit(2).permit)]
    assert machine.handle(permit(2)) == []
    assert machine.handle(permit(1)) == []


# ---------------------------------------------------------------- the end of the data


def test_a_source_at_its_end_sends_maximum_time_then_end_of_data() -> None:
    """S0-40, S0-64, S0-72: in exactly this order; S0-41: finish once."""
    machine = started()
    assert (machine.may_poll, machine.is_logic_done) == (True, False)
    assert machine.handle(SourceExhausted()) == EXHAUSTED
    assert (machine.may_poll, machine.is_logic_done) == (False, True)
    assert machine.handle(SourceExhausted()) == []


def test_the_operator_is_told_of_the_end_of_each_input_and_finishes_after_all() -> None:
    """S0-66, S0-76, S0-79."""
    machine = two_inputs()
    assert hear(machine, RIGHT, Watermark(MAX_WATERMARK), EndOfData(drain=True)) == [EndInput(1)]
    assert not machine.is_logic_done
    time = [AdvanceWatermark(MAX_WATERMARK), Broadcast(Watermark(MAX_WATERMARK))]
    end = [EndInput(0), Finish(), Broadcast(EndOfData(drain=True)), LogicFinished()]
    assert hear(machine, LEFT, Watermark(MAX_WATERMARK), EndOfData(drain=True)) == time + end


def test_an_input_ends_when_all_its_channels_have() -> None:
    """S0-66."""
    machine = started(inputs={LEFT: 0, RIGHT: 0})
    assert hear(machine, LEFT, EndOfData(drain=True)) == []
    assert hear(machine, RIGHT, EndOfData(drain=True))[0] == EndInput(0)


def test_at_a_stop_nothing_is_finished() -> None:
    """S0-35, S0-41, S0-71, S0-73, S0-76: the flag is passed on as it came."""
    machine = one_input()
    assert hear(machine, LEFT, EndOfData(drain=False)) == [Broadcast(EndOfData(drain=False)), LogicFinished()]


def test_where_the_flags_differ_no_drain_wins() -> None:
    """S0-77: one input ended by itself, then came a stop."""
    machine = two_inputs()
    assert hear(machine, LEFT, EndOfData(drain=True)) == [EndInput(0)]
    assert hear(machine, RIGHT, EndOfData(drain=False)) == [Broadcast(EndOfData(drain=False)), LogicFinished()]


def with_a_held_end(**spec: Any) -> Subtask:
    """The last end of the data has arrived, and the operator still has open requests."""
    machine = two_inputs(**spec)
    hear(machine, RIGHT, Watermark(MAX_WATERMARK), EndOfData(drain=True))
    hear(machine, LEFT, Watermark(MAX_WATERMARK))
    assert machine.handle(MessageHeld(LEFT, EndOfData(drain=True))) == []
    return machine


FLUSHED = [EndInput(0), Finish(), Broadcast(EndOfData(drain=True)), LogicFinished()]


@pytest.mark.parametrize("mode", CheckpointMode)
def test_barriers_pass_an_end_that_waits_for_open_requests(mode: CheckpointMode) -> None:
    """S0-34: such a snapshot is of an unfinished subtask, also once all its predecessors have ended."""
    machine = with_a_held_end(mode=mode)
    assert hear(machine, LEFT, barrier(1)) == []
    assert hear(machine, RIGHT, barrier(1)) == taken(1, time=MAX_WATERMARK)
    assert machine.handle(permit(1)) == [CommitOutput(permit(1).permit)], "it does not end"
    hear(machine, RIGHT, EndOfPartition())
    hear(machine, LEFT, EndOfPartition())
    assert machine.handle(Triggered(barrier(2))) == taken(2, time=MAX_WATERMARK)
    assert machine.handle(HoldReleased()) == FLUSHED
    assert machine.handle(Triggered(barrier(3))) == taken(3, finished=True, time=MAX_WATERMARK)
    assert [type(effect) for effect in machine.handle(permit(3))] == [CommitOutput, Close, Broadcast, SubtaskEnded]


def test_a_barrier_between_a_held_end_and_its_release_is_of_a_finished_sender() -> None:
    """At least once: the subtask finishes while it awaits the other barrier, and both senders had finished at it."""
    machine = with_a_held_end(mode=CheckpointMode.AT_LEAST_ONCE)
    assert hear(machine, LEFT, barrier(1)) == []
    assert machine.handle(HoldReleased()) == FLUSHED
    assert hear(machine, RIGHT, barrier(1)) == taken(1, finished=True, time=MAX_WATERMARK)


def test_a_stop_takes_over_an_end_that_waits() -> None:
    """The savepoint has the open requests, and the next attempt receives the end again."""
    machine = with_a_held_end()
    hear(machine, RIGHT, barrier(1, Kind.STOP))
    stopped = [Broadcast(EndOfData(drain=False)), LogicFinished(), *taken(1, Kind.STOP, time=MAX_WATERMARK)]
    assert hear(machine, LEFT, barrier(1, Kind.STOP)) == stopped
    assert machine.held == {}
    assert machine.handle(HoldReleased()) == []


def test_a_drain_waits_for_an_end_that_waits() -> None:
    machine = with_a_held_end()
    hear(machine, RIGHT, barrier(1, Kind.DRAIN))
    assert hear(machine, LEFT, barrier(1, Kind.DRAIN)) == []
    assert machine.handle(HoldReleased()) == [*FLUSHED, *taken(1, Kind.DRAIN, finished=True, time=MAX_WATERMARK)]


def test_no_records_follow_a_true_end_of_data() -> None:
    machine = one_input()
    hear(machine, LEFT, EndOfData(drain=True))
    with pytest.raises(AssertionError, match="records after a true end of data"):
        hear(machine, LEFT, ROWS)


def test_what_is_flushed_before_the_barrier_of_a_stop_may_follow_end_of_data() -> None:
    """S0-33: nobody has finished, so a batching operator upstream still owes what it holds, before the barrier."""
    machine = one_input()
    hear(machine, LEFT, EndOfData(drain=False))
    assert hear(machine, LEFT, ROWS) == [ProcessRecords(LEFT, ROWS)]
    assert hear(machine, LEFT, barrier(1, Kind.STOP)) == taken(1, Kind.STOP)


# ---------------------------------------------------------------- waiting for the last checkpoint


def test_it_ends_with_the_first_checkpoint_that_began_after_its_end() -> None:
    """S0-74, S0-75, S0-78: commit, close, EndOfPartition, in this order."""
    machine = one_input()
    hear(machine, LEFT, barrier(1), EndOfData(drain=True), barrier(2))
    assert machine.handle(permit(1)) == [CommitOutput(permit(1).permit)]
    end: Effects = [CommitOutput(permit(2).permit), Close(), Broadcast(EndOfPartition()), SubtaskEnded()]
    assert machine.handle(permit(2)) == end
    assert machine.ended
    assert not machine.is_readable(LEFT)


def test_a_later_checkpoint_releases_it_as_well() -> None:
    """S0-74: the one that it took may have failed, or was a savepoint, which notifies nobody."""
    machine = started()
    machine.handle(SourceExhausted())
    machine.handle(Triggered(barrier(1, Kind.SAVEPOINT)))
    machine.handle(Triggered(barrier(2)))
    assert SubtaskEnded() in machine.handle(permit(2))


def test_its_snapshot_says_that_it_has_finished() -> None:
    """S0-20."""
    machine = started()
    machine.handle(SourceExhausted())
    assert machine.handle(Triggered(barrier(1))) == taken(1, finished=True, time=MAX_WATERMARK)


def test_after_its_end_everything_comes_too_late() -> None:
    """S0-46, S3-53."""
    machine = started()
    tell(machine, [SourceExhausted(), Triggered(barrier(1)), permit(1)])
    detail = "the subtask ended while it was being triggered"
    assert machine.handle(Triggered(barrier(2))) == [
        Decline(CheckpointId(2), Why.TASK_FINISHED_WHILE_TRIGGERED, detail)
    ]
    assert machine.handle(permit(3)) == []
    assert machine.handle(CheckpointAborted(CheckpointId(2))) == []


# ---------------------------------------------------------------- stop and drain


def test_a_stop_halts_a_source_where_it_stands() -> None:
    """S0-39, S0-68, S0-73: logic first, then the barrier; no maximum watermark, no finish."""
    machine = started()
    machine.handle(SourceAdvanced(5))
    effects = machine.handle(Triggered(barrier(1, Kind.STOP)))
    assert effects == [Broadcast(EndOfData(drain=False)), LogicFinished(), *taken(1, Kind.STOP, time=5)]
    assert not machine.may_poll


def test_a_drain_lets_a_source_finish_where_it_stands() -> None:
    """S0-39, S0-71, S0-72."""
    effects = started().handle(Triggered(barrier(1, Kind.DRAIN)))
    drained: Effects = [Broadcast(Watermark(MAX_WATERMARK)), Finish(), Broadcast(JOB_DRAINS), LogicFinished()]
    assert effects == drained + taken(1, Kind.DRAIN, finished=True, time=MAX_WATERMARK)


def test_at_a_stop_only_its_savepoint_releases() -> None:
    """S0-83: a checkpoint that was in flight completes, and nobody is released by it."""
    machine = one_input()
    hear(machine, LEFT, EndOfData(drain=True), barrier(1), barrier(2, Kind.STOP))
    assert SubtaskEnded() not in machine.handle(permit(1))
    assert SubtaskEnded() in machine.handle(permit(2))


def test_a_source_that_had_ended_by_itself_waits_for_the_stop_like_all_others() -> None:
    """S0-69, S0-84: and its flag stays that of a true end."""
    machine = started()
    machine.handle(SourceExhausted())
    assert machine.handle(Triggered(barrier(1, Kind.STOP))) == taken(1, Kind.STOP, True, MAX_WATERMARK)


def test_a_stop_that_is_planned_anew_is_taken_with_its_new_id() -> None:
    machine = started()
    machine.handle(Triggered(barrier(1, Kind.STOP)))
    machine.handle(CheckpointAborted(CheckpointId(1)))
    assert machine.handle(Triggered(barrier(2, Kind.STOP))) == taken(2, Kind.STOP)
    assert SubtaskEnded() in machine.handle(permit(2))


# ---------------------------------------------------------------- build sides


def joining(**spec: Any) -> Subtask:
    """LEFT is probed, RIGHT is built from."""
    return two_inputs(build_channels=frozenset({RIGHT}), **spec)


WHOLE = EndOfData(drain=True)
UNALIGNED = "records arrived on the probe side before the build side was read"


def test_a_barrier_passes_while_the_build_side_is_read() -> None:
    machine = joining()
    assert hear(machine, RIGHT, ROWS, barrier(1)) == [ProcessRecords(RIGHT, ROWS)]
    assert hear(machine, LEFT, barrier(1)) == taken(1)
    assert hear(machine, RIGHT, ROWS, WHOLE) == [ProcessRecords(RIGHT, ROWS), EndInput(1), BuildSideRead()]
    assert hear(machine, LEFT, ROWS) == [ProcessRecords(LEFT, ROWS)]


def test_probe_rows_that_come_early_wait_for_the_build_side() -> None:
    """They come of restored state. Their channel is blocked behind the first of them."""
    machine = joining()
    assert hear(machine, LEFT, ROWS) == []
    assert not machine.is_readable(LEFT)
    assert hear(machine, RIGHT, WHOLE) == [EndInput(1), BuildSideRead(), ProcessRecords(LEFT, ROWS)]
    assert machine.is_readable(LEFT)


def test_checkpoints_are_declined_once_while_probe_rows_wait() -> None:
    third = ChannelId(1, 1, 0)
    machine = started(inputs={LEFT: 0, RIGHT: 1, third: 1}, build_channels=frozenset({RIGHT, third}))
    declined = [
        Decline(CheckpointId(1), Why.DECLINED_TASK_NOT_READY, UNALIGNED),
        Broadcast(CancelBarrier(CheckpointId(1))),
    ]
    assert hear(machine, LEFT, ROWS) == []
    assert hear(machine, RIGHT, barrier(1)) == declined
    assert hear(machine, third, barrier(1)) == []
    assert machine.is_readable(RIGHT), "and nothing is blocked"
    hear(machine, RIGHT, WHOLE)
    hear(machine, third, WHOLE)
    assert hear(machine, LEFT, barrier(1)) == [], "a straggler"


def test_a_checkpoint_whose_barrier_came_before_the_probe_rows_is_declined_too() -> None:
    machine = joining()
    assert hear(machine, RIGHT, barrier(1)) == []
    assert [type(effect) for effect in hear(machine, LEFT, ROWS)] == [Decline, Broadcast]
    assert machine.is_readable(RIGHT)


def test_a_drain_is_aligned_behind_the_build_side_and_the_rows_that_waited() -> None:
    """S0-69: every build source reads to its end first, one sooner than the other."""
    third = ChannelId(1, 1, 0)
    machine = started(inputs={LEFT: 0, RIGHT: 1, third: 1}, build_channels=frozenset({RIGHT, third}))
    drain = barrier(1, Kind.DRAIN)
    assert hear(machine, RIGHT, WHOLE, drain) == []
    assert hear(machine, LEFT, ROWS) == [], "the barrier stays pending"
    assert hear(machine, third, ROWS, WHOLE, drain)[:4] == [
        ProcessRecords(third, ROWS),
        EndInput(1),
        BuildSideRead(),
        ProcessRecords(LEFT, ROWS),
    ]
    effects = hear(machine, LEFT, WHOLE, drain)
    assert effects[-3:] == taken(1, Kind.DRAIN, finished=True)


def test_a_stop_does_not_wait_for_the_build_side() -> None:
    """S0-69: what has been read of it is state; the rest is read after a restore."""
    machine = joining()
    hear(machine, RIGHT, ROWS, EndOfData(drain=False), barrier(1, Kind.STOP))
    effects = hear(machine, LEFT, EndOfData(drain=False), barrier(1, Kind.STOP))
    assert effects[-3:] == taken(1, Kind.STOP)
    assert BuildSideRead() not in effects


def test_what_leads_to_a_probe_side_waits_for_the_build_side() -> None:
    """Sources are not polled and timers do not fire; barriers, stops and the end of a skipped source go on."""
    j, k = OperatorId("j"), OperatorId("k")
    source, on_the_way = started(opens_after=frozenset({j, k})), one_input(opens_after=frozenset({j}))
    assert (source.may_poll, on_the_way.may_fire) == (False, False)
    assert source.handle(Triggered(barrier(1))) == taken(1)
    assert source.handle(ProbeSideOpened(j)) == []
    assert not source.may_poll, "another join is ahead"
    source.handle(ProbeSideOpened(k))
    on_the_way.handle(ProbeSideOpened(j))
    assert (source.may_poll, on_the_way.may_fire) == (True, True)
    stopped = started(opens_after=frozenset({j}))
    assert stopped.handle(Triggered(barrier(1, Kind.STOP)))[-3:] == taken(1, Kind.STOP)
    assert not stopped.waits_for_build_side


def test_a_drain_lets_a_source_of_a_build_side_read_to_its_end() -> None:
    """Half a table would join wrongly for ever: a drained job has no later."""
    machine = started(reads_to_end=True)
    assert machine.handle(Triggered(barrier(1, Kind.DRAIN))) == []
    assert machine.may_poll
    effects = machine.handle(SourceExhausted())
    assert effects == EXHAUSTED + taken(1, Kind.DRAIN, finished=True, time=MAX_WATERMARK)


def test_a_deferred_drain_that_is_given_up_leaves_the_source_reading() -> None:
    machine = started(reads_to_end=True)
    machine.handle(Triggered(barrier(1, Kind.DRAIN)))
    machine.handle(CheckpointAborted(CheckpointId(9)))
    machine.handle(CheckpointAborted(CheckpointId(1)))
    assert machine.may_poll
    assert machine.handle(SourceExhausted()) == EXHAUSTED


# ---------------------------------------------------------------- skipped on restore


def test_a_skipped_source_gives_its_successors_time_and_end_at_once() -> None:
    """S0-15, S0-54: and its operator is never called."""
    machine = Subtask(SubtaskSpec(id=subtask("a/0"), finished_on_restore=True))
    end: Effects = [Broadcast(Watermark(MAX_WATERMARK)), Broadcast(EndOfData(drain=True)), LogicFinished()]
    assert machine.handle(SubtaskStarted()) == end
    assert not machine.may_poll


def test_a_skipped_operator_passes_everything_on_and_never_calls_its_code() -> None:
    """S0-22, S0-54."""
    machine = one_input(finished_on_restore=True)
    effects = hear(machine, LEFT, Watermark(MAX_WATERMARK), EndOfData(drain=True), barrier(1))
    snapshot = SubtaskSnapshot(finished=True, watermark=MAX_WATERMARK)
    assert effects == [
        Broadcast(Watermark(MAX_WATERMARK)),
        Broadcast(EndOfData(drain=True)),
        LogicFinished(),
        Broadcast(barrier(1)),
        Acknowledgement(CheckpointId(1), snapshot, SnapshotTimings()),
    ]
    assert machine.handle(CheckpointAborted(CheckpointId(9))) == []
    assert machine.handle(permit(1)) == [Broadcast(EndOfPartition()), SubtaskEnded()]


# ---------------------------------------------------------------- at least once


def test_at_least_once_reads_on_while_a_barrier_is_awaited() -> None:
    """S4-24, S3-51: nobody is blocked, and what came behind the first barrier is in the snapshot."""
    machine = two_inputs(mode=CheckpointMode.AT_LEAST_ONCE)
    assert hear(machine, LEFT, barrier(1)) == []
    assert machine.is_readable(LEFT)
    assert machine.aligning_checkpoint is None
    assert hear(machine, LEFT, ROWS, barrier(2)) == [ProcessRecords(LEFT, ROWS)]
    assert hear(machine, RIGHT, barrier(1), barrier(2)) == taken(1) + taken(2)


def test_at_least_once_gives_up_what_is_cancelled_upstream_and_what_came_before_it() -> None:
    machine = two_inputs(mode=CheckpointMode.AT_LEAST_ONCE)
    hear(machine, LEFT, barrier(1), barrier(2))
    effects = hear(machine, RIGHT, CancelBarrier(CheckpointId(2)))
    assert [(e.checkpoint, e.reason) for e in effects if isinstance(e, Decline)] == [
        (1, Why.DECLINED_SUBSUMED),
        (2, Why.DECLINED_CANCEL_BARRIER),
    ]
    forwarded = [Broadcast(CancelBarrier(CheckpointId(n))) for n in (1, 2)]
    assert [e for e in effects if isinstance(e, Broadcast)] == forwarded


def test_at_least_once_declines_a_checkpoint_whose_barrier_preceded_an_end_that_has_been_read() -> None:
    """FLIP-147: the sender had not finished at its barrier, so its successor must not be finished either."""
    machine = two_inputs(mode=CheckpointMode.AT_LEAST_ONCE)
    hear(machine, LEFT, barrier(1), EndOfData(drain=True))
    hear(machine, RIGHT, EndOfData(drain=True))
    effects = hear(machine, RIGHT, barrier(1))
    assert [e.reason for e in effects if isinstance(e, Decline)] == [Why.TASK_FINISHED_WHILE_TRIGGERED]
    assert effects[1:] == [Broadcast(CancelBarrier(CheckpointId(1)))]
    hear(machine, LEFT, barrier(2))
    assert hear(machine, RIGHT, barrier(2)) == taken(2, finished=True)


# ---------------------------------------------------------------- timers of the host


def test_timers_fire_between_the_start_and_the_end_of_the_logic() -> None:
    """And never in an operator that is skipped, or behind its own end of data."""
    waiting = Subtask(SubtaskSpec(id=subtask("b/0"), inputs={LEFT: 0}))
    machine, skipped = one_input(), one_input(finished_on_restore=True)
    assert [candidate.may_fire for candidate in (waiting, machine, skipped)] == [False, True, False]
    hear(machine, LEFT, EndOfData(drain=True))
    assert not machine.may_fire


# ---------------------------------------------------------------- rows in flight


def overtaken(checkpoint: int, time: int = MIN_WATERMARK) -> Effects:
    """The snapshot of a barrier that overtakes rows: as any other, but not acknowledged yet."""
    cut = barrier(checkpoint)
    capture = CaptureState(cut, finished=False, watermark=time, overtakes=True)
    return [PreparePreBarrier(cut.checkpoint), Broadcast(cut), capture]


def overtake(machine: Subtask, channel: ChannelId, *messages: Records | Barrier | EndOfPartition) -> Effects:
    return tell(machine, [MessageOvertaken(channel, message) for message in messages])


def test_a_barrier_that_has_waited_too_long_is_forwarded_before_the_rows_of_the_other_channel() -> None:
    machine = two_inputs(overtakes=True)
    assert hear(machine, LEFT, Watermark(7), barrier(1)) == []
    assert machine.handle(AlignmentTimedOut(barrier(1))) == overtaken(1)
    assert machine.recorded_channels == {RIGHT}
    assert machine.is_readable(LEFT), "rows behind the barrier need not wait"
    assert overtake(machine, RIGHT, ROWS) == [RecordRows(RIGHT, ROWS)]
    assert hear(machine, RIGHT, ROWS) == [ProcessRecords(RIGHT, ROWS)], "after its snapshot"
    assert hear(machine, LEFT, ROWS) == [ProcessRecords(LEFT, ROWS)]
    assert overtake(machine, RIGHT, barrier(1)) == [CompleteRecording()]
    assert machine.recorded is None


def test_a_barrier_behind_rows_overtakes_those_of_all_channels() -> None:
    machine = two_inputs(overtakes=True)
    assert machine.handle(AlignmentTimedOut(barrier(1))) == overtaken(1)
    assert overtake(machine, LEFT, ROWS, barrier(1)) == [RecordRows(LEFT, ROWS)]
    assert overtake(machine, RIGHT, barrier(1)) == [CompleteRecording()]


def test_no_row_is_recorded_behind_the_barrier_of_its_channel() -> None:
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    overtake(machine, LEFT, barrier(1))
    with pytest.raises(AssertionError, match="no rows are recorded on the channel"):
        overtake(machine, LEFT, ROWS)


def test_the_end_of_a_channel_ends_its_recording() -> None:
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    assert overtake(machine, LEFT, ROWS, EndOfPartition()) == [RecordRows(LEFT, ROWS)]
    assert overtake(machine, RIGHT, barrier(1)) == [CompleteRecording()]


def test_the_watermark_of_the_snapshot_is_that_of_the_delivered_messages() -> None:
    """A recorded row follows them, so it is not late where the replay begins with this watermark."""
    machine = one_input(overtakes=True)
    hear(machine, LEFT, Watermark(7))
    assert machine.handle(AlignmentTimedOut(barrier(1))) == overtaken(1, time=7)


def test_an_aborted_checkpoint_drops_its_rows_and_the_next_barrier_may_overtake() -> None:
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    assert machine.handle(CheckpointAborted(CheckpointId(1))) == [DropRecording(), ForgetCheckpoint(CheckpointId(1))]
    assert hear(machine, LEFT, barrier(1)) == [], "late"
    assert machine.handle(AlignmentTimedOut(barrier(2))) == overtaken(2)


def test_a_newer_checkpoint_that_is_aligned_drops_the_rows_of_the_older() -> None:
    """The sender has left out the older barrier: its checkpoint was aborted there."""
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    overtake(machine, LEFT, barrier(1))
    assert hear(machine, LEFT, barrier(2)) == []
    assert hear(machine, RIGHT, barrier(2)) == [DropRecording(), *taken(2)]


def test_a_newer_barrier_that_overtakes_drops_the_rows_of_the_older() -> None:
    """Checkpoints are taken one at a time: the older was aborted, or belongs to the last attempt."""
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    assert machine.handle(AlignmentTimedOut(barrier(1))) == []
    assert machine.handle(AlignmentTimedOut(barrier(2))) == [DropRecording(), *overtaken(2)]
    assert machine.recorded_channels == {LEFT, RIGHT}


def test_a_restart_of_inputs_drops_the_rows_in_flight() -> None:
    machine = two_inputs(overtakes=True)
    machine.handle(AlignmentTimedOut(barrier(1)))
    assert machine.handle(InputsRestarted(frozenset({LEFT}))) == [DropRecording()]


@pytest.mark.parametrize("spec", [{}, {"overtakes": True, "mode": CheckpointMode.AT_LEAST_ONCE}])
def test_a_subtask_that_aligns_always_ignores_the_timeout(spec: dict[str, Any]) -> None:
    machine = two_inputs(**spec)
    hear(machine, LEFT, barrier(1))
    assert machine.handle(AlignmentTimedOut(barrier(1))) == []
    assert hear(machine, RIGHT, barrier(1)) == taken(1)


def test_the_timeout_of_a_barrier_that_has_been_aligned_is_late() -> None:
    machine = one_input(overtakes=True)
    assert hear(machine, LEFT, barrier(1)) == taken(1)
    assert machine.handle(AlignmentTimedOut(barrier(1))) == []


def test_restored_rows_precede_all_messages_and_a_barrier_overtakes_them() -> None:
    machine = one_input(overtakes=True, replays_rows=True, restored_watermark=7)
    assert not machine.is_readable(LEFT)
    assert machine.handle(RowsReplayed(LEFT, ROWS)) == [ProcessRecords(LEFT, ROWS)]
    assert machine.handle(AlignmentTimedOut(barrier(1))) == overtaken(1, time=7)
    assert overtake(machine, LEFT, ROWS, barrier(1)) == [RecordRows(LEFT, ROWS), CompleteRecording()]
    assert machine.handle(RowsReplayed(LEFT, ROWS)) == [ProcessRecords(LEFT, ROWS)]
    assert machine.handle(ReplayEnded()) == []
    assert machine.is_readable(LEFT)
