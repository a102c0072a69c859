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
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
from django.conf import settings

from console.child_process import Child, describe_exit
from console.jobs import services
from console.jobs.child_environment import stage_environment
from console.jobs.models import StageState, StandingStage
from console.jobs.stages import REJECTED_CODE
from console.runs import run_store, standing_stages
from console.runs.lease import new_lease_owner
from console.runs.scratch import scratch_folder
from console.runs.standing_stages import StageReport
from console.runs.supervisor import CANNOT_START_CODE, HEARTBEAT_S, Silence, StopReason, Supervisor

log = structlog.get_logger(__name__)

_RETRY_FAIL_MS = 1_000
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


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    code: int
    reason: str
    error: StageError | None
    lived_s: float
    steps: int
    log_tail: list[str]


def supervise(stage_id: int) -> None:
    """Claims the stage and supervises it as long as its run lasts. Losing the claim is a normal return."""
    owner = new_lease_owner()
    stage = standing_stages.claim(stage_id, owner)
    if stage is None:
        log.info("standing stage is not to be claimed", stage=stage_id)
        return
    with structlog.contextvars.bound_contextvars(stage=stage_id, run=stage.run_id, operator=stage.operator):
        log.info("standing stage claimed")
        _StageSupervisor(stage, owner).keep_alive()


class _StageSupervisor(Supervisor):
    def __init__(self, stage: StandingStage, owner: str) -> None:
        super().__init__(owner, stage.run.version)
        self._stage = stage
        self._reader: _Reader | None = None  #: None while no process runs

    def keep_alive(self) -> None:
        while (token := self._record(standing_stages.begin, self._stage.pk, self._owner)) is not None:
            died = self._run_process(token)
            if died is None or not self._on_death(died):
                return

    def _run_process(self, token: int) -> ProcessDeath | None:
        """Starts a process and watches it. None if the stage was released or has ended; the row is then updated."""
        began = time.monotonic()
        name = f"stage-run-{self._stage.run_id}-{self._stage.operator}".replace("/", "_")
        first_line = msgspec.json.encode(self._version.params) + b"\n"
        environment = self._record(stage_environment, self._version.job.pipeline, self._version.package_id)
        if environment is None:
            self._stop(StopReason.SHUTDOWN)
            return None
        with scratch_folder(f"stage-{self._stage.pk}", token) as scratch, _Pipes(first_line) as pipes:
            try:
                child = Child(
                    self._command(token),
                    Path(settings.WEIR_LOGS) / f"{name}.log",
                    stdin=pipes.stdin,
                    stdout=pipes.stdout,
                    environment=environment | scratch,
                )
            except OSError as error:
                return ProcessDeath(CANNOT_START_CODE, f"Its process could not be started: {error}", None, 0.0, 0, [])
            pipes.close_ends_of_child()
            reader = self._reader = _Reader(pipes.reports)
            with child:
                log.info("standing stage started", pid=child.pid, token=token)
                why = self._watch(child, reader.silent_s, settings.WEIR_STAGE_SILENCE_S)
                code = child.end()
        reader.join()
        self._reader = None
        if isinstance(why, StopReason):
            self._stop(why)
            return None
        if reader.done and code == 0:
            if (last := reader.take()) is not None:
                self._record(standing_stages.renew, self._stage.pk, self._owner, last)
            self._end(StageState.DONE)
            return None
        lived_s, reason = time.monotonic() - began, self._redact(_death_reason(code, why, reader.error))
        return ProcessDeath(code, reason, reader.error, lived_s, reader.report.steps, child.log_tail())

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

    def _renew_lease(self) -> StopReason | None:
        report = self._reader.take() if self._reader else None
        if not standing_stages.renew(self._stage.pk, self._owner, report):
            return StopReason.LEASE_LOST
        return None if standing_stages.is_wanted(self._stage.pk) else StopReason.RUN_ENDED

    def _on_run_ended(self, child: Child) -> None:
        self._terminate(child)

    def _stop(self, reason: StopReason) -> None:
        log.info("standing stage left", reason=reason.value)
        if reason is StopReason.RUN_ENDED:
            self._end(StageState.ENDED)
        else:  # has no effect if the lease was lost
            self._release(partial(standing_stages.release, self._stage.pk, self._owner))

    def _end(self, state: StageState, reason: str = "") -> None:
        self._record(standing_stages.end, self._stage.pk, self._owner, state, reason)

    # ------------------------------------------------------------ the next process

    def _on_death(self, died: ProcessDeath) -> bool:
        """Records the death and waits the restart delay, or fails the run. Returns whether to start a new process."""
        log.warning("standing stage died", reason=died.reason, lived_s=round(died.lived_s, 1), code=died.code)
        name = f"The stage of {self._stage.operator}"
        if died.code == REJECTED_CODE and died.error is not None:
            self._fail_run(died.error, f"{name}: {died.reason}", died)
            return False
        delay_ms = self._restart_delay_ms(died.lived_s, progressed=died.steps > 0)
        if delay_ms is None:
            times = f"it was restarted {self._deaths - 1} times, as often as the restart strategy allows"
            error = died.error or StageError("stage-died", died.reason)
            self._fail_run(error, f"{name} died again; {times}: {died.reason}", died)
            return False
        recorded = self._record(standing_stages.record_death, self._stage.pk, self._owner, died.reason)
        return bool(recorded) and self._pause(delay_ms)

    def _fail_run(self, error: StageError, message: str, died: ProcessDeath) -> None:
        """Fails the run, retrying until the run is in a state that may fail; then fails the stage."""
        failure = {
            "code": error.code,
            "message": message,
            "operator": self._stage.operator,
            "detail": "\n".join(self._redact(line) for line in died.log_tail),
        }
        while not self._record(run_store.fail, self._stage.run_id, failure, None):
            if not self._pause(_RETRY_FAIL_MS):
                return
        self._end(StageState.FAILED, self._redact(message))


def _death_reason(code: int, why: Silence | None, error: StageError | None) -> str:
    if why is not None:
        return f"Its process gave no sign for {why.silent_s:.0f} s and was killed."
    return error.detail if error else f"Its process ended with {describe_exit(code)}."


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
        """Closes the child's ends once the process has them. From then on the reader owns `reports`."""
        self._is_child_there = True
        os.close(self.stdin)
        self.stdout.close()


class _Reader:
    """Reads the reports of a process until its stdout is closed. `take` returns the newest report, but only once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.report = StageReport()
        self.error: StageError | None = None
        self.done = False  #: all work is complete
        self._untaken: StageReport | None = None
        self._heard_at = time.monotonic()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="stage-reports", daemon=True)
        self._thread.start()

    def take(self) -> StageReport | None:
        with self._lock:
            report, self._untaken = self._untaken, None
        return report

    def silent_s(self) -> float:
        """Seconds since the newest report."""
        return time.monotonic() - self._heard_at

    def join(self) -> None:
        """Waits for the last lines of an ended process. The session is gone, so the pipe is at end of file."""
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
                self._heard_at = time.monotonic()
            self.error = said.error or self.error
            self.done = self.done or said.done
