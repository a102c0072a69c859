"""Stores the verdict on the latest run of each job. A Celery task calls it every `WEIR_HEALTH_S` seconds."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
from django.db.models import Case, F, Q, Value, When

from console.health.facts import RunFacts
from console.health.findings import Verdict
from console.health.models import JobHealth
from console.health.verdicts import encode, judge
from console.jobs.models import Job, Run
from runtime.core.job.lifecycle import TERMINAL_STATES

log = structlog.get_logger(__name__)

MAX_PASS_S: Final = 1.0
_RUNS_AT_A_TIME: Final = 50
_RETRY_S: Final = 60.0
_retry_at: dict[int, float] = {}  #: by run without a verdict, by the monotonic clock
_COLUMNS: Final = (
    "run_id", "run_state", "token", "level", "sentence", "since", "findings", "silent_inputs", "recovery_at",
    "checked_at",
)  # fmt: skip


def store_verdicts(now: datetime | None = None) -> None:
    """Stores the verdicts on all runs under way, and once on each run that has ended. `now`: the time by default.

    Void verdicts come first, which each reader makes at once until then, and after them the oldest. A pass lasts about
    `MAX_PASS_S`: the reconciler shares its worker. A run without a verdict is left out for `_RETRY_S`. It would come
    first in each pass, whose runs are then checked one by one.

    Raises:
        Exception: no verdict on any run of a group could be stored. A single run without one is logged, and stops no
            other.
    """
    unknown = Q(health=None) | ~Q(health__run_id=F("latest_run")) | ~Q(health__run_state__in=TERMINAL_STATES)
    jobs = Job.objects.exclude(latest_run=None).filter(unknown)
    latest = {"run_id": "latest_run", "run_state": "latest_run__state", "token": "latest_run__token"}
    is_valid = Q(**{f"health__{stored}": F(name) for stored, name in latest.items()})
    void_first = Case(When(is_valid, then=Value(1)), default=Value(0))
    oldest_first = jobs.order_by(void_first, F("health__checked_at").asc(nulls_first=True))
    _forget_due(time.monotonic())
    pks = [pk for pk in oldest_first.values_list("latest_run", flat=True) if pk not in _retry_at]
    deadline = time.monotonic() + MAX_PASS_S
    for start in range(0, len(pks), _RUNS_AT_A_TIME):
        runs = Run.objects.filter(pk__in=pks[start : start + _RUNS_AT_A_TIME]).select_related("version", "job__health")
        _store_verdicts_on(list(runs), now or datetime.now(UTC))
        if time.monotonic() > deadline:
            break


def _store_verdicts_on(runs: Sequence[Run], now: datetime) -> None:
    try:
        _store(judge(runs, now))
    except Exception:
        failed = [run.pk for run in runs if not _is_stored_alone(run, now)]
        if len(failed) == len(runs):
            raise
        _retry_at.update(dict.fromkeys(failed, time.monotonic() + _RETRY_S))


def _forget_due(now: float) -> None:
    for pk in [pk for pk, at in _retry_at.items() if at <= now]:
        del _retry_at[pk]


def _is_stored_alone(run: Run, now: datetime) -> bool:
    try:
        _store(judge([run], now))
    except Exception:
        log.exception("no verdict on a run", run=run.pk)
        return False
    return True


def _store(results: Iterable[tuple[Run, RunFacts, Verdict]]) -> None:
    rows = [
        JobHealth(
            job_id=run.job_id,
            run_id=run.pk,
            run_state=run.state,
            token=run.token,
            level=int(verdict.level),
            sentence=verdict.sentence,
            since=verdict.since,
            findings=[encode(finding) for finding in verdict.findings],
            silent_inputs=[(each.operator, each.name, each.since.isoformat()) for each in verdict.silent_inputs],
            recovery_at=None if run.is_terminal else facts.replays_from,
            checked_at=facts.now,
        )
        for run, facts, verdict in results
    ]
    JobHealth.objects.bulk_create(rows, update_conflicts=True, unique_fields=["job"], update_fields=_COLUMNS)
