"""An attempt in the simulator: subtasks, channels, slots and their links to the master.

A host performs the effects of its subtask machine as a production slot does: in order, before the next event. Links are
FIFO per slot; the simulation loop chooses when to take a message. An abandoned attempt continues to run for a while.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.key_groups import key_group_owner
from runtime.core.job.messages import Message, Records
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import ControlMessage
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.core.subtask import effects, events
from runtime.core.subtask.credits import Credits, ReceiverWindow
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.spec import spec_of
from runtime.core.subtask.subtask import Subtask
from runtime.core.subtask.watermark_alignment import channel_drifts, meeting_edges, waiting_edges
from runtime.errors import EnvironmentFailure
from runtime.simulation.invariants import ChannelChecker, check_subtask
from runtime.simulation.jobs import Job
from runtime.simulation.model import (
    MAX_PARALLELISM,
    ROW_BYTES,
    WINDOW_MS,
    ModelOperator,
    Row,
    Rows,
    SourceOperator,
    group_of,
    route,
)
from runtime.simulation.slots import Report, ReportFailed, ReportStarted, Slot
from runtime.simulation.snapshots import (
    HELD_STATE,
    INLINE_BYTES,
    POOLED_STATE,
    Snapshots,
    batch_of,
    read_image,
    read_table,
    rows_of,
)
from runtime.simulation.world import World
from runtime.task.async_snapshot import AsyncSnapshot
from runtime.task.feedback_log import NO_FEEDBACK_LOG, CapturedSnapshot, FeedbackLog, FeedbackLogs, replay_records

WINDOW_BYTES: Final = 6 * ROW_BYTES  #: small, so that senders often wait for credit
INITIAL_CREDIT_BYTES: Final = 4 * ROW_BYTES


class Channel:
    """A FIFO queue; `checker` checks every message that is pushed."""

    def __init__(self, channel: ChannelId, *, charged: bool) -> None:
        self.queue: deque[Message] = deque()
        self.nbytes = 0
        self.checker = ChannelChecker(channel, WINDOW_BYTES if charged else None)
        self.bytes_before_step = 0  #: bytes queued when the sender's step began

    def push(self, message: Message) -> None:
        self.checker.check_message(message, self.bytes_before_step)
        self.queue.append(message)
        self.nbytes += message.nbytes if isinstance(message, Records) else 0

    def pop(self) -> Message:
        message = self.queue.popleft()
        self.nbytes -= message.nbytes if isinstance(message, Records) else 0
        return message


class Attempt:
    """The subtasks, channels and slots of the attempt with fencing token `token`."""

    def __init__(
        self,
        world: World,
        job: Job,
        graph: JobGraph,
        token: Token,
        dealt: Mapping[SubtaskId, SubtaskRestore],
        mode: CheckpointMode,
    ) -> None:
        self.world, self.job, self.graph, self.token, self.mode = world, job, graph, token, mode
        self.remaining_steps = 10**9  #: world steps until the attempt stops running; lowered by `abandon`
        self.channels = {c: Channel(c, charged=not graph.is_feedback(c)) for c in graph.channels()}
        self.slots = {index: Slot(world) for index in range(graph.parallelism)}
        self.hosts = {s: SubtaskHost(self, s, dealt.get(s, SubtaskRestore(subtask=s))) for s in graph.subtasks}
        self.order = list(self.hosts.values())
        for host in self.order:
            if host.machine.is_source:
                host.poll_policy = self._poll_policy(host.subtask)

    def _poll_policy(self, source: SubtaskId) -> PollPolicy:
        """As in a slot, but with the shortest lead before all windows: short inputs would never pause otherwise."""
        panes_ms = dict.fromkeys(self.job.window_edges, WINDOW_MS // 4)  # less than a window: alignment takes effect
        machines = {subtask: host.machine for subtask, host in self.hosts.items()}
        waiting = waiting_edges(self.graph, source.operator, panes_ms)
        pane_drifts = channel_drifts(self.graph, source, waiting, machines)
        if (max_drift_ms := self.job.step(source.operator).max_drift_ms) is None:
            return PollPolicy(pane_drifts, pane_drifts)
        meeting = dict.fromkeys(meeting_edges(self.graph, source.operator), max_drift_ms)
        return PollPolicy(channel_drifts(self.graph, source, meeting, machines), pane_drifts)

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
        self.hosts[subtask].handle(event)
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
        self.incoming = [(channel, attempt.channels[channel]) for channel in self.machine.spec.inputs]
        self.next_target = 0
        self.compaction_rng = Random(f"{attempt.token} {subtask}")  # separate: compaction must not shift other draws
        self.pending_compactions: list[Callable[[], None]] = []
        self.poll_policy = PollPolicy()
        self.poll_at = 0
        self.operator = self._operator(restored)
        self.snapshots = Snapshots(Random(f"{attempt.token} {subtask} inline").choice(INLINE_BYTES))
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

    def _operator(self, restored: SubtaskRestore) -> ModelOperator:
        parallelism = self.attempt.graph.by_uid[self.subtask.operator].parallelism
        prefix = f"{self.attempt.token}-{self.subtask.operator}-{self.subtask.index}"
        operator = self.attempt.job.operator(self.subtask, parallelism, self.world.target, prefix)
        if not restored.finished:
            store = self.world.storage
            images = [read_image(store, snapshot) for snapshot in restored.snapshots]
            table = read_table(store, restored.broadcast) if restored.broadcast else ()
            held = [(key, time) for key, time in restored.lists.get(HELD_STATE, ())]
            pooled = [(key, time) for key, time in restored.unions.get(POOLED_STATE, ())]
            operator.restore(images, held, table, pooled)
        return operator

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
        source = self.operator
        if not self.machine.may_poll or self.is_throttled or self.world.now < self.poll_at:
            return False
        assert isinstance(source, SourceOperator), "only sources are polled"
        rows = source.poll(self.world.rng.randrange(8), self.world.rng.randint(1, 3), self.world.now)
        if rows:
            self.poll_policy.on_batch(len(rows), 0, self.world.now, self.world.now)
            self.poll_at = self.world.now + self.world.rng.randint(0, self.world.pace_ms)
            if self.machine.is_idle:
                self.handle(events.SourceResumed())
            self._begin_step()
            self._emit(rows)
            watermark = source.watermark()
            if watermark is not None:
                self.handle(events.SourceAdvanced(watermark))
        elif source.is_exhausted:
            self.handle(events.SourceExhausted())
        elif source.is_idle(self.world.now) and not self.machine.is_idle:
            self.handle(events.SourceIdle())
        else:
            return False
        return True

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
                for channel in self.outputs:
                    self.attempt.channels[channel].push(message)
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

    def report(self, what: Report) -> None:
        self.slot.send_report(self.subtask, what)

    def _emit(self, rows: Rows) -> None:
        for channel, part in self._partition(rows):
            nbytes = ROW_BYTES * len(part)
            self.attempt.channels[channel].push(Records(part, len(part), nbytes))
            if channel in self.charged:
                self.credits.spend(channel, nbytes)

    def _partition(self, rows: Rows) -> list[tuple[ChannelId, Rows]]:
        parts: dict[ChannelId, Rows] = {}
        by_edge: dict[int, list[ChannelId]] = {}
        for channel in self.outputs:
            by_edge.setdefault(channel.edge, []).append(channel)
        for edge, channels in by_edge.items():
            for row in rows:
                for channel in self._targets(edge, channels, row):
                    parts.setdefault(channel, []).append(row)
        return list(parts.items())

    def _targets(self, edge: int, channels: list[ChannelId], row: Row) -> list[ChannelId]:
        match self.attempt.graph.edges[edge].partitioning:
            case Partitioning.FORWARD:
                return channels
            case Partitioning.BROADCAST:
                return channels
            case Partitioning.HASH:
                return [channels[key_group_owner(group_of(row[0]), MAX_PARALLELISM, len(channels))]]
            case Partitioning.REBALANCE:
                self.next_target += 1
                return [channels[self.next_target % len(channels)]]
            case Partitioning.CUSTOM:
                return [channels[route(row[0], len(channels))]]

    # ------------------------------------------------------------ snapshots

    def _capture(self, effect: effects.CaptureState) -> None:
        capture = self.snapshots.capture(self.operator.image(), full=effect.barrier.kind.is_savepoint)
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
        if not lost:
            self.handle(report)

    def _submit_compaction(self, compact: Callable[[], None]) -> None:
        """Compacts state files, now or after a later snapshot. After a failure, a later snapshot compacts again."""
        self.pending_compactions.append(compact)
        if self.compaction_rng.random() < 0.5:
            with suppress(EnvironmentFailure):
                while self.pending_compactions:
                    self.pending_compactions.pop()()
