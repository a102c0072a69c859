"""One live subtask that reads a channel, and the credit that goes back for it. Its operator moves the clock."""

import pyarrow as pa

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Records
from runtime.core.subtask.credits import FlowControl
from runtime.ports import Collector, Operator
from tests.core.builders import chain, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import opened

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
    clock, credit = ManualClock(1_000), FlowControl().min_bytes

    def repay(channel: ChannelId, nbytes: int) -> None:
        nonlocal credit
        credit += nbytes

    task = opened(GRAPH, READER, Slow(clock, takes_ms), clock, consumed=repay)
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
    slow, fast = credit_after(batches=100, takes_ms=200), credit_after(batches=100, takes_ms=1)
    assert slow == BATCH.nbytes
    assert FlowControl().min_bytes < slow < fast
