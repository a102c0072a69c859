"""Removal of lineage folders that are no longer needed: tables, epochs and commit logs of PySpark stages.

    WEIR_INPUTS/<job>/<lineage>/<operator>          tables of `from_spark`
    WEIR_INPUTS/<job>/streams/<lineage>/<operator>  epochs of `from_spark_stream` and `EpochStage`

A lineage is a chain of runs that continue each other's checkpoints. The folders of a run's operators are needed until
the run has ended, and afterwards as long as it has a restorable checkpoint, since a restored run joins the lineage. A
lineage folder without such a run is removed, and so is each operator's folder that no such run uses. A folder that no
recorded run can have created stays.
"""

import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.refusals import Refused
from console.advisory_lock import try_lock
from console.checkpoints.models import Checkpoint, Status
from console.housekeeping.advance import FILE_WORK_LOCK
from console.housekeeping.orphans import remove_failed_folders
from console.jobs.models import Job, Run, StandingStage
from console.jobs.services import lock_job
from runtime.core.job.lifecycle import TERMINAL_STATES
from runtime.errors import EnvironmentFailure

RUN_END_GRACE: Final = timedelta(seconds=60)  #: after the end of a run, for processes that have not noticed it yet
_REMOVED_PREFIX: Final = ".removed-"  #: prefix that no lineage or operator name has

log = structlog.get_logger(__name__)


def remove_unused_folders() -> int:
    """Removes the folders that are no longer needed, also of failed checkpoints. Returns their number.

    While other file work is under way, it removes none. The next call retries after an error.
    """
    count = 0
    with try_lock(FILE_WORK_LOCK) as is_free:
        for job in Job.objects.order_by("pk").iterator() if is_free else ():
            try:
                count += _remove_job_folders(job) + remove_failed_folders(job)
            except (OSError, EnvironmentFailure, Refused) as error:
                log.warning("unused folders are not removed yet", job=job.pk, error=str(error))
    return count


def _remove_job_folders(job: Job) -> int:
    """Renames unneeded folders under the job's lock, so that no restore can begin. Deletes them after the commit."""
    there = list(_lineages(job))  # listed before the rows are read: a run's row precedes its folders
    removed = []
    if there:
        with transaction.atomic():
            lock_job(job)
            for folder in there:
                removed += [_set_aside(unneeded) for unneeded in _unused_folders(job, folder)]
    for parent in {parent for root in _roots(job) for parent in (root, *_folders(root))}:
        for left in parent.glob(f"{_REMOVED_PREFIX}*"):
            shutil.rmtree(left)
    return len(removed)


def _roots(job: Job) -> tuple[Path, Path]:
    """The folders of the job that contain a folder per lineage."""
    inputs = Path(settings.WEIR_INPUTS) / str(job.pk)
    return inputs, inputs / "streams"


def _lineages(job: Job) -> Iterator[Path]:
    for root in _roots(job):
        yield from (folder for folder in _folders(root) if folder.name.isdecimal())


def _folders(parent: Path) -> list[Path]:
    try:
        return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except FileNotFoundError:
        return []


def _unused_folders(job: Job, folder: Path) -> list[Path]:
    """The folders to remove: none, folders of operators in the lineage folder, or the whole lineage folder."""
    first = int(folder.name)
    runs = list(Run.objects.filter(Q(lineage=first) | Q(pk=first), job=job).select_related("version"))
    needing = list(_runs_in_use(runs))
    if not runs or any(run.version.graph is None for run in needing):
        return []
    if not needing:
        return [folder]
    lineage_uids, used_uids = _operators(runs), _operators(needing)
    return [entry for entry in _folders(folder) if _uids(entry) & lineage_uids and not _uids(entry) & used_uids]


def _runs_in_use(runs: Iterable[Run]) -> Iterable[Run]:
    """The runs that have not ended `RUN_END_GRACE` ago, have a restorable checkpoint, or have a supervised stage."""
    ids = [run.pk for run in runs]
    is_over = Q(state__in=TERMINAL_STATES, ended_at__lte=Now() - RUN_END_GRACE)
    retained = Checkpoint.objects.filter(run__in=ids, discarded_at=None, status=Status.COMPLETED)
    attended = StandingStage.objects.filter(run__in=ids).exclude(lease_owner="")
    is_in_use = ~is_over | Q(pk__in=retained.values("run")) | Q(pk__in=attended.values("run"))
    return Run.objects.filter(is_in_use, pk__in=ids).select_related("version")


def _operators(runs: Iterable[Run]) -> set[str]:
    return {operator["uid"] for run in runs for operator in (run.version.graph or {}).get("operators", ())}


def _uids(folder: Path) -> set[str]:
    """Candidate uids of the folder's operator: tables use the uid as the name, streams escape it (`~2D` for a dash)."""
    return {folder.name, unquote(folder.name.replace("~", "%"))}


def _set_aside(folder: Path) -> Path:
    """Renames the folder. The name is new: an earlier removal may have been interrupted."""
    aside = folder.with_name(f"{_REMOVED_PREFIX}{folder.name}-{uuid4().hex}")
    folder.rename(aside)
    log.info("removing a folder that no checkpoint and no run needs", folder=str(folder))
    return aside
