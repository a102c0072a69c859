"""The state machine of a subtask: align, snapshot, acknowledge, forward, finish, wait for the last checkpoint, end.

It decides which channels are read, which messages are sent and when the operator's hooks are called. Invariants:

- A snapshot is atomic with respect to records, watermarks and timers.
- Only end events follow the barrier of a stop or drain.
- A barrier that overtakes rows has them in its snapshot: exactly those before it that the state lacks. They follow the
  last watermark that each channel has delivered. So none of them is late at a replay, which begins with the watermark
  of the snapshot: no higher than any of these.
- A subtask ends after the first completed checkpoint that began after its logic had finished; at a stop or drain, after
  exactly that savepoint. (FLIP-147; Flink's `StreamTask`.)

At the head of a loop these rules concern the regular inputs; `Iteration` handles feedback channels.
"""

from typing import Literal

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Barrier,
    CancelBarrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Idle,
    Records,
    TerminationMarker,
    Watermark,
)
from runtime.core.snapshot import control
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.core.subtask import events
from runtime.core.subtask.barrier_alignment import BarrierAlignment
from runtime.core.subtask.barrier_handler import Aligned, AlignmentOutcome, BarrierHandler, GivenUp, Overtakes
from runtime.core.subtask.barrier_tracker import BarrierTracker
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
from runtime.core.subtask.event_log import EventLog
from runtime.core.subtask.iteration import Iteration
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.watermark_valve import WatermarkValve

Effects = list[SubtaskEffect]


Phase = Literal[
    "deploying",  # its operator is being opened
    "running",
    "stopped",  # a stop has ended its logic; it waits for its savepoint
    "finished",  # all its data has ended; it waits for its last checkpoint
    "ended",
]


class Subtask:
    """Mutable, owned by the loop of a slot. `handle` is the only way to change it; the properties are queries."""

    def __init__(self, spec: SubtaskSpec) -> None:
        self.spec = spec
        self.event_log = EventLog()
        self.phase: Phase = "deploying"
        self._barriers: BarrierHandler = (
            BarrierAlignment(frozenset(spec.regular_channels))
            if spec.mode is CheckpointMode.EXACTLY_ONCE
            else BarrierTracker(frozenset(spec.regular_channels))
        )
        self.watermarks = WatermarkValve(spec.regular_channels, spec.restored_watermark)  #: hosts may read it
        self.loop = Iteration(spec)  #: hosts may read it
        self._end_of_data: dict[ChannelId, bool] = {}  #: channel -> `EndOfData.drain`
        #: hosts may read it; messages that wait until the operator has emitted its buffered rows
        self.held: dict[ChannelId, EndOfData | TerminationMarker] = {}
        self._building_joins = set(spec.opens_after)  #: joins whose build sides are still being read
        self._held_records: dict[ChannelId, Records] = {}  #: records of the probe side before the end of the build side
        self._idle = False  #: Idle has been broadcast
        self._history: Literal["unread", "read", "over"] = "unread"  #: of a source with two parts
        self._deferred_barrier: Barrier | None = None
        self.recorded: CheckpointId | None = None  #: the checkpoint whose rows in flight are being recorded
        self.recorded_channels: frozenset[ChannelId] = frozenset()  #: on which its barrier has not arrived
        self._barriers_before_end: set[CheckpointId] = set()  #: that preceded the end of data of their channel
        self._release_from: CheckpointId | None = None
        self._release_at: CheckpointId | None = None
        self._last_notified = CheckpointId(0)

    # ------------------------------------------------------------ queries

    @property
    def is_source(self) -> bool:
        return not self.spec.inputs

    @property
    def may_poll(self) -> bool:
        """Whether the host may poll the source."""
        return self.is_source and self.phase == "running" and not self.waits_for_build_side

    @property
    def may_fire(self) -> bool:
        """Whether the host may fire the operator's timers."""
        working = self.phase == "running" and not self.spec.finished_on_restore
        return working and not self.waits_for_build_side

    @property
    def waits_for_build_side(self) -> bool:
        """Whether polling and timers are paused, because a join downstream still reads its build side."""
        return bool(self._building_joins) and not self.is_logic_done

    @property
    def is_logic_done(self) -> bool:
        return self.phase not in ("deploying", "running")

    @property
    def ended(self) -> bool:
        return self.phase == "ended"

    @property
    def watermark(self) -> int:
        return self.watermarks.current

    @property
    def is_idle(self) -> bool:
        """Whether downstream subtasks leave this subtask out of their watermark."""
        return self._idle

    @property
    def awaits_live(self) -> bool:
        """Whether a source with two parts has read its share of the history, unlike some of its siblings."""
        return self._history == "read" and not self.is_logic_done

    @property
    def aligning_checkpoint(self) -> CheckpointId | None:
        """The checkpoint in alignment."""
        return None if self._barriers.pending is None else self._barriers.pending.checkpoint

    @property
    def blocked_channels(self) -> frozenset[ChannelId]:
        return self._barriers.blocked

    @property
    def aligning_barrier(self) -> Barrier | None:
        """The barrier in alignment."""
        return self._barriers.pending

    def may_overtake(self, barrier: Barrier) -> bool:
        """Whether `barrier`, in alignment or in a queue, may overtake rows: an `AlignmentTimedOut` has an effect."""
        return self.spec.overtakes and self.is_awaited(barrier)

    def is_awaited(self, barrier: Barrier) -> bool:
        """Whether the checkpoint of `barrier`, in alignment or in a queue, is to be taken and ends no job."""
        return self.phase == "running" and self._barriers.may_overtake(barrier)

    def is_readable(self, channel: ChannelId) -> bool:
        """Whether the host may deliver the next message of `channel`."""
        if self.phase in ("deploying", "ended") or self.loop.replaying:
            return False
        if channel in self.spec.feedback_channels:
            return self.loop.is_readable(channel)
        return (
            channel in self._barriers.live
            and channel not in self._barriers.blocked
            and channel not in self._held_records
        )

    def has_ended(self, channel: ChannelId) -> bool:
        """Whether the data of `channel` has ended."""
        return channel in self._end_of_data or channel in self.held

    def passes_held(self, channel: ChannelId, message: object) -> bool:
        """Whether the host may deliver `message`, although an earlier message of `channel` may be held.

        Barriers pass: the buffered rows are in the snapshot, so that a checkpoint need not wait for them. Records pass
        the marker of a loop, which only proves that earlier records have arrived.
        """
        is_end = isinstance(message, TerminationMarker) or (isinstance(message, EndOfData) and message.drain)
        return channel not in self.held or not is_end

    @property
    def _is_building(self) -> bool:
        """Whether the build side has not been read to its end. A stop may end the subtask before that."""
        return not all(self._end_of_data.get(channel) for channel in self.spec.build_channels)

    # ------------------------------------------------------------ events

    def handle(self, event: events.SubtaskEvent) -> Effects:
        self.event_log.append(event)
        match event:
            case events.MessageArrived(channel, message):
                return self._on_message(channel, message) + self._emit_markers()
            case events.MessageHeld() | events.HoldReleased():
                return self._on_hold(event)
            case events.AlignmentTimedOut() | events.MessageOvertaken():
                return self._on_rows_in_flight(event)
            case events.SourceAdvanced(watermark):
                return self._forward_watermark(self.watermarks.advance_own(watermark))
            case events.SourceIdle() | events.HistoryEnded():
                return self._on_source_pause(event)
            case events.SourceResumed():
                return self._on_source_resumed()
            case events.SourceExhausted():
                return [] if self.is_logic_done else self._finish_source(drain=True)
            case events.Triggered(barrier):
                return self._on_trigger(barrier)
            case events.CheckpointCompleted(permit):
                return self._on_completed(permit)
            case control.CheckpointAborted(checkpoint):
                return self._on_aborted(checkpoint)
            case events.FeedbackReplayed() | events.RowsReplayed() | events.ReplayEnded():
                return self._on_replay(event)
            case control.FollowWatermark(watermark=time):
                return self._follow(time)
            case control.ProbeSideOpened() | control.LiveOpened():
                return self._on_opened(event)
            case (
                events.SubtaskStarted() | events.InputsRestarted()
            ):  # pragma: no branch  (the type checker proves that the match is exhaustive)
                return self._on_started(event)

    # ------------------------------------------------------------ messages

    def _on_started(self, event: events.SubtaskStarted | events.InputsRestarted) -> Effects:
        if isinstance(event, events.InputsRestarted):
            return self._on_inputs_restarted(event.channels)
        return self._on_start()

    def _on_start(self) -> Effects:
        assert self.phase == "deploying", "a subtask starts once"
        self.phase = "running"
        self.loop.replaying = self.spec.replays_feedback or self.spec.replays_rows
        if self.is_source and self.spec.finished_on_restore:
            return self._finish_source(drain=True)
        # Downstream subtasks start without watermarks and would wait until event time exceeds the restored watermark.
        # The operator needs that watermark before the first record: otherwise a window that has fired would reopen.
        restored = self.watermarks.current
        return self._forward_watermark(restored) if restored > MIN_WATERMARK else []

    def _on_message(self, channel: ChannelId, message: object) -> Effects:
        assert self.is_readable(channel), "the host delivered a message of a channel that is not readable"
        assert not self.held or self.passes_held(channel, message), "the message must not pass a held message"
        if channel in self.spec.feedback_channels:
            return self._on_feedback(channel, message)
        match message:
            case Records():
                # At a stop, rows that an operator flushes before the barrier follow its EndOfData.
                assert not self._end_of_data.get(channel), "records after a true end of data"
                if self._is_building and channel not in self.spec.build_channels:
                    return self._hold_records(channel, message)
                return [ProcessRecords(channel, message)]
            case Watermark(time):
                return self._on_channel_time(self.watermarks.current, self.watermarks.advance(channel, time))
            case Idle(time):
                return self._on_channel_time(self.watermarks.current, self.watermarks.mark_idle(channel, time))
            case Barrier():
                return self._on_barrier(channel, message)
            case CancelBarrier(checkpoint):
                return self._apply_outcomes(*self._barriers.on_cancel(checkpoint))
            case EndOfData():
                return self._on_end_of_data(channel, message)
            case TerminationMarker():
                self.loop.on_marker(channel, message)
                return []
            case EndOfPartition():
                return self._apply_outcomes(*self._barriers.on_channel_end(channel))
        raise AssertionError(f"unknown message {message!r}")

    def _on_hold(self, event: events.MessageHeld | events.HoldReleased) -> Effects:
        if isinstance(event, events.HoldReleased):
            return self._on_release() + self._emit_markers()
        channel, message = event.channel, event.message
        assert self.is_readable(channel), "the host held a message of a channel that is not readable"
        assert channel not in self.held, "a channel holds a message at a time"
        self.held[channel] = message
        if isinstance(message, EndOfData):  # the sender had finished at the barriers behind it
            self._end_of_data[channel] = message.drain
        return []

    def _on_release(self) -> Effects:
        """Handles the held messages. A stop has dropped them: the next attempt receives them again."""
        held, self.held = self.held, {}
        effects: Effects = []
        for channel, message in held.items():
            match message:
                case EndOfData():
                    effects += self._on_end_of_data(channel, message)
                case TerminationMarker():  # pragma: no branch
                    self.loop.on_marker(channel, message)
        return effects

    def _hold_records(self, channel: ChannelId, records: Records) -> Effects:
        """Holds records of the probe side that arrive before the end of the build side.

        An operator upstream has restored such records; sources are paused. The channel is blocked, with the barriers
        behind the records, so no checkpoint can be aligned. A drain can: its barrier follows the end of the build side.
        """
        self._held_records[channel] = records
        pending = self._barriers.pending
        return [] if pending is None else self._decline_barrier(pending)

    def _decline_barrier(self, barrier: Barrier) -> Effects:
        if barrier.kind is CheckpointKind.DRAIN:
            return []
        self._barriers, outcomes = self._barriers.on_cancel(barrier.checkpoint)
        detail = "records arrived on the probe side before the build side was read"
        return self._decline(barrier.checkpoint, FailureReason.DECLINED_TASK_NOT_READY, detail) if outcomes else []

    def _on_channel_time(self, before: int, risen: int | None) -> Effects:
        """Forwards the result of a channel's Watermark or Idle. `before`: the previous watermark of the subtask."""
        was, self._idle = self._idle, self.watermarks.all_idle
        # Firing windows emit rows: downstream subtasks must mark their channel active before these rows.
        woken: Effects = [Broadcast(Watermark(before))] if was and not (self._idle and risen is None) else []
        if not self._idle:
            return woken + self._forward_watermark(risen)
        if risen is None:
            return [] if was else [Broadcast(Idle(before))]
        fired: Effects = [] if self.spec.finished_on_restore else [AdvanceWatermark(risen)]
        return [*woken, *fired, Broadcast(Idle(risen))]

    def _forward_watermark(self, time: int | None) -> Effects:
        if time is None:
            return []
        forward = Broadcast(Watermark(time))
        if self.is_source:
            self._idle = False
            return [forward]
        return [forward] if self.spec.finished_on_restore else [AdvanceWatermark(time), forward]

    def _on_source_pause(self, event: events.SourceIdle | events.HistoryEnded) -> Effects:
        assert self.may_poll, "only a source that is being read can pause"
        if isinstance(event, events.HistoryEnded):
            assert self._history == "unread", "the history of a subtask ends once"
            self._history = "read"
            return [*self._on_source_resumed(), control.HistoryRead()]
        was, self._idle = self._idle, True
        return [] if was else [Broadcast(Idle(self.watermarks.current))]

    def _follow(self, time: int) -> Effects:
        """Raises the watermark of an idle source, or of one that awaits its live part. Others ignore the message."""
        follows = self.may_poll and (self._idle or self.awaits_live)
        if not follows or self.watermarks.advance_own(time) is None:
            return []
        return [Broadcast(Idle(time) if self._idle else Watermark(time))]

    def _on_opened(self, event: control.ProbeSideOpened | control.LiveOpened) -> Effects:
        """Opens a probe side or a live part. A repeated message has no effect, nor one after the end of the data."""
        if isinstance(event, control.ProbeSideOpened):
            self._building_joins.discard(event.join)
        elif event.source == self.spec.id.operator:
            assert self._history != "unread", "the live part was opened before this subtask had read its history"
            begins, self._history = self.awaits_live, "over"
            return [BeginLive()] if begins else []
        return []

    def _on_source_resumed(self) -> Effects:
        was, self._idle = self._idle, False
        return [Broadcast(Watermark(self.watermarks.current))] if was else []

    def _on_inputs_restarted(self, channels: frozenset[ChannelId]) -> Effects:
        """The checkpoint in alignment belongs to the last attempt. A restarted sender is active."""
        assert not any(self.has_ended(channel) for channel in channels), "ended data is not sent again"
        if (checkpoint := self.aligning_checkpoint) is not None:
            self._barriers = self._barriers.on_abort(checkpoint)
        dropped = self._drop_recording()
        return dropped + self._on_channel_time(self.watermarks.current, self.watermarks.mark_active(channels))

    # ------------------------------------------------------------ barriers

    def _on_barrier(self, channel: ChannelId, barrier: Barrier) -> Effects:
        if self._held_records and barrier.kind is not CheckpointKind.DRAIN:
            return self._decline_barrier(barrier)
        if not self._end_of_data.get(channel):
            self._barriers_before_end.add(barrier.checkpoint)
        return self._apply_outcomes(*self._barriers.on_barrier(channel, barrier))

    def _on_trigger(self, barrier: Barrier) -> Effects:
        checkpoint = barrier.checkpoint
        if self.ended:
            detail = "the subtask ended while it was being triggered"
            return [control.Decline(checkpoint, FailureReason.TASK_FINISHED_WHILE_TRIGGERED, detail)]
        if self.phase == "deploying" or (self.loop.replaying and self.spec.replays_feedback):
            deploying = self.phase == "deploying"
            detail = "the subtask is being deployed" if deploying else "the log of the loop is being replayed"
            return self._decline(checkpoint, FailureReason.DECLINED_TASK_NOT_READY, detail)
        effects: Effects = []
        drains = barrier.kind is CheckpointKind.DRAIN
        if (
            self.is_source
            and not self.is_logic_done
            and barrier.kind.ends_job
            and not (drains and self.spec.reads_to_end)
        ):
            self.watermarks.job_drains = drains
            effects = self._finish_source(drain=drains)
        return effects + self._apply_outcomes(*self._barriers.on_trigger(barrier))

    def _apply_outcomes(self, after: BarrierHandler, outcomes: list[AlignmentOutcome]) -> Effects:
        self._barriers = after
        effects: Effects = []
        for outcome in outcomes:
            match outcome:
                case Aligned(barrier):
                    effects += self._drop_recording() + self._on_aligned(barrier)
                case Overtakes(barrier, channels):
                    effects += self._on_overtaking(barrier, channels)
                case GivenUp(checkpoint, overtaken=True):
                    effects += self._decline(checkpoint, FailureReason.DECLINED_SUBSUMED, "a newer barrier overtook it")
                case GivenUp(checkpoint):  # pragma: no branch
                    effects += self._decline(checkpoint, FailureReason.DECLINED_CANCEL_BARRIER, "given up upstream")
        return effects

    def _decline(self, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> Effects:
        self.loop.abort(checkpoint)
        return [control.Decline(checkpoint, reason, detail), Broadcast(CancelBarrier(checkpoint))]

    def _on_aligned(self, barrier: Barrier) -> Effects:
        """The barrier of a drain is deferred until the inputs (and the loop) have ended; a stop ends the logic now."""
        checkpoint, early = barrier.checkpoint, self._barriers_before_end
        self._barriers_before_end = {later for later in early if later > checkpoint}
        if self.phase == "finished" and checkpoint in early:
            # At least once, channels end while the barrier of another is awaited. Their senders had not finished at
            # the barrier, so the checkpoint would have a finished successor of an unfinished operator.
            detail = "the subtask finished while it awaited barriers"
            return self._decline(checkpoint, FailureReason.TASK_FINISHED_WHILE_TRIGGERED, detail)
        if self.is_logic_done or not barrier.kind.ends_job:
            return self._take_snapshot(barrier)
        if barrier.kind is CheckpointKind.DRAIN:
            self._deferred_barrier = barrier
            return []
        return self._finish_logic(drain=False) + self._take_snapshot(barrier)

    def _take_snapshot(self, barrier: Barrier) -> Effects:
        """Emits pre-barrier output, sends the barrier on every output and captures the state, as a single step."""
        checkpoint = barrier.checkpoint
        if self.is_logic_done:
            if barrier.kind.ends_job:
                self._release_at = checkpoint
            self._release_from = self._release_from or checkpoint
        if self.spec.finished_on_restore:
            snapshot = SubtaskSnapshot(finished=True, watermark=MAX_WATERMARK)
            return [Broadcast(barrier), control.Acknowledgement(checkpoint, snapshot, SnapshotTimings())]
        capture = self.loop.capture(barrier, finished=self.phase == "finished", watermark=self.watermarks.current)
        return [PreparePreBarrier(checkpoint), Broadcast(barrier), *capture]

    # ------------------------------------------------------------ rows in flight

    def _on_rows_in_flight(self, event: events.AlignmentTimedOut | events.MessageOvertaken) -> Effects:
        if isinstance(event, events.MessageOvertaken):
            return self._on_overtaken(event.channel, event.message)
        barrier = event.barrier
        return self._apply_outcomes(*self._barriers.on_timeout(barrier)) if self.may_overtake(barrier) else []

    def _on_overtaking(self, barrier: Barrier, channels: frozenset[ChannelId]) -> Effects:
        """Takes the snapshot before the rows on `channels`. They are recorded until their barrier arrives."""
        checkpoint, dropped = barrier.checkpoint, self._drop_recording()
        self.recorded, self.recorded_channels = checkpoint, channels
        capture = CaptureState(barrier, finished=False, watermark=self.watermarks.current, overtakes=True)
        return [*dropped, PreparePreBarrier(checkpoint), Broadcast(barrier), capture, *self._complete_recording()]

    def _on_overtaken(self, channel: ChannelId, message: Records | Barrier | EndOfPartition) -> Effects:
        assert channel in self.recorded_channels, "no rows are recorded on the channel"
        if isinstance(message, Records):
            return [RecordRows(channel, message)]
        assert isinstance(message, EndOfPartition) or message.checkpoint == self.recorded, "it is another barrier"
        self.recorded_channels -= {channel}
        return self._complete_recording()

    def _complete_recording(self) -> Effects:
        if self.recorded_channels:
            return []
        self.recorded = None
        return [CompleteRecording()]

    def _drop_recording(self) -> Effects:
        """Drops recorded rows whose checkpoint was aborted, or is older than that of another snapshot.

        Checkpoints are taken one at a time, so a newer barrier proves that the older checkpoint cannot complete.
        """
        if self.recorded is None:
            return []
        self.recorded, self.recorded_channels = None, frozenset()
        return [DropRecording()]

    # ------------------------------------------------------------ loops

    def _on_replay(self, event: events.FeedbackReplayed | events.RowsReplayed | events.ReplayEnded) -> Effects:
        if isinstance(event, events.FeedbackReplayed):
            return self.loop.on_replay(event.records)
        if isinstance(event, events.RowsReplayed):
            assert self.loop.replaying, "rows are replayed before anything else"
            return [ProcessRecords(event.channel, event.records)]
        self.loop.replaying = False
        return []

    def _on_feedback(self, channel: ChannelId, message: object) -> Effects:
        """Handles a message on a back-edge. Ignores watermarks: the regular inputs define event time."""
        match message:
            case Records():
                return self._mark_active(self.loop.on_records(channel, message, over=self.phase == "finished"))
            case Barrier(checkpoint):
                return self.loop.on_barrier(channel, checkpoint)
            case CancelBarrier(checkpoint):
                return self._on_cancel_in_loop(checkpoint)
            case TerminationMarker():
                self.loop.on_marker(channel, message)
            case EndOfPartition():
                return self.loop.on_partition_end(channel)
            case EndOfData(drain=True):
                self.loop.on_data_end(channel)
            case _:
                assert isinstance(message, Watermark | Idle | EndOfData), f"unknown message {message!r}"
        return []

    def _mark_active(self, effects: Effects) -> Effects:
        """Marks an idle subtask active while it emits the output of feedback records."""
        if not self._idle or not isinstance(effects[-1], ProcessRecords):
            return effects
        return [Broadcast(Watermark(self.watermarks.current)), *effects, Broadcast(Idle(self.watermarks.current))]

    def _on_cancel_in_loop(self, checkpoint: CheckpointId) -> Effects:
        """A subtask in the loop cannot take part: ends the alignment, or drops the log if the barrier has been sent."""
        if not self.loop.is_logging(checkpoint):
            self._barriers = self._barriers.on_abort(checkpoint)
        return self.loop.abort(checkpoint)

    def _emit_markers(self) -> Effects:
        """Sends the markers that are due. At the entry, detected termination ends the loop's data."""
        if self.is_logic_done:
            return []
        return self.loop.emit_markers() + (self._finish_inputs(drain=True) if self.loop.is_terminated else [])

    # ------------------------------------------------------------ the end

    def _finish_source(self, *, drain: bool) -> Effects:
        risen = self._forward_watermark(self.watermarks.advance_own(MAX_WATERMARK)) if drain else []
        return risen + self._finish_inputs(drain=drain)

    def _on_end_of_data(self, channel: ChannelId, message: EndOfData) -> Effects:
        self._end_of_data[channel] = message.drain
        self.watermarks.job_drains |= message.job_drains
        number = self.spec.inputs[channel]
        siblings = [other for other, n in self.spec.inputs.items() if n == number]
        effects: Effects = []
        if all(self._end_of_data.get(other) for other in siblings) and not self.spec.finished_on_restore:
            effects.append(EndInput(number))
        if channel in self.spec.build_channels and not self._is_building:
            effects += self._on_build_side_end()
        if message.drain:
            self.loop.on_data_end(channel)
            effects += self._on_channel_time(self.watermarks.current, self.watermarks.end_channel(channel))
        truly = all(self._end_of_data.values())
        if len(self._end_of_data) == len(self.spec.regular_channels) and not (truly and self.loop.is_entry):
            effects += self._finish_inputs(drain=truly)
        return effects

    def _on_build_side_end(self) -> Effects:
        by_channel, self._held_records = self._held_records, {}
        return [control.BuildSideRead(), *(ProcessRecords(channel, records) for channel, records in by_channel.items())]

    def _finish_inputs(self, *, drain: bool) -> Effects:
        """Finishes the logic after all inputs, and the loop, have ended. Takes the deferred snapshot of a drain."""
        numbers = sorted({self.spec.inputs[channel] for channel in self.loop.channels}) if drain else []
        effects = [*(EndInput(number) for number in numbers), *self._finish_logic(drain=drain)]
        barrier, self._deferred_barrier = self._deferred_barrier, None
        return effects if barrier is None else effects + self._take_snapshot(barrier)

    def _finish_logic(self, *, drain: bool) -> Effects:
        assert self.phase == "running", "the logic of a subtask finishes once"
        self.phase, self.held = "finished" if drain else "stopped", {}
        finish: Effects = [Finish()] if drain and not self.spec.finished_on_restore else []
        end = EndOfData(drain, drain and self.watermarks.job_drains)
        return [*finish, Broadcast(end), control.LogicFinished()]

    def _on_completed(self, permit: CommitPermit) -> Effects:
        if self.ended or permit.checkpoint <= self._last_notified:
            return []
        self._last_notified = permit.checkpoint
        commit: Effects = [] if self.spec.finished_on_restore else [CommitOutput(permit)]
        return commit + (self._end() if self._is_released_by(permit.checkpoint) else [])

    def _is_released_by(self, checkpoint: CheckpointId) -> bool:
        if self._release_at is not None:
            return checkpoint == self._release_at
        return self._release_from is not None and checkpoint >= self._release_from

    def _end(self) -> Effects:
        self.phase = "ended"
        close: Effects = [] if self.spec.finished_on_restore else [Close()]
        return [*close, Broadcast(EndOfPartition()), control.SubtaskEnded()]

    def _on_aborted(self, checkpoint: CheckpointId) -> Effects:
        if self._deferred_barrier is not None and self._deferred_barrier.checkpoint == checkpoint:
            self._deferred_barrier = None
        self._barriers = self._barriers.on_abort(checkpoint)
        if self.ended or self.spec.finished_on_restore:
            return []
        dropped = self._drop_recording() if checkpoint == self.recorded else []
        return [*dropped, *self.loop.abort(checkpoint), ForgetCheckpoint(checkpoint)]
