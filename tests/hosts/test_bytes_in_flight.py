"""One live subtask that reads a channel, and the credit that goes back for it. Its operator moves the clock."""

import pyarrow as pa

from runtime.core.flow import FIRST_WINDOW_BYTES, LEAST_WINDOW_BYTES
from runtime.core.ids import ChannelId, Token
from runtime.core.messages import Records
from runtime.core.spec import spec_of
from runtime.core.subtask import Subtask
from runtime.hosts.outputs import Outputs
from runtime.hosts.task import Task
from runtime.io.memory import ManualClock, MemorySnapshotStore
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.store import SubtaskState
from tests.core.builders import chain, subtask

GRAPH, READER = chain(), subtask("b/0")
(CHANNEL,) = GRAPH.inputs[READER]
BATCH = pa.record_batch({"value": pa.array(range(1_000))})


class Slow(Operator):
    """Needs so long for a batch."""

    def __init__(self, clock: ManualClock, takes_ms: int) -> None:
        self._clock, self._takes_ms = clock, takes_ms

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._clock.advance(self._takes_ms)


def credit_after(batches: int, takes_ms: int) -> int:
    """What the sender may have on its way, once so many batches have been consumed."""
    clock, store, credit = ManualClock(1_000), MemorySnapshotStore(), FIRST_WINDOW_BYTES

    def repay(channel: ChannelId, nbytes: int) -> None:
        nonlocal credit
        credit += nbytes

    state = SubtaskState(range(GRAPH.max_parallelism), GRAPH.max_parallelism, store)
    context = OperatorContext(
        job="job",
        uid="b",
        index=0,
        parallelism=1,
        max_parallelism=GRAPH.max_parallelism,
        token=Token(1),
        state=state,
        now_ms=clock.now_ms,
    )
    task = Task(
        machine=Subtask(spec_of(GRAPH, READER)),
        operator=Slow(clock, takes_ms),
        state=state,
        context=context,
        outputs=Outputs(GRAPH, READER, lambda channel, message: None),
        clock=clock,
        store=store,
        report=lambda message: None,
        consumed=repay,
        background=lambda work: None,
        tidying=lambda work: None,
    )
    task.open()
    task.start()
    for _ in range(batches):
        credit -= BATCH.nbytes
        task.deliver(CHANNEL, Records(BATCH, BATCH.num_rows, BATCH.nbytes))
        assert task.step()
        assert not task.step()
        clock.advance(10_000)  # nothing to read: this is not slowness
    return credit


def test_a_slow_operator_has_less_on_its_way_and_a_fast_one_more() -> None:
    """What a barrier waits behind is worth a fixed time, not a fixed number of bytes."""
    slow, fast = credit_after(batches=100, takes_ms=40), credit_after(batches=100, takes_ms=1)
    assert slow == BATCH.nbytes // 40 * 200
    assert LEAST_WINDOW_BYTES < slow < FIRST_WINDOW_BYTES < fast
