"""Rows in flight: a barrier overtakes them, its snapshot holds them, and they are replayed at any parallelism."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId
from runtime.core.job.messages import Barrier, CheckpointKind, EndOfData, EndOfPartition, Message, Records
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import Acknowledgement, CheckpointAborted
from runtime.core.snapshot.manifest import RowsInFlight
from runtime.core.subtask.events import Triggered
from runtime.dataflow.plan import CompiledJob, Edge, PreAggregation
from runtime.errors import CorruptState, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.ports import Collector, Operator
from runtime.state.files.segments import read_segment
from runtime.state.index.hashing import key_groups
from runtime.task import rows_in_flight
from runtime.task.rows_in_flight import replayed_rows
from runtime.task.task import Task
from tests.core.builders import chain, edge, operator, sink, source, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import CREDIT, opened

TIMEOUT_MS: Final = 100
ROW_MS: Final = 1_250
GROUPS: Final = 8


def graph_of(parallelism: int = 1) -> JobGraph:
    operators = (source("a", 2), operator("b", parallelism), sink("c"))
    return JobGraph(operators, (edge("a", "b", Partitioning.HASH), edge("b", "c")), max_parallelism=GROUPS)


def job_of(graph: JobGraph, columns: pa.Schema | None = None, **changes: Any) -> CompiledJob:
    """`columns`: declared by the sender. `changes`: of the edges."""
    declared = {} if columns is None else {(OperatorId("a"), ""): columns}
    edges = [Edge(spec=spec, **changes) for spec in graph.edges]
    return CompiledJob("job", graph, edges, sources={}, operators={}, sinks={}, columns=declared)


GRAPH, READER = graph_of(), subtask("b/0")
LEFT, RIGHT = GRAPH.inputs[READER]


def rows(*values: int) -> Records:
    batch = pa.record_batch({"key": pa.array([value % 5 for value in values]), "value": pa.array(values)})
    return Records(batch, batch.num_rows, batch.nbytes)


def values_of(records: Records) -> list[int]:
    return list(records.payload.column("value").to_pylist())


def barrier(checkpoint: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT, at: int = 0) -> Barrier:
    return Barrier(CheckpointId(checkpoint), kind, at)


class Slow(Operator):
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.processed: list[int] = []
        self.is_ready = True

    def ready(self, finishing: bool) -> bool:
        return self.is_ready

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._clock.advance(ROW_MS * batch.num_rows)
        self.processed += batch.column("value").to_pylist()


class Reader:
    """A started task. `sent`: its barriers; `snapshots`: what it has acknowledged."""

    def __init__(self, timeout_ms: int = TIMEOUT_MS, restored: Sequence[Records] = ()) -> None:
        self.clock, self.store = ManualClock(1_000), MemorySnapshotStore()
        self.slow = Slow(self.clock)
        self.sent: list[Message] = []
        self.snapshots: list[Acknowledgement] = []
        self.task: Task = opened(
            GRAPH,
            READER,
            self.slow,
            self.clock,
            send=lambda channel, message: self.sent.append(message),
            background=self._answer,
            store=self.store,
            alignment_timeout_ms=timeout_ms,
            rows_in_flight=[(LEFT, records) for records in restored],
        )
        self.task.start()

    def _answer(self, work: Any) -> None:
        answer = work()
        assert isinstance(answer, Acknowledgement), answer
        self.snapshots.append(answer)

    def deliver(self, channel: ChannelId, *messages: Message) -> None:
        for message in messages:
            self.task.deliver(channel, message)

    def in_flight(self) -> list[int]:
        """The values in the only snapshot."""
        (answer,) = self.snapshots
        restored = SubtaskRestore(subtask=READER, in_flight=answer.snapshot.in_flight)
        replayed = replayed_rows(self.store, job_of(GRAPH), restored)
        return [value for _, records in replayed for value in values_of(records)]

    def step_to_end(self) -> None:
        while self.task.step():
            pass


def test_a_barrier_overtakes_queued_rows_once_it_has_waited_for_the_timeout() -> None:
    reader = Reader()
    late = barrier(1, at=reader.clock.now_ms())
    reader.deliver(LEFT, rows(1), rows(2), rows(3), late, rows(4))
    reader.deliver(RIGHT, rows(5), late, rows(6))
    assert reader.task.step(), "the barrier has not waited yet"
    assert reader.slow.processed == [1]
    assert reader.task.step()
    assert reader.sent == [late]
    assert reader.slow.processed == [1], "receivers get the barrier before the next row"
    assert reader.in_flight() == [2, 3, 5]
    reader.step_to_end()
    assert sorted(reader.slow.processed) == [1, 2, 3, 4, 5, 6], "the operator gets them all the same, once"
    assert len(reader.sent) == 1


def test_rows_that_arrive_before_the_barrier_of_their_channel_belong_to_the_snapshot() -> None:
    reader = Reader()
    reader.deliver(LEFT, barrier(1))
    reader.deliver(RIGHT, rows(1))
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.step()
    assert (len(reader.sent), reader.snapshots) == (1, [])
    reader.deliver(RIGHT, rows(2))
    reader.task.step()
    reader.deliver(LEFT, rows(3))
    reader.deliver(RIGHT, rows(4), barrier(1), rows(5))
    reader.task.step()
    assert reader.in_flight() == [1, 2, 4]
    reader.step_to_end()
    assert sorted(reader.slow.processed) == [1, 2, 3, 4, 5]


def test_without_the_timeout_a_barrier_waits_for_its_rows() -> None:
    reader = Reader(timeout_ms=0)
    reader.deliver(LEFT, rows(1), barrier(1))
    reader.deliver(RIGHT, rows(2), rows(3), barrier(1))
    reader.task.step()
    assert (reader.sent, reader.snapshots) == ([], [])
    reader.step_to_end()
    assert reader.in_flight() == []
    assert reader.slow.processed == [1, 2, 3]


@pytest.mark.parametrize("kind", [CheckpointKind.STOP, CheckpointKind.DRAIN])
def test_the_barrier_of_a_stop_or_drain_waits_for_its_rows(kind: CheckpointKind) -> None:
    reader = Reader()
    reader.deliver(LEFT, rows(1), rows(2), barrier(1, kind))
    reader.clock.advance(10 * TIMEOUT_MS)
    reader.task.step()
    assert reader.sent == []
    assert reader.task.barrier_in_ms is None


def test_the_slot_wakes_at_the_timeout() -> None:
    reader = Reader()
    now = reader.clock.now_ms()
    reader.deliver(LEFT, barrier(1, at=now))
    reader.task.step()
    assert reader.sent == []
    assert reader.task.barrier_in_ms == TIMEOUT_MS
    reader.clock.advance(TIMEOUT_MS - 1)
    assert reader.task.barrier_in_ms == 1
    reader.clock.advance(1)
    assert reader.task.step()
    assert len(reader.sent) == 1


def test_a_barrier_behind_that_of_an_aborted_checkpoint_overtakes_too() -> None:
    """S4-48: a step that takes no row never reaches the first barrier."""
    reader = Reader()
    reader.slow.is_ready = False
    for channel in (LEFT, RIGHT):
        reader.deliver(channel, rows(1), barrier(1), rows(2), barrier(2), rows(3))
    reader.task.on_master_event(CheckpointAborted(CheckpointId(1)))
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.barrier_in_ms == 0
    assert reader.task.step()
    assert reader.sent == [barrier(2)]
    assert sorted(reader.in_flight()) == [1, 1, 2, 2]
    reader.slow.is_ready = True
    reader.step_to_end()
    assert sorted(reader.slow.processed) == [1, 1, 2, 2, 3, 3]
    assert reader.sent == [barrier(2)]


def test_a_barrier_of_a_master_with_a_fast_clock_waits_from_its_arrival() -> None:
    reader = Reader()
    reader.deliver(LEFT, barrier(1, at=reader.clock.now_ms() + 90_000))
    reader.task.step()
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.step()
    assert len(reader.sent) == 1


def test_each_barrier_waits_from_its_own_arrival() -> None:
    reader = Reader()
    late = reader.clock.now_ms() + 90_000  #: by the clock of the master
    reader.deliver(LEFT, barrier(1, at=late))
    reader.task.step()
    reader.clock.advance(TIMEOUT_MS - 1)
    reader.deliver(RIGHT, barrier(1, at=late))
    reader.deliver(LEFT, barrier(2, at=late))
    reader.task.step()
    assert reader.sent == [barrier(1, at=late)], "aligned"
    reader.task.step()
    reader.clock.advance(TIMEOUT_MS - 1)
    reader.task.step()
    assert reader.task.barrier_in_ms == 1
    assert len(reader.sent) == 1


def test_barriers_pass_before_the_steps_of_a_turn_without_any_row() -> None:
    reader = Reader()
    now = reader.clock.now_ms()
    reader.deliver(LEFT, barrier(1, at=now))
    reader.deliver(RIGHT, rows(1), barrier(1, at=now))
    assert reader.task.pass_barriers(), "one is ahead, and waits for the other"
    assert not reader.task.pass_barriers()
    assert reader.sent == []
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.pass_barriers()
    assert reader.in_flight() == [1]
    assert reader.slow.processed == []
    reader.step_to_end()
    assert reader.slow.processed == [1]


def test_rows_before_the_end_of_a_channel_belong_to_the_snapshot() -> None:
    """Its sender has ended: no barrier follows."""
    reader = Reader()
    reader.deliver(LEFT, rows(1), EndOfPartition())
    reader.deliver(RIGHT, rows(2), barrier(1))
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.step()
    assert reader.in_flight() == [1, 2]


def test_a_subtask_that_continues_in_another_attempt_drops_its_recording() -> None:
    reader = Reader()
    reader.deliver(LEFT, barrier(1))
    reader.clock.advance(TIMEOUT_MS)
    reader.task.step()
    reader.task.continue_in(reader.task.context.token)
    reader.deliver(RIGHT, barrier(1))
    reader.step_to_end()
    assert reader.snapshots == []


def test_a_subtask_that_replays_rows_takes_part_in_a_checkpoint_after_its_senders_have_ended() -> None:
    """S4-48: the master triggers it then: the savepoint does not wait for the replay."""
    reader = Reader(restored=[rows(1), rows(2), rows(3)])
    for channel in (LEFT, RIGHT):
        reader.deliver(channel, EndOfData(drain=True), EndOfPartition())
    reader.task.step()
    assert reader.slow.processed == [1]
    reader.task.on_master_event(Triggered(barrier(1, CheckpointKind.SAVEPOINT, at=reader.clock.now_ms())))
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.step()
    assert reader.in_flight() == [2, 3]
    reader.step_to_end()
    assert reader.slow.processed == [1, 2, 3]


@pytest.mark.parametrize(("kind", "timeout_ms"), [(CheckpointKind.STOP, TIMEOUT_MS), (CheckpointKind.SAVEPOINT, 0)])
def test_a_checkpoint_that_overtakes_no_row_follows_the_replay(kind: CheckpointKind, timeout_ms: int) -> None:
    reader = Reader(timeout_ms, restored=[rows(1), rows(2)])
    for channel in (LEFT, RIGHT):
        reader.deliver(channel, EndOfData(drain=True), EndOfPartition())
    reader.task.on_master_event(Triggered(barrier(1, kind)))
    reader.clock.advance(10 * TIMEOUT_MS)
    reader.task.step()
    assert reader.snapshots == []
    reader.step_to_end()
    assert reader.slow.processed == [1, 2]
    assert reader.in_flight() == []


def test_a_barrier_of_the_last_attempt_in_a_queue_does_not_keep_the_next_from_overtaking() -> None:
    """Its restarted senders never send it, and the master of this attempt does not abort it."""
    reader = Reader()
    reader.slow.is_ready = False
    reader.deliver(LEFT, rows(1), barrier(1))
    reader.task.restart_inputs([RIGHT])
    reader.task.continue_in(reader.task.context.token)
    reader.clock.advance(TIMEOUT_MS)
    reader.task.step()
    assert (reader.sent, reader.snapshots) == ([barrier(1)], [])
    for channel in (LEFT, RIGHT):
        reader.deliver(channel, rows(2), barrier(2))
    reader.clock.advance(TIMEOUT_MS)
    reader.task.step()
    assert reader.sent == [barrier(1), barrier(2)]
    assert reader.in_flight() == [1, 2, 2]


# ---------------------------------------------------------------- rows without credit

CHAIN = chain()


class Forwarding(Operator):
    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)


class Picky(Forwarding):
    """It may have no room for a row."""

    def ready(self, finishing: bool) -> bool:
        return True


def forwarded(operator: Operator, *, timeout_ms: int = TIMEOUT_MS, credit: bool = False) -> list[str]:
    """What a step sends of rows 1, 2, barrier, 3 until the turn after the timeout. Row 1 takes its last credit."""
    sent: list[Message] = []
    clock, (channel,) = ManualClock(1_000), CHAIN.inputs[READER]
    (output,) = CHAIN.outputs[READER]
    task = opened(
        CHAIN, READER, operator, clock, lambda _, message: sent.append(message), alignment_timeout_ms=timeout_ms
    )
    task.start()
    task.outputs.credits.spend(output, CREDIT.min_bytes - 1)
    for message in (rows(1), rows(2), barrier(1, at=clock.now_ms()), rows(3)):
        task.deliver(channel, message)
    task.step()
    assert len(sent) == 1, "no credit is left"
    assert not task.pass_barriers(), "the barrier has not waited yet"
    clock.advance(TIMEOUT_MS)
    if credit:
        task.outputs.credits.repay(output, CREDIT.min_bytes)
    task.pass_barriers()
    return [str(values_of(each)[0]) if isinstance(each, Records) else type(each).__name__ for each in sent]


def test_rows_that_wait_for_credit_are_sent_before_a_barrier_that_has_waited_too_long() -> None:
    """Else a barrier would wait in each step before a slow one, for as long as that needs for a batch."""
    assert forwarded(Forwarding()) == ["1", "2", "Barrier"]


def test_rows_wait_for_credit_without_the_timeout_or_where_the_step_may_have_no_room() -> None:
    assert forwarded(Forwarding(), timeout_ms=0) == ["1"]
    assert forwarded(Picky()) == ["1"]


def test_with_credit_the_rows_before_a_barrier_wait_for_the_turn_of_their_step() -> None:
    assert forwarded(Forwarding(), credit=True) == ["1"]


# ---------------------------------------------------------------- restore


def stored() -> tuple[MemorySnapshotStore, tuple[RowsInFlight, ...], list[int]]:
    """A snapshot with the rows 0 to 39 in flight, in batches of four."""
    reader = Reader()
    batches = [rows(*range(start, start + 4)) for start in range(0, 40, 4)]
    reader.deliver(LEFT, *batches[:6], barrier(1))
    reader.deliver(RIGHT, *batches[6:], barrier(1))
    reader.clock.advance(TIMEOUT_MS)
    assert reader.task.step()
    (answer,) = reader.snapshots
    return reader.store, answer.snapshot.in_flight, list(range(40))


def replayed(
    store: MemorySnapshotStore, in_flight: tuple[RowsInFlight, ...], parallelism: int, **changes: Any
) -> dict[int, list[Records]]:
    job = job_of(graph_of(parallelism), **changes)
    return {
        index: [
            records
            for _, records in replayed_rows(
                store, job, SubtaskRestore(subtask=subtask(f"b/{index}"), in_flight=in_flight)
            )
        ]
        for index in range(parallelism)
    }


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_the_owner_of_a_key_group_replays_its_rows_in_order_and_in_batches_as_sent(parallelism: int) -> None:
    store, in_flight, values = stored()
    by_subtask = replayed(store, in_flight, parallelism)
    assert sorted(value for each in by_subtask.values() for part in each for value in values_of(part)) == values
    for index, parts in by_subtask.items():
        got = [value for part in parts for value in values_of(part)]
        assert got == sorted(got), "each channel in its order"
        for part in parts:
            groups = key_groups(part.payload, ["key"], GROUPS)
            assert set(groups * parallelism // GROUPS) == {index}
            assert part.rows <= 4, "a batch of a slow step stays small"


def test_a_lost_row_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store, in_flight, _ = stored()
    monkeypatch.setattr(rows_in_flight, "read_segment", lambda *place: read_segment(*place).slice(1))
    with pytest.raises(
        CorruptState, match=r"operator 'b': rows in flight from a, input 0 \(.*\.flight/000001.arrow.*key group"
    ):
        replayed(store, in_flight, 1)


def test_rows_without_a_column_of_this_version_are_refused_by_name() -> None:
    store, in_flight, _ = stored()
    with pytest.raises(JobRejected, match="without the columns later") as refused:
        replayed(store, in_flight, 1, used_columns=frozenset({"key", "later"}))
    assert (refused.value.code, refused.value.field) == ("rows-in-flight-changed", "b")


def test_a_used_column_that_the_sender_never_sent_is_that_of_a_later_step() -> None:
    store, in_flight, _ = stored()
    used = tuple(msgspec.structs.replace(each, used=("key", "later", "value")) for each in in_flight)
    (parts,) = replayed(store, used, 1, used_columns=frozenset({"key", "later"})).values()
    assert {tuple(part.payload.schema.names) for part in parts} == {("key",)}


def test_a_column_that_this_version_does_not_send_is_left_out() -> None:
    store, in_flight, _ = stored()
    (parts,) = replayed(store, in_flight, 1, used_columns=frozenset({"key"})).values()
    assert {tuple(part.payload.schema.names) for part in parts} == {("key",)}


@pytest.mark.parametrize(
    ("columns", "used", "difference"),
    [
        ({"key": pa.int64(), "value": pa.int64()}, None, ""),
        ({"value": pa.int64(), "key": pa.int64()}, None, ""),
        ({"key": pa.int64(), "value": pa.int64(), "new": pa.string()}, None, "'new' is new"),
        ({"key": pa.int64(), "value": pa.string()}, None, "'value' was int64 and is string"),
        ({"key": pa.int64(), "value": pa.string()}, {"key"}, ""),
        ({"key": pa.int64(), "new": pa.string()}, {"key", "new", "later"}, "'new' is new"),
        ({"key": pa.int64()}, {"key", "later"}, ""),
    ],
)
def test_rows_in_flight_have_the_columns_that_their_sender_declares(
    columns: dict[str, pa.DataType], used: set[str] | None, difference: str
) -> None:
    store, in_flight, _ = stored()
    used_columns = None if used is None else frozenset(used)
    if difference:
        with pytest.raises(JobRejected, match=difference) as refused:
            replayed(store, in_flight, 1, columns=pa.schema(columns), used_columns=used_columns)
        assert refused.value.code == "rows-in-flight-changed"
    else:
        (parts,) = replayed(store, in_flight, 1, columns=pa.schema(columns), used_columns=used_columns).values()
        names = [name for name in columns if used is None or name in used]
        assert all(part.payload.schema.names == names for part in parts)


@pytest.mark.parametrize("was_aggregated", [False, True])
def test_rows_in_flight_before_a_window_keep_their_form(was_aggregated: bool) -> None:
    """S4-48: a version that aggregates them per pane before the window, or no longer, cannot read them."""
    store, in_flight, _ = stored()
    panes = PreAggregation(10, lambda: WindowPreAggregator(["key"], "value", 10, {}))
    parts = tuple(msgspec.structs.replace(each, is_aggregated=was_aggregated) for each in in_flight)
    with pytest.raises(JobRejected, match=f"'a', {'' if was_aggregated else 'not '}aggregated per pane") as refused:
        replayed(store, parts, 1, pre_aggregation=None if was_aggregated else panes)
    assert refused.value.code == "rows-in-flight-changed"


def test_rows_on_an_edge_that_the_job_lacks_are_not_replayed() -> None:
    """The report of the restore refuses them before, unless they are waived."""
    store, in_flight, _ = stored()
    for change in ({"source": "x"}, {"output": "late"}, {"input": 1}):
        elsewhere = tuple(msgspec.structs.replace(each, **change) for each in in_flight)
        assert replayed(store, elsewhere, 1) == {0: []}
