"""Metadata thread of the master: writes its decisions in order, and retries while database or storage is unavailable.

Data and heartbeats flow meanwhile; only the completion of checkpoints waits.
"""

import math
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from runtime.clock import Deadline
from runtime.errors import EnvironmentFailure

RETRY_INTERVAL_S: Final = 0.25
HUNG_CLOSE_S: Final = 1.0  #: how long `close` waits for a hung call
log = structlog.get_logger()

Work = Callable[[], Any]


class MetadataThread:
    """`submit` never blocks. Work that raises EnvironmentFailure is retried until it succeeds or `close` gives up."""

    def __init__(
        self, failed: Callable[[BaseException], None], name: str = "metadata", call_limit_s: float = math.inf
    ) -> None:
        """`failed` is called with any other exception, on the thread, which then ends.

        A call that takes longer than `call_limit_s` counts as hung.
        """
        self._queue: queue.SimpleQueue[tuple[Work, Callable[[Any], None] | None, bool] | None] = queue.SimpleQueue()
        self._on_failure, self._call_limit_s = failed, call_limit_s
        self._closing = threading.Event()
        self._closed = False
        self._call_deadline: Deadline | None = None  #: of the current call; None between calls
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Whether work is queued; optional reports are then better skipped."""
        return not self._queue.empty()

    @property
    def is_hung(self) -> bool:
        """Whether a call does not return: storage, database or a sink does not answer. A retry is another call."""
        deadline = self._call_deadline
        return deadline is not None and deadline.has_passed

    def submit(self, work: Work, then: Callable[[Any], None] | None = None, *, once: bool = False) -> None:
        """Queues `work`; `then` gets its result on the metadata thread. With `once`, EnvironmentFailure is a result."""
        if not self._closed:
            self._queue.put((work, then, once))
        elif threading.current_thread() is not self._thread:
            self._run_after_close(work)

    def pause(self, pause_s: float) -> bool:
        """Waits `pause_s` seconds on the metadata thread. Returns False once `close` has given up."""
        return not self._closing.wait(pause_s)

    def close(self, timeout_s: float) -> None:
        """Finishes queued work for at most `timeout_s` seconds, then the current work for as long.

        A thread that outlives the call starts nothing more: by then the records have the token of the next attempt.
        """
        self._queue.put(None)
        timeout_s = min(timeout_s, HUNG_CLOSE_S) if self.is_hung else timeout_s
        self._thread.join(timeout_s)
        self._closing.set()
        self._thread.join(timeout_s)
        self._closed = True

    @staticmethod
    def _run_after_close(work: Work) -> None:
        """Runs work that is submitted after `close`, at once. If it fails it is left to the next attempt."""
        try:
            work()
        except EnvironmentFailure as error:
            log.warning("left to the next attempt", error=str(error))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._closing.is_set():
            work, then, once = item
            try:
                result = self._run_with_retries(work, once)
                if then is not None and not self._closed:
                    self._call(then, result)
            except Exception as error:
                self._on_failure(error)
                return

    def _run_with_retries(self, work: Work, once: bool) -> Any:
        is_logged = False
        while True:
            try:
                return self._call(work)
            except EnvironmentFailure as error:
                if once:
                    return error
                if not is_logged:
                    log.warning("waiting for the database or storage", error=str(error))
                    is_logged = True
                if self._closing.wait(RETRY_INTERVAL_S):
                    raise

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._call_deadline = Deadline(self._call_limit_s)
        try:
            return function(*args)
        finally:
            self._call_deadline = None
