"""The supervisor of a run: claims it, keeps its job master alive, and releases it when the worker shuts down.

It decides whether to start another attempt, release the run or fail it. It knows of the master only its exit code, its
stdin (which closes with this process, so no orphan survives), the heartbeat file ($WEIR_BEAT_FILE) and its rows.

While Postgres is away the owner of the lease is unknown, so the child keeps running and only the recording waits.
"""

import random
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from django.conf import settings

from console.celery import is_shutting_down
from console.child_process import Child, describe_exit
from console.jobs import child_environment, job_settings
from console.jobs.models import Run
from console.jobs.services import parameter_schema
from console.runs import run_store
from console.runs.db_retry import retry_until_reachable
from console.runs.heartbeat_file import HeartbeatFile
from console.runs.lease import new_lease_owner, renew_lease
from console.runs.scratch import scratch_folder
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import AttemptFailure
from runtime.redaction import redact

log = structlog.get_logger(__name__)

HEARTBEAT_S = 1.0
#: A master that lived this long counts as progress: its death is unrelated to the previous death.
PROGRESS_AFTER_S = 600.0
#: How long a worker that shuts down tries to release its run; afterwards the reconciler does it.
RELEASE_TIMEOUT_S = 3.0
CANNOT_START_CODE = 126  #: as in a shell


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """Why this supervisor stopped watching a child that was still running."""

    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatLost:
    """The child's heartbeat was silent for too long, so it is killed."""

    silent_s: float


@dataclass(frozen=True, slots=True)
class MasterExit:
    code: int
    how: str
    lived_s: float
    log_tail: list[str]


def supervise(run_id: int) -> None:
    """Claim the run and supervise it to its end. Losing the claim is a normal return."""
    owner = new_lease_owner()
    token = run_store.claim(run_id, owner)
    if token is None:
        log.info("run is not to be claimed", run=run_id)
        return
    with structlog.contextvars.bound_contextvars(run=run_id, owner=owner):
        log.info("run claimed", token=token)
        _Supervision(run_id, owner).keep_alive(token)


class _Supervision:
    def __init__(self, run_id: int, owner: str) -> None:
        self._run_id = run_id
        self._owner = owner
        self._deaths = 0
        version = Run.objects.select_related("version__job").get(pk=run_id).version
        self._settings = job_settings.parse(version.settings)
        self._params, self._schema = version.params, parameter_schema(version)
        self._is_batch = version.is_batch

    def keep_alive(self, first: int) -> None:
        token: int | None = first
        while token is not None:
            token = self._next_token(self._run_master(token))

    # ------------------------------------------------------------ a child

    def _run_master(self, token: int) -> MasterExit | WatchEnded:
        """Start a master and watch it until it exits or is given up."""
        with scratch_folder(f"run-{self._run_id}", token) as scratch:
            return self._run_master_in(token, scratch)

    def _run_master_in(self, token: int, scratch: dict[str, str]) -> MasterExit | WatchEnded:
        master = settings.WEIR_BATCH_COMMAND if self._is_batch else settings.WEIR_MASTER_COMMAND
        command = [*master, str(self._run_id), str(token)]
        began, log_file = time.monotonic(), Path(settings.WEIR_LOGS) / f"run-{self._run_id}.log"
        try:
            pulse = HeartbeatFile(log_file.with_suffix(".beat"))
            environment = child_environment.master_environment(pulse.file) | scratch
            child = Child(command, log_file, stdin=subprocess.PIPE, environment=environment)
        except OSError as error:
            return MasterExit(CANNOT_START_CODE, f"ended with {describe_exit(CANNOT_START_CODE)}", 0.0, [str(error)])
        with child:
            log.info("job master started", pid=child.pid, token=token)
            why = self._watch(child, pulse)
            code = child.end()
        if isinstance(why, WatchEnded) and code != MasterExitCode.DONE:
            return why
        return MasterExit(code, _describe_end(code, why), time.monotonic() - began, child.log_tail())

    def _watch(self, child: Child, pulse: HeartbeatFile) -> WatchEnded | HeartbeatLost | None:
        while not child.wait(HEARTBEAT_S):
            if is_shutting_down():
                self._suspend(child)
                return WatchEnded("The worker was shut down.")
            if not self._renew():
                return self._on_lease_lost(child)
            if (silent_s := pulse.silent_s()) > settings.WEIR_MASTER_SILENCE_S:
                log.warning("job master hangs, ending it", pid=child.pid, silent_s=round(silent_s, 1))
                return HeartbeatLost(silent_s)
        return None

    def _suspend(self, child: Child) -> None:
        """Ask the master to suspend, so that another can continue from the last checkpoint. On timeout it is killed."""
        child.terminate()
        deadline = time.monotonic() + settings.WEIR_SUSPEND_TIMEOUT_S
        while (rest := deadline - time.monotonic()) > 0:
            if child.wait(min(rest, HEARTBEAT_S)) or not self._renew():
                return
        log.warning("job master did not suspend in time", pid=child.pid)

    def _on_lease_lost(self, child: Child) -> WatchEnded:
        """The run has ended, and the master may clean up; or it has another owner, and this master must be killed at
        once.
        """
        if run_store.has_ended(self._run_id):
            child.wait(settings.WEIR_SUSPEND_TIMEOUT_S)
            return WatchEnded("The run has ended.")
        log.warning("lease lost, ending the job master", pid=child.pid)
        return WatchEnded("The lease was lost.")

    def _renew(self) -> bool:
        return renew_lease(self._run_id, self._owner)

    # ------------------------------------------------------------ the next attempt

    def _release(self, left: WatchEnded) -> None:
        """Release the run. Has no effect if the lease already has another owner."""
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        release = partial(run_store.release, self._run_id, self._owner, left.reason)
        retry_until_reachable(release, give_up=lambda: time.monotonic() > deadline)
        log.info("run left", reason=left.reason)

    def _next_token(self, ended: MasterExit | WatchEnded) -> int | None:
        """The token of the next attempt; None if this supervisor is finished with the run."""
        if isinstance(ended, WatchEnded):
            self._release(ended)
            return None
        log.info("job master ended", how=ended.how, lived_s=round(ended.lived_s, 1))
        if ended.code == MasterExitCode.SUPERSEDED:
            return None
        if ended.code == MasterExitCode.RELEASED:
            self._release(WatchEnded("The job master suspended."))
            return None
        if (
            ended.code == MasterExitCode.DONE
            and retry_until_reachable(partial(run_store.has_ended, self._run_id), is_shutting_down) is not False
        ):
            return None
        return self._on_death(ended)

    def _on_death(self, ended: MasterExit) -> int | None:
        draw = random.random()  # noqa: S311 - it keeps no secret
        failure = AttemptFailure(
            ran_ms=int(ended.lived_s * 1000), progressed=ended.lived_s > PROGRESS_AFTER_S, draw=draw
        )
        verdict = self._settings.restart.decide(failure, self._deaths)
        self._deaths = verdict.failures
        reason = f"The job master {ended.how}"
        if verdict.delay_ms is None:
            self._fail_run(reason, ended)
            return None
        detail = {"log": self._redact(ended.log_tail)}
        restart = partial(run_store.restart, self._run_id, self._owner, f"{reason}.", detail)
        token = retry_until_reachable(restart, is_shutting_down)
        return token if token is not None and self._pause(verdict.delay_ms) else None

    def _fail_run(self, reason: str, ended: MasterExit) -> None:
        message = f"{reason}; it was restarted {self._deaths - 1} times, as often as its restart strategy allows."
        failure = {"code": "master-died", "message": message, "detail": "\n".join(self._redact(ended.log_tail))}
        retry_until_reachable(partial(run_store.fail, self._run_id, failure, self._owner), is_shutting_down)

    def _redact(self, log_tail: list[str]) -> list[str]:
        """The log tail without secrets, which the author's code may have printed."""
        return [redact(line, self._params, self._schema) for line in log_tail]

    def _pause(self, delay_ms: int) -> bool:
        """Wait before the next attempt while renewing the lease. False if it must not follow here."""
        until = time.monotonic() + delay_ms / 1000
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, HEARTBEAT_S))
            if is_shutting_down():
                self._release(WatchEnded("The worker was shut down."))
                return False
            if not self._renew():
                return False
        return True


def _describe_end(code: int, why: WatchEnded | HeartbeatLost | None) -> str:
    if isinstance(why, HeartbeatLost) and code == -signal.SIGKILL:
        return f"gave no sign for {why.silent_s:.0f} s and was killed"
    return "lost its Spark application" if code == MasterExitCode.BROKEN else f"ended with {describe_exit(code)}"
