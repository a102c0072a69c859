"""Check that every host of a job sees the same storage and folders: each slot looks for the master's markers.

A mount that is missing on a host leaves an ordinary folder in its place. Slots on that host would read no input, or
write output and state that no other host sees. Before any subtask is opened, the master marks checkpoint storage and
every folder of a source or sink. A slot that does not find a marker fails the start (`slot.folder_check`). A marker in
a bucket also shows that the credentials of the slot's host reach the same bucket.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.names import encode_name
from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.durable import make_folder
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.control.messages import Marker
from runtime.io.store import open_store
from runtime.ports import HasParts, ListsInput, Source, UsesFolders
from runtime.s3 import is_bucket

INPUT_ARGUMENT: Final = "path"  #: source argument of the input folder, which may appear later and is never created
MAX_SAMPLE_FILES: Final = 5
_OBJECTS_FOLDER: Final = "markers"

log = structlog.get_logger()


def folders_of(job: CompiledJob, storage: str) -> tuple[set[str], set[str]]:
    """Folders that the job reads, and folders that it writes, including checkpoint storage unless it is a bucket."""
    inputs: set[str] = set()
    outputs = set() if is_bucket(storage) else {storage}
    for uid, connector in itertools.chain(job.sources.items(), job.sinks.items()):
        if isinstance(connector, UsesFolders):
            for argument, folder in connector.folders().items():
                reads = uid in job.sources and argument.rpartition(".")[2] == INPUT_ARGUMENT
                (inputs if reads else outputs).add(str(Path(folder).absolute()))
    return inputs, outputs


def check_roots(job: CompiledJob) -> None:
    """Raises JobRejected, naming operator and argument, if a folder lies outside WEIR_DATA_ROOTS now."""
    for uid, connector in itertools.chain(job.sources.items(), job.sinks.items()):
        if isinstance(connector, UsesFolders):
            for argument, folder in connector.folders().items():
                CheckedFolder.of(f"{uid}.{argument}", folder).check()


def check_inputs(job: CompiledJob) -> None:
    """Raises JobRejected for a missing folder that a bounded source reads. A watched folder may be created later."""
    for name, source in _undivided_sources(job):
        if source.bounded and isinstance(source, ListsInput) and isinstance(source, UsesFolders):
            folder = source.folders().get(INPUT_ARGUMENT)
            if folder is not None and not Path(folder).is_dir():
                raise JobRejected("missing-folder", f"{name}.{INPUT_ARGUMENT}", f"there is no folder {folder}")


def _undivided_sources(job: CompiledJob) -> Iterator[tuple[str, Source]]:
    """The sources of the job, with their names for errors; the parts of a source in its place."""
    for uid, source in job.sources.items():
        if isinstance(source, HasParts):
            yield from ((f"{uid}.{part}", each) for part, each in source.parts.items())
        else:
            yield uid, source


def write_markers(job: CompiledJob, job_id: str, token: Token, storage: str) -> list[Marker]:
    """Marks the storage and every folder of the job. Creates output folders. A missing input folder gets no marker.

    Markers of older attempts, whose master was killed, are removed. Those of later attempts stay: this master may be
    superseded.

    Raises:
        OSError: an output folder cannot be created.
        EnvironmentFailure: the bucket cannot be written.
    """
    inputs, outputs = folders_of(job, storage)
    for folder in outputs:
        make_folder(Path(folder))
    folders = [Path(folder) for folder in sorted(inputs | outputs)]
    markers = [_write_marker(folder, job_id, token) for folder in folders if folder.is_dir()]
    return [*markers, _write_object(storage, token)] if is_bucket(storage) else markers


def remove_markers(markers: Sequence[Marker], job_id: str, token: Token) -> None:
    """Removes the markers of attempt `token`. Idempotent."""
    for marker in markers:
        if is_bucket(marker.folder):
            with contextlib.suppress(EnvironmentFailure):  # the next attempt removes it
                open_store(marker.folder).delete(marker.files)
            continue
        with contextlib.suppress(OSError):  # the next attempt removes it
            (Path(marker.folder) / _marker_name(job_id, token)).unlink(missing_ok=True)


def _write_object(storage: str, token: Token) -> Marker:
    """Marks a bucket by an object below the storage of the job, where no file of a checkpoint lies."""
    store, path, prefix = open_store(storage), f"{_OBJECTS_FOLDER}/{token}", f"{_OBJECTS_FOLDER}/"
    store.delete([old for old in store.list(prefix) if _is_older(old, prefix, token)])
    store.put(path, [])
    return Marker(storage, [path])


def _write_marker(folder: Path, job_id: str, token: Token) -> Marker:
    name = _marker_name(job_id, token)
    try:
        with os.scandir(folder) as entries:
            names = sorted(itertools.islice((entry.name for entry in entries), 10_000))
        for old in names:
            if _is_older(old, _marker_name(job_id, None), token):
                (folder / old).unlink(missing_ok=True)
        (folder / name).touch()
    except OSError as error:
        log.info("folder without a marker: existing files are compared", folder=str(folder), error=str(error))
        return Marker(str(folder), _sample_files(folder))
    return Marker(str(folder), [name])


def _sample_files(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, MAX_SAMPLE_FILES)]
    return []


def _is_older(marker: str, prefix: str, token: Token) -> bool:
    """Whether a file is a marker of an attempt before `token`."""
    number = marker.removeprefix(prefix)
    return marker.startswith(prefix) and number.isdecimal() and int(number) < token


def _marker_name(job_id: str, token: Token | None) -> str:
    return f".weir-{encode_name(job_id)}-marker-{'' if token is None else token}"
