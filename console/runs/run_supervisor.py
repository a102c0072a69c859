"""The supervisor of a run: claims it, keeps its job master alive, and releases it when the worker shuts down.

The supervisor decides whether to start another attempt, release the run or fail it. It sees only the exit code, stdin
(which closes with the supervisor, so no orphan survives), heartbeat file ($WEIR_BEAT_FILE) and rows of the master.
"""

import signal
import subprocess
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from django.conf import settings

from console.child_process import Child, describe_exit
from console.jobs import child_environment
from console.jobs.models import JobVersion, Run
from console.runs import run_store
from console.runs.heartbeat_file import HeartbeatFile
from console.runs.lease import new_lease_owner
from console.runs.scratch import scratch_folder
from console.runs.supervisor import CANNOT_START_CODE, Silence, StopReason, Supervisor
from runtime.core.job.lifecycle import MasterExitCode

log = structlog.get_logger(__name__)

#: A master that lived this many seconds has made progress: its death is unrelated to the previous death.
PROGRESS_AFTER_S = 600.0


@dataclass(frozen=True, slots=True)
class MasterExit:
    code: int
    how: str
    lived_s: float
    log_tail: list[str]


def supervise(run_id: int) -> None:
    """Claims the run and supervises it to its end. Losing the claim is a normal return."""
    owner = new_lease_owner()
    token = run_store.claim(run_id, owner)
    if token is None:
        log.info("run is not to be claimed", run=run_id)
        return
    with structlog.contextvars.bound_contextvars(run=run_id, owner=owner):
        log.info("run claimed", token=token)
        version = Run.objects.select_related("version__job").get(pk=run_id).version
        _RunSupervisor(run_id, owner, version).keep_alive(token)


class _RunSupervisor(Supervisor):
    def __init__(self, run_id: int, owner: str, version: JobVersion) -> None:
        super().__init__(owner, version)
        self._run_id = run_id

    def keep_alive(self, first: int) -> None:
        token: int | None = first
        while token is not None:
            token = self._next_token(self._run_master(token))

    def _run_master(self, token: int) -> MasterExit | StopReason:
        """Starts a master and watches it until it exits or must be killed."""
        master = settings.WEIR_BATCH_COMMAND if self._version.is_batch else settings.WEIR_MASTER_COMMAND
        command = [*master, str(self._run_id), str(token)]
        began, log_file = time.monotonic(), Path(settings.WEIR_LOGS) / f"run-{self._run_id}.log"
        with scratch_folder(f"run-{self._run_id}", token) as scratch:
            try:
                pulse = HeartbeatFile(log_file.with_suffix(".beat"))
                names = self._version.job.pipeline, self._version.package_id
                environment = self._record(child_environment.master_environment, pulse.file, *names)
                if environment is None:
                    return StopReason.SHUTDOWN
                child = Child(command, log_file, stdin=subprocess.PIPE, environment=environment | scratch)
            except OSError as error:
                how = f"ended with {describe_exit(CANNOT_START_CODE)}"
                return MasterExit(CANNOT_START_CODE, how, 0.0, [str(error)])
            with child:
                log.info("job master started", pid=child.pid, token=token)
                why = self._watch(child, pulse.silent_s, settings.WEIR_MASTER_SILENCE_S)
                code = child.end()
        if isinstance(why, StopReason) and code != MasterExitCode.DONE:
            return why
        return MasterExit(code, _describe_end(code, why), time.monotonic() - began, child.log_tail())

    def _renew_lease(self) -> StopReason | None:
        if run_store.renew(self._run_id, self._owner):
            return None
        return StopReason.RUN_ENDED if run_store.has_ended(self._run_id) else StopReason.LEASE_LOST

    def _on_run_ended(self, child: Child) -> None:
        child.wait(settings.WEIR_SUSPEND_TIMEOUT_S)  # the master cleans up

    def _stop(self, reason: StopReason) -> None:
        """Releases the run. Has no effect if the run has ended, or if the lease already has another owner."""
        self._release(partial(run_store.release, self._run_id, self._owner, reason.value))
        log.info("run left", reason=reason.value)

    # ------------------------------------------------------------ the next attempt

    def _next_token(self, ended: MasterExit | StopReason) -> int | None:
        """The token of the next attempt; None if this supervisor is finished with the run."""
        if isinstance(ended, StopReason):
            self._stop(ended)
            return None
        log.info("job master ended", how=ended.how, lived_s=round(ended.lived_s, 1))
        match ended.code:
            case MasterExitCode.SUPERSEDED:
                return None
            case MasterExitCode.RELEASED:
                self._stop(StopReason.SUSPENDED)
                return None
            case MasterExitCode.DONE if self._record(run_store.has_ended, self._run_id) is not False:
                return None
            case _:
                return self._on_death(ended)

    def _on_death(self, ended: MasterExit) -> int | None:
        delay_ms = self._restart_delay_ms(ended.lived_s, progressed=ended.lived_s > PROGRESS_AFTER_S)
        reason, lines = f"The job master {ended.how}", [self._redact(line) for line in ended.log_tail]
        if delay_ms is None:
            message = f"{reason}; it was restarted {self._deaths - 1} times, as often as its restart strategy allows."
            failure = {"code": "master-died", "message": message, "detail": "\n".join(lines)}
            self._record(run_store.fail, self._run_id, failure, self._owner)
            return None
        token = self._record(run_store.restart, self._run_id, self._owner, f"{reason}.", {"log": lines})
        return token if token is not None and self._pause(delay_ms) else None


def _describe_end(code: int, why: StopReason | Silence | None) -> str:
    if isinstance(why, Silence) and code == -signal.SIGKILL:
        return f"gave no sign for {why.silent_s:.0f} s and was killed"
    return "lost its Spark application" if code == MasterExitCode.BROKEN else f"ended with {describe_exit(code)}"
