"""The barrier of a stop behind rows that an upstream step emits in front of it."""

import asyncio
import threading
from typing import Any

import pyarrow as pa

from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind, EndOfData, Message, Records
from runtime.core.snapshot.control import Acknowledgement, SnapshotAnswer
from runtime.operators.functions.async_map import AsyncMap, RequestLimits
from runtime.operators.functions.kept_rows import BufferedRows
from runtime.state.object_table import ObjectTable
from tests.core.builders import chain, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import opened

GRAPH, ME = chain(), subtask("b/0")
(CHANNEL,) = GRAPH.inputs[ME]
BARRIER = Barrier(CheckpointId(1), CheckpointKind.STOP, 0)


def records(number: int) -> Records:
    batch: Any = pa.record_batch({"n": [number]})
    return Records(batch, 1, batch.nbytes)


def test_an_operator_without_capacity_takes_the_rows_before_the_barrier_of_a_stop() -> None:
    """The request in flight ends after the end of the data: no timer takes its answer, so no capacity is freed."""
    answer, sent = threading.Event(), list[Message]()

    async def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
        await asyncio.to_thread(answer.wait)
        return [row]

    operator = AsyncMap(ask, pa.schema([("n", pa.int64())]), RequestLimits(capacity=1, timeout_ms=60_000))
    task = opened(GRAPH, ME, operator, ManualClock(1_000), lambda channel, message: sent.append(message))
    snapshots = list[SnapshotAnswer]()
    task.background = lambda work: snapshots.append(work())
    task.start()
    for message in (records(1), EndOfData(drain=False), records(2), BARRIER):
        task.deliver(CHANNEL, message)
    while task.step():
        pass
    answer.set()
    task.close()
    assert sent == [EndOfData(drain=False), BARRIER]
    assert [type(event) for event in snapshots] == [Acknowledgement]
    table = task.state.tables["_open_requests"]
    assert isinstance(table, ObjectTable)
    stored = BufferedRows(table).read()
    assert [row["n"] for batch in stored for row in batch.to_pylist()] == [1, 2]
