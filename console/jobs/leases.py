"""Lost leases and lost wake-ups, as the reconciler sees them.

A lease is lost only after the reconciler itself has seen it unchanged for a full lease time during which Postgres was
up: an outage of Postgres, or of the reconciler, must not make it take over healthy runs. Time is Postgres' own
throughout.
"""

from datetime import timedelta

from django.conf import settings
from django.db.models import Case, DateTimeField, Expression, F, Func, Q, When
from django.db.models.functions import Now

from console.jobs import runs, wake
from console.jobs.models import JobVersion, Run, VersionState
from runtime.core.lifecycle import RunState

#: Without a pass for this long the reconciler was away, and what it saw before says nothing about the time between.
#: More than two of its periods, and well below a lease: a gap alone must never make up a lost one.
BLIND_S = 2.5
#: A wake-up that has had no effect for this long is sent again.
WAKE_AGAIN_S = 5
COMPILE_AGAIN_S = 30

_POSTGRES_BEGAN: Expression = Func(function="pg_postmaster_start_time", output_field=DateTimeField())
_HELD = Q(state__in=runs.LIVE) | (Q(state=RunState.PREPARING) & ~Q(lease_owner=""))
_WAITING = Q(state=RunState.QUEUED) | Q(state=RunState.PREPARING, lease_owner="")


def observe() -> None:
    """Look at every lease once: note when it was first seen as it is now."""
    watched_all_along = Q(
        observed_beat=F("lease_beat"), observed_since__gte=_POSTGRES_BEGAN, observed_at__gte=_ago(BLIND_S)
    )
    Run.objects.filter(_HELD).update(
        observed_since=Case(When(watched_all_along, then=F("observed_since")), default=Now()),
        observed_beat=F("lease_beat"),
        observed_at=Now(),
    )


def release_lost() -> list[int]:
    """Give runs with a lost lease back to whoever claims them. Returns their ids."""
    silent = Run.objects.filter(_HELD, observed_since__lte=_ago(settings.WEIR_LEASE_S))
    released = []
    for run in silent.only("state", "observed_beat"):
        if run.run_state is RunState.PREPARING:
            lost = runs.leave_preparation(run.pk, beat=run.observed_beat)
        else:
            lost = runs.release_lost(run.pk, run.observed_beat) is not None
        if lost:
            released.append(run.pk)
    return released


def wake_waiting() -> None:
    """Send wake-ups again for what has waited too long: they may have been lost, or nobody had room."""
    Run.objects.filter(_WAITING, observed_at=None).update(observed_at=Now())
    waiting = Run.objects.filter(_WAITING, observed_at__lte=_ago(WAKE_AGAIN_S))
    for run in waiting.only("state"):
        Run.objects.filter(pk=run.pk).update(observed_at=Now())
        wake.send(wake.PREPARE if run.run_state is RunState.PREPARING else wake.SUPERVISE, run.pk)
    stuck = JobVersion.objects.filter(state=VersionState.COMPILING, woken_at__lte=_ago(COMPILE_AGAIN_S))
    for version in stuck.only("pk"):
        JobVersion.objects.filter(pk=version.pk).update(woken_at=Now())
        wake.send(wake.COMPILE, version.pk)


def _ago(seconds: float) -> Now:
    return Now() - timedelta(seconds=seconds)  # type: ignore[return-value]
