"""Calls that steer Spark, with a time limit: neither PySpark nor its Connect client has one that suits a job master.

A JVM that is stopped, swaps or collects garbage for minutes would block the job master, which then recovers nothing.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

CALL_TIMEOUT_S: Final = 5.0  #: limit of each call that steers Spark: cancel, status, stop

T = TypeVar("T")


class BoundedCalls:
    """Makes calls one after the other in a thread of its own. Thread-safe."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="spark calls", daemon=True).start()

    def call(self, function: Callable[[], T]) -> T:
        """Returns the result of `function`.

        Raises:
            queue.Empty: `CALL_TIMEOUT_S` have passed. The call goes on, and delays the next.
            Exception: as raised by `function`.
        """
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        result, error = answer.get(timeout=CALL_TIMEOUT_S)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def submit(self, function: Callable[[], None]) -> None:
        """Calls `function` in the thread after the calls so far, without waiting for it."""
        self._calls.put((function, queue.SimpleQueue()))

    def close(self) -> None:
        """Ends the thread after the calls so far. No call may follow."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (next_call := self._calls.get()) is not None:
            function, answer = next_call
            try:
                answer.put((function(), None))
            except Exception as error:
                answer.put((None, error))
