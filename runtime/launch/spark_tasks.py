"""Pool members as Spark jobs of one task each. The launchers of classic Spark and of Spark Connect build on it."""

import re
import secrets
import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from runtime.clock import SystemClock
from runtime.launch.slot_pool import POLL_INTERVAL_S, SlotPool, SlotPoolLauncher

STOP_TIMEOUT_S: Final = 15.0
_EXECUTOR_LOST_MARK: Final = "ExecutorLostFailure"
_MAX_SUMMARY_HALF_CHARACTERS: Final = 500  #: kept of each end of an error text
#: Error lines without information: blank, Py4J's prefix, traceback marks and locations, lists of folders.
_NOISE_LINE: Final = re.compile(
    r"\s*$|An error occurred while calling |\s+\^+$|\s+File \"|PYTHONPATH was:|\s+/\S+:/\S+$"
)

log = structlog.get_logger()


class SparkTaskLauncher(SlotPoolLauncher):
    """Base of launchers that run a member in a Spark job, which a thread of this process waits for."""

    def __init__(self, spares: int = 0) -> None:
        super().__init__(spares=spares)
        self._threads: dict[int, threading.Thread] = {}  #: by member: they wait for the end of its Spark job
        self._tag = secrets.token_hex(8)  # job masters on a Spark Connect server share a session, and so its tags

    @abstractmethod
    def warm_up(self, slots: int) -> None:
        """Connects to Spark ahead of the first slot, as far as that is possible now.

        Raises:
            JobRejected: no retry can help.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnects from Spark."""

    @abstractmethod
    def cancel(self, tag: str) -> None:
        """Cancels the Spark jobs with a tag. Takes a few seconds at most, and logs an error."""

    def is_replaced(self, error: Exception) -> bool:
        """Whether a member that Spark has lost by `error` before it connected is replaced without an error."""
        return _EXECUTOR_LOST_MARK in str(error)

    def describe(self, error: Exception) -> str:
        """The error of a member's Spark job, for the run."""
        return summarize_error(error)

    def tag_of(self, number: int) -> str:
        """The tag of the Spark job of a member."""
        return f"slots-{self._tag}-{number}"

    def start_thread(self, pool: SlotPool, number: int, run_task: Callable[[], None]) -> None:
        """Starts the thread of a member. `run_task` tags and runs its Spark job, and returns at its end."""
        thread = threading.Thread(target=self._run_member, args=(pool, number, run_task), daemon=True)
        thread.start()
        self._threads[number] = thread

    def _run_member(self, pool: SlotPool, number: int, run_task: Callable[[], None]) -> None:
        detail, is_retried = "its task ended before it connected", False
        try:
            run_task()
        except Exception as error:
            detail, is_retried = self.describe(error), self.is_replaced(error)
        pool.on_end(number, detail, is_retried=is_retried)

    def kill_member(self, number: int) -> None:
        self._threads.pop(number, None)
        self.cancel(self.tag_of(number))

    def end_members(self) -> None:
        """Cancels the tasks of members that do not exit by themselves. Spark kills their processes, even stopped ones.

        A cancel ends only jobs that have begun, so it is repeated.
        """
        clock, patience_ms = SystemClock(), 1000.0 * STOP_TIMEOUT_S
        began_at = clock.monotonic_ms()
        while alive := {number: thread for number, thread in self._threads.items() if thread.is_alive()}:
            waited_ms = clock.monotonic_ms() - began_at
            if waited_ms >= patience_ms:
                log.error("Spark jobs do not end and keep their tasks", tags=[self.tag_of(number) for number in alive])
                break
            if waited_ms >= 1000:
                for number in alive:
                    self.cancel(self.tag_of(number))
            next(iter(alive.values())).join(POLL_INTERVAL_S)
        self._threads.clear()


def summarize_error(error: BaseException) -> str:
    """Beginning (the failed step) and end (the cause) of a Spark error, which has pages, without Java frames."""
    lines = []
    for line in str(error).splitlines():
        if line.startswith("\tat "):
            break
        if not _NOISE_LINE.match(line):
            lines.append(line.strip().removeprefix(": "))
    text = " ".join(lines)
    if len(text) > 2 * _MAX_SUMMARY_HALF_CHARACTERS:
        text = f"{text[:_MAX_SUMMARY_HALF_CHARACTERS]} ... {text[-_MAX_SUMMARY_HALF_CHARACTERS:]}"
    return text or type(error).__name__
