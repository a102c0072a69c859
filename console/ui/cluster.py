"""The page of the cluster: its rows for the revision, and the health of the jobs beside their places."""

from datetime import datetime
from typing import Final

from console.health.models import JobHealth
from console.health.verdicts import listed_verdicts
from console.jobs.models import Package, Run, StandingStage
from console.pages.cluster import MAX_RUNS, Cluster, Place
from console.runs.standing_stages import ENDED_STATES
from console.ui.live.revision import ShownRows
from runtime.core.job.lifecycle import TERMINAL_STATES

#: The tasks of a queue (`CELERY_TASK_ROUTES`).
_USES: Final = {
    "housekeeping": "health and requests of all jobs",
    "runs": "one run in each place",
    "stages": "compilations, state queries, copies, checks of files",
    "standing": "one PySpark stage beside an operator in each place",
}


def places_with_health(cluster: Cluster, now: datetime) -> tuple[tuple[Place, str], ...]:
    """Each place, and the level of the health of its job. The jobs are loaded with their health."""
    runs = [(place.run, getattr(place.run.job, "health", None)) for place in cluster.places]
    verdicts = listed_verdicts(runs, now)
    return tuple((place, verdict.health) for place, verdict in zip(cluster.places, verdicts, strict=True))


def queues_with_uses(cluster: Cluster) -> tuple[tuple[str, str, int, int], ...]:
    """(queue, tasks in its places, places, free places) of the queues of the workers that answered."""
    queues = cluster.workers.queues if cluster.workers else ()
    return tuple((queue, _USES.get(queue, ""), places, free) for queue, places, free in queues)


def rows_of_cluster() -> list[ShownRows]:
    """Queries for the rows behind the page, each with its maximum number of rows."""
    active = Run.objects.exclude(state__in=TERMINAL_STATES).order_by("-pk")
    return [
        (active, MAX_RUNS),
        (JobHealth.objects.exclude(run_state__in=TERMINAL_STATES).order_by("-pk"), MAX_RUNS),
        (Package.objects.defer("description").order_by("-created_at"), MAX_RUNS),
        (StandingStage.objects.exclude(state__in=ENDED_STATES).order_by("-pk"), MAX_RUNS),
    ]
