"""Asynchronous requests per row: many are in flight at a time, as in Flink's `AsyncWaitOperator` (FLIP-12).

The requests run on an event loop of their own, in a thread beside the slot's loop. A completed request wakes the
operator, which emits its rows. Rows without a response are state, so a restored job requests them again. Watermarks do
not overtake such rows, and the end of the input waits for their responses. Checkpoints do not wait for it.

A function that must block (a client without asyncio) should use `asyncio.to_thread`.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.core.job.messages import MIN_WATERMARK
from runtime.errors import JobRejected
from runtime.operators.functions.function import Row, RowCollector
from runtime.operators.functions.kept_rows import BufferedRows, concat_batches
from runtime.operators.functions.row_values import rows_of
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.own_memory import with_own_memory

AsyncFunction = Callable[[Row], Awaitable[Iterable[Row]]]
TimeoutFunction = Callable[[Row], Iterable[Row]]

CLOSE_TIMEOUT_S: Final = 2.0  #: time limit for cancelled requests to end


@dataclass(slots=True)
class _WaitingRows:
    """Rows that wait for capacity: no request has been made for them."""

    batch: pa.RecordBatch
    time: int  #: watermark when the rows arrived


@dataclass(slots=True)
class _Request:
    row: Row
    stored: pa.RecordBatch  #: the unchanged input row
    time: int
    deadline_ms: int
    future: "Future[list[Row]]"
    outlives_batch: bool = False  #: a later batch has arrived

    @property
    def is_done(self) -> bool:
        return self.future.done()


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Maximum number of requests in flight per subtask, and the time limit of a request."""

    capacity: int
    timeout_ms: int

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise JobRejected("bad-async", "capacity", f"at least 1 request at a time, not {self.capacity}")
        if self.timeout_ms < 1:
            raise JobRejected("bad-async", "timeout_ms", f"a request may take at least 1 ms, not {self.timeout_ms}")


class AsyncMap(Operator):
    """Applies an asynchronous row function.

    Args:
        function: maps a row (dict) to rows (dicts).
        schema: schema of the output rows; missing columns are null, unknown columns are refused.
        ordered: emit results in the order of the input rows; otherwise as they complete.
        on_timeout: rows to emit for a request that timed out; None: the operator fails.
    """

    def __init__(
        self,
        function: AsyncFunction,
        schema: pa.Schema,
        limits: RequestLimits,
        ordered: bool = True,
        on_timeout: TimeoutFunction | None = None,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._function = function
        self._limits = limits
        self._ordered = ordered
        self._on_timeout = on_timeout
        self._close_timeout_s = close_timeout_s
        self._schema = schema
        self._out = RowCollector(schema)
        self._waiting: deque[_WaitingRows] = deque()
        self._requests: deque[_Request] = deque()  #: oldest first
        self._time = MIN_WATERMARK
        self._runner: _EventLoopThread | None = None

    # ------------------------------------------------------------ lifecycle

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._kept = BufferedRows(context.state.object_table("_open_requests"))
        self._runner = _EventLoopThread(f"requests of {context.uid}/{context.index}", context.wake)

    def start(self, out: Collector) -> None:
        for batch in self._kept.read():
            self._enqueue(batch)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._enqueue(batch)

    def snapshot(self, checkpoint: int) -> None:
        rows = [request.stored for request in self._requests] + [waiting.batch for waiting in self._waiting]
        self._kept.replace(self._spread_over_groups(concat_batches(rows)) if rows else {})

    def finish(self, out: Collector) -> None:
        assert not self._requests, "finish was called with requests in flight"

    def keep_order(self) -> None:
        """Emits results in the order of the input rows. In BATCH a task that runs again must emit the same order."""
        self._ordered = True

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close(self._close_timeout_s)

    def output_columns(self) -> pa.Schema:
        return self._schema

    # ------------------------------------------------------------ watermarks and timers

    def ready(self, finishing: bool) -> bool:
        return not self._waiting and len(self._requests) < (1 if finishing else self._limits.capacity)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._time = watermark

    def watermark_hold(self) -> int | None:
        return self._requests[0].time if self._requests else None

    def next_processing_timer(self) -> int | None:
        if self._emittable():
            return self._context.now_ms()
        return next((request.deadline_ms for request in self._requests if not request.is_done), None)

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self._expire_requests(now_ms)
        with self._out.into(out):
            for request in self._emittable():
                self._requests.remove(request)
                for row in request.future.result():
                    self._out.emit(row)
        self._start_requests()

    # ------------------------------------------------------------ requests

    def _enqueue(self, batch: pa.RecordBatch) -> None:
        for request in self._requests:
            if not request.outlives_batch:
                request.stored, request.outlives_batch = with_own_memory(request.stored), True
        self._waiting.append(_WaitingRows(batch, self._time))
        self._start_requests()

    def _start_requests(self) -> None:
        """Makes requests for waiting rows, up to the capacity."""
        while self._waiting and len(self._requests) < self._limits.capacity:
            waiting = self._waiting[0]
            rows = waiting.batch.slice(0, self._limits.capacity - len(self._requests))
            for number, row in enumerate(rows_of(rows)):
                self._start_request(row, rows.slice(number, 1), waiting.time)
            waiting.batch = waiting.batch.slice(rows.num_rows)
            if not waiting.batch.num_rows:
                self._waiting.popleft()

    def _start_request(self, row: Row, stored: pa.RecordBatch, time: int) -> None:
        assert self._runner is not None, "requests are made after open"
        future = self._runner.submit(_await_rows(self._function, row))
        self._requests.append(_Request(row, stored, time, self._context.now_ms() + self._limits.timeout_ms, future))

    def _emittable(self) -> list[_Request]:
        """The requests whose rows may be emitted now."""
        if not self._ordered:
            return [request for request in self._requests if request.is_done]
        requests = []
        for request in self._requests:
            if not request.is_done:
                break
            requests.append(request)
        return requests

    def _expire_requests(self, now_ms: int) -> None:
        """Completes timed-out requests with the rows of `on_timeout`. Raises TimeoutError if `on_timeout` is None."""
        for request in self._requests:
            if request.deadline_ms > now_ms or request.is_done:
                continue
            if self._on_timeout is None:
                raise TimeoutError(
                    f"timed out after {self._limits.timeout_ms} ms: the request for the row {request.row}"
                )
            request.future.cancel()
            request.future = Future()
            request.future.set_result(list(self._on_timeout(request.row)))

    def _spread_over_groups(self, rows: pa.Table) -> dict[int, pa.Table]:
        """The rows spread over the key groups of this subtask, in order, so that a restore can redistribute them."""
        groups = self._context.key_groups
        size = -(-rows.num_rows // len(groups))
        return {
            group: rows.slice(number * size, size)
            for number, group in enumerate(groups)
            if number * size < rows.num_rows
        }


async def _await_rows(function: AsyncFunction, row: Row) -> list[Row]:
    try:
        return list(await function(row))
    except SystemExit as error:  # sys.exit would end the event loop and all other requests
        raise RuntimeError(f"the function called sys.exit({error}) for the row {row}") from error


class _EventLoopThread:
    """An event loop in a thread.

    Args:
        name: name of the thread.
        wake: called on the event loop's thread when a request has completed.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Any) -> "Future[list[Row]]":
        future: Future[list[Row]] = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self._wake())
        return future

    def close(self, timeout_s: float) -> None:
        """Cancels the requests in flight, and abandons them after `timeout_s`."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).add_done_callback(lambda _: self._stop())
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
