"""A supervisor of a child process: renews a lease, watches the child, and starts it again after its death.

The child is a job master (`run_supervisor`) or the process of a standing stage (`stage_supervisor`). Its supervisor
owns a row by a lease. While Postgres is away the owner is unknown, so the child keeps running and only the recording
waits.
"""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeVar

import structlog
from django.conf import settings

from console.celery import is_shutting_down
from console.child_process import Child
from console.jobs.connections import connections_of
from console.jobs.inputs import parse_stored_settings
from console.jobs.models import JobVersion
from console.jobs.services import parameter_schema
from console.runs.db_retry import ignore_outage, retry_until_reachable
from runtime.access.redaction import redact
from runtime.access.secrets import resolved_texts
from runtime.core.job.restart_strategy import AttemptFailure

T = TypeVar("T")

HEARTBEAT_S = 1.0
#: Seconds for which a worker that shuts down tries to release its row; afterwards the reconciler releases it.
RELEASE_TIMEOUT_S = 3.0
CANNOT_START_CODE = 126  #: exit code if the child could not be started, as in a shell

log = structlog.get_logger(__name__)


class StopReason(StrEnum):
    """Why a supervisor stops while its child may still be running."""

    SHUTDOWN = "The worker was shut down."
    SUSPENDED = "The job master suspended."
    RUN_ENDED = "The run has ended."
    LEASE_LOST = "The lease was lost."


@dataclass(frozen=True, slots=True)
class Silence:
    """The child gave no sign of life for too long, so it is killed."""

    silent_s: float


class Supervisor(ABC):
    """Supervises one child at a time, under the lease of `owner`."""

    def __init__(self, owner: str, version: JobVersion) -> None:
        self._owner = owner
        self._version = version
        self._schema = parameter_schema(version)
        self._resolved = resolved_texts(version.params, connections_of(version.job.pipeline).values())
        self._restart = parse_stored_settings(version.settings).restart
        self._deaths = 0  #: consecutive

    @abstractmethod
    def _renew_lease(self) -> StopReason | None:
        """Renews the lease. Returns None while the row needs a child of this supervisor."""

    @abstractmethod
    def _on_run_ended(self, child: Child) -> None:
        """Gives a child whose run has ended time to exit. The caller kills the child afterwards."""

    @abstractmethod
    def _stop(self, reason: StopReason) -> None:
        """Records the stop. No child runs any more: only now may another supervisor start a child."""

    def _renew(self) -> StopReason | None:
        return ignore_outage(self._renew_lease)

    def _watch(self, child: Child, silent_s: Callable[[], float], limit_s: float) -> StopReason | Silence | None:
        """Waits until the child must be killed, and returns the reason; None if it has exited by itself."""
        while not child.wait(HEARTBEAT_S):
            if is_shutting_down():
                self._terminate(child)
                return StopReason.SHUTDOWN
            if (reason := self._renew()) is not None:
                if reason is StopReason.RUN_ENDED:
                    self._on_run_ended(child)
                else:
                    log.warning("lease lost, ending the child", pid=child.pid)
                return reason
            if (silence := Silence(silent_s())).silent_s > limit_s:
                log.warning("the child hangs, ending it", pid=child.pid, silent_s=round(silence.silent_s, 1))
                return silence
        return None

    def _terminate(self, child: Child) -> None:
        """Sends SIGTERM and waits up to WEIR_SUSPEND_TIMEOUT_S: a master suspends, a stage completes its step."""
        child.terminate()
        deadline = time.monotonic() + settings.WEIR_SUSPEND_TIMEOUT_S
        while (remaining_s := deadline - time.monotonic()) > 0:
            if child.wait(min(remaining_s, HEARTBEAT_S)) or self._renew() is StopReason.LEASE_LOST:
                return
        log.warning("the child did not end in time", pid=child.pid)

    def _restart_delay_ms(self, lived_s: float, *, progressed: bool) -> int | None:
        """The delay in ms after a death, by the restart strategy of the version; None if no further child may start."""
        draw = random.random()  # noqa: S311 - it keeps no secret
        failure = AttemptFailure(ran_ms=int(lived_s * 1000), progressed=progressed, draw=draw)
        verdict = self._restart.decide(failure, self._deaths)
        self._deaths = verdict.failures
        return verdict.delay_ms

    def _pause(self, delay_ms: int) -> bool:
        """Waits before the next child while renewing the lease. False if this supervisor must not start that child."""
        until = time.monotonic() + delay_ms / 1000
        while (remaining_s := until - time.monotonic()) > 0:
            time.sleep(min(remaining_s, HEARTBEAT_S))
            if (reason := StopReason.SHUTDOWN if is_shutting_down() else self._renew()) is not None:
                self._stop(reason)
                return False
        return True

    def _record(self, write: Callable[..., T], *arguments: object) -> T | None:
        """Calls `write` until Postgres answers; None if the worker shuts down first."""
        return retry_until_reachable(partial(write, *arguments), is_shutting_down)

    def _release(self, release: Callable[[], object]) -> None:
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        retry_until_reachable(release, give_up=lambda: time.monotonic() > deadline)

    def _redact(self, text: str) -> str:
        """`text` without secrets, which the author's code may have printed."""
        return redact(text, self._version.params, self._schema, self._resolved)
