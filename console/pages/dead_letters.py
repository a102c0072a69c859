"""Dead letters of a job: rows that its steps have set aside, from the files of their sinks, newest first.

The files are JSON lines below a data root. A file belongs to the job by its name, which begins with the id of the job,
so jobs may share a folder. A request reads a bounded part of the newest files.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from console.checkpoints.timed_reads import read_in_time
from console.jobs.child_environment import stage_environment
from console.jobs.models import Job, Run
from console.runs.logs import LogSecrets
from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.errors import JobRejected

MAX_LETTERS: Final = 200  #: in an answer of REST
MAX_BYTES: Final = 8 << 20  #: of dead letters that a request reads
MAX_FILES: Final = 1_000  #: that a request opens
_MAX_TRIES: Final = 4  #: at files of which no line ends within the bytes that are left


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was set aside. `row`: as JSON, cut where it is long. A line without time zone in `at` is another's."""

    operator: str
    error: str
    message: str
    traceback: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    row: str


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """The dead letters of an operator with the same type of error. `newest`: time of the newest one."""

    operator: str
    error: str
    rows: int
    newest: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """A page of dead letters.

    Args:
        folders: those of the version of the latest run; none: no step of it sets rows aside.
        counts: by operator and error, of all letters that were read.
        total: number of letters that were read and chosen.
        is_cut: there are others, older or larger than a request reads.
        fault: why a folder or a file could not be read.
    """

    folders: tuple[str, ...] = ()
    counts: tuple[ErrorCount, ...] = ()
    letters: tuple[DeadLetter, ...] = ()
    total: int = 0
    is_cut: bool = False
    fault: str = ""


def dead_letters(
    job: Job, operator: str = "", error: str = "", offset: int = 0, limit: int = MAX_LETTERS
) -> DeadLetters:
    """The dead letters of a job from the newest on, without secrets.

    Args:
        operator, error: those of this operator, and of this type of error; "": all.
        offset: number of chosen letters to leave out.

    Raises:
        Refused: the storage does not answer in time.
    """
    run = Run.objects.select_related("job", "version").filter(pk=job.latest_run_id or 0).first()
    if run is None or not (folders := run.version.dead_letter_folders):
        return DeadLetters()
    roots = DataRoots.of_environment(stage_environment())
    arguments = (job.pk, folders, operator, error, offset, limit)
    listing = read_in_time(
        ("dead letters", *arguments), partial(_read, roots, *arguments), "The folder of dead letters"
    )
    redact = LogSecrets.of(run).redact
    return replace(listing, letters=tuple(_without_secrets(letter, redact) for letter in listing.letters))


def _without_secrets(letter: DeadLetter, redact: Callable[[str], str]) -> DeadLetter:
    texts = {name: redact(getattr(letter, name)) for name in ("message", "traceback", "row")}
    return msgspec.structs.replace(letter, **texts)


def _read(
    roots: DataRoots, job: int, folders: tuple[str, ...], operator: str, error: str, offset: int, limit: int
) -> DeadLetters:
    files: list[tuple[float, str, CheckedFolder]] = []  #: time, name, folder
    fault = ""
    for path in folders:
        folder = CheckedFolder.of("dead_letters", path, roots)
        try:
            folder.check()
            files += [(at, name, folder) for name, at in _file_times(folder.path, f"part-{job}-")]
        except FileNotFoundError:  # nothing was set aside yet
            continue
        except (OSError, JobRejected) as problem:
            fault = f"The console's host cannot read {path}: {problem}"
    files.sort(key=lambda each: each[:2], reverse=True)
    is_cut = len(files) > MAX_FILES
    budget, tries, letters = MAX_BYTES, _MAX_TRIES, list[DeadLetter]()
    for _, name, folder in files[:MAX_FILES]:
        try:
            data, is_whole = _end_of(folder, name, budget)
        except OSError as problem:
            fault = f"The console's host cannot read {folder.path / name}: {problem}"
            continue
        budget -= len(data)
        letters += list(_letters_in(data))[::-1]
        if not is_whole:  # older files have shorter dead letters, if not even one was read
            is_cut, tries = True, tries - 1
            if data or not tries:
                break
    letters.sort(key=lambda each: each.at, reverse=True)
    kinds: dict[tuple[str, str], list[datetime]] = {}
    for each in letters:
        kinds.setdefault((each.operator, each.error), []).append(each.at)
    counts = [ErrorCount(*kind, len(times), max(times)) for kind, times in kinds.items()]
    chosen = [each for each in letters if operator in ("", each.operator) and error in ("", each.error)]
    return DeadLetters(
        folders=folders,
        counts=tuple(sorted(counts, key=lambda each: (-each.rows, each.operator, each.error))),
        letters=tuple(chosen[offset : offset + limit]),
        total=len(chosen),
        is_cut=is_cut,
        fault=fault,
    )


def _file_times(folder: Path, prefix: str) -> list[tuple[str, float]]:
    """The names and times of the files of a job."""
    times = []
    with os.scandir(folder) as entries:
        for each in entries:
            if each.name.startswith(prefix) and each.name.endswith(".jsonl") and each.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # it was moved meanwhile
                    times.append((each.name, each.stat(follow_symlinks=False).st_mtime))
    return times


def _end_of(folder: CheckedFolder, name: str, limit: int) -> tuple[bytes, bool]:
    """The last lines of a file, of `limit` bytes at most, and whether they are all of it."""
    try:
        descriptor = folder.open_to_read(name)
    except FileNotFoundError:  # it was moved meanwhile
        return b"", True
    if descriptor is None:
        return b"", True
    with os.fdopen(descriptor, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        data = file.read(limit)
    return (data, True) if size <= limit else (data.partition(b"\n")[2], False)


def _letters_in(data: bytes) -> Iterator[DeadLetter]:
    """The dead letters in lines. Other files may have such a name: a line that is no dead letter is left out."""
    for line in data.splitlines():
        try:
            yield msgspec.json.decode(line, type=DeadLetter)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
