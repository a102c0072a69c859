"""Orphans in the storage of a job: folders that no checkpoint row names, and rows whose files are missing.

Pages read names and sizes only, and change nothing. A folder of a discarded checkpoint is no orphan: its row names it,
and later checkpoints may need its files. The folder of a failed checkpoint is an orphan once its run has ended, or has
completed a later checkpoint, unless a checkpoint that can be restored needs its files. Only such folders of failed
checkpoints are removed (`remove_failed_folders`); a pass removes them by and by.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import structlog

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.selectors import checkpoint_table
from console.checkpoints.storage import delete_folder, job_store, job_uri, readable_manifest
from console.checkpoints.timed_reads import read_in_time
from console.jobs.models import Job
from runtime.core.checkpoint.retention_plan import folder_of_file
from runtime.core.snapshot.manifest import parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.errors import EnvironmentFailure
from runtime.io.store import Store, check_mounted

MAX_LISTED: Final = 200  #: folders, and rows, of an answer
MAX_ROWS: Final = 2_000  #: the newest restorable checkpoints whose files are looked for
#: After it, changes of folders are unknown, and no further manifest is read. Less than the limit of a read of storage.
WALK_S: Final = 1.5
REMOVAL_S: Final = 30.0  #: limit of the reads of manifests before a removal, in seconds
#: After the last change in the folder of a failed checkpoint. A slot that is slow to stop may still write to it.
FAILED_GRACE: Final = timedelta(minutes=10)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFolder:
    """A folder of checkpoint files without a row. `changed_at`: None if there was no time to read it."""

    name: str
    nbytes: int
    changed_at: datetime | None


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
    """Folders are listed before the rows are read, since the row of a checkpoint precedes its folder.

    At most three queries.
    """
    root = job_uri(job.pk)
    try:
        names = read_in_time(("folders", job.pk), partial(_checkpoint_folders, job_store(job.pk)))
        row_folders, failed = _named(job, names)
        unnamed = [name for name in names if name not in row_folders]
        restorable = _restorable(job)
        key = ("orphans", job.pk, tuple(unnamed), tuple(row.pk for row in restorable))
        listing = read_in_time(key, partial(_read_folders, job.pk, unnamed, restorable, failed))
    except (EnvironmentFailure, TimeoutError) as error:
        return Orphans(root=root, fault=f"The storage cannot be read: {error}")
    except Refused as refused:
        return Orphans(root=root, fault=refused.detail)
    missing = _still_restorable([row for row in restorable if row.pk not in listing.stored])
    return Orphans(
        root=root, folders=listing.orphans, folder_total=listing.orphan_total, missing=tuple(missing[:MAX_LISTED]),
        missing_total=len(missing),
    )  # fmt: skip


def remove_failed_folders(job: Job) -> int:
    """Removes the orphaned folders of failed checkpoints without a change for `FAILED_GRACE`. Returns their number.

    Folders without any row stay, and so do savepoints with a manifest: a user decides. The caller holds the lock of
    file work.

    Raises:
        EnvironmentFailure: the storage cannot be read.
    """
    store = job_store(job.pk)
    names = _checkpoint_folders(store)
    _, failed = _named(job, names)
    if not failed:
        return 0
    restorable = _restorable(job)
    paths = set(store.list(""))
    stored = [row for row in restorable if _manifest_of(row.path) in paths]
    if len(stored) < len(restorable) or len(restorable) == MAX_ROWS:  # a manifest that is not read may need any folder
        return 0
    savepoints = {name for name in failed if name.startswith("savepoint-") and _manifest_of(name) in paths}
    over = [name for name in failed if name not in savepoints and _is_over(failed[name], stored)]
    count = 0
    for name in _without_reference(over, stored, time.monotonic() + REMOVAL_S):
        changed_s = store.newest_change(name)
        if changed_s is not None and time.time() - changed_s > FAILED_GRACE.total_seconds():
            delete_folder(job_uri(job.pk), name)
            log.info("removed the folder of a failed checkpoint", job=job.pk, folder=name)
            count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Failed:
    """A failed checkpoint. `is_ended`: so has its run."""

    run_id: int
    number: int
    is_ended: bool


def _is_over(failed: _Failed, stored: Sequence[Checkpoint]) -> bool:
    """Whether the run can no longer need the files.

    A later checkpoint of the run names all of its earlier files that the state still needs, and later states name no
    other file of that time.
    """
    later = (row for row in stored if row.run_id == failed.run_id and row.kind == Kind.CHECKPOINT)
    return failed.is_ended or any(row.number > failed.number for row in later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folders:
    """`stored`: ids of the restorable checkpoints whose manifest exists. `orphans`: as `folders` in `Orphans`."""

    stored: frozenset[int]
    orphans: tuple[OrphanFolder, ...]
    orphan_total: int


def _read_folders(
    job_id: int, unnamed: Sequence[str], restorable: Sequence[Checkpoint], failed: Mapping[str, _Failed]
) -> _Folders:
    """`unnamed`: folders that no row names, with those of `failed` checkpoints.

    Raises:
        EnvironmentFailure, Refused, TimeoutError: the storage cannot be read, or not in time.
    """
    deadline, store = time.monotonic() + WALK_S, job_store(job_id)
    if restorable:
        check_mounted(job_uri(job_id))  # while it is not mounted, no file counts as missing
    sizes = store.sizes("")
    stored = [row for row in restorable if _manifest_of(row.path) in sizes]
    over = [name for name in unnamed if name not in failed or _is_over(failed[name], stored)]
    orphans = _without_reference(over, stored, deadline)
    nbytes = Counter[str]()
    for path, size in sizes.items():
        nbytes[folder_of_file(path)] += size
    measured = (_folder(store, name, nbytes[name], deadline) for name in orphans[:MAX_LISTED])
    return _Folders(
        stored=frozenset(row.pk for row in stored),
        orphans=tuple(folder for folder in measured if folder is not None),
        orphan_total=len(orphans),
    )


def _checkpoint_folders(store: Store) -> list[str]:
    return [name for name in store.folders() if parse_folder(name) is not None]


def _manifest_of(folder: str) -> str:
    return f"{folder}/{MANIFEST_FILE}"


def _named(job: Job, names: list[str]) -> tuple[set[str], dict[str, _Failed]]:
    """The folders that a row names, by its path, or by its number and token while it is in progress; and the failed
    checkpoints, by folder. They have no path.
    """
    numbers = {name: parse_folder(name) for name in names}
    checkpoint_numbers = {key[0] for key in numbers.values() if key is not None}
    rows = list(Checkpoint.objects.filter(job=job, number__in=checkpoint_numbers).select_related("run").only(
        "number", "token", "path", "status", "run__state"))  # fmt: skip
    paths = {row.path for row in rows if row.path}
    keys = {(row.number, row.token): row for row in rows if not row.path}
    row_folders, failed = set[str](), dict[str, _Failed]()
    for name, key in numbers.items():
        row = keys.get(key) if key is not None else None
        if name in paths or (row is not None and row.status != Status.FAILED):
            row_folders.add(name)
        elif row is not None:
            failed[name] = _Failed(row.run_id, row.number, is_ended=row.run.is_terminal)
    return row_folders, failed


def _restorable(job: Job) -> list[Checkpoint]:
    return list(checkpoint_table(job).filter(status=Status.COMPLETED, discarded_at=None)[:MAX_ROWS])


def _still_restorable(missing: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The rows that retention has not discarded since they were read: it discards before it deletes."""
    if not missing:
        return []
    left = Checkpoint.objects.filter(pk__in=[row.pk for row in missing], discarded_at=None)
    pks = set(left.values_list("pk", flat=True))
    return [row for row in missing if row.pk in pks]


def _without_reference(names: Sequence[str], stored: Sequence[Checkpoint], deadline: float) -> list[str]:
    """The folders of which no manifest names a file.

    A savepoint names files in its own folder only, and a checkpoint none of a newer checkpoint. A damaged manifest may
    name files of every older checkpoint.

    Raises:
        Refused, TimeoutError: the manifests cannot be read, or not in time.
    """
    numbers = {name: key[0] for name in names if (key := parse_folder(name)) is not None}
    if not numbers:
        return []
    used_folders, oldest = set[str](), min(numbers.values())
    for row in stored:
        if row.kind != Kind.CHECKPOINT or row.number < oldest:
            continue
        if time.monotonic() >= deadline:
            raise TimeoutError("its manifests were not read in time")
        if manifest := readable_manifest(row):
            used_folders.update(folder_of_file(segment.path) for segment in manifest.files())
        else:
            used_folders.update(name for name, number in numbers.items() if number <= row.number)
    return [name for name in names if name not in used_folders]


def _folder(store: Store, name: str, nbytes: int, deadline: float) -> OrphanFolder | None:
    """The folder; None if it is gone. Without time, its last change is unknown."""
    if time.monotonic() >= deadline:
        return OrphanFolder(name=name, nbytes=nbytes, changed_at=None)
    changed_s = store.newest_change(name)
    if changed_s is None:
        return None
    return OrphanFolder(name=name, nbytes=nbytes, changed_at=datetime.fromtimestamp(changed_s, UTC))
