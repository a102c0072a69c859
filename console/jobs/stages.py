"""PySpark stages as child processes: compiling a version, listing the pipelines, reading the state of a checkpoint.

The console never imports `spark_jobs`; they share command lines, JSON on stdin and stdout, and exit codes. A stage that
is interrupted leaves no partial result, so repeating it is always safe.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.db.models.functions import Now

from console.celery import is_shutting_down
from console.child_process import Child, describe_exit
from console.jobs.child_environment import stage_environment
from runtime.access.redaction import storable_json

POLL_S = 1.0
REJECTED_CODE = 3  #: exit code for invalid input of the author; the error is on stdout
UNAVAILABLE_CODE = 4  #: exit code while storage or a service is unavailable; the error is on stdout
RESEND_STAGE_S = 30  #: seconds after which a wake-up without effect is sent again: the first pause after a failure
_MAX_PAUSE_S = 900
_MAX_STDOUT_BYTES = 32 * 1024 * 1024
_PROGRESS_BYTES = 4096  #: bytes at the end of the output that are searched for the newest line


class StageInterrupted(Exception):
    """The stage was interrupted: the worker is shutting down, or the lease was lost. The reconciler repeats it."""


class StageFailed(Exception):
    """The stage cannot succeed as requested. `error` is {"code", "field", "detail"}, as it is stored and shown."""

    def __init__(self, code: str, detail: str, field: str = "", log: str = "") -> None:
        super().__init__(detail)
        self.error = {"code": code, "field": field, "detail": detail, **({"log": log} if log else {})}


class StageRejected(StageFailed):
    """The stage itself rejected its input. A repetition has the same result, unlike that of any other failure."""


class StageUnavailable(StageFailed):
    """Storage or a service that the stage needs is unavailable. It says nothing about the input: repeat it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCommand:
    """A command line of `spark_jobs`."""

    arguments: list[str]
    log: Path
    timeout_s: float
    stdin: Any = None
    pipeline: str = ""  #: whose named connections the stage may use
    package: str | None = None  #: digest of the package with the job's code
    environment: Mapping[str, str] = field(default_factory=dict)  #: added to the environment of all stages
    result: str = ""  #: member of the printed object that is the result; "": all of it


def run(stage: StageCommand, still_wanted: Callable[[Any], bool] = lambda _: True) -> Any:
    """Runs the stage and returns the result that it printed as its last line of JSON.

    `still_wanted` is called each second with the newest `progress` that the stage has printed, None before the first.

    Raises:
        StageFailed: the stage rejected its input (`StageRejected`), could not reach storage or a service
            (`StageUnavailable`), failed, or timed out.
        StageInterrupted: the worker is shutting down, or `still_wanted` returned false.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(msgspec.json.encode(stage.stdin))
        stdin.seek(0)
        command = [*settings.WEIR_STAGES_COMMAND, *stage.arguments]
        environment = stage_environment(stage.pipeline, stage.package) | dict(stage.environment)
        with Child(command, stage.log, stdin=stdin, stdout=stdout, environment=environment) as child:
            _watch(child, stage, lambda: still_wanted(_progress(stdout.fileno())))
            code = child.end()
        stdout.seek(0)
        return _parse_result(stage, code, stdout.read(_MAX_STDOUT_BYTES), child)


def wake_up_after(failures: int) -> Any:
    """`woken_at` of a row whose stage has failed so many times in a row: the reconciler repeats it after a pause.

    The pause doubles with each failure, up to a limit.
    """
    pause_s = min(RESEND_STAGE_S * 2 ** min(failures - 1, 16), _MAX_PAUSE_S)
    return Now() + timedelta(seconds=pause_s - RESEND_STAGE_S)


def _progress(printed: int) -> Any:
    """`progress` in the last complete line so far. Reads with `pread`, since the child writes at the file position."""
    size = os.fstat(printed).st_size
    start = max(0, size - _PROGRESS_BYTES)
    lines = os.pread(printed, size - start, start).splitlines(keepends=True)
    messages = [line for line in lines if line.endswith(b"\n")]
    try:
        return msgspec.json.decode(messages[-1]).get("progress") if messages else None
    except (msgspec.DecodeError, AttributeError):
        return None


def _watch(child: Child, stage: StageCommand, still_wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + stage.timeout_s
    while not child.wait(POLL_S):
        if is_shutting_down() or not still_wanted():
            raise StageInterrupted(stage.arguments[0])
        if time.monotonic() > deadline:
            detail = f"{stage.arguments[0]} took longer than {stage.timeout_s:.0f} s."
            raise StageFailed("stage-timeout", detail, log=_log_tail(child))


def _parse_result(stage: StageCommand, code: int, printed: bytes, child: Child) -> Any:
    if code not in (0, REJECTED_CODE, UNAVAILABLE_CODE):
        detail = f"{stage.arguments[0]} ended with {describe_exit(code)}."
        raise StageFailed("stage-failed", detail, log=_log_tail(child))
    try:
        said = _decode(printed.rstrip().rpartition(b"\n")[2])
        if code == 0:
            return said[stage.result] if stage.result else said
        error = said["error"]
        failure = StageRejected if code == REJECTED_CODE else StageUnavailable
        raise failure(str(error["code"]), str(error["detail"]), str(error.get("field") or ""))
    except (msgspec.DecodeError, ValueError, KeyError, TypeError) as broken:
        detail = f"{stage.arguments[0]} did not print the expected JSON."
        raise StageFailed("stage-failed", detail, log=_log_tail(child)) from broken


def _decode(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:  # half a surrogate pair in a text of the author, which `json` writes and reads
        return msgspec.json.decode(storable_json(json.loads(line)))


def _log_tail(child: Child) -> str:
    return "\n".join(child.log_tail())
