"""The folders of lineages that nothing can need any more: tables, epochs and commit logs of PySpark stages.

    WEIR_INPUTS/<job>/<lineage>/<operator>           tables of `from_spark`
    WEIR_STORAGE/<job>/streams/<lineage>/<operator>  epochs of `from_spark_stream` and `EpochStage`

A lineage is the runs that continue each other's checkpoints. A run that has not ended needs the folders of its
operators. So does a run with a checkpoint or savepoint that may still be restored, since the new run joins its lineage.
All others go: the whole folder of a lineage that has no such run, and those of operators that no such run has. A folder
that no run on record can have made stays.
"""

import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from console.checkpoints.models import Checkpoint, Status
from console.jobs.models import Job, Run, StandingStage
from console.operations import discard
from runtime.core.job.lifecycle import TERMINAL

GRACE: Final = timedelta(seconds=60)  #: after the end of a run, for processes that do not know of it yet
_REMOVED: Final = ".removed-"  #: no lineage and no operator is called so

log = structlog.get_logger(__name__)


def remove_unneeded() -> int:
    """Removes what nothing needs. Returns how many folders; storage that is away is tried again with the next call."""
    count = 0
    for job in Job.objects.order_by("pk").iterator():
        try:
            count += _remove_of(job)
        except OSError as error:
            log.warning("folders of old lineages are not removed yet", job=job.pk, error=str(error))
    return count


def _remove_of(job: Job) -> int:
    """Renames the folders while no restore of the job can begin, and deletes them afterwards."""
    there = list(_lineages(job))  # before the rows are read: a run is on record before it has a folder
    removed = []
    if there:
        with transaction.atomic():
            discard.lock(job)
            for folder in there:
                removed += [_set_aside(unneeded) for unneeded in _unneeded(job, folder)]
    for parent in {parent for root in _roots(job) for parent in (root, *_folders(root))}:
        for left in parent.glob(f"{_REMOVED}*"):
            shutil.rmtree(left)
    return len(removed)


def _roots(job: Job) -> tuple[Path, Path]:
    """Of the job, with a folder for each lineage."""
    return Path(settings.WEIR_INPUTS) / str(job.pk), Path(settings.WEIR_STORAGE) / str(job.pk) / "streams"


def _lineages(job: Job) -> Iterator[Path]:
    for root in _roots(job):
        yield from (folder for folder in _folders(root) if folder.name.isdecimal())


def _folders(parent: Path) -> list[Path]:
    try:
        return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except FileNotFoundError:
        return []


def _unneeded(job: Job, folder: Path) -> list[Path]:
    """Of the folder of a lineage: nothing, folders of operators in it, or itself."""
    first = int(folder.name)
    runs = list(Run.objects.filter(Q(lineage=first) | Q(pk=first), job=job).select_related("version"))
    needing = list(_that_need(runs))
    if not runs or any(run.version.graph is None for run in needing):
        return []
    if not needing:
        return [folder]
    made, needed = _operators(runs), _operators(needing)
    return [one for one in _folders(folder) if _uids(one) & made and not _uids(one) & needed]


def _that_need(runs: Iterable[Run]) -> Iterable[Run]:
    """Those that go on, or from which another run may."""
    ids = [run.pk for run in runs]
    gone = Q(state__in=TERMINAL, ended_at__lte=Now() - GRACE)
    retained = Checkpoint.objects.filter(run__in=ids, discarded_at=None, status=Status.COMPLETED)
    attended = StandingStage.objects.filter(run__in=ids).exclude(lease_owner="")
    needed = ~gone | Q(pk__in=retained.values("run")) | Q(pk__in=attended.values("run"))
    return Run.objects.filter(needed, pk__in=ids).select_related("version")


def _operators(runs: Iterable[Run]) -> set[str]:
    return {one["uid"] for run in runs for one in (run.version.graph or {}).get("operators", ())}


def _uids(folder: Path) -> set[str]:
    """Of its operator: tables have the uid for a name, streams the uid with `~2D` for a dash and so on."""
    return {folder.name, unquote(folder.name.replace("~", "%"))}


def _set_aside(folder: Path) -> Path:
    aside = folder.with_name(f"{_REMOVED}{folder.name}")
    if aside.exists():  # of a removal that was cut short
        shutil.rmtree(aside)
    folder.rename(aside)
    log.info("removing a folder that no checkpoint and no run needs", folder=str(folder))
    return aside
