"""A subtask in a loop: tables of events and the whole list of effects that follows."""

from typing import Any

import pytest

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId, Token
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
    TerminationMarker,
    Watermark,
)
from runtime.core.job.messages import CheckpointKind as Kind
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import CheckpointAborted, Decline, LogicFinished, SubtaskEnded
from runtime.core.snapshot.failure_reason import FailureReason as Why
from runtime.core.subtask.effects import (
    AdvanceWatermark,
    Broadcast,
    CaptureState,
    CloseLog,
    DropLog,
    EndInput,
    Finish,
    FlushLoop,
    ForgetCheckpoint,
    LogFeedback,
    PreparePreBarrier,
    ProcessRecords,
    SubtaskEffect,
)
from runtime.core.subtask.events import (
    CheckpointCompleted,
    FeedbackReplayed,
    HoldReleased,
    MessageArrived,
    MessageHeld,
    ReplayEnded,
    SubtaskStarted,
    Triggered,
)
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.subtask import Subtask
from runtime.core.subtask.termination import LoopPlace
from runtime.errors import WeirError
from tests.core.builders import subtask

COMES, ALSO, ROUND, AGAIN = ChannelId(0, 0, 0), ChannelId(0, 1, 0), ChannelId(2, 0, 0), ChannelId(2, 1, 0)
ROWS = Records("rows", 1, 10)
ENDED, STOPPED = EndOfData(drain=True), EndOfData(drain=False)
FIRST = CheckpointId(1)
Effects = list[SubtaskEffect]


def barrier(checkpoint: int, kind: Kind = Kind.CHECKPOINT) -> Barrier:
    return Barrier(CheckpointId(checkpoint), kind, 0)


def permit(checkpoint: int) -> CheckpointCompleted:
    return CheckpointCompleted(CommitPermit("job", Token(1), CheckpointId(checkpoint), Token(1)))


def head(*back: ChannelId, started: bool = True, **spec: Any) -> Subtask:
    """COMES and ALSO bring records from outside; ROUND, or `back`, leads back."""
    back = back or (ROUND,)
    machine = Subtask(
        SubtaskSpec(
            id=subtask("h/0"),
            inputs={COMES: 0, ALSO: 0} | dict.fromkeys(back, 1),
            loop=LoopPlace(back=frozenset(back), heads=1),
            **spec,
        )
    )
    if started:
        machine.handle(SubtaskStarted())
    return machine


def body() -> Subtask:
    machine = Subtask(
        SubtaskSpec(id=subtask("b/0"), inputs={COMES: 0}, loop=LoopPlace(inside=frozenset({COMES}), heads=1))
    )
    machine.handle(SubtaskStarted())
    return machine


def hear(machine: Subtask, channel: ChannelId, *messages: Message) -> Effects:
    return [effect for message in messages for effect in machine.handle(MessageArrived(channel, message))]


def hear_both(machine: Subtask, *messages: Message) -> Effects:
    return [effect for message in messages for channel in (COMES, ALSO) for effect in hear(machine, channel, message)]


def taken(
    checkpoint: int, kind: Kind = Kind.CHECKPOINT, finished: bool = False, inherits: int | None = None
) -> Effects:
    cut = barrier(checkpoint, kind)
    time = MAX_WATERMARK if finished else MIN_WATERMARK
    inherited = None if inherits is None else CheckpointId(inherits)
    capture = CaptureState(cut, finished, time, logs=True, inherits=inherited)
    return [PreparePreBarrier(cut.checkpoint), Broadcast(cut), capture]


def probed(number: int, quiet: int) -> Effects:
    return [FlushLoop(), Broadcast(TerminationMarker(number, quiet))]


def prove(machine: Subtask) -> Effects:
    """Lets the probes of a quiet loop come round; what follows the last of them."""
    for number in range(1, 4):
        assert hear(machine, ROUND, TerminationMarker(number, number - 1)) == probed(number + 1, number)
    return hear(machine, ROUND, TerminationMarker(4, 3))


# ---------------------------------------------------------------- checkpoints


def test_a_head_waits_for_its_regular_inputs_only() -> None:
    """S4-29, S4-33, S4-34: a barrier on the back-edge is never awaited, or the loop would wait for itself."""
    machine = head()
    assert hear(machine, COMES, barrier(1)) == []
    assert (machine.is_readable(COMES), machine.is_readable(ROUND)) == (False, True)
    assert hear(machine, ROUND, ROWS) == [ProcessRecords(ROUND, ROWS)], "still before the snapshot: part of the state"
    assert hear(machine, ALSO, barrier(1)) == taken(1)


def test_what_comes_round_after_the_snapshot_is_logged_and_handled_until_the_barrier_is_back() -> None:
    """S4-35..39: only then the host stores and answers."""
    machine = head()
    hear_both(machine, barrier(1))
    assert hear(machine, ROUND, ROWS) == [LogFeedback((FIRST,), ROWS), ProcessRecords(ROUND, ROWS)]
    assert hear(machine, COMES, ROWS) == [ProcessRecords(COMES, ROWS)], "S4-40: other channels are never logged"
    assert hear(machine, ROUND, barrier(1)) == [CloseLog(FIRST)]
    assert hear(machine, ROUND, ROWS) == [ProcessRecords(ROUND, ROWS)]


def test_a_log_is_complete_when_every_back_edge_has_brought_the_barrier_or_is_gone() -> None:
    """S4-37."""
    machine = head(ROUND, AGAIN)
    hear_both(machine, barrier(1))
    assert hear(machine, ROUND, barrier(1)) == []
    assert hear(machine, AGAIN, ROWS)[0] == LogFeedback((FIRST,), ROWS)
    assert hear(machine, AGAIN, EndOfPartition()) == [CloseLog(FIRST)]
    hear_both(machine, barrier(2))
    hear(machine, ROUND, EndOfPartition())
    assert hear_both(machine, barrier(3)) == [*taken(3), CloseLog(CheckpointId(3))], "nobody is left to bring it back"


def test_at_least_once_it_is_the_same() -> None:
    """S4-33: nobody waits, and the back-edge is not counted."""
    machine = head(mode=CheckpointMode.AT_LEAST_ONCE)
    hear(machine, COMES, barrier(1))
    assert hear(machine, ALSO, barrier(1)) == taken(1)
    assert hear(machine, ROUND, ROWS, barrier(1)) == [
        LogFeedback((FIRST,), ROWS), ProcessRecords(ROUND, ROWS), CloseLog(FIRST)
    ]  # fmt: skip


def test_a_log_of_a_checkpoint_that_is_given_up_is_dropped() -> None:
    machine = head()
    hear_both(machine, barrier(1))
    assert machine.handle(CheckpointAborted(FIRST)) == [DropLog(FIRST), ForgetCheckpoint(FIRST)]
    hear_both(machine, barrier(2))
    assert hear(machine, ROUND, CancelBarrier(CheckpointId(2))) == [DropLog(CheckpointId(2))], "it has gone round"
    assert hear(machine, ROUND, ROWS, barrier(2)) == [ProcessRecords(ROUND, ROWS)]


def test_a_cancel_that_comes_round_first_stops_the_alignment() -> None:
    machine = head()
    hear(machine, COMES, barrier(1))
    assert hear(machine, ROUND, CancelBarrier(FIRST)) == []
    assert machine.is_readable(COMES)
    assert hear(machine, ALSO, barrier(1)) == [], "a straggler"


def test_an_early_barrier_waits_and_one_that_is_given_up_does_not() -> None:
    machine = head()
    hear(machine, ROUND, barrier(1))
    assert not machine.is_readable(ROUND)
    assert hear(machine, COMES, CancelBarrier(FIRST))[1] == Broadcast(CancelBarrier(FIRST))
    assert machine.is_readable(ROUND)


def test_time_comes_from_outside_only() -> None:
    machine = head()
    hear_both(machine, Watermark(5))
    assert hear(machine, ROUND, Watermark(3), Idle(), STOPPED) == []
    assert machine.watermark == 5


def test_an_idle_head_counts_while_records_come_round() -> None:
    machine = head()
    hear_both(machine, Watermark(5), Idle())
    effects = [Broadcast(Watermark(5)), ProcessRecords(ROUND, ROWS), Broadcast(Idle(5))]
    assert hear(machine, ROUND, ROWS) == effects
    hear_both(machine, Idle(), STOPPED, barrier(1, Kind.STOP))
    assert hear(machine, ROUND, ROWS) == [LogFeedback((FIRST,), ROWS)]


def test_a_message_from_nowhere_is_a_broken_protocol() -> None:
    with pytest.raises(AssertionError, match="unknown message"):
        hear(head(), ROUND, "hello")  # type: ignore[arg-type]


# ---------------------------------------------------------------- restore


def test_a_restored_log_is_replayed_before_anything_is_read() -> None:
    """S4-30, S4-43: state is loaded, then the log is handled, then the inputs are read."""
    machine = head(started=False, replays_feedback=True, restored_watermark=7)
    was = [machine.loop.replaying]
    assert machine.handle(SubtaskStarted()) == [AdvanceWatermark(7), Broadcast(Watermark(7))]
    was.append(machine.loop.replaying)
    assert not any(machine.is_readable(channel) for channel in (COMES, ALSO, ROUND))
    assert machine.handle(FeedbackReplayed(ROWS)) == [ProcessRecords(ROUND, ROWS)]
    assert machine.handle(Triggered(barrier(1))) == [
        Decline(FIRST, Why.DECLINED_TASK_NOT_READY, "the log of the loop is being replayed"),
        Broadcast(CancelBarrier(FIRST)),
    ]
    assert machine.handle(ReplayEnded()) == []
    assert [*was, machine.loop.replaying] == [False, True, False]
    assert all(machine.is_readable(channel) for channel in (COMES, ALSO, ROUND))


# ---------------------------------------------------------------- the end


def test_barriers_and_records_pass_a_marker_that_waits_for_open_requests() -> None:
    """S4-41: the next marker and the end of the data do not."""
    machine, marker = body(), TerminationMarker(1, 0)
    assert machine.handle(MessageHeld(COMES, marker)) == []
    assert hear(machine, COMES, ROWS) == [ProcessRecords(COMES, ROWS)]
    cut = barrier(1)
    snapshot = [PreparePreBarrier(cut.checkpoint), Broadcast(cut), CaptureState(cut, False, MIN_WATERMARK)]
    assert hear(machine, COMES, cut) == snapshot
    assert not machine.passes_held(COMES, TerminationMarker(2, 0))
    assert not machine.passes_held(COMES, ENDED)
    assert machine.passes_held(COMES, STOPPED)
    assert machine.handle(HoldReleased()) == probed(1, 0)
    assert machine.passes_held(COMES, TerminationMarker(2, 0))


def test_a_loop_ends_when_probes_have_shown_that_nothing_is_on_its_way() -> None:
    """S4-41."""
    machine = head()
    assert hear(machine, COMES, ENDED) == []
    assert hear(machine, ALSO, ENDED) == [EndInput(0), *probed(1, 0)]
    assert (machine.is_logic_done, machine.may_fire, machine.loop.is_quiescing) == (False, True, False)
    assert hear(machine, ROUND, ROWS, TerminationMarker(1, 0)) == [ProcessRecords(ROUND, ROWS), *probed(2, 0)]
    assert hear(machine, ROUND, TerminationMarker(2, 0)) == probed(3, 1)
    assert hear(machine, ROUND, TerminationMarker(3, 1)) == probed(4, 2)
    assert machine.loop.is_quiescing, "no timer may put anything into the loop now"
    assert hear(machine, ROUND, TerminationMarker(4, 2)) == probed(5, 3)
    end: Effects = [EndInput(1), Finish(), Broadcast(ENDED), LogicFinished()]
    assert hear(machine, ROUND, TerminationMarker(5, 3)) == end
    assert hear(machine, ROUND, ENDED) == []
    assert hear(machine, ROUND, TerminationMarker(6, 9)) == []


def test_checkpoints_go_on_while_a_loop_comes_to_its_end() -> None:
    machine = head()
    hear_both(machine, ENDED, EndOfPartition())
    assert machine.handle(Triggered(barrier(1))) == taken(1)
    assert hear(machine, ROUND, ROWS)[0] == LogFeedback((FIRST,), ROWS)
    assert hear(machine, ROUND, barrier(1)) == [CloseLog(FIRST)]
    assert SubtaskEnded() not in machine.handle(permit(1)), "it began before the end of the logic"


def test_a_drain_waits_for_the_end_of_the_loop() -> None:
    """S4-41: its savepoint holds nothing that is on its way."""
    machine = head()
    assert hear_both(machine, ENDED, barrier(1, Kind.DRAIN))[-2:] == probed(1, 0)
    effects = prove(machine)
    hear_first: Effects = [EndInput(1), Finish(), Broadcast(ENDED), LogicFinished()]
    savepoint = taken(1, Kind.DRAIN, finished=True)
    savepoint[-1] = CaptureState(barrier(1, Kind.DRAIN), True, MIN_WATERMARK, logs=True)
    assert effects == hear_first + savepoint
    hear(machine, ROUND, ENDED)
    assert hear(machine, ROUND, barrier(1, Kind.DRAIN)) == [CloseLog(FIRST)]
    assert SubtaskEnded() in machine.handle(permit(1))


def test_a_drain_that_is_given_up_meanwhile_is_forgotten() -> None:
    machine = head()
    hear_both(machine, ENDED, barrier(1, Kind.DRAIN))
    machine.handle(CheckpointAborted(FIRST))
    assert prove(machine) == [EndInput(1), Finish(), Broadcast(ENDED), LogicFinished()]


def test_a_stop_leaves_what_goes_round_to_the_savepoint() -> None:
    """S4-30: behind its barrier nothing is handled any more."""
    machine = head()
    assert hear_both(machine, STOPPED) == [Broadcast(STOPPED), LogicFinished()]
    assert hear(machine, ROUND, ROWS) == [ProcessRecords(ROUND, ROWS)], "nobody has sent the barrier yet"
    assert hear_both(machine, barrier(1, Kind.STOP)) == taken(1, Kind.STOP)
    assert hear(machine, ROUND, ROWS) == [LogFeedback((FIRST,), ROWS)]
    assert hear(machine, ROUND, barrier(1, Kind.STOP)) == [CloseLog(FIRST)]
    assert SubtaskEnded() in machine.handle(permit(1))


def test_a_checkpoint_that_a_stop_overtakes_logs_on_until_its_own_barrier_is_back() -> None:
    """Rows between the two barriers belong to both: the job may be restored from the checkpoint if the stop fails."""
    machine = head()
    hear_both(machine, barrier(1), STOPPED, barrier(2, Kind.STOP))
    assert hear(machine, ROUND, ROWS) == [LogFeedback((FIRST, CheckpointId(2)), ROWS)]
    assert hear(machine, ROUND, barrier(1)) == [CloseLog(FIRST)]
    assert hear(machine, ROUND, ROWS) == [LogFeedback((CheckpointId(2),), ROWS)]


def test_a_stop_that_is_planned_anew_takes_over_what_the_first_has_logged() -> None:
    """The operator never saw it, and never will in this attempt."""
    machine = head()
    hear_both(machine, STOPPED, barrier(1, Kind.STOP))
    hear(machine, ROUND, ROWS)
    assert machine.handle(CheckpointAborted(FIRST)) == [ForgetCheckpoint(FIRST)]
    assert hear(machine, ROUND, ROWS) == [LogFeedback((FIRST,), ROWS)]
    assert hear_both(machine, barrier(2, Kind.STOP)) == taken(2, Kind.STOP, inherits=1)
    assert hear(machine, ROUND, CancelBarrier(CheckpointId(2))) == []


def test_the_next_try_of_a_stop_may_come_before_the_word_that_the_first_was_given_up() -> None:
    machine = head()
    hear_both(machine, STOPPED, barrier(1, Kind.STOP))
    assert hear_both(machine, barrier(2, Kind.STOP)) == taken(2, Kind.STOP, inherits=1)
    assert machine.handle(CheckpointAborted(FIRST)) == [ForgetCheckpoint(FIRST)], "its log has gone over"
    assert hear(machine, ROUND, ROWS) == [LogFeedback((CheckpointId(2),), ROWS)]
    assert hear(machine, ROUND, barrier(1, Kind.STOP)) == []
    assert hear(machine, ROUND, barrier(2, Kind.STOP)) == [CloseLog(CheckpointId(2))]


def test_a_stop_ends_a_loop_that_goes_round_on_its_own() -> None:
    """All that feeds it had ended by itself; it is not waited for."""
    machine = head()
    hear_both(machine, ENDED)
    stop = hear_both(machine, barrier(1, Kind.STOP))
    assert stop == [Broadcast(STOPPED), LogicFinished(), *taken(1, Kind.STOP)]
    assert hear(machine, ROUND, TerminationMarker(1, 0), ROWS) == [LogFeedback((FIRST,), ROWS)]


def test_a_subtask_of_the_body_passes_probes_on_behind_what_it_held_back() -> None:
    """And what lies outside the loop lets them be."""
    assert hear(body(), COMES, TerminationMarker(1, 0)) == probed(1, 0)
    outside = Subtask(SubtaskSpec(id=subtask("c/0"), inputs={COMES: 0}))
    outside.handle(SubtaskStarted())
    assert hear(outside, COMES, TerminationMarker(1, 0)) == []


def test_a_subtask_of_the_body_ends_like_any_other() -> None:
    machine = body()
    hear(machine, COMES, TerminationMarker(1, 0))
    assert hear(machine, COMES, ENDED) == [EndInput(0), Finish(), Broadcast(ENDED), LogicFinished()]


def test_records_after_the_end_of_a_loop_name_it_and_say_what_to_do() -> None:
    machine = head()
    hear_both(machine, ENDED)
    prove(machine)
    with pytest.raises(WeirError, match=r"came back into 'h' after the end of its loop.*`settle`"):
        hear(machine, ROUND, ROWS)


def test_a_head_that_is_skipped_has_no_loop() -> None:
    """Its loop was at its end when the checkpoint was taken."""
    machine = head(finished_on_restore=True)
    assert not machine.is_readable(ROUND)
    assert hear_both(machine, ENDED) == [Broadcast(ENDED), LogicFinished()]
    assert Broadcast(barrier(1)) in hear_both(machine, barrier(1))
