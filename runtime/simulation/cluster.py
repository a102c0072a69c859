"""An attempt in the simulator: subtasks, channels, slots and their links to the master.

A host performs the effects of its subtask machine as a production slot does: in order, before the next event. Links are
FIFO per slot; the simulation loop chooses when to take a message. An abandoned attempt continues to run for a while.
"""

from collections.abc import Callable, Mapping
from typing import Final

from runtime.core.job.graph import JobGraph
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.messages import Control, Records
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import ControlMessage, Decline, FollowWatermark
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.core.subtask import effects, events
from runtime.core.subtask.credits import Credits, ReceiverWindow
from runtime.core.subtask.idle_sources import WatermarkFollower
from runtime.core.subtask.pane_end_watermarks import PaneEndWatermarks
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.spec import spec_of
from runtime.core.subtask.subtask import Subtask
from runtime.core.subtask.watermark_alignment import channel_drifts, meeting_edges, waiting_edges
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.simulation.channels import WINDOW_BYTES, Channel, RowPartitioner, batch_of, rows_of
from runtime.simulation.invariants import STATE_IN_FILES, check_subtask, require
from runtime.simulation.jobs import Job
from runtime.simulation.model import MAX_PARALLELISM, ROW_BYTES, WINDOW_MS, Rows, SourceOperator
from runtime.simulation.slots import Report, ReportFailed, ReportStarted, Slot
from runtime.simulation.state import CapturedTables, OperatorHost
from runtime.simulation.world import World
from runtime.task.async_snapshot import AsyncSnapshot
from runtime.task.feedback_log import NO_FEEDBACK_LOG, CapturedSnapshot, FeedbackLog, FeedbackLogs, replay_records

INITIAL_CREDIT_BYTES: Final = 4 * ROW_BYTES


class Attempt:
    """The subtasks, channels and slots of the attempt with fencing token `token`."""

    def __init__(
        self,
        world: World,
        job: Job,
        graph: JobGraph,
        token: Token,
        assigned: Mapping[SubtaskId, SubtaskRestore],
        mode: CheckpointMode,
    ) -> None:
        self.world, self.job, self.graph, self.token, self.mode = world, job, graph, token, mode
        self.captured_tables = CapturedTables()
        self.remaining_steps = 10**9  #: world steps until the attempt stops running; lowered by `abandon`
        self.channels = {c: Channel(c, charged=not graph.is_feedback(c)) for c in graph.channels()}
        self.slots = {index: Slot(world) for index in range(graph.parallelism)}
        self.hosts = {s: SubtaskHost(self, s, assigned.get(s, SubtaskRestore(subtask=s))) for s in graph.subtasks}
        self.order = list(self.hosts.values())
        for host in self.order:
            if host.machine.is_source:
                host.poll_policy = self._poll_policy(host.subtask)

    def _poll_policy(self, source: SubtaskId) -> PollPolicy:
        """As in a slot, but with a shorter permitted drift before windows: short inputs would never pause otherwise."""
        machines = {subtask: host.machine for subtask, host in self.hosts.items()}
        panes_ms = waiting_edges(self.graph, source.operator, dict.fromkeys(self.job.window_edges, WINDOW_MS))
        drifts_ms = dict.fromkeys(panes_ms, WINDOW_MS // 4)
        if (max_drift_ms := self.job.step(source.operator).max_drift_ms) is not None:
            drifts_ms = dict.fromkeys(meeting_edges(self.graph, source.operator), max_drift_ms)
        return PollPolicy(
            channel_drifts(self.graph, source, drifts_ms, machines),
            channel_drifts(self.graph, source, panes_ms, machines),
        )

    def abandon(self, lingers: int) -> None:
        self.remaining_steps = lingers

    def crash(self, index: int) -> None:
        """Kills the slot's process; messages that it has sent may still arrive."""
        self.slots[index].crash()

    def deliver_down(self) -> bool:
        """Delivers a message of the master to a subtask. Returns False if no message has arrived."""
        ready = [slot for slot in self.slots.values() if slot.alive and slot.down.is_ready]
        if not ready:
            return False
        subtask, event = self.world.rng.choice(ready).down.pop()
        self.hosts[subtask].on_master_event(event)
        return True

    def step(self) -> bool:
        """Runs a step of some runnable subtask. Returns False if no subtask is runnable."""
        start = self.world.rng.randrange(len(self.order))
        return any(host.step() for host in self.order[start:] + self.order[:start])


class SubtaskHost:
    """Runs a subtask: its machine, its operator and its credits."""

    def __init__(self, attempt: Attempt, subtask: SubtaskId, restored: SubtaskRestore) -> None:
        self.attempt, self.subtask, self.world = attempt, subtask, attempt.world
        graph = attempt.graph
        self.slot = attempt.slots[subtask.index]
        log = bool(restored.feedback)
        self.machine = Subtask(spec_of(graph, subtask, restored.watermark, restored.finished, attempt.mode, log))
        self.charged = {channel for channel in graph.outputs[subtask] if not graph.is_feedback(channel)}
        self.credits = Credits(self.charged, INITIAL_CREDIT_BYTES)
        self.receiver_window = ReceiverWindow(
            self.machine.spec.regular_channels, INITIAL_CREDIT_BYTES, WINDOW_BYTES, ROW_BYTES, 3, 2
        )
        self.outputs = graph.outputs[subtask]
        self.pane_ends = {
            edge: PaneEndWatermarks(WINDOW_MS)
            for edge in dict.fromkeys(channel.edge for channel in self.outputs)
            if attempt.job.step(graph.edges[edge].target).pane_ends_only
        }
        self.incoming = [(channel, attempt.channels[channel]) for channel in self.machine.spec.inputs]
        self.partitioner = RowPartitioner(graph, self.outputs)
        self.poll_policy = PollPolicy()
        self.poll_at = 0
        self.stateful = OperatorHost(self.world, attempt.job, graph, restored, attempt.token, self.world.storage)
        self.operator, self.state = self.stateful.operator, self.stateful.state
        reader = self.operator if isinstance(self.operator, SourceOperator) and not restored.finished else None
        self.follower = WatermarkFollower(self.machine, reader, graph.by_uid[subtask.operator].parallelism)
        self.async_snapshot = AsyncSnapshot(
            subtask=subtask,
            token=attempt.token,
            max_parallelism=MAX_PARALLELISM,
            store=self.world.storage,
            clock=self.world,
            submit_compaction=self._submit_compaction,
        )
        self.logs = FeedbackLogs()
        self.log: Rows = []  #: rows read from the restored feedback log and not yet replayed
        self.replays = replay_records(self.world.storage, restored.feedback)
        self.started = False

    # ------------------------------------------------------------ running

    def step(self) -> bool:
        """Opens the subtask, reads a message or polls the source. Returns False if the subtask is not runnable."""
        if not self.slot.alive or self.machine.ended:
            return False
        if not self.started:
            self.started = True
            self.handle(events.SubtaskStarted())
            self.report(ReportStarted())
            return True
        if self.poll_policy.barrier_delay.due_in(self.world.now) == 0:
            self._release_held_barrier()
            return True
        if not self.credits.runnable:
            return False
        if self.machine.loop.replaying:
            return self._replay()
        return self._poll() if self.machine.is_source else self._read_message()

    def _replay(self) -> bool:
        """Replays a piece of random size of the restored feedback log."""
        if not self.log:
            try:
                records = next(self.replays, None)
            except EnvironmentFailure as trouble:
                self._fail(trouble)
                return True
            if records is None:
                self.handle(events.FeedbackReplayEnded())
                return True
            self.log = rows_of(records.payload)
        count = self.world.rng.randint(1, len(self.log))
        rows, self.log = self.log[:count], self.log[count:]
        self.handle(events.FeedbackReplayed(Records(rows, count, ROW_BYTES * count)))
        return True

    def _read_message(self) -> bool:
        self.receiver_window.on_busy(self.world.now)
        readable = [(c, queue) for c, queue in self.incoming if queue.queue and self.machine.is_readable(c)]
        if not readable:
            self.receiver_window.on_starved()
            return False
        channel, queue = self.world.rng.choice(readable)
        message = queue.pop()
        self.handle(events.MessageArrived(channel, message))
        if isinstance(message, Records) and not self.attempt.graph.is_feedback(channel):
            for granted, nbytes in self.receiver_window.on_consumed(channel, message.nbytes, self.world.now):
                self._repay(granted, nbytes)
        return True

    def _repay(self, channel: ChannelId, nbytes: int) -> None:
        sender = self.attempt.hosts[self.attempt.graph.source(channel)]
        if self.world.rng.random() < 0.7:
            sender.credits.repay(channel, nbytes)
        else:
            self.world.schedule(lambda: sender.credits.repay(channel, nbytes))

    @property
    def is_throttled(self) -> bool:
        return not self.machine.is_idle and self.poll_policy.is_throttled(self.world.now)

    def _poll(self) -> bool:
        if not self.machine.may_poll or self.is_throttled or self.world.now < self.poll_at:
            return False
        did = self._poll_source()
        self._report_event_time()
        return did

    def _report_event_time(self) -> None:
        if (report := self.follower.report_due(self.world.now)) is not None:
            self.report(report)

    def _poll_source(self) -> bool:
        source, delay = self.operator, self.poll_policy.barrier_delay
        assert isinstance(source, SourceOperator), "only sources are polled"
        choice, max_rows = self.world.rng.randrange(8), self.world.rng.randint(1, 3)
        rows = source.poll(choice, max(1, delay.limit_rows(max_rows)), self.world.now)
        if rows:
            self.poll_policy.on_batch([len(rows)], 0, self.world.now, self.world.now)
            self.poll_at = self.world.now + self.world.rng.randint(0, self.world.pace_ms)
            self.follower.on_rows()
            if self.machine.is_idle:
                self.handle(events.SourceResumed())
            self._begin_step()
            self._emit(rows)
            watermark = source.watermark()
            if watermark is not None:
                delay.on_batch(watermark, len(rows), self.world.now, source.max_disorder_ms)
                self.handle(events.SourceAdvanced(watermark))
            if delay.due_in(self.world.now) == 0:
                self._release_held_barrier()
            return True
        self.poll_policy.on_empty()
        if source.is_exhausted:
            self.handle(events.SourceExhausted())
        elif source.idle and not self.machine.is_idle:
            self.handle(events.SourceIdle())
        elif source.idle and (message := self.follower.take_due()) is not None:
            self.handle(message)
        else:
            return False
        return True

    def on_master_event(self, event: events.SubtaskEvent) -> None:
        """As in a task: a trigger may wait for the end of a pane. The order of the master's events stays."""
        if isinstance(event, FollowWatermark):
            self.follower.on_message(event)
            return
        self._release_held_barrier()
        delay, is_active = self.poll_policy.barrier_delay, self.machine.may_poll and not self.machine.is_idle
        if isinstance(event, events.Triggered) and is_active and delay.hold(event.barrier, self.world.now):
            self.world.note(f"{self.attempt.token}:{self.subtask}", f"holds {event.barrier}")
        else:
            self.handle(event)

    def _release_held_barrier(self) -> None:
        if (barrier := self.poll_policy.barrier_delay.release()) is not None:
            self.handle(events.Triggered(barrier))

    def handle(self, event: events.SubtaskEvent) -> None:
        self.world.note(f"{self.attempt.token}:{self.subtask}", event)
        self._begin_step()
        performed = self.machine.handle(event)
        try:
            for effect in performed:
                self._perform(effect)
        except EnvironmentFailure as trouble:
            self._fail(trouble)
        check_subtask(self.machine)

    def _fail(self, trouble: EnvironmentFailure) -> None:
        self.report(ReportFailed(str(trouble)))
        self.slot.alive = False

    def _begin_step(self) -> None:
        for channel in self.outputs:
            self.attempt.channels[channel].bytes_before_step = self.attempt.channels[channel].nbytes

    # ------------------------------------------------------------ effects

    def _perform(self, effect: effects.SubtaskEffect) -> None:
        operator = self.operator
        match effect:
            case effects.ProcessRecords(channel, records):
                self._emit(operator.process(self.attempt.graph.input_of(channel), records.payload))
            case effects.AdvanceWatermark(time):
                self._emit(operator.advance(time))
            case effects.Broadcast(message):
                self._broadcast(message)
            case effects.PreparePreBarrier(checkpoint):
                self._emit(operator.prepare(checkpoint))
            case effects.CaptureState():
                self._capture(effect)
            case effects.LogFeedback() | effects.CloseLog() | effects.DropLog() | effects.FlushLoop():
                self._perform_in_loop(effect)
            case effects.EndInput(number):
                self._emit(operator.end_input(number))
            case effects.Finish():
                self._emit(operator.finish())
            case effects.CommitOutput(permit):
                operator.commit(permit)
            case effects.Close():
                operator.close()
            case effects.ForgetCheckpoint():
                pass
            case ControlMessage():
                self.report(effect)

    def _perform_in_loop(self, effect: effects.LoopEffect) -> None:
        match effect:
            case effects.LogFeedback(checkpoints, records):
                batch = batch_of(records.payload)
                self.logs.add(checkpoints, Records(batch, records.rows, records.nbytes))
            case effects.CloseLog(checkpoint):
                self._store_later(*self.logs.complete(checkpoint))
            case effects.DropLog(checkpoint):
                self.logs.drop(checkpoint)
            case effects.FlushLoop():
                self._emit(self.operator.settle())

    def _broadcast(self, message: Control) -> None:
        forwarded = {edge: pane_ends.forwarded(message) for edge, pane_ends in self.pane_ends.items()}
        for channel in self.outputs:
            if (found := forwarded.get(channel.edge, message)) is not None:
                self.attempt.channels[channel].push(found)

    def report(self, what: Report) -> None:
        self.slot.send_report(self.subtask, what)

    def _emit(self, rows: Rows) -> None:
        for channel, part in self.partitioner.parts(rows):
            nbytes = ROW_BYTES * len(part)
            self.attempt.channels[channel].push(Records(part, len(part), nbytes))
            if channel in self.charged:
                self.credits.spend(channel, nbytes)

    # ------------------------------------------------------------ snapshots

    def _capture(self, effect: effects.CaptureState) -> None:
        self.operator.snapshot(effect.barrier.checkpoint)
        self.attempt.captured_tables.on_capture(effect.barrier.checkpoint, self.stateful)
        capture = self.state.capture(full=effect.barrier.kind.is_savepoint)
        committables = self.operator.committables()
        rest = SubtaskSnapshot(finished=effect.finished, watermark=effect.watermark, committables=committables)
        copied = CapturedSnapshot(barrier=effect.barrier, capture=capture, rest=rest, timings=SnapshotTimings())
        if effect.logs:
            self.logs.begin(copied, effect.inherits)
        else:
            self._store_later(copied, NO_FEEDBACK_LOG)

    def _store_later(self, copied: CapturedSnapshot, log: FeedbackLog) -> None:
        self.world.schedule(lambda: self._store(copied, log), "slow_snapshot")

    def _store(self, copied: CapturedSnapshot, log: FeedbackLog) -> None:
        """The asynchronous part of a snapshot. A failure only declines this checkpoint."""
        lost = self.world.faults.occurs("lose_snapshot")
        if not self.slot.alive or (lost and self.world.rng.random() < 0.5):
            return
        report = self.async_snapshot.write(copied, log)
        is_subsumed = copied.barrier.checkpoint < max(self.world.ledger.recorded, default=0)  # its files may be gone
        if isinstance(report, Decline) and CorruptState.__name__ in report.detail and not is_subsumed:
            self._check_damage(report.detail)
        if not lost:
            self.handle(report)

    def _submit_compaction(self, compact: Callable[[], None]) -> None:
        """Compacts state files later, perhaps after further captures. After a failure, a later snapshot compacts."""
        self.world.schedule(lambda: self._compact(compact), "slow_compaction")

    def _compact(self, compact: Callable[[], None]) -> None:
        if not self.slot.alive:
            return
        try:
            compact()
        except CorruptState as error:
            self._check_damage(str(error))
        except EnvironmentFailure as failure:
            self.world.note(f"{self.attempt.token}:{self.subtask}", f"compacts later: {failure}")

    def _check_damage(self, detail: str) -> None:
        """Checks an error of state. Only an abandoned attempt may miss a file: a newer attempt deletes its folders."""
        is_abandoned = self.attempt.token != self.world.records.token
        require(is_abandoned, STATE_IN_FILES, f"{self.subtask}: {detail}")
