"""The cluster: places for runs and their holders, the queue, slots by host, storage and versions."""

import platform
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import django
from django.db import connection
from django.db.models.fields.json import KeyTextTransform

from console.checkpoints.file_systems import FileSystem, file_systems
from console.jobs.models import Run, StandingStage
from console.metrics.live import Live, metrics_in_mode
from console.pages import workers
from console.pages.packages import PackageTotals, package_totals
from console.pages.workers import Answer
from console.runs.standing_stages import ENDED_STATES
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from runtime.core.job.settings import ExecutionMode
from runtime.libraries import DISTRIBUTION

MAX_RUNS: Final = 500
WAITING: Final = (RunState.QUEUED, RunState.WAITING)
_PACKAGES: Final = ("pyspark", "pyarrow", "celery")


@dataclass(frozen=True, slots=True)
class Place:
    """A run and the process that supervises it, "host:pid"; "" while no worker has claimed it."""

    run: Run
    live: Live
    supervisor: str

    @property
    def slots(self) -> int:
        """The slots that report, which may be fewer than the run has."""
        return len(self.live.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    workers: Answer | None  #: None: not known yet
    places: tuple[Place, ...]  #: runs that a worker has claimed
    queue: tuple[Run, ...]  #: runs that wait for a worker or for slots, oldest first
    hosts: tuple[tuple[str, int], ...]  #: number of slots of running jobs, by host
    stages: int  #: standing stages that are not ended
    oldest_waiting: datetime | None
    storage: tuple[FileSystem, ...]
    packages: PackageTotals
    versions: tuple[tuple[str, str], ...]

    @property
    def supervised(self) -> int:
        """Runs with a worker; the others have lost its lease."""
        return sum(bool(place.supervisor) for place in self.places)

    @property
    def run_places(self) -> int | None:
        """The places of the queue `runs`; None: the workers have not answered."""
        return self.workers.run_places[0] if self.workers else None

    @property
    def free_run_places(self) -> int | None:
        """The places of the queue `runs` in which no task is executed; None: the workers have not answered."""
        return self.workers.run_places[1] if self.workers else None

    @property
    def slots(self) -> int:
        return sum(count for _, count in self.hosts)


def read_cluster() -> Cluster:
    """The state of the cluster, in four queries and without a question to the workers.

    The newest `MAX_RUNS` runs are shown.
    """
    active = Run.objects.exclude(state__in=TERMINAL_STATES).select_related("job__health").order_by("-pk")
    mode = KeyTextTransform("mode", "version__graph")  # the whole graph of each would be large
    runs: list[Any] = list(active.annotate(mode=mode)[:MAX_RUNS])
    places = tuple(_place(run) for run in runs if run.state != RunState.QUEUED)
    queue = tuple(sorted((run for run in runs if run.state in WAITING), key=lambda run: run.pk))
    hosts = Counter(slot.host or "unknown" for place in places for slot in place.live.slots)
    return Cluster(
        workers=workers.CENSUS.last(),
        places=places,
        queue=queue,
        hosts=tuple(sorted(hosts.items())),
        stages=StandingStage.objects.exclude(state__in=ENDED_STATES).count(),
        oldest_waiting=min((run.created_at for run in queue), default=None),
        storage=file_systems(),
        packages=package_totals(),
        versions=_versions(),
    )


def _place(run: Any) -> Place:
    """The place of a run with the annotation `mode`. Lease owners are "host:pid:…"."""
    live = metrics_in_mode(run, is_batch=run.mode == ExecutionMode.BATCH)
    return Place(run, live, supervisor=":".join(run.lease_owner.split(":")[:2]))


def _versions() -> tuple[tuple[str, str], ...]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        postgres: Any = cursor.fetchone()
    versions = [("Weir", _package(DISTRIBUTION)), ("Python", platform.python_version()),
                ("Django", django.get_version()), ("Postgres", str(postgres[0]).split()[0])]  # fmt: skip
    return (*versions, *((name, _package(name)) for name in _PACKAGES))


@cache  # reads a file of the package
def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
