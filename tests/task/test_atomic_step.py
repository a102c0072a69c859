"""The checkpoint step of a live task: whole towards records, time, timers, callbacks; early barrier, late upload."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId, CheckpointId, Token
from runtime.core.job.messages import (
    MAX_WATERMARK,
    Barrier,
    CheckpointKind,
    EndOfData,
    EndOfPartition,
    Message,
    Records,
    Watermark,
)
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import Acknowledgement, CheckpointAborted, SnapshotAnswer
from runtime.core.subtask.events import CheckpointCompleted, MessageArrived
from runtime.core.subtask.spec import spec_of
from runtime.core.subtask.subtask import Subtask
from runtime.errors import OperatorFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.backend import SubtaskState
from runtime.task.output import Outputs
from runtime.task.task import Task
from tests.core.builders import chain, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import CREDIT, plain_edges

GRAPH, ME = chain(parallelism=2), subtask("b/0")
(FROM, OTHER) = GRAPH.inputs[ME]
TIMER_MS = 40


def row(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


class Witness(Operator):
    """Passes rows on, holds one back until a barrier, sets timers, and writes down whatever is done to it.

    Its work before the barrier takes `busy_ms` of the clock, so that timers come due in the middle of the step.
    """

    def __init__(self, log: list[str], clock: ManualClock, busy_ms: int = 0) -> None:
        self.log, self._clock, self._busy_ms = log, clock, busy_ms
        self.rows: list[int] = []
        self.timers: list[int] = []
        self._held: pa.RecordBatch | None = None
        self.in_snapshot: Callable[[], None] = lambda: None
        self.out: Any = None

    def open(self, context: OperatorContext) -> None:
        self._list = context.state.list_state("rows")
        self.rows = self._list.get()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self.log.append("process")
        self.out = out
        self.rows += batch.column("n").to_pylist()
        self.timers.append(self._clock.now_ms() + TIMER_MS)
        self._flush(out)
        self._held = batch

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self.log.append("time")
        self._flush(out)

    def next_processing_timer(self) -> int | None:
        return min(self.timers, default=None)

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self.log.append("timer")
        self.timers = [timer for timer in self.timers if timer > now_ms]
        self.rows.append(-1)
        out.emit(row(-1))

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        self.log.append(f"prepare {checkpoint}")
        self._clock.advance(self._busy_ms)
        self._flush(out)

    def snapshot(self, checkpoint: int) -> None:
        self.log.append(f"snapshot {checkpoint}")
        self.in_snapshot()
        self._list.replace(self.rows)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self.log.append("completed")

    def checkpoint_aborted(self, checkpoint: int) -> None:
        self.log.append("aborted")

    def _flush(self, out: Collector) -> None:
        batch, self._held = self._held, None
        if batch is not None:
            out.emit(batch)


@dataclass
class Live:
    """One task with one live input, what it has sent, said and left to do in the background."""

    busy_ms: int = 0
    operator: Any = None
    restored: SubtaskRestore | None = None
    store: MemorySnapshotStore = field(default_factory=MemorySnapshotStore)
    log: list[str] = field(default_factory=list)  #: hooks and sent messages in one order
    sent: list[tuple[ChannelId, Message]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    works: list[Callable[[], SnapshotAnswer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.operator = self.operator or Witness(self.log, self.clock, self.busy_ms)
        groups = GRAPH.max_parallelism
        context = OperatorContext(
            job="job", uid="b", index=0, parallelism=2, max_parallelism=groups, token=Token(1),
            state=SubtaskState(range(groups // 2), groups, self.store), now_ms=self.clock.now_ms,
        )  # fmt: skip
        state: Any = context.state
        restored = self.restored or SubtaskRestore(subtask=ME)
        state.restore(restored)
        self.task = Task(
            machine=Subtask(spec_of(GRAPH, ME, restored.watermark)), operator=self.operator, state=state,
            context=context, outputs=Outputs(GRAPH, ME, self._send, plain_edges(GRAPH), flow=CREDIT), clock=self.clock,
            store=self.store,
            report=lambda _, report: self.said.append(report),
            return_credit=lambda channel, nbytes: None, background=self.works.append,
            submit_compaction=lambda work: None,
        )  # fmt: skip
        self.task.open()
        self.task.start()
        for message in (Watermark(MAX_WATERMARK), EndOfData(drain=True), EndOfPartition()):
            self.task.handle(MessageArrived(OTHER, message))
        self.log.clear()
        self.sent.clear()

    def _send(self, channel: ChannelId, message: Message) -> None:
        self.sent.append((channel, message))
        self.log.append(f"{type(message).__name__} > {channel.target}")

    def hear(self, *messages: Message) -> None:
        for message in messages:
            self.task.deliver(FROM, message)
            while self.task.step():
                pass

    def store_all(self) -> list[Acknowledgement]:
        """Does what was left to the background; the acknowledgements that follow."""
        works = list(self.works)
        self.works.clear()
        for work in works:
            self.said.append(work())
        return [word for word in self.said if isinstance(word, Acknowledgement)]


def records(*numbers: int) -> Records:
    batch = row(*numbers)
    return Records(batch, batch.num_rows, batch.nbytes)


def barrier(checkpoint: int, at: int = 0) -> Barrier:
    return Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, at)


def permit(checkpoint: int) -> CheckpointCompleted:
    return CheckpointCompleted(CommitPermit("job", Token(1), CheckpointId(checkpoint), Token(1)))


# ---------------------------------------------------------------- one step

ACTS = st.lists(st.sampled_from(["row", "time", "barrier", "wait", "completed", "aborted"]), max_size=25)


@given(ACTS, st.sampled_from([0, 30, 100]))
def test_nothing_comes_between_the_flush_the_barrier_and_the_copy_of_the_state(acts: list[str], busy_ms: int) -> None:
    """S3-54, S3-46, S3-55, S4-16: timers that come due in the middle fall wholly behind the step.

    And what is saved is what was handled before the barrier, neither more nor less.
    """
    live, checkpoint, expected = Live(busy_ms=busy_ms), 0, {}
    for number, act in enumerate(["row", *acts, "barrier"]):
        match act:
            case "row":
                live.hear(records(number))
            case "time":
                live.hear(Watermark(number))
            case "barrier":
                checkpoint += 1
                expected[checkpoint] = _handled_at_the_barrier(live, checkpoint)
            case "wait":
                live.clock.advance(15)
                live.hear()
                while live.task.step():
                    pass
            case "completed":
                live.task.handle(permit(checkpoint))
            case "aborted":
                live.task.handle(CheckpointAborted(CheckpointId(checkpoint)))
    for number in range(1, checkpoint + 1):
        first, last = live.log.index(f"prepare {number}"), live.log.index(f"snapshot {number}")
        between = [entry for entry in live.log[first + 1 : last] if not entry.startswith("Records")]
        assert between == ["Barrier > 0", "Barrier > 1"]
    saved = {ack.checkpoint: list(ack.snapshot.lists["rows"]) for ack in live.store_all()}
    assert saved == expected


def _handled_at_the_barrier(live: Live, checkpoint: int) -> list[int]:
    """What the operator had handled when the barrier came; timers that were due before it have fired before it."""
    handled: list[int] = []
    live.operator.in_snapshot = lambda: handled.extend(live.operator.rows)
    before = list(live.operator.rows)
    live.hear(barrier(checkpoint))
    assert handled == before
    return handled


def test_a_barrier_leaves_before_the_state_is_copied_on_every_channel() -> None:
    """S3-57, S4-20: whoever is downstream need not wait for a slow copy."""
    live = Live()
    logs: list[list[str]] = []
    live.operator.in_snapshot = lambda: logs.append(list(live.log))
    live.hear(records(1), barrier(1))
    assert logs[0][-3:] == ["Barrier > 0", "Barrier > 1", "snapshot 1"]


def test_records_flow_while_state_is_being_stored_and_do_not_show_in_it() -> None:
    """S3-58, S3-48, S4-23: the upload is no part of the step, and the stream is not interrupted by it."""
    live = Live()
    live.hear(records(1), barrier(1), records(2), records(3))
    assert not live.said, "nothing is acknowledged before it is stored"
    flowed = [message.payload["n"].to_pylist() for _, message in live.sent if isinstance(message, Records)]
    assert flowed == [[1], [2]], "the third is held until the next barrier, by the operator itself"
    (ack,) = live.store_all()
    assert (ack.checkpoint, ack.snapshot.lists["rows"]) == (1, (1,))


def test_two_barriers_may_be_in_the_stream_while_neither_is_stored() -> None:
    """S3-49: each has its own copy of the state."""
    live = Live()
    live.hear(records(1), barrier(1), records(2), barrier(2), records(3))
    acks = live.store_all()
    assert [(ack.checkpoint, ack.snapshot.lists["rows"]) for ack in acks] == [(1, (1,)), (2, (1, 2))]


@pytest.mark.parametrize("busy_ms", [0, 30])
def test_the_work_before_the_barrier_is_measured_and_told(busy_ms: int) -> None:
    """S3-56: it holds everybody downstream up, so it has a number of its own, and is part of no other phase."""
    live = Live(busy_ms=busy_ms)
    trigger = live.clock.now_ms() - 7
    live.hear(barrier(1, at=trigger))
    (ack,) = live.store_all()
    assert (ack.timings.start_delay_ms, ack.timings.pre_barrier_ms, ack.timings.sync_ms) == (7, busy_ms, 0)


def test_an_acknowledgement_brings_the_state_and_its_size() -> None:
    """S2-44."""
    live = Live(operator=Counting())
    live.hear(records(*range(20_000)), barrier(1))
    (ack,) = live.store_all()
    (segment,) = ack.snapshot.keyed["counts"]
    assert segment.rows == 20_000
    assert ack.timings.written_bytes == segment.nbytes == len(live.store.get(segment.path))


class Counting(Operator):
    """Remembers numbers in a keyed table."""

    def open(self, context: OperatorContext) -> None:
        keys, values = pa.schema([("n", pa.int64())]), pa.schema([pa.field("seen", pa.int64(), nullable=False)])
        self._table = context.state.keyed_table("counts", keys, values)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._table.touch(self._table.upsert([batch.column("n")]))


# ---------------------------------------------------------------- what a task is


def test_channels_state_and_code_are_all_that_a_task_is_made_of() -> None:
    """S4-09, S3-50: another one, made from the snapshot, does what this one does with what is behind the barrier."""
    first = Live()
    first.hear(records(1), Watermark(5), records(2), barrier(1))
    (ack,) = first.store_all()
    snapshots, proofs = (ack.snapshot,), keyed_proofs([ack.snapshot], range(GRAPH.max_parallelism))
    restored = SubtaskRestore(subtask=ME, snapshots=snapshots, lists=ack.snapshot.lists, proofs=proofs, watermark=5)
    second = Live(restored=restored, store=first.store)
    assert second.operator.rows == [1, 2]
    outputs = []
    for live in (first, second):
        live.sent.clear()
        live.hear(records(3), Watermark(9), records(4), Watermark(12), barrier(2))
        outputs.append([m.payload["n"].to_pylist() if isinstance(m, Records) else m for _, m in live.sent])
    assert outputs[0] == outputs[1] == [[3], *[Watermark(9)] * 2, [4], *[Watermark(12)] * 2, *[barrier(2)] * 2]
    assert first.store_all()[-1].snapshot.lists == second.store_all()[-1].snapshot.lists


# ---------------------------------------------------------------- output at the wrong time


class Talkative(Operator):
    """Keeps the collector that it was given and emits at `place`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._out: Any = None

    def process(self, input: int, batch: pa.RecordBatch, out: Any) -> None:
        self._out = out

    def _say(self, place: str) -> None:
        if place == self._place and self._out is not None:
            self._out.emit(row(99))

    def snapshot(self, checkpoint: int) -> None:
        self._say("snapshot")

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._say("checkpoint_completed")

    def close(self) -> None:
        self._say("close")


@pytest.mark.parametrize(
    ("place", "finished", "message"),
    [
        ("snapshot", False, "while state is captured"),
        ("checkpoint_completed", True, "after finish"),
        ("close", True, "from close"),
        ("close", False, "from close"),
    ],
)
def test_output_that_would_be_lost_is_refused_by_name(place: str, finished: bool, message: str) -> None:
    """S0-42, S3-61: in the snapshot step, after `finish`, from `close`; and nothing is sent."""
    live = Live(operator=Talkative(place))
    live.hear(records(1), *([EndOfData(drain=True)] if finished else []))
    with pytest.raises(OperatorFailure, match=rf"operator 'b', subtask 0, in {place}: .*output {message} is refused"):
        _live_on(live)
    assert not [entry for _, entry in live.sent if isinstance(entry, Records)]


def _live_on(live: Live) -> None:
    live.hear(barrier(1))
    live.task.handle(permit(1))
    live.task.close()
