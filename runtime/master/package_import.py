"""Import of a job's package by its job master, before the job is known.

A failure is a failed attempt of the run. `Failover` decides about it, as about any other: an outage of the storage,
or a full disk below the cache of the host, is waited out at growing intervals. Pages, health and alerts name it. A
package that is missing or damaged, or that fits another deployment, ends the run.
"""

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.attempt.failover import Failover, GiveUp
from runtime.core.attempt.result import master_failure
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.core.job.restart_strategy import RestartStrategy
from runtime.errors import EnvironmentFailure, JobRejected, WeirError
from runtime.io.package_cache import import_package
from runtime.master.config import OUTAGE_BACKOFF
from runtime.master.metadata_thread import RETRY_INTERVAL_S
from runtime.run_store import RunStore

T = TypeVar("T")
_CHECK_INTERVAL_S: Final = 1.0  #: between two checks for a cancel

log = structlog.get_logger()


class PackageImport:
    """The import of the package that the environment names, if it names one. Call `run` once."""

    def __init__(self, records: RunStore, token: Token, restart: RestartStrategy, on_alive: Callable[[], None]) -> None:
        """`on_alive` is called at least each second."""
        self._records, self._token, self._on_alive = records, token, on_alive
        self._failover, self._clock = Failover(restart, OUTAGE_BACKOFF), SystemClock()

    def run(self) -> Token | MasterExitCode:
        """The token of the attempt that has imported the package, or the exit code of the master."""
        while True:
            self._on_alive()
            try:
                import_package(os.environ)
            except (EnvironmentFailure, JobRejected) as error:
                exit_code = self._on_failure(error)
                if exit_code is not None:
                    return exit_code
            else:
                return self._token

    def _on_failure(self, error: WeirError) -> MasterExitCode | None:
        """Records a failure. Returns None if another attempt follows, once it is due."""
        draw = random.random()  # noqa: S311 - it keeps no secret
        decision = self._failover.decide(master_failure(error), self._clock.now_ms(), draw)
        log.warning("the package is not imported", **decision.failure)
        if isinstance(decision, GiveUp):
            return self._end(RunEvent.GAVE_UP, "failed", decision.failure)
        token = self._retry(partial(self._records.next_attempt, decision.reason, decision.failure))
        if token is None:
            return MasterExitCode.SUPERSEDED
        self._token = token
        self._retry(partial(self._records.change_state, RunEvent.ATTEMPT_FAILED))
        self._retry(self._records.requeue_operations)
        return self._await(decision.delay_ms)

    def _await(self, delay_ms: float) -> MasterExitCode | None:
        """Waits for the next attempt. Returns an exit code after a cancel or a newer attempt."""
        until = self._clock.monotonic_ms() + delay_ms
        while (rest_ms := until - self._clock.monotonic_ms()) > 0:
            self._on_alive()
            threading.Event().wait(min(rest_ms / 1000, _CHECK_INTERVAL_S))
            try:
                requests = self._records.take_operations(only_cancel=True)
            except EnvironmentFailure:  # the next check comes within a second
                continue
            if requests is None:
                return MasterExitCode.SUPERSEDED
            if requests:
                return self._cancel(requests)
        return None

    def _cancel(self, requests: Sequence[OperationRequest]) -> MasterExitCode:
        self._retry(partial(self._records.change_state, RunEvent.CANCEL_REQUESTED))
        exit_code = self._end(RunEvent.ENDED, "canceled")
        for request in requests:
            self._retry(partial(self._records.complete_operation, request.id, {}, None))
        return exit_code

    def _end(self, event: RunEvent, outcome: str, failure: Mapping[str, Any] | None = None) -> MasterExitCode:
        self._retry(partial(self._records.end_attempt, outcome, str(failure["message"]) if failure else ""))
        state = self._retry(partial(self._records.change_state, event, failure))
        return MasterExitCode.SUPERSEDED if state is None else MasterExitCode.DONE

    def _retry(self, work: Callable[[], T]) -> T:
        """Calls `work` until the database is available."""
        while True:
            self._on_alive()
            try:
                return work()
            except EnvironmentFailure as error:
                log.warning("waiting for the database", error=str(error))
                threading.Event().wait(RETRY_INTERVAL_S)
