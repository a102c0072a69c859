"""The logs of a job master and of its slots, as lines with time and level.

They are JSON lines; Spark's JVM and tracebacks write plain text into the same file. A plain line without a
level of its own belongs to the line before it.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.shortcuts import get_object_or_404

from console.child_process import STARTUP_LINES
from console.jobs.connections import connections_of
from console.jobs.models import Run
from console.jobs.services import pipeline_schema
from runtime.access.redaction import Schema, redact
from runtime.access.secrets import resolved_texts

LOG_LINES: Final = 200
_TAIL_BYTES: Final = 512 * 1024  #: end of the file that is searched for the last lines
WARNING_LINES: Final = 10  #: on the page of a job
_WARNING_BYTES: Final = 64 * 1024  #: end of the file that is searched for them
_DOWNLOAD_BYTES: Final = 16 * 1024 * 1024
_CONTEXT_BYTES: Final = 64 * 1024  #: read around a part; no secret is longer, as the parameters of a version are not
LEVELS: Final = ("info", "warning", "error")  #: least severe first
_SEVERITY: Final = {"debug": 0, "info": 0, "warn": 1, "warning": 1, "error": 2, "critical": 2, "fatal": 2}
_JVM_LINE: Final = re.compile(r"(\d\d/\d\d/\d\d \d\d:\d\d:\d\d) (INFO|WARN|ERROR|FATAL) (.*)")
_JVM_TIME: Final = "%y/%m/%d %H:%M:%S"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log. `time`: None for the lines of a traceback. `level`: one of `LEVELS`."""

    time: datetime | None
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The choice of lines in the address of the page: the least level, and a text in any letter case."""

    level: str = LEVELS[0]
    text: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "LogFilter":
        level = parameters.get("level", "")
        return cls(level if level in LEVELS else LEVELS[0], parameters.get("text", "").strip())

    def accepts(self, line: LogLine) -> bool:
        return LEVELS.index(line.level) >= LEVELS.index(self.level) and self.text.lower() in line.text.lower()


def log_file(run: Run) -> Path:
    return Path(settings.WEIR_LOGS).resolve() / f"run-{run.pk}.log"


@dataclass(frozen=True, slots=True)
class SlotLog:
    """The log of a slot. `file`: None if this host does not have it, or if it is no file of this run.

    A file of a run lies below `WEIR_SLOT_LOGS`, in a folder that Spark made for the application of the run.
    """

    index: int
    host: str
    path: str
    file: Path | None
    is_of_master: bool  #: without a cluster, slots write into the log of the job master


def run_with_slot_logs(rows: QuerySet[Run], pk: int) -> tuple[Run, tuple[SlotLog, ...]]:
    """The run `pk` with the logs of its slots. The large report with them is not read.

    Raises:
        Http404: `rows` have no such run.
    """
    reported = rows.defer("live").annotate(
        slots=KeyTransform("slots", "live"), application=KeyTextTransform("spark_application", "live")
    )
    run: Any = get_object_or_404(reported, pk=pk)
    return run, slot_logs(run, run.slots or (), run.application or "")


def slot_logs(run: Run, slots: Sequence[Mapping[str, Any]], application: str) -> tuple[SlotLog, ...]:
    """The logs of the slots in a live report.

    A slot runs the author's code and may name any path, also the log of another job.

    Args:
        application: Spark's id of the run's application, which the job master reports.
    """
    run_log = log_file(run)
    logs = []
    for slot in slots:
        path = str(slot.get("log") or "")
        if path:
            index, host = int(slot["index"]), str(slot.get("host") or "")
            logs.append(SlotLog(index, host, path, _readable(Path(path), application), path == str(run_log)))
    return tuple(logs)


def slot_file(logs: Sequence[SlotLog], slot: int | None) -> Path | None:
    """The log of a slot; None if this host does not have it."""
    return next((each.file for each in logs if each.index == slot), None)


def _readable(path: Path, application: str) -> Path | None:
    try:
        file = path.resolve()
        roots = (Path(root).resolve() for root in settings.WEIR_SLOT_LOGS)
        is_own = any(file.is_relative_to(root) and application in file.relative_to(root).parts[:-1] for root in roots)
        return file if is_own and file.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def log_size(file: Path) -> int:
    """Bytes of a log; 0 if this host does not have it."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log, without secrets. `begin` and `end` are bytes of the file, which has `size` bytes.

    `all_lines` begin before the part: an earlier line gives a plain line its level.
    """

    all_lines: Sequence[str]
    first: int  #: index of the first line of the part
    begin: int
    end: int
    size: int

    @property
    def text_lines(self) -> Sequence[str]:
        return self.all_lines[self.first :]

    def lines(self, log_filter: LogFilter = LogFilter()) -> list[LogLine]:
        """The lines that `log_filter` accepts, without those of each start of a JVM.

        Secrets are masked before: a search would show a secret by its hits.
        """
        parsed = list(zip(self.all_lines, parse_lines(self.all_lines), strict=True))[self.first :]
        return [line for text, line in parsed if log_filter.accepts(line) and not STARTUP_LINES.search(text)]


class LogSecrets:
    """The secrets of a log: those of the parameters, and those of all connections of the pipeline.

    Libraries and authors print past Weir's log, and code of a package may use a connection that no parameter names.
    """

    def __init__(self, pipeline: str, params: Mapping[str, Any], schema: Schema) -> None:
        self._pipeline, self._params, self._schema = pipeline, params, schema

    @classmethod
    def of(cls, run: Run) -> "LogSecrets":
        schema = run.version.parameter_schema(pipeline_schema(run.job.pipeline))
        return cls(run.job.pipeline, run.version.params, schema)

    def redact(self, text: str) -> str:
        """`text` without the secrets, as far as the console's host has them; without text, nothing is read."""
        return redact(text, self._params, self._schema, self._resolved) if text else ""

    @cached_property
    def _resolved(self) -> frozenset[str]:
        return resolved_texts(self._params, connections_of(self._pipeline).values())


def log_part(
    file: Path,
    secrets: LogSecrets,
    begin: int | None,
    limit: int,
    *,
    is_whole: bool = False,
) -> LogPart | None:
    """At most `limit` bytes of a log from byte `begin`; None if this host does not have the log.

    The part has whole lines only: it begins with the first line that begins in it. A line longer than `limit` is left
    out. A secret may span lines, so that a part may cut it: lines at an edge whose mask needs the text beyond the edge
    are left out, too.

    Args:
        begin: None for the end of the file.
        is_whole: leave out the last line of the file if its end is not written yet.
    """
    try:
        with _open_log(file) as log:
            size = log.seek(0, 2)
            begin = max(0, size - limit) if begin is None else min(begin, size)
            start = log.seek(max(0, begin - _CONTEXT_BYTES))
            before, part, after = log.read(begin - start), log.read(limit), log.read(_CONTEXT_BYTES)
    except OSError:
        return None
    if before and not before.endswith(b"\n"):
        skipped = part.find(b"\n") + 1 or len(part)
        before, part = before + part[:skipped], part[skipped:]
    cut = part.rfind(b"\n") + 1
    if after and not cut:
        before, part = before + part, b""  # a line longer than `limit`
    elif after or is_whole:
        part, after = part[:cut], part[cut:] + after

    def lines(*texts: bytes) -> list[str]:
        return secrets.redact(b"".join(texts).decode(errors="replace")).splitlines()

    output, first = lines(before, part, after), 0
    if before:
        head = _first_lines(part + after)
        context = lines(before, head)
        first = len(context) - _equal_count(reversed(context), reversed(lines(head)))
    if after:
        tail = _last_lines(before + part)
        context = lines(tail, after)
        output = output[: len(output) - len(context) + _equal_count(context, lines(tail))]
    begin = start + len(before)
    end = begin + len(part)
    return LogPart(output, first, begin, end, max(size, end))  # the file may have grown meanwhile


def _first_lines(text: bytes) -> bytes:
    """The lines with which a secret that begins before `text` may end."""
    return text[: text.find(b"\n", _CONTEXT_BYTES) + 1 or len(text)]


def _last_lines(text: bytes) -> bytes:
    """The lines with which a secret that ends after `text` may begin."""
    return text[text.rfind(b"\n", 0, max(0, len(text) - _CONTEXT_BYTES)) + 1 :]


def _equal_count(first: Iterable[str], second: Iterable[str]) -> int:
    """The number of equal lines at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def log_tail(
    file: Path,
    secrets: LogSecrets,
    log_filter: LogFilter = LogFilter(),
    limit: int = _TAIL_BYTES,
) -> tuple[LogLine, ...] | None:
    """The last lines that `log_filter` accepts, without secrets; None if this host does not have the log.

    `limit`: bytes at the end of the file that are searched.
    """
    part = log_part(file, secrets, None, limit)
    return None if part is None else tuple(part.lines(log_filter)[-LOG_LINES:])


def recent_warnings(run: Run, secrets: LogSecrets) -> tuple[LogLine, ...] | None:
    """The last warnings and errors without their tracebacks; None if this host does not have the log."""
    lines = log_tail(log_file(run), secrets, LogFilter("warning"), _WARNING_BYTES)
    return None if lines is None else tuple([line for line in lines if line.time][-WARNING_LINES:])


def plain_log(file: Path, secrets: LogSecrets) -> str | None:
    """The end of the file as it is, but without secrets; None if this host does not have the log."""
    part = log_part(file, secrets, None, _DOWNLOAD_BYTES)
    return None if part is None else "".join(f"{line}\n" for line in part.text_lines)


def _open_log(file: Path) -> IO[bytes]:
    """Opens a log at its real path. A slot could replace its file by a link after the check of the path.

    Raises:
        OSError: the file cannot be read, is no regular file, or lies at another path.
    """
    log = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb")  # a FIFO must not block
    real = Path(f"/proc/self/fd/{log.fileno()}").readlink()
    if real == file and stat.S_ISREG(os.fstat(log.fileno()).st_mode):
        return log
    log.close()
    raise PermissionError(f"{file} is no log")


def parse_lines(lines: Iterable[str]) -> Iterator[LogLine]:
    level = LEVELS[0]
    for line in lines:
        entry = _parse_event(line) or _parse_jvm_line(line) or LogLine(None, level, line)
        level = entry.level
        yield entry


def _parse_event(line: str) -> LogLine | None:
    """A line of the job master: the event, then its values. The run is that of the page."""
    if not line.startswith("{"):
        return None
    try:
        values = _decode(line)
        time = datetime.fromisoformat(values.pop("timestamp"))
        event, level = str(values.pop("event")), str(values.pop("level", ""))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    values.pop("run", None)
    texts = [f"{name}={value}" for name, value in values.items() if value not in ("", None)]
    return LogLine(time, _level(level), "  ".join([event, *texts]))


def _parse_jvm_line(line: str) -> LogLine | None:
    match = _JVM_LINE.fullmatch(line)
    if match is None:
        return None
    try:
        time = datetime.strptime(match[1], _JVM_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return LogLine(time, _level(match[2]), match[3])


def _level(name: str) -> str:
    return LEVELS[_SEVERITY.get(name.lower(), 0)]
