"""Stores the verdict on the latest run of each job. A Celery task calls it every `WEIR_HEALTH_S` seconds."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from django.db.models import F, Q
from django.utils.dateparse import parse_datetime

from console.health.assessment import assess
from console.health.collection import collect
from console.health.facts import RunFacts
from console.health.findings import Finding, Verdict
from console.health.models import JobHealth
from console.jobs.models import Job, Run

log = structlog.get_logger(__name__)

MAX_PASS_S: Final = 1.0
_RUNS_AT_A_TIME: Final = 50
_RETRY_S: Final = 60.0
_retry_at: dict[int, float] = {}  #: by run without a verdict, by the monotonic clock
_COLUMNS: Final = ("run_id", "level", "sentence", "since", "findings", "recovery_at", "is_final", "checked_at")


def store_verdicts(now: datetime | None = None) -> None:
    """Stores the verdicts on all runs under way, and once on each run that has ended. `now`: the time by default.

    The oldest verdicts come first, and a pass lasts about `MAX_PASS_S`: the reconciler shares its worker. A run without
    a verdict is left out for `_RETRY_S`. It would be the oldest of each pass, whose runs are then checked one by one.

    Raises:
        Exception: no verdict on any run of a group could be stored. A single run without one is logged, and stops no
            other.
    """
    unknown = Q(health=None) | ~Q(health__run_id=F("latest_run")) | Q(health__is_final=False)
    jobs = Job.objects.exclude(latest_run=None).filter(unknown)
    oldest_first = jobs.order_by(F("health__checked_at").asc(nulls_first=True))
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
        _store(verdicts(runs, now))
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
        _store(verdicts([run], now))
    except Exception:
        log.exception("no verdict on a run", run=run.pk)
        return False
    return True


def verdicts(runs: Sequence[Run], now: datetime) -> list[tuple[Run, RunFacts, Verdict]]:
    """The verdicts on `runs`, whose versions and jobs with their health are loaded.

    The stored health gives hysteresis and `since`.
    """
    stored = [health for run in runs if (health := getattr(run.job, "health", None))]
    before = {row.run_id: rule_times(row.findings) for row in stored}
    facts = collect(runs, now, before)
    return [(run, facts[run.pk], assess(facts[run.pk], before.get(run.pk))) for run in runs]


def rule_times(findings: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """Since when each rule has been found, from stored findings."""
    pairs = [(finding["rule"], parse_datetime(finding["since"])) for finding in findings if finding.get("since")]
    return {rule: since for rule, since in reversed(pairs) if since is not None}


def encode(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, for rows and for the API."""
    times = {name: at.isoformat() if at else None for name, at in (("since", finding.since), ("as_of", finding.as_of))}
    return {**asdict(finding), "level": finding.level.word, **times}


def _store(results: Iterable[tuple[Run, RunFacts, Verdict]]) -> None:
    rows = [
        JobHealth(
            job_id=run.job_id,
            run_id=run.pk,
            level=int(verdict.level),
            sentence=verdict.sentence,
            since=verdict.since,
            findings=[encode(finding) for finding in verdict.findings],
            recovery_at=None if run.is_terminal else facts.replays_from,
            is_final=run.is_terminal,
            checked_at=facts.now,
        )
        for run, facts, verdict in results
    ]
    JobHealth.objects.bulk_create(rows, update_conflicts=True, unique_fields=["job"], update_fields=_COLUMNS)
