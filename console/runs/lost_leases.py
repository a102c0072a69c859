"""The reconciler's view of lost leases and lost wake-ups.

A lease is lost only if the reconciler has seen it unchanged for a full lease time, with Postgres up throughout. An
outage of Postgres or of the reconciler must not take healthy runs from their supervisors. Postgres gives all times.
"""

from typing import Any

from django.conf import settings
from django.db.models import Case, DateTimeField, Expression, F, Func, Q, QuerySet, When
from django.db.models.functions import Now

from console import wakeups
from console.jobs.models import JobVersion, Package, PackageState, Run, StandingStage, VersionState
from console.jobs.stages import RESEND_STAGE_S
from console.runs import run_store, standing_stages
from console.runs.lease import ago
from runtime.core.job.lifecycle import RunState

#: After a gap of this many seconds between two passes, earlier observations are discarded: a heartbeat may be missed.
#: More than two periods of the reconciler and well below a lease, so that a gap alone never makes a lease look lost.
MAX_OBSERVATION_GAP_S = 2.5
#: Seconds after which a wake-up without effect is sent again.
RESEND_WAKE_UP_S = 5

_POSTGRES_START: Expression = Func(function="pg_postmaster_start_time", output_field=DateTimeField())
_HELD_RUNS = Q(state__in=run_store.LEASED_STATES)
_OWNED_STAGES = ~Q(lease_owner="")
_QUEUED_RUNS = Q(state=RunState.QUEUED)


def observe_leases(postgres_start: Expression = _POSTGRES_START) -> None:
    """Looks at every lease and records since when its heartbeat has not changed."""
    watched_all_along = Q(
        observed_beat=F("lease_beat"), observed_since__gte=postgres_start, observed_at__gte=ago(MAX_OBSERVATION_GAP_S)
    )
    tables: tuple[QuerySet[Any], ...] = (Run.objects.filter(_HELD_RUNS), StandingStage.objects.filter(_OWNED_STAGES))
    for rows in tables:
        rows.update(
            observed_since=Case(When(watched_all_along, then=F("observed_since")), default=Now()),
            observed_beat=F("lease_beat"),
            observed_at=Now(),
        )


def release_lost_runs() -> list[int]:
    """Releases runs with a lost lease for another supervisor to claim. Returns their ids."""
    silent = Run.objects.filter(_HELD_RUNS, _expired()).only("observed_beat")
    return [run.pk for run in silent if run_store.revoke_lease(run.pk, run.observed_beat) is not None]


def release_lost_stages() -> list[int]:
    """Releases standing stages with a lost lease for another supervisor to claim. Returns their ids."""
    silent = StandingStage.objects.filter(_OWNED_STAGES, _expired()).only("observed_beat")
    return [stage.pk for stage in silent if standing_stages.revoke_lease(stage.pk, stage.observed_beat)]


def _expired() -> Q:
    return Q(observed_since__lte=ago(settings.WEIR_LEASE_S))


def resend_wake_ups() -> None:
    """Resends wake-ups of rows that have waited too long: the message was lost, or every worker was busy."""
    for run in _overdue(Run.objects.filter(_QUEUED_RUNS)).only("pk"):
        wakeups.send(wakeups.SUPERVISE_TASK, run.pk)
    for stage in _overdue(standing_stages.claimable()).only("pk"):
        wakeups.send(wakeups.STAGE_TASK, stage.pk)
    stuck = JobVersion.objects.filter(state=VersionState.COMPILING, woken_at__lte=ago(RESEND_STAGE_S))
    for version in stuck.only("pk"):
        JobVersion.objects.filter(pk=version.pk).update(woken_at=Now())
        wakeups.send(wakeups.COMPILE_TASK, version.pk)
    undescribed = Package.objects.filter(state=PackageState.DESCRIBING, woken_at__lte=ago(RESEND_STAGE_S))
    for package in undescribed.only("pk"):
        Package.objects.filter(pk=package.pk).update(woken_at=Now())
        wakeups.send(wakeups.PACKAGE_TASK, package.pk)


def _overdue(waiting: QuerySet[Any]) -> QuerySet[Any]:
    """Selects the rows of `waiting` whose wake-up is due again, and restarts their waiting time."""
    model = waiting.model
    due = waiting.filter(Q(observed_at=None) | Q(observed_at__lte=ago(RESEND_WAKE_UP_S)))
    observed = dict(due.values_list("pk", "observed_at"))
    model.objects.filter(pk__in=observed).update(observed_at=Now())
    return QuerySet(model).filter(pk__in=[pk for pk, at in observed.items() if at is not None])
