"""The JVM of a Spark driver: calls that steer it are bounded, and a JVM that does not answer is killed.

A call that takes longer than `CALL_TIMEOUT_S` kills the JVM with all its descendants. This process can then start no
more slots: the supervisor starts a fresh job master.
"""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import Final, TypeVar

import psutil
import structlog
from pyspark import SparkContext

from runtime.errors import EnvironmentFailure
from runtime.launch.bounded_calls import CALL_TIMEOUT_S, BoundedCalls

_KILL_TIMEOUT_S: Final = 5.0

T = TypeVar("T")
log = structlog.get_logger()


class JvmLost(EnvironmentFailure):
    """The JVM of the driver has exited, or did not answer and was killed. The message names the cause."""


class DriverJvm:
    """The JVM behind `context`. Thread-safe. A single thread makes the calls, since PySpark connects each thread."""

    def __init__(self, context: SparkContext) -> None:
        self._process = getattr(context._gateway, "proc", None)  # None: another program has started the JVM
        self._killed_for = ""
        self._killing = threading.Lock()
        self._calls = BoundedCalls()

    @property
    def loss(self) -> str:
        """Why the JVM is gone; "" while its process exists. Calls nothing in the JVM."""
        if self._killed_for:
            return self._killed_for
        code = None if self._process is None else self._process.poll()
        return "" if code is None else f"the JVM of the Spark driver {_describe_exit(code)}"

    def call(self, name: str, function: Callable[[], T]) -> T:
        """Returns the result of `function`, which calls the JVM. `name` is for the error.

        Raises:
            JvmLost: the JVM is gone, or `CALL_TIMEOUT_S` have passed, and it was killed.
            Exception: as raised by `function`.
        """
        if loss := self.loss:
            raise JvmLost(loss)
        try:
            return self._calls.call(function)
        except queue.Empty:
            self._kill(
                f"the JVM of the Spark driver did not answer {name} within {CALL_TIMEOUT_S:.0f} s and was killed"
            )
            raise JvmLost(self._killed_for) from None
        except Exception as error:
            if loss := self.loss:
                raise JvmLost(loss) from error
            raise

    def _kill(self, reason: str) -> None:
        with self._killing:
            if self._killed_for:
                return
            self._killed_for = reason
            log.error("the JVM of the Spark driver is killed", reason=reason)
            if self._process is not None:
                _kill_family(self._process.pid)
                self._process.wait(_KILL_TIMEOUT_S)


def _kill_family(pid: int) -> None:
    """Kills the process, all its descendants, and the process groups that these lead: workers that Spark has forked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for each in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                is_leader = os.getpgid(each.pid) == each.pid
                os.killpg(each.pid, signal.SIGKILL) if is_leader else os.kill(each.pid, signal.SIGKILL)


def _describe_exit(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, which Linux also sends when memory is exhausted"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
