"""Live subtask: applies the effects of its state machine to the operator, the state and the channels.

The machine (`Subtask`) makes every decision about barriers. The task owns the queues of the input channels, takes
measurements, and wraps each exception of user code in an `OperatorFailure`. Everything runs on the slot's loop, except
the writing of captured state (`AsyncSnapshot`) and `metrics`, which the heartbeat's thread calls.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.job.graph import Partitioning
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.messages import Barrier, EndOfData, Idle, Message, Records, TerminationMarker, Watermark
from runtime.core.snapshot.control import (
    CheckpointAborted,
    ControlMessage,
    FollowWatermark,
    SnapshotAnswer,
    SubtaskReport,
)
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.core.snapshot.row_numbers import ProcessedRows, Receipts, SplitCuts
from runtime.core.subtask import effects
from runtime.core.subtask.batch_size import is_more_wanted
from runtime.core.subtask.credits import FlowControl, ReceiverWindow
from runtime.core.subtask.events import (
    AlignmentTimedOut,
    FeedbackReplayed,
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
from runtime.core.subtask.idle_sources import WatermarkFollower
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.subtask import Subtask
from runtime.core.subtask.watermark_alignment import WAITED_COUNTER
from runtime.errors import OperatorFailure, RowsNotRepeated, WeirError
from runtime.io.control.messages import SubtaskMetrics, SubtaskStatus
from runtime.ports import Clock, NumberedRows, Operator, OperatorContext, SnapshotStore, SourceReader
from runtime.state.backend import SubtaskState
from runtime.state.index.key_types import KeyTypes
from runtime.task.async_snapshot import AsyncSnapshot
from runtime.task.feedback_log import NO_FEEDBACK_LOG, CapturedSnapshot, FeedbackLog, FeedbackLogs
from runtime.task.input_gate import InputGate, QueueFactory, message_queue
from runtime.task.output import GuardedCollector, Outputs
from runtime.task.rows_in_flight import RecordedRows, RowRecording
from runtime.task.source_operator import SourceOperator, concat_alike
from runtime.task.stopwatch import Stopwatch
from runtime.task.watermark_hold import WatermarkHold

MAX_SEARCH_MS: Final = 30_000  #: time of polls without any of the rows that are to be repeated
MAX_SEARCH_STEP_MS: Final = 1_000  #: of it between a poll without rows and the next: other subtasks run meanwhile
MAX_EXTRA_STEP_MS: Final = 10.0  #: of a step in which a subtask takes more than a batch per input channel
REPEATED_COUNTER: Final = "repeated_rows"  #: read again after a restart, and not sent to receivers that have them
FAILED_MERGES_COUNTER: Final = "failed_merges"  #: of state files; each file stays until the next base
Background = Callable[[Callable[[], SnapshotAnswer]], None]  #: runs work off the loop and sends its report


@dataclass(kw_only=True)
class Task:
    """Subtask machine with its operator. `operator` is None if the restored checkpoint marks it as finished."""

    machine: Subtask
    operator: Operator | None
    state: SubtaskState
    context: OperatorContext
    outputs: Outputs
    clock: Clock
    store: SnapshotStore
    report: Callable[[SubtaskId, SubtaskReport], None]  #: sends a report to the master
    return_credit: Callable[[ChannelId, int], None]  #: returns credit to the sender
    background: Background
    submit_compaction: Callable[[Callable[[], None]], None]  #: runs the compaction of state files off the loop
    replays: Iterable[Records] = ()  #: restored feedback records of an iteration
    rows_in_flight: Iterable[tuple[ChannelId, Records]] = ()  #: restored rows that are replayed first
    alignment_timeout_ms: int = 0  #: a barrier that has waited for longer overtakes rows; 0: it waits
    key_types: KeyTypes = field(default_factory=KeyTypes)
    records_in: int = 0
    bytes_in: int = 0
    busy_ms: float = 0.0
    poll_policy: PollPolicy = field(default_factory=PollPolicy)  #: poll policy, used by sources only
    flow: FlowControl = FlowControl()
    make_queue: QueueFactory = message_queue
    is_paused: bool = False  #: the master has paused this source: a sink's backlog is too large
    cuts: SplitCuts | None = None  #: of a source that numbers its rows
    passes_numbers: bool = False  #: the output has the numbers of the input
    _aligning_since: float | None = None
    #: The barrier that may overtake rows, and when it was first seen, monotonic ms.
    _waiting_barrier: tuple[Barrier, float] | None = None
    _recording: RowRecording | None = None  #: of the rows that a barrier has overtaken
    _searched_ms: float = 0.0  #: time of polls since the last row that was to be repeated
    _empty_since: float | None = None  #: monotonic ms; None: the last poll returned rows
    _last_number: tuple[str, int] = ("", 0)  #: of the last row, with its split
    _pre_barrier_ms: float = 0.0
    _step_since: float | None = None  #: start of the current step, monotonic ms; None between steps
    _has_passed_barrier: bool = False  #: in this turn
    _ignores_credit: bool = False  #: rows before a barrier that has waited for too long are emitted without credit
    _is_open: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        spec = self.machine.spec
        self._input_gate = InputGate(self.machine, self._may_handle, self.make_queue)
        self._receiver_window = ReceiverWindow(spec.regular_channels, self.flow)
        self._receipts = Receipts()
        self._held_triggers: list[Triggered] = []  #: until the source has repeated its rows
        self._logs = FeedbackLogs()
        self._async_snapshot = AsyncSnapshot(
            subtask=self.id,
            context=self.context,
            store=self.store,
            clock=self.clock,
            submit_compaction=lambda merge: self.submit_compaction(partial(self._merge, merge)),
        )
        self._replays = iter(self.replays)
        self._replayed_rows = deque(self.rows_in_flight)
        self.may_overtake = bool(self.alignment_timeout_ms) and spec.overtakes  #: hosts may read it
        is_plain = spec.mode is CheckpointMode.EXACTLY_ONCE and spec.loop is None and not spec.build_channels
        takes_rows = self.operator is not None and type(self.operator).ready is Operator.ready  # at any time
        self._flushes = bool(self.alignment_timeout_ms) and not self.may_overtake and is_plain and takes_rows
        self._collector = GuardedCollector(self.outputs)
        self._blocked, self._throttled = Stopwatch(), Stopwatch()
        self._watermark_hold = WatermarkHold(self.operator, spec.regular_channels, self.outputs.broadcast)
        reader = self.operator.reader if isinstance(self.operator, SourceOperator) else None
        self._follower = WatermarkFollower(self.machine, reader, self.context.parallelism)

    @property
    def id(self) -> SubtaskId:
        return self.machine.spec.id

    # ------------------------------------------------------------ lifecycle

    def open(self) -> None:
        if self.operator is not None:
            self._call("open", self.operator.open, self.context)
            self._call("open", self.state.check_declarations)
        self._is_open = True

    def start(self) -> None:
        if self.operator is not None:
            self._hook("start", self._collector)
        self.handle(SubtaskStarted())

    def continue_in(self, token: Token) -> None:
        """The subtask belongs to another attempt from now on. Its totals begin anew."""
        if self.machine.recorded is not None:  # of an attempt that has ended
            self.handle(CheckpointAborted(self.machine.recorded))
        self.context.token = token
        self.context.counters.clear()
        self.records_in = self.bytes_in = self.outputs.records = self.outputs.bytes = 0
        self.busy_ms = 0.0
        self._blocked, self._throttled = Stopwatch(), Stopwatch()
        self.is_paused = False
        self._follower.on_attempt()

    def processed_rows(self, channels: Collection[ChannelId]) -> list[ProcessedRows]:
        return self._receipts.processed(channels)

    def restart_inputs(self, channels: Collection[ChannelId], make_queue: QueueFactory | None = None) -> None:
        """The senders of `channels` restart: their messages in flight are dropped."""
        self._input_gate.restart(channels, make_queue or self.make_queue)
        self._receiver_window.restart(channels)
        self.handle(InputsRestarted(frozenset(channels)))

    def close(self) -> None:
        """Releases resources, however the subtask ends. The operator's `close` is called once."""
        self._logs.close()
        self.state.close()
        self._input_gate.close()
        if self._is_closed or self.operator is None:
            return
        self._is_closed = True
        with self._collector.rejecting_output("from close"):
            self._call("close", self.operator.close)

    def deliver(self, channel: ChannelId, message: Message) -> None:
        if not self.machine.ended:
            self._input_gate.push(channel, message)

    def on_master_event(self, event: SubtaskEvent) -> None:
        """Handles events of the master in order. An active source may delay a trigger (`BarrierDelay`)."""
        if isinstance(event, Triggered) and self._repeats_rows:
            self._held_triggers.append(event)
            return
        self._release_held_barrier()
        delay, now = self.poll_policy.barrier_delay, self.clock.monotonic_ms()
        if not (isinstance(event, Triggered) and self._is_active and delay.hold(event.barrier, now)):
            self.handle(event)

    def follow(self, message: FollowWatermark) -> None:
        """The master sends an idle source the watermark of its siblings."""
        self._call("look_for_splits", self._follower.on_message, message)

    @property
    def _repeats_rows(self) -> bool:
        """Whether the source still reads rows that surviving receivers have processed: barriers wait."""
        return self.cuts is not None and self.cuts.repeats

    def _release_triggers(self) -> None:
        held, self._held_triggers = self._held_triggers, []
        for event in held:
            self.on_master_event(event)

    def _release_held_barrier(self) -> None:
        if (barrier := self.poll_policy.barrier_delay.release()) is not None:
            self.handle(Triggered(barrier))

    @property
    def barrier_in_ms(self) -> float | None:
        """Milliseconds until a delayed barrier must be injected, or overtakes rows; None if there is none."""
        if not self.machine.is_source:
            return None if (barrier := self._waiting_for_rows()) is None else self._left_ms(barrier)
        return self.poll_policy.barrier_delay.due_in(self.clock.monotonic_ms())

    # ------------------------------------------------------------ steps

    @property
    def wants_polling(self) -> bool:
        runnable = self.outputs.credits.runnable and not self.is_paused
        return self.machine.may_poll and runnable and not self.is_throttled

    @property
    def poll_in_ms(self) -> float | None:
        """Milliseconds until the next poll of a source without rows at hand; None if it is not to be polled."""
        return self.poll_policy.next_poll_ms(self.clock.monotonic_ms()) if self.wants_polling else None

    @property
    def _is_active(self) -> bool:
        """Whether the source may be polled and is not idle. A delay would make an idle source's rows late."""
        return self.machine.may_poll and not self.machine.is_idle

    @property
    def is_throttled(self) -> bool:
        return self._is_active and self.poll_policy.is_throttled(self.clock.monotonic_ms())

    def step(self) -> bool:
        """Runs a step if the subtask is runnable. Returns whether any work was done."""
        started = self._step_since = self.clock.monotonic_ms()
        if self.poll_policy.barrier_delay.due_in(started) == 0:
            self._release_held_barrier()
        # Receivers in the slot get a barrier that overtakes rows before the next batch is processed.
        overtook = self._has_passed_barrier = self.may_overtake and self._overtake_rows()
        did = overtook
        if not (overtook and self.machine.loop.replaying):
            did = (self._poll(started) if self.machine.is_source else self._handle_inputs()) or overtook
        did = self._fire_timers() or did
        busy_ms = 0.0
        if did:
            self._call("watermark_hold", self._watermark_hold.release)
            busy_ms = self.clock.monotonic_ms() - started
        self._step_since = None  # before the total changes: see `_busy_until_now`
        self.busy_ms += busy_ms
        self._sample_waiting(started)
        return did

    def pass_barriers(self) -> bool:
        """Handles barriers ahead in the queues, and those that overtake rows. Returns whether it did.

        Handles no batch, unless it waits for credit and a barrier has waited behind it for too long. The steps of a
        turn run downstream first. A barrier would need a turn for each subtask on its way, and each turn may take as
        long as the batch of a slow subtask.
        """
        if self.machine.is_source:
            return False
        started = self._step_since = self.clock.monotonic_ms()
        did = self.may_overtake and self._overtake_rows()
        if not self.machine.loop.replaying:
            self._ignores_credit = self._flushes and self._late_barrier() is not None
            self._has_passed_barrier = not self._ignores_credit
            did = self._handle_inputs() or did
        self._step_since = None
        if did:
            self.busy_ms += self.clock.monotonic_ms() - started
        return did

    def _poll(self, now: float) -> bool:
        if not isinstance(self.operator, SourceOperator):
            return False
        reader, max_rows = self.operator.reader, self.poll_policy.max_rows
        if not self.wants_polling:
            if self.is_throttled:
                self.poll_policy.on_throttled()
            return False
        if self.poll_policy.rests(now):
            return False
        batches, polled, numbered = self._poll_batches(reader, max_rows)
        if self._repeats_rows:
            self._count_search(now, ran_out=not polled[-1])
        rows = sum(polled)
        if not batches:
            self.poll_policy.on_empty()
        else:
            self.poll_policy.on_batch(polled, max_rows, now, self.clock.monotonic_ms())
            self._follower.on_rows()
            if self.machine.is_idle:
                self.handle(SourceResumed())
            if self.cuts is None:
                for batch in concat_alike(batches):
                    self._call("poll", self._collector.emit, batch)
            else:
                self._emit_numbered(self.cuts, batches, numbered)
        if self._repeats_rows and self._searched_ms > MAX_SEARCH_MS:  # barriers wait for them
            raise RowsNotRepeated(f"{self.id} does not find the rows that it had read in the last attempt")
        watermark = self._call("watermark", reader.watermark)
        if watermark is not None:
            disorder_ms = self._call("max_disorder_ms", lambda: reader.max_disorder_ms)
            self.poll_policy.barrier_delay.on_batch(watermark, rows, self.clock.monotonic_ms(), disorder_ms)
            self.handle(SourceAdvanced(watermark))
            if batches and self.barrier_in_ms == 0:  # siblings receive it with a watermark that ends a pane
                self._release_held_barrier()
        if self._held_triggers and not self._repeats_rows:
            self._release_triggers()
        did = bool(batches) or self._check_source_end(reader)
        self._report_event_time()
        return did

    def _emit_numbered(
        self, cuts: SplitCuts, batches: Sequence[pa.RecordBatch], numbered: Sequence[Sequence[NumberedRows]]
    ) -> None:
        """Emits batches, those of a split in a row as one, cut at the ends that surviving receivers have processed."""
        parts = [part for pair in zip(batches, numbered, strict=True) for part in self._parts_by_split(*pair)]
        for split, run in groupby(parts, key=itemgetter(0)):
            _, numbers, same = zip(*run, strict=True)
            if cuts.awaits(split):
                self._searched_ms = 0.0
            ends, offset = np.concatenate(numbers), 0
            self._check_order(split, ends)
            for batch in concat_alike(same):
                for start, rows, end in cuts.pieces(split, ends[offset : offset + batch.num_rows]):
                    with self.outputs.numbering(split, end):
                        self._call("poll", self._collector.emit, batch.slice(start, rows))
                offset += batch.num_rows

    def _parts_by_split(
        self, batch: pa.RecordBatch, numbered: Sequence[NumberedRows]
    ) -> Iterator[tuple[str, npt.NDArray[np.int64], pa.RecordBatch]]:
        """Raises WeirError: the source has numbered other rows than it has emitted."""
        if sum(len(rows.numbers) for rows in numbered) != batch.num_rows:
            raise WeirError(f"{self.id} does not number all rows of a batch")
        offset = 0
        for split, numbers in numbered:
            yield split, numbers, batch.slice(offset, len(numbers))
            offset += len(numbers)

    def _check_order(self, split: str, numbers: npt.NDArray[np.int64]) -> None:
        """Raises WeirError: numbers are not above 0, or do not rise. Receivers would miss rows, or get them twice."""
        last = self._last_number[1] if self._last_number[0] == split else 0
        if numbers[0] <= last or (np.diff(numbers) <= 0).any():
            raise WeirError(f"{self.id} has numbered rows of split '{split}' in no rising order from 1 on")
        self._last_number = (split, int(numbers[-1]))

    def _count_search(self, began: float, ran_out: bool) -> None:
        """Counts the time of a poll, and the wait since a poll without rows. Steps of the job are no search."""
        now = self.clock.monotonic_ms()
        waited = 0.0 if self._empty_since is None else began - self._empty_since
        self._searched_ms += now - began + min(waited, MAX_SEARCH_STEP_MS)
        self._empty_since = now if ran_out else None

    def _poll_batches(
        self, reader: SourceReader, max_rows: int
    ) -> tuple[list[pa.RecordBatch], list[int], list[Sequence[NumberedRows]]]:
        """A batch, or small batches that the source has at hand: about `max_rows` rows; and the rows of each poll.

        The last list has the numbers of the rows of each batch, if the source numbers them.
        """
        batches, polled, rows, nbytes = list[pa.RecordBatch](), list[int](), 0, 0
        numbered = list[Sequence[NumberedRows]]()
        began = self.clock.monotonic_ms()
        coalesces = self.poll_policy.coalesces(began)
        while rows < max_rows:
            batch = self._call("poll", reader.poll, max_rows - rows)
            polled.append(0 if batch is None else batch.num_rows)
            if batch is None:
                break
            batches.append(batch)
            if self.cuts is not None:
                numbered.append(self._call("numbered_rows", lambda: reader.numbered_rows))
            rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
            if len(polled) == 1 and self.poll_policy.has_few_rows:
                continue  # the second poll shows whether the source has run out again
            if not coalesces or not is_more_wanted(polled[-1], rows, nbytes, self.clock.monotonic_ms() - began):
                break
        return batches, polled, numbered

    def _check_source_end(self, reader: SourceReader) -> bool:
        if self._call("exhausted", lambda: reader.exhausted):
            if self._repeats_rows:
                raise RowsNotRepeated(f"{self.id} has ended before it had repeated the rows of the last attempt")
            self.handle(SourceExhausted())
            return True
        if self._call("awaits_live", lambda: reader.awaits_live):
            if not self.machine.awaits_live:
                self.handle(HistoryEnded())
        elif not self._call("idle", lambda: reader.idle):
            return False
        elif not self.machine.is_idle:
            self.handle(SourceIdle())
        if (message := self._call("has_looked", self._follower.take_due)) is not None:
            self.handle(message)
        return False

    def _report_event_time(self) -> None:
        if (report := self._call("discoveries", self._follower.report_due, self.clock.monotonic_ms())) is not None:
            self.report(self.id, report)

    def _waiting_for_rows(self) -> Barrier | None:
        """The oldest barrier that waits behind rows, in alignment or in the queues, and need not.

        It may overtake the rows. Or only missing credit keeps the subtask from emitting the rows, and the barrier is in
        the queues of all channels: the checkpoint can then be aligned at once. Credits bound these rows.
        """
        if not (self.may_overtake or (self._flushes and not self.outputs.credits.runnable)):
            return None
        machine, queued = self.machine, self._input_gate.queued_barriers()
        waiting = list(queued.values()) if machine.aligning_barrier is None else [machine.aligning_barrier]
        awaited = (barrier for barrier in waiting if machine.is_awaited(barrier))
        barrier = min(awaited, key=lambda each: each.checkpoint, default=None)
        if barrier is None or self.may_overtake:
            return barrier
        readable = [channel for channel in machine.spec.regular_channels if machine.is_readable(channel)]
        is_whole = all(channel in queued and queued[channel].checkpoint == barrier.checkpoint for channel in readable)
        return barrier if is_whole else None

    def _left_ms(self, barrier: Barrier) -> float:
        """Milliseconds until the barrier has waited for the alignment timeout.

        It has waited since its trigger, or since it was seen first if the clock of the master is ahead.
        """
        now, waiting = self.clock.monotonic_ms(), self._waiting_barrier
        seen_at = waiting[1] if waiting is not None and waiting[0] == barrier else now
        waited_ms = max(now - seen_at, self.clock.now_ms() - barrier.triggered_at)
        return max(0.0, self.alignment_timeout_ms - waited_ms)

    def _late_barrier(self) -> Barrier | None:
        """The barrier that waits behind rows, if it has waited for too long."""
        barrier, waiting = self._waiting_for_rows(), self._waiting_barrier
        if barrier is None:
            self._waiting_barrier = None
        elif waiting is None or waiting[0] != barrier:
            self._waiting_barrier = barrier, self.clock.monotonic_ms()
        return barrier if barrier is not None and self._left_ms(barrier) == 0 else None

    def _overtake_rows(self) -> bool:
        """Lets a barrier that has waited for too long overtake rows, and records the rows. Returns whether it did."""
        barrier = self._late_barrier()
        if barrier is not None:
            self.handle(AlignmentTimedOut(barrier))
            self._input_gate.begin_recording()
            for channel, records in self._replayed_rows:
                self.handle(MessageOvertaken(channel, records))
        self._record_queued_rows()
        return barrier is not None

    def _record_queued_rows(self) -> None:
        for channel in sorted(self.machine.recorded_channels):
            assert self.machine.recorded is not None, "a checkpoint records rows"
            for message in self._input_gate.take_overtaken(channel, self.machine.recorded):
                if isinstance(message, Barrier):
                    self._receipts.on_barrier(channel, message.checkpoint)
                self.handle(MessageOvertaken(channel, message))

    def _replay(self) -> bool:
        if not self.outputs.credits.runnable:
            return False
        if self._replayed_rows:
            return self._replay_rows()
        records = next(self._replays, None)
        self.handle(ReplayEnded() if records is None else FeedbackReplayed(records))
        return True

    def _replay_rows(self) -> bool:
        channel, records = self._replayed_rows[0]
        if not self._call("ready", self._watermark_hold.may_handle, records):
            return False
        self._replayed_rows.popleft()
        self.handle(RowsReplayed(channel, records))
        return True

    def _handle_inputs(self) -> bool:
        """Takes a batch per input channel, more within `MAX_EXTRA_STEP_MS`, and all control messages in between.

        Takes a single batch, and more within that time, if barriers may overtake rows: so the slot reads its messages
        between two slow batches.

        An upstream subtask may emit several batches in its turn. A cheap subtask takes all of them in its own turn, so
        that only queues before busy subtasks grow. Triggers wait for the turns of all subtasks of the slot. In a turn
        only control messages follow a barrier, so that its receivers do not wait for the next batch.
        """
        if self.machine.loop.replaying:
            return self._replay()
        released = bool(self.machine.held) and self._release_held_messages()
        did, until = False, self.clock.monotonic_ms() + MAX_EXTRA_STEP_MS
        batches = 1 if self.may_overtake else len(self.machine.spec.inputs)
        while (batches > 0 or self._ignores_credit or self.clock.monotonic_ms() < until) and (
            taken := self._handle_next()
        ) is not None:
            did, batches = True, batches - isinstance(taken, Records)
            if isinstance(taken, Barrier) and self.machine.aligning_checkpoint is None:
                self._has_passed_barrier, self._ignores_credit = True, False
        self._has_passed_barrier = self._ignores_credit = False
        if not did and self.outputs.credits.runnable and self._input_gate.is_starved:
            self._receiver_window.on_starved()
        return did or released

    def _release_held_messages(self) -> bool:
        """Lets the held end of input take effect once the operator has emitted its rows, and there is credit."""
        if not self.outputs.credits.runnable or not self._call("ready", self._watermark_hold.is_flushed):
            return False
        self.handle(HoldReleased())
        return True

    def _handle_next(self) -> Message | None:
        self._receiver_window.on_busy(self.clock.monotonic_ms())
        taken = self._input_gate.poll()
        if taken is None:
            return None
        self._handle_message(*taken)
        return taken[1]

    def _handle_message(self, channel: ChannelId, message: Message) -> None:
        if isinstance(message, EndOfData | TerminationMarker) and self._must_hold(channel, message):
            self.handle(MessageHeld(channel, message))
        else:
            if isinstance(message, Barrier):
                self._receipts.on_barrier(channel, message.checkpoint)
            self.handle(MessageArrived(channel, message))
        if isinstance(message, Records) and channel not in self.machine.spec.feedback_channels:
            for granted, nbytes in self._receiver_window.on_consumed(
                channel, message.nbytes, self.clock.monotonic_ms()
            ):
                self.return_credit(granted, nbytes)

    def _may_handle(self, channel: ChannelId, message: Message) -> bool:
        """Whether to take a message now. Messages that cause output wait for credit, unlike barriers and ends."""
        if self.machine.held and not self.machine.passes_held(channel, message):
            return False
        waits = self._has_passed_barrier or not (self.outputs.credits.runnable or self._ignores_credit)
        if waits and isinstance(message, Records | Watermark | Idle | EndOfData | TerminationMarker):
            return False
        if self.machine.phase == "stopped":  # no timer frees capacity any more; the savepoint contains buffered rows
            return True
        return bool(self._call("ready", self._watermark_hold.may_handle, message))

    def _must_hold(self, channel: ChannelId, message: EndOfData | TerminationMarker) -> bool:
        """Whether the operator still buffers rows that the end of the data, or of a loop, must not overtake."""
        is_stopped = self.machine.phase == "stopped"
        waits = not is_stopped and self._call("ready", self._watermark_hold.must_hold, channel, message)
        if isinstance(message, EndOfData) and message.drain:
            self._watermark_hold.on_end_of_data(channel)
        return bool(waits)

    @property
    def timer_in_ms(self) -> int | None:
        """Milliseconds until a processing timer may fire; None without a timer, or without credit for its output."""
        if self.operator is None or not self.machine.may_fire or not self.outputs.credits.runnable:
            return None
        if self.machine.loop.is_quiescing and self._call("ready", self.operator.ready, True):
            return None
        due = self._call("next_processing_timer", self.operator.next_processing_timer)
        return None if due is None else max(0, due - self.clock.now_ms())

    def _fire_timers(self) -> bool:
        if self.timer_in_ms != 0:
            return False
        self._hook("on_processing_time", self.clock.now_ms(), self._collector)
        return True

    def _sample_waiting(self, now: float) -> None:
        self._blocked.sample(not self.machine.ended and not self.outputs.credits.runnable, now)
        if self.machine.is_source:
            self._throttled.sample(self.is_throttled, now)

    # ------------------------------------------------------------ effects

    def handle(self, event: SubtaskEvent) -> None:
        """Passes an event to the machine and applies its effects in order."""
        for effect in self.machine.handle(event):
            self._apply(effect)
        if self.machine.aligning_checkpoint is None:
            self._aligning_since = None
        elif self._aligning_since is None:
            self._aligning_since = self.clock.monotonic_ms()

    def _apply(self, effect: effects.SubtaskEffect) -> None:
        match effect:
            case effects.ProcessRecords(channel, records):
                self.records_in += records.rows
                self.bytes_in += records.nbytes
                self._check_keys(channel, records)
                self._process(channel, records)
            case effects.AdvanceWatermark(time):
                self._hook("on_watermark", time, self._collector)
            case effects.Broadcast(message):
                self._call("watermark_hold", self._watermark_hold.broadcast, message)
            case effects.PreparePreBarrier(checkpoint):
                started = self.clock.monotonic_ms()
                self._hook("prepare_snapshot_pre_barrier", checkpoint, self._collector)
                self._pre_barrier_ms = self.clock.monotonic_ms() - started
            case effects.CaptureState():
                self._capture(effect)
            case effects.LogFeedback() | effects.CloseLog() | effects.DropLog() | effects.FlushLoop():
                self._apply_in_iteration(effect)
            case effects.RecordRows() | effects.CompleteRecording() | effects.DropRecording():
                self._apply_in_recording(effect)
            case effects.EndInput(number):
                self._hook("end_input", number, self._collector)
            case effects.Finish():
                self._hook("finish", self._collector)
                self._collector.reject_output("after finish")
            case effects.BeginLive():
                assert isinstance(self.operator, SourceOperator), "only sources have a live part"
                self._call("begin_live", self.operator.reader.begin_live)
            case effects.CommitOutput(permit):
                self._receipts.on_completed(permit.checkpoint)
                self._hook("checkpoint_completed", permit)
            case effects.ForgetCheckpoint(checkpoint):
                self._receipts.on_aborted(checkpoint)
                self._hook("checkpoint_aborted", checkpoint)
            case effects.Close():
                self.close()
            case ControlMessage():
                self.report(self.id, effect)

    def _process(self, channel: ChannelId, records: Records) -> None:
        number = self.machine.spec.inputs[channel]
        if records.end and self.passes_numbers:
            with self.outputs.numbering(records.split, records.end):
                self._hook("process", number, records.payload, self._collector)
        else:
            self._hook("process", number, records.payload, self._collector)
        self._receipts.on_records(channel, records)

    def _apply_in_iteration(self, effect: effects.LoopEffect) -> None:
        match effect:
            case effects.LogFeedback(checkpoints, records):
                self._logs.add(checkpoints, records)
            case effects.CloseLog(checkpoint):
                self._submit_snapshot(*self._logs.complete(checkpoint))
            case effects.DropLog(checkpoint):
                self._logs.drop(checkpoint)
            case effects.FlushLoop():
                self._hook("settle", self._collector)

    def _apply_in_recording(self, effect: effects.RecordingEffect) -> None:
        assert self._recording is not None, "a snapshot records rows"
        match effect:
            case effects.RecordRows(channel, records):
                self._recording.add(channel, records)
            case effects.CompleteRecording():
                recorded = RecordedRows(self.outputs.graph, self.outputs.edges, self.id, self._recording.rows)
                self._submit_snapshot(self._recording.copied, NO_FEEDBACK_LOG, recorded)
                self._recording = None
            case effects.DropRecording():
                self._recording = None

    def _capture(self, effect: effects.CaptureState) -> None:
        assert self.operator is not None, "an operator that is finished on restore has no state"
        barrier, started = effect.barrier, self.clock.monotonic_ms()
        since_trigger_ms = self.clock.now_ms() - barrier.triggered_at
        waited_ms = 0.0 if self._aligning_since is None else started - self._aligning_since
        aligned_ms = max(0.0, waited_ms - self._pre_barrier_ms)
        with self._collector.rejecting_output("while state is captured"):
            self._hook("snapshot", barrier.checkpoint)
        capture = self._call("snapshot", partial(self.state.capture, full=barrier.kind.is_savepoint))
        committables = self._call("committables", self.operator.committables)
        rest = SubtaskSnapshot(
            finished=effect.finished,
            watermark=effect.watermark,
            committables=committables,
            key_types=self.key_types.by_column(),
        )
        timings = SnapshotTimings(
            start_delay_ms=max(0.0, since_trigger_ms - aligned_ms - self._pre_barrier_ms),
            alignment_ms=aligned_ms,
            pre_barrier_ms=self._pre_barrier_ms,
            sync_ms=self.clock.monotonic_ms() - started,
        )
        copied = CapturedSnapshot(barrier=barrier, capture=capture, rest=rest, timings=timings)
        if effect.logs:
            self._logs.begin(copied, effect.inherits)
        elif effect.overtakes:
            self._recording = RowRecording(copied)
        else:
            self._submit_snapshot(copied, NO_FEEDBACK_LOG)

    def _submit_snapshot(
        self, copied: CapturedSnapshot, log: FeedbackLog, recorded: RecordedRows | None = None
    ) -> None:
        self.background(partial(self._async_snapshot.write, copied, log, recorded))

    def _check_keys(self, channel: ChannelId, records: Records) -> None:
        edge = self.outputs.graph.edges[channel.edge]
        if edge.partitioning is Partitioning.HASH:
            self._call("process", self.key_types.check, records.payload.schema, edge.keys)

    def _hook(self, name: str, *args: Any) -> None:
        """`_call` of the operator; written out, since each batch comes by here."""
        assert self.operator is not None, "an operator that is finished on restore has no hooks"
        try:
            getattr(self.operator, name)(*args)
        except OperatorFailure:
            raise
        except (Exception, SystemExit) as error:
            raise OperatorFailure(self.id.operator, self.id.index, name, error) from error

    def _call(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except OperatorFailure:  # of the pre-aggregation for a later operator
            raise
        except (Exception, SystemExit) as error:  # an author's `sys.exit` must be reported
            raise OperatorFailure(self.id.operator, self.id.index, hook, error) from error

    # ------------------------------------------------------------ metrics

    def metrics(self) -> SubtaskMetrics:
        return SubtaskMetrics(
            subtask=self.id,
            state=self._status,
            records_in=self.records_in,
            records_out=self.outputs.records,
            watermark=self.machine.watermark,
            busy_ms=self._busy_until_now(),
            blocked_ms=self._blocked.total_ms,
            counters=self._counters(),
            bytes_in=self.bytes_in,
            bytes_out=self.outputs.bytes,
            in_flight_bytes=self._input_gate.queued_bytes,
            is_idle=self.machine.is_idle,
            open_results=self._open_results(),
        )

    def _busy_until_now(self) -> float:
        """Busy time including the current step, which may last for minutes. Called by the heartbeat's thread.

        The total is read first: if the step ends in between, its time is missing once but never counted twice.
        """
        total, since = self.busy_ms, self._step_since
        return total if since is None else total + self.clock.monotonic_ms() - since

    @property
    def _status(self) -> SubtaskStatus:
        machine = self.machine
        if not self._is_open:
            return SubtaskStatus.DEPLOYING
        if machine.is_logic_done:
            return SubtaskStatus.ENDED if machine.ended else SubtaskStatus.FINISHED
        if machine.waits_for_build_side:
            return SubtaskStatus.WAITS_FOR_BUILD_SIDE
        is_held = self.is_paused and machine.is_source
        return SubtaskStatus.WAITS_FOR_STAGE if is_held else SubtaskStatus.RUNNING

    def _open_results(self) -> dict[str, int]:
        if self.operator is None or not self._is_open or self._is_closed:
            return {}
        try:
            return dict(self.operator.open_results())
        except Exception:  # the heartbeat must not end because a number for the console is missing
            return {}

    def _merge(self, merge: Callable[[], None]) -> None:
        """Merges state files, in the thread of the compaction. A health rule of the console shows a failure."""
        try:
            merge()
        except Exception:
            self.context.count(FAILED_MERGES_COUNTER)
            raise

    def _counters(self) -> dict[str, int]:
        waited = {WAITED_COUNTER: int(self._throttled.total_ms)} if self._throttled.total_ms else {}
        repeated = {REPEATED_COUNTER: self.outputs.repeated_rows} if self.outputs.repeated_rows else {}
        return self.context.counters | waited | repeated
