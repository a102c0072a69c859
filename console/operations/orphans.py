"""Orphans in the storage of a job: folders that no checkpoint row names, and rows whose files are missing.

It reads names and sizes only, and changes nothing. A folder of a discarded checkpoint is no orphan: its row names it,
and later checkpoints may need its files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.selectors import checkpoint_table
from console.checkpoints.storage import job_root
from console.jobs.models import Job
from runtime.core.snapshot.manifest import parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE

MAX_LISTED: Final = 200  #: folders, and rows, of an answer
MAX_ROWS: Final = 2_000  #: the newest restorable checkpoints whose files are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFolder:
    """A folder of checkpoint files without a row. `nbytes`: of its files."""

    name: str
    nbytes: int
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """`folders` by name, and `missing` rows, newest first, at most `MAX_LISTED` each; the totals count all.

    `fault`: why the storage cannot be read; "" if it can.
    """

    root: str
    folders: tuple[OrphanFolder, ...] = ()
    folder_total: int = 0
    missing: tuple[Checkpoint, ...] = ()
    missing_total: int = 0
    fault: str = ""


def find_orphans(job: Job) -> Orphans:
    """Folders are listed before the rows are read, since the row of a checkpoint precedes its folder. Two queries."""
    root = job_root(job.pk)
    try:
        names = sorted(_checkpoint_folders(root))
        named = _named(job, names)
        unnamed = [name for name in names if name not in named]
        folders = tuple(_folder(root / name) for name in unnamed[:MAX_LISTED])
        missing = [row for row in _restorable(job) if not (root / row.path / MANIFEST_FILE).exists()]
    except OSError as error:
        return Orphans(root=str(root), fault=f"The storage cannot be read: {error}")
    return Orphans(
        root=str(root), folders=folders, folder_total=len(unnamed), missing=tuple(missing[:MAX_LISTED]),
        missing_total=len(missing),
    )  # fmt: skip


def _checkpoint_folders(root: Path) -> Iterator[str]:
    if not root.exists():
        return
    with os.scandir(root) as entries:
        yield from (entry.name for entry in entries if parse_folder(entry.name) is not None and entry.is_dir())


def _named(job: Job, names: list[str]) -> set[str]:
    """The folders that a row names, by its path, or by its number and token while it has no path."""
    numbers = {name: parse_folder(name) for name in names}
    wanted = {found[0] for found in numbers.values() if found is not None}
    rows = list(Checkpoint.objects.filter(job=job, number__in=wanted).values_list("number", "token", "path"))
    paths, keys = {path for _, _, path in rows if path}, {(number, token) for number, token, path in rows if not path}
    return {name for name, found in numbers.items() if name in paths or found in keys}


def _restorable(job: Job) -> list[Checkpoint]:
    return list(checkpoint_table(job).filter(status=Status.COMPLETED, discarded_at=None)[:MAX_ROWS])


def _folder(folder: Path) -> OrphanFolder:
    nbytes, changed_s = 0, folder.stat().st_mtime
    for parent, _, files in os.walk(folder):
        for name in files:
            found = (Path(parent) / name).lstat()
            nbytes, changed_s = nbytes + found.st_size, max(changed_s, found.st_mtime)
    return OrphanFolder(name=folder.name, nbytes=nbytes, changed_at=datetime.fromtimestamp(changed_s, UTC))
