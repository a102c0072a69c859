"""The supervisor of a standing stage: claims it, keeps its process alive, and releases it when the worker shuts down.

The process is `python -m spark_jobs stand VERB …`, without access to Postgres. It reads the parameters from the first
line of its stdin; end of file on stdin means that its supervisor is gone. It writes reports to stdout, a JSON object a
line, and ends between two steps on SIGTERM. The supervisor is independent of the stage's work.

A process that died is started again according to the restart strategy of the job version. A completed step resets the
count of consecutive failures. A stage that exhausts its restarts fails its run.
"""

import contextlib
import fcntl
import os
import random
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
from django.conf import settings

from console.celery import is_shutting_down
from console.child_process import Child, describe_exit
from console.jobs import job_settings, services
from console.jobs.child_environment import stage_environment
from console.jobs.models import StageState, StandingStage
from console.jobs.stages import REJECTED_CODE
from console.runs import run_store, standing_stages
from console.runs.db_retry import CONNECTION_ERRORS, close_failed_connection, retry_until_reachable
from console.runs.lease import new_lease_owner
from console.runs.scratch import scratch_folder
from console.runs.standing_stages import StageReport
from runtime.core.job.restart_strategy import AttemptFailure
from runtime.redaction import redact

log = structlog.get_logger(__name__)

HEARTBEAT_S = 1.0
RELEASE_TIMEOUT_S = 3.0
CANNOT_START_CODE = 126  #: as in a shell
#: Pipe buffer larger than the parameters, which are limited to 64 KiB, so that writing them never blocks.
_STDIN_PIPE_BYTES = 256 * 1024
_MAX_LINE_BYTES = 64 * 1024


class StageError(msgspec.Struct, frozen=True):
    """The stage's own error: why it cannot succeed, or why its process died."""

    code: str
    detail: str
    field: str = ""


class _Line(msgspec.Struct, frozen=True):
    """A line on stdout: a report, the error that ends the process, or `done` when all work is complete."""

    report: StageReport | None = None
    error: StageError | None = None
    done: bool = False


class StopReason(StrEnum):
    """Why the supervisor stopped attending to a stage."""

    LEAVING = "the worker was shut down"
    RUN_ENDED = "its run has ended"
    LEASE_LOST = "its lease was lost"


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    code: int
    reason: str
    error: StageError | None
    lived_s: float
    steps: int
    log_tail: list[str]


def supervise(stage_id: int) -> None:
    """Claim the stage and supervise it as long as its run lasts. Losing the claim is a normal return."""
    owner = new_lease_owner()
    stage = standing_stages.claim(stage_id, owner)
    if stage is None:
        log.info("standing stage is not to be claimed", stage=stage_id)
        return
    with structlog.contextvars.bound_contextvars(stage=stage_id, run=stage.run_id, operator=stage.operator):
        log.info("standing stage claimed")
        _StageSupervision(stage, owner).keep_alive()


class _StageSupervision:
    def __init__(self, stage: StandingStage, owner: str) -> None:
        self._stage, self._owner = stage, owner
        self._version = stage.run.version
        self._restart = job_settings.parse(self._version.settings).restart
        self._deaths = 0

    def keep_alive(self) -> None:
        while (token := self._begin()) is not None:
            died = self._run_process(token)
            if died is None or not self._on_death(died):
                return

    def _begin(self) -> int | None:
        return retry_until_reachable(partial(standing_stages.begin, self._stage.pk, self._owner), is_shutting_down)

    # ------------------------------------------------------------ a process

    def _run_process(self, token: int) -> ProcessDeath | None:
        """Start a process and watch it. None if the stage was released or has ended, which is then on record."""
        with scratch_folder(f"stage-{self._stage.pk}", token) as scratch:
            return self._run_process_in(token, scratch)

    def _run_process_in(self, token: int, scratch: dict[str, str]) -> ProcessDeath | None:
        began = time.monotonic()
        name = f"stage-run-{self._stage.run_id}-{self._stage.operator}".replace("/", "_")
        with _Pipes(msgspec.json.encode(self._version.params) + b"\n") as pipes:
            try:
                child = Child(
                    self._command(token),
                    Path(settings.WEIR_LOGS) / f"{name}.log",
                    stdin=pipes.stdin,
                    stdout=pipes.stdout,
                    environment=stage_environment() | scratch,
                )
            except OSError as error:
                return ProcessDeath(CANNOT_START_CODE, f"Its process could not be started: {error}", None, 0.0, 0, [])
            pipes.close_ends_of_child()
            reader = _Reader(pipes.reports)
            with child:
                log.info("standing stage started", pid=child.pid, token=token)
                seen = self._watch(child, reader)
                code = child.end()
        reader.join()
        if isinstance(seen, StopReason):
            self._record_stop(seen)
            return None
        if reader.done and code == 0:
            if (last := reader.take()) is not None:
                retry_until_reachable(
                    partial(standing_stages.renew, self._stage.pk, self._owner, last), is_shutting_down
                )
            self._end(StageState.DONE)
            return None
        lived_s, error_said = time.monotonic() - began, reader.error
        reason = seen or (error_said.detail if error_said else f"Its process ended with {describe_exit(code)}.")
        return ProcessDeath(code, self._redact(reason), error_said, lived_s, reader.report.steps, child.log_tail())

    def _command(self, token: int) -> list[str]:
        stage, version = self._stage, self._version
        return [
            *settings.WEIR_STAGES_COMMAND,
            *("stand", stage.verb),
            *("--pipeline", version.job.pipeline),
            *("--operator", stage.operator),
            *("--run", str(stage.run_id)),
            *("--token", str(token)),
            *("--inputs", str(run_store.inputs_folder(stage.run))),
            *("--columns", str(services.columns_folder(version))),
            *("--streams", str(run_store.streams_folder(stage.run))),
        ]

    def _watch(self, child: Child, reader: "_Reader") -> StopReason | str | None:
        """Why the process is no longer needed here, or why it must be killed; None if it has exited by itself."""
        silent_since = time.monotonic()
        while not child.wait(HEARTBEAT_S):
            if is_shutting_down():
                self._terminate(child)
                return StopReason.LEAVING
            report = reader.take()
            if report is not None:
                silent_since = time.monotonic()
            parted = self._renew(report)
            if parted is StopReason.RUN_ENDED:
                self._terminate(child)
            if parted is not None:
                return parted
            if (silent_s := time.monotonic() - silent_since) > settings.WEIR_STAGE_SILENCE_S:
                return f"Its process gave no sign for {silent_s:.0f} s and was killed."
        return None

    def _renew(self, report: StageReport | None = None) -> StopReason | None:
        """Renew the lease. None if the stage goes on; a Postgres outage does not end it."""
        try:
            if not standing_stages.renew(self._stage.pk, self._owner, report):
                return StopReason.LEASE_LOST
            return None if standing_stages.is_wanted(self._stage.pk) else StopReason.RUN_ENDED
        except CONNECTION_ERRORS as error:
            log.warning("lease not renewed, postgres is away", error=str(error).strip())
            close_failed_connection()
            return None

    def _terminate(self, child: Child) -> None:
        """Send SIGTERM, on which the process ends after its current step. The caller kills it on timeout, which loses
        the step.
        """
        child.terminate()
        if not child.wait(settings.WEIR_SUSPEND_TIMEOUT_S):
            log.warning("the standing stage did not end in time", pid=child.pid)

    def _record_stop(self, parted: StopReason) -> None:
        """Record the end of attendance after the process is gone: only then may another supervisor start the next
        process.
        """
        log.info("standing stage left", reason=parted.value)
        match parted:
            case StopReason.LEAVING:
                deadline = time.monotonic() + RELEASE_TIMEOUT_S
                leave = partial(standing_stages.release, self._stage.pk, self._owner)
                retry_until_reachable(leave, give_up=lambda: time.monotonic() > deadline)
            case StopReason.RUN_ENDED:
                self._end(StageState.ENDED)
            case StopReason.LEASE_LOST:
                pass

    def _end(self, state: StageState, reason: str = "") -> None:
        retry_until_reachable(
            partial(standing_stages.end, self._stage.pk, self._owner, state, reason), is_shutting_down
        )

    # ------------------------------------------------------------ the next process

    def _on_death(self, died: ProcessDeath) -> bool:
        log.warning("standing stage died", reason=died.reason, lived_s=round(died.lived_s, 1), code=died.code)
        if died.code == REJECTED_CODE and died.error is not None:
            self._fail_run(died.error, f"The stage of {self._stage.operator}: {died.reason}", died)
            return False
        draw = random.random()  # noqa: S311 - it keeps no secret
        failure = AttemptFailure(ran_ms=int(died.lived_s * 1000), progressed=died.steps > 0, draw=draw)
        verdict = self._restart.decide(failure, self._deaths)
        self._deaths = verdict.failures
        if verdict.delay_ms is None:
            times = f"it was restarted {self._deaths - 1} times, as often as the restart strategy allows"
            message = f"The stage of {self._stage.operator} died again; {times}: {died.reason}"
            self._fail_run(died.error or StageError("stage-died", died.reason), message, died)
            return False
        note = partial(standing_stages.record_death, self._stage.pk, self._owner, died.reason)
        return bool(retry_until_reachable(note, is_shutting_down)) and self._pause(verdict.delay_ms)

    def _fail_run(self, error: StageError, message: str, died: ProcessDeath) -> None:
        """Fail the run, retrying until it is in a state that may fail; then fail the stage."""
        failure = {
            "code": error.code,
            "message": message,
            "operator": self._stage.operator,
            "detail": "\n".join(self._redact(line) for line in died.log_tail),
        }
        while not retry_until_reachable(partial(run_store.fail, self._stage.run_id, failure, None), is_shutting_down):
            parted = StopReason.LEAVING if is_shutting_down() else self._renew()
            if parted is not None:
                self._record_stop(parted)
                return
            time.sleep(HEARTBEAT_S)
        self._end(StageState.FAILED, self._redact(message))

    def _pause(self, delay_ms: int) -> bool:
        """Wait before the next process while renewing the lease. False if no process may follow here."""
        until = time.monotonic() + delay_ms / 1000
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, HEARTBEAT_S))
            parted = StopReason.LEAVING if is_shutting_down() else self._renew()
            if parted is not None:
                self._record_stop(parted)
                return False
        return True

    def _redact(self, text: str) -> str:
        """`text` without secrets, which the author's code may have printed."""
        return redact(text, self._version.params, services.parameter_schema(self._version))


class _Pipes:
    """Stdin and stdout of a process. Its stdin stays open as long as the supervisor lives."""

    def __init__(self, first_line: bytes) -> None:
        self.stdin, self._lifeline = os.pipe()
        self.reports, descriptor = os.pipe()
        self.stdout = os.fdopen(descriptor, "wb")
        with contextlib.suppress(OSError):  # the user's pipe quota may be used up; then a long write may block
            fcntl.fcntl(self._lifeline, fcntl.F_SETPIPE_SZ, _STDIN_PIPE_BYTES)
        os.write(self._lifeline, first_line)
        self._is_child_there = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lifeline)
        if not self._is_child_there:
            self.close_ends_of_child()
            os.close(self.reports)

    def close_ends_of_child(self) -> None:
        """Close the child's ends once the process has them. From then on the reader owns `reports`."""
        self._is_child_there = True
        os.close(self.stdin)
        self.stdout.close()


class _Reader:
    """Reads the reports of a process until it closes its stdout. `take` returns each newest report once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.report = StageReport()
        self.error: StageError | None = None
        self.done = False  #: all work is complete
        self._untaken: StageReport | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stage-reports", daemon=True)
        self._thread.start()

    def take(self) -> StageReport | None:
        with self._lock:
            fresh, self._untaken = self._untaken, None
        return fresh

    def join(self) -> None:
        """Wait for the last lines of an ended process. Its session is gone, so the pipe is at end of file."""
        self._thread.join(HEARTBEAT_S)

    def _run(self) -> None:
        with os.fdopen(self._descriptor, "rb") as lines:
            for line in iter(partial(lines.readline, _MAX_LINE_BYTES), b""):
                self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        try:
            said: Any = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            log.warning("a standing stage reported something unreadable", error=str(error))
            return
        with self._lock:
            if said.report is not None:
                self.report = self._untaken = said.report
            self.error = said.error or self.error
            self.done = self.done or said.done
