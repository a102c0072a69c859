"""Check that every host of a job sees the same folders: the master writes a marker, and each slot looks for it.

A mount that is missing on a host leaves an ordinary folder in its place. Slots on that host would read no input, or
write output and state that no other host sees. Before any subtask is opened, the master marks checkpoint storage and
every folder of a source or sink. A slot that does not find a marker fails the start (`slot.folder_check`).
"""

import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.names import encode_name
from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.durable import make_folder
from runtime.errors import JobRejected
from runtime.io.control.messages import Marker
from runtime.ports import ListsInput, UsesFolders

INPUT_ARGUMENT: Final = "path"  #: source argument of the input folder, which may appear later and is never created
MAX_SAMPLE_FILES: Final = 5

log = structlog.get_logger()


def folders_of(job: CompiledJob, storage: str) -> tuple[set[str], set[str]]:
    """Folders that the job reads, and folders that it writes, including checkpoint storage."""
    inputs: set[str] = set()
    outputs = {storage}
    for uid, connector in itertools.chain(job.sources.items(), job.sinks.items()):
        if isinstance(connector, UsesFolders):
            for argument, folder in connector.folders().items():
                reads = uid in job.sources and argument == INPUT_ARGUMENT
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
    for uid, source in job.sources.items():
        if source.bounded and isinstance(source, ListsInput) and isinstance(source, UsesFolders):
            folder = source.folders().get(INPUT_ARGUMENT)
            if folder is not None and not Path(folder).is_dir():
                raise JobRejected("missing-folder", f"{uid}.{INPUT_ARGUMENT}", f"there is no folder {folder}")


def write_markers(job: CompiledJob, job_id: str, token: Token, storage: str) -> list[Marker]:
    """Marks every folder of the job and creates output folders. A missing input folder gets no marker.

    Markers of older attempts, whose master was killed, are removed.

    Raises:
        OSError: an output folder cannot be created.
    """
    inputs, outputs = folders_of(job, storage)
    for folder in outputs:
        make_folder(Path(folder))
    name = _marker_name(job_id, token)
    return [_write_marker(Path(folder), name, job_id) for folder in sorted(inputs | outputs) if Path(folder).is_dir()]


def remove_markers(markers: Sequence[Marker], job_id: str, token: Token) -> None:
    """Removes the markers of attempt `token`. Idempotent."""
    for marker in markers:
        with contextlib.suppress(OSError):  # the next attempt removes it
            (Path(marker.folder) / _marker_name(job_id, token)).unlink(missing_ok=True)


def _write_marker(folder: Path, name: str, job_id: str) -> Marker:
    try:
        with os.scandir(folder) as entries:
            names = sorted(itertools.islice((entry.name for entry in entries), 10_000))
        for old in names:
            if old.startswith(_marker_name(job_id, None)) and old != name:
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


def _marker_name(job_id: str, token: Token | None) -> str:
    return f".weir-{encode_name(job_id)}-marker-{'' if token is None else token}"
