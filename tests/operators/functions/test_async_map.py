"""Asynchronous requests: order, capacity, timeouts, and rows without an answer through a snapshot."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.functions.async_map import AsyncMap, RequestLimits
from runtime.state.own_memory import memory_kept_alive
from tests.manual_clock import ManualClock
from tests.operators.harness import Harness
from tests.waiting import until

SCHEMA = pa.schema([("v", pa.int64()), ("answer", pa.int64())])


class Service:
    """Answers a row once it is let; counts how many it is asked at a time."""

    def __init__(self, *, answering: bool = False) -> None:
        self.answering = answering
        self.let: set[int] = set()
        self.asked: list[int] = []
        self.most = self.now = 0

    async def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.asked.append(row["v"])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            while not self.answering and row["v"] not in self.let:  # noqa: ASYNC110  # told from another thread
                await asyncio.sleep(0.001)
        finally:
            self.now -= 1
        if row["v"] < 0:
            raise ValueError("there is no such thing")
        return [{"v": row["v"], "answer": row["v"] * 10}] if row["v"] else []


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def operator(
    service: Service, *, capacity: int = 10, timeout_ms: int = 1_000, ordered: bool = True, on_timeout: Any = None
) -> AsyncMap:
    return AsyncMap(service, SCHEMA, RequestLimits(capacity, timeout_ms), ordered, on_timeout)


@contextmanager
def opened(async_map: AsyncMap, **where: Any) -> Iterator[Harness]:
    harness = Harness(async_map, **where)
    try:
        yield harness
    finally:
        async_map.close()


def answers(harness: Harness, count: int) -> list[int]:
    """Ticks as the slot's loop does, until `count` rows are out."""

    def are_out() -> bool:
        harness.tick()
        return len(harness.out.rows()) >= count

    until(are_out, or_else=lambda: str(harness.out.rows()))
    return [row["v"] for row in harness.out.rows()]


def asked(service: Service, *values: int) -> None:
    until(lambda: set(values) <= set(service.asked), or_else=lambda: str(service.asked))


def test_answers_leave_in_the_order_of_the_rows() -> None:
    service = Service()
    with opened(operator(service)) as harness:
        harness.process(batch(1, 2, 3))
        service.let = {2, 3}
        until(lambda: service.now == 1)
        assert harness.tick() == []
        service.let.add(1)
        assert answers(harness, 3) == [1, 2, 3]
        assert harness.out.rows()[2] == {"v": 3, "answer": 30}


def test_without_order_they_leave_as_they_come() -> None:
    service = Service()
    with opened(operator(service, ordered=False)) as harness:
        harness.process(batch(1, 2, 3))
        service.let = {3}
        assert answers(harness, 1) == [3]
        service.let = {1, 2}
        assert set(answers(harness, 3)[1:]) == {1, 2}


def test_a_row_may_have_no_answer() -> None:
    with opened(operator(Service(answering=True))) as harness:
        harness.process(batch(0, 1, 0, 2))
        assert answers(harness, 2) == [1, 2]


def test_no_more_requests_at_a_time_than_the_capacity_and_then_it_takes_no_batch() -> None:
    """S0-34: the input waits in its channel, and so in the sender's credit."""
    service = Service()
    with opened(operator(service, capacity=4)) as harness:
        assert harness.operator.ready(finishing=False)
        harness.process(batch(*range(1, 11)))
        asked(service, 1, 2, 3, 4)
        assert not harness.operator.ready(finishing=False)
        service.answering = True
        assert answers(harness, 10) == list(range(1, 11))
        assert service.most == 4
        assert harness.operator.ready(finishing=False)


def test_the_end_waits_for_the_last_answer() -> None:
    """S0-34: 50 open requests at the end; all 50 come out before it."""
    service = Service()
    with opened(operator(service, capacity=50)) as harness:
        harness.process(batch(*range(1, 51)))
        asked(service, *range(1, 51))
        assert not harness.operator.ready(finishing=True)
        service.answering = True
        assert answers(harness, 50) == list(range(1, 51))
        assert harness.operator.ready(finishing=True)
        assert harness.finish() == []


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("capacity", [5, 50])
def test_rows_without_an_answer_are_state_and_asked_again(parallelism: int, capacity: int) -> None:
    """S0-34: also those that were not asked for yet, and also at another parallelism; then each comes out once."""
    store, service = MemorySnapshotStore(), Service()
    with opened(operator(service, capacity=capacity), store=store) as before:
        before.process(batch(*range(1, 51)))
        asked(service, 1, 2, 3)
        service.let = {1, 2}
        answers(before, 2)
        snapshot = before.snapshot("chk-1")
    values = []
    for index in range(parallelism):
        successor = operator(Service(answering=True), capacity=capacity)
        where: Any = {"store": store, "snapshots": [snapshot], "index": index, "parallelism": parallelism}
        with opened(successor, **where) as harness:
            assert harness.out.batches == []
            until(lambda h=harness: h.tick() is not None and h.operator.ready(finishing=True))  # type: ignore[misc]
            values.append([row["v"] for row in harness.out.rows()])
    assert sorted(v for rows in values for v in rows) == list(range(3, 51))
    assert all(rows == sorted(rows) for rows in values)
    assert all(rows for rows in values), "every subtask has its share"


def test_what_was_answered_is_not_in_the_next_snapshot() -> None:
    """S3-32."""
    store = MemorySnapshotStore()
    with opened(operator(Service(answering=True)), store=store) as harness:
        harness.process(batch(1, 2, 3))
        harness.snapshot("chk-1")
        answers(harness, 3)
        snapshot = harness.snapshot("chk-2")
    with opened(operator(Service()), store=store, snapshots=[snapshot]) as successor:
        assert successor.operator.ready(finishing=True)


def test_event_time_does_not_overtake_rows() -> None:
    service = Service()
    with opened(operator(service)) as harness:
        holds = [harness.operator.watermark_hold()]
        harness.process(batch(1))
        holds.append(harness.operator.watermark_hold())
        harness.watermark(100)
        harness.process(batch(2))
        harness.watermark(200)
        service.let = {1}
        answers(harness, 1)
        holds.append(harness.operator.watermark_hold())
        service.let = {2}
        answers(harness, 2)
        holds.append(harness.operator.watermark_hold())
    assert holds == [None, MIN_WATERMARK, 100, None]


def test_a_request_that_takes_too_long_fails_the_operator_and_names_the_row() -> None:
    with opened(operator(Service(), timeout_ms=50)) as harness:
        harness.process(batch(7))
        assert harness.operator.next_processing_timer() == 50
        harness.clock.advance(49)
        assert harness.tick() == []
        harness.clock.advance(1)
        with pytest.raises(TimeoutError, match=re.escape("timed out after 50 ms: the request for the row {'v': 7}")):
            harness.tick()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_function_for_timeouts_says_what_goes_on(ordered: bool) -> None:
    service = Service()
    async_map = operator(
        service, timeout_ms=50, ordered=ordered, on_timeout=lambda row: [{"v": row["v"], "answer": None}]
    )
    with opened(async_map, clock=ManualClock(1_000)) as harness:
        harness.process(batch(1, 2))
        asked(service, 1, 2)
        harness.clock.advance(50)
        assert harness.tick() == [{"v": 1, "answer": None}, {"v": 2, "answer": None}]
        until(lambda: service.now == 0)


def test_an_error_of_the_function_is_the_operators() -> None:
    with opened(operator(Service(answering=True))) as harness:
        harness.process(batch(-1))
        with pytest.raises(ValueError, match="no such thing"):
            answers(harness, 1)


def test_an_exit_that_a_function_asks_for_is_an_error_and_no_timeout() -> None:
    """It ended the event loop: no request was ever answered again, and each seemed to take too long."""

    async def leaves(row: dict[str, Any]) -> list[dict[str, Any]]:
        raise SystemExit(3)

    async_map = AsyncMap(leaves, SCHEMA, RequestLimits(10, 1_000), on_timeout=lambda row: [])
    with opened(async_map) as harness:
        harness.process(batch(1))
        with pytest.raises(RuntimeError, match=re.escape("the function called sys.exit(3) for the row {'v': 1}")):
            until(lambda: harness.tick() and False)


def test_a_function_that_holds_up_its_loop_is_left_behind_and_its_loop_closed_when_it_returns() -> None:
    """Else each restart in the same process would leave an open loop."""
    loops: list[asyncio.AbstractEventLoop] = []
    go_on = threading.Event()

    async def blocks(row: dict[str, Any]) -> list[dict[str, Any]]:
        loops.append(asyncio.get_running_loop())
        go_on.wait()
        return []

    with opened(AsyncMap(blocks, SCHEMA, RequestLimits(10, 1_000), close_timeout_s=0.01)) as harness:
        harness.process(batch(1))
        until(lambda: loops)
    assert not loops[0].is_closed()
    go_on.set()
    until(loops[0].is_closed)


def test_closing_ends_the_thread_and_what_is_under_way() -> None:
    """S0-43."""
    before = threading.active_count()
    service = Service()
    with opened(operator(service)) as harness:
        harness.process(batch(1, 2, 3))
        asked(service, 1, 2, 3)
        assert threading.active_count() == before + 1
    assert (threading.active_count(), service.now) == (before, 0)
    operator(service).close()  # one that was never opened


@pytest.mark.parametrize(("capacity", "timeout_ms", "field"), [(0, 1, "capacity"), (1, 0, "timeout_ms")])
def test_limits_that_make_no_sense_are_refused(capacity: int, timeout_ms: int, field: str) -> None:
    with pytest.raises(JobRejected, match=field):
        RequestLimits(capacity, timeout_ms)


def test_a_request_that_outlives_its_batch_does_not_keep_the_batch_alive() -> None:
    service = Service()
    async_map = AsyncMap(service, SCHEMA, RequestLimits(10, 1_000_000), ordered=False)
    with opened(async_map) as harness:
        harness.process(pa.record_batch({"v": pa.array(range(1, 10_001), pa.int64())}).slice(0, 2))
        harness.process(batch(-7, 20_000))
        sizes = [memory_kept_alive(request.stored) for request in async_map._requests]
        assert len(sizes) == 4
        assert max(sizes) < 1_000
        assert [request.stored.to_pydict() for request in list(async_map._requests)[:2]] == [{"v": [1]}, {"v": [2]}]
