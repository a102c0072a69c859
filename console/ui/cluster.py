"""The page of the cluster: its rows for the revision, and the health of the jobs beside their places."""

from datetime import datetime

from console.health.models import JobHealth
from console.jobs.models import Run, StandingStage
from console.operations.cluster import MAX_RUNS, Cluster, Place
from console.runs.standing_stages import ENDED_STATES
from console.ui.jobhealth import health_line
from console.ui.revision import ShownRows
from runtime.core.job.lifecycle import TERMINAL_STATES


def places_with_health(found: Cluster, now: datetime) -> tuple[tuple[Place, str], ...]:
    """Each place, and the level of the health of its job. The jobs are loaded with their health."""
    return tuple(
        (place, health_line(place.run, getattr(place.run.job, "health", None), now).level) for place in found.places
    )


def rows_of_cluster() -> list[ShownRows]:
    """Queries for the rows behind the page, each with its maximum number of rows."""
    active = Run.objects.exclude(state__in=TERMINAL_STATES).order_by("-pk")
    return [
        (active, MAX_RUNS),
        (JobHealth.objects.filter(is_final=False).order_by("-pk"), MAX_RUNS),
        (StandingStage.objects.exclude(state__in=ENDED_STATES).order_by("-pk"), MAX_RUNS),
    ]
