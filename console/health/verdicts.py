"""The present verdict on a job, the same for the list, its pages, REST, the command line and the metrics.

A pass of the housekeeping stores a verdict on each job, with the state and the attempt of the run that it judged. All
readers show the stored verdict. A later run, state or attempt voids it. Until the next pass, each reader then makes a
verdict at once, lists `MAX_MADE` at most. If passes are late, lists and metrics mark the last known verdict as old; the
pages of a job or a run make one at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from django.db.models import Case, F, FloatField, Q, Value, When
from django.db.models.functions import Cast, Greatest
from django.utils.dateparse import parse_datetime

from console.health.ages import Age
from console.health.assessment import assess
from console.health.collection import collect
from console.health.facts import RunFacts
from console.health.findings import Finding, Level, SilentInput, Verdict
from console.health.models import JobHealth
from console.health.words import NOT_WELL
from console.jobs.models import Run
from console.runs.selectors import FoundJobs
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState

log = structlog.get_logger(__name__)

MAX_AGE: Final = timedelta(seconds=30)  #: of a stored verdict on a run under way
MAX_MADE: Final = 50  #: verdicts that a reader of many jobs makes at once
_UNKNOWN_LEVEL: Final = 1.5  #: jobs whose health is unknown come before jobs that are well
#: What the state alone shows.
_LEVELS: Final[Mapping[str, Level]] = {RunState.FAILED: Level.FAILED, **dict.fromkeys(NOT_WELL, Level.ATTENTION)}
_TIMES: Final = ("since", "as_of")


def judge(runs: Sequence[Run], now: datetime) -> list[tuple[Run, RunFacts, Verdict]]:
    """Verdicts made now on `runs`, whose versions and jobs with their health are loaded.

    The stored health gives hysteresis and `since`.
    """
    former = {health.run_id: health for run in runs if (health := _stored(run))}
    times = {pk: _rule_times(health.findings) for pk, health in former.items()}
    facts = collect(runs, now, former)
    return [(run, facts[run.pk], assess(facts[run.pk], times.get(run.pk))) for run in runs]


def present_verdict(run: Run, now: datetime) -> Verdict:
    """The verdict on `run`, whose version and job with its health are loaded."""
    return _valid(run, now) or _new_verdicts([run], now).get(run.pk) or _stored_verdict(run, _stored(run), now)


def verdict_with_facts(run: Run, now: datetime) -> tuple[Verdict, RunFacts]:
    """`present_verdict`, and the facts of the run now."""
    if valid := _valid(run, now):
        return valid, collect([run], now)[run.pk]
    ((_, facts, verdict),) = judge([run], now)
    return verdict, facts


def listed_verdicts(listed: Sequence[tuple[Run | None, JobHealth | None]], now: datetime) -> list[Verdict]:
    """The verdicts on the latest runs of jobs, by their stored verdicts. Void verdicts are made at once, up to
    `MAX_MADE` of them, in a constant number of queries. Without a void verdict there is no query.

    A verdict that is too old is marked; then none looks well.
    """
    void = [run.pk for run, stored in listed if run is not None and (stored is None or not _judges(stored, run))]
    runs = Run.objects.filter(pk__in=void[:MAX_MADE]).select_related("version", "job__health") if void else ()
    verdicts = _new_verdicts(list(runs), now)
    return [verdicts.get(run.pk if run else 0) or _stored_verdict(run, stored, now) for run, stored in listed]


def _new_verdicts(runs: Sequence[Run], now: datetime) -> dict[int, Verdict]:
    """Verdicts made now, by run. A run whose facts break a rule is logged, and stops no other."""
    if not runs:
        return {}
    try:
        return {run.pk: verdict for run, _, verdict in judge(runs, now)}
    except Exception:
        if len(runs) == 1:
            log.exception("no verdict on a run", run=runs[0].pk)
            return {}
        return {pk: verdict for run in runs for pk, verdict in _new_verdicts([run], now).items()}


def _stored_verdict(run: Run | None, stored: JobHealth | None, now: datetime) -> Verdict:
    if run is None:
        return Verdict(level=Level.NONE)
    if stored is not None and _judges(stored, run):
        is_old = not run.is_terminal and now - stored.checked_at > MAX_AGE
        return replace(_decode(stored), is_old=is_old, is_known=not is_old or stored.level > Level.OK)
    is_known = run.is_terminal or now - run.created_at < MAX_AGE or run.run_state in _LEVELS
    return Verdict(level=_LEVELS.get(run.run_state, Level.NONE), state=run.state, is_known=is_known)


def with_health_level(jobs: FoundJobs, now: datetime) -> FoundJobs:
    """The jobs annotated with `shown_level`, the level of their listed verdict. Jobs have their latest run.

    A void verdict keeps its place until the next pass: else a job in a restart loop would leave the top of the list
    with each change of its state.
    """
    is_of_run = Q(health__run_id=F("run_pk"))
    is_judged = is_of_run & Q(health__run_state=F("run_state"), health__token=F("latest_run__token"))
    is_over, oldest = Q(run_state__in=TERMINAL_STATES), now - MAX_AGE
    is_recent = Q(health__checked_at__gte=oldest)
    is_young = Q(latest_run__created_at__gt=oldest)
    is_void = is_of_run & is_recent & ~is_over
    by_state = [When(run_state=state, then=Value(float(level))) for state, level in _LEVELS.items()]
    of_state = Case(*by_state, default=Value(float(Level.NONE)), output_field=FloatField())
    rows: FoundJobs = jobs.annotate(
        shown_level=Case(
            When(is_judged & (is_over | is_recent | Q(health__level__gt=Level.OK)), then=F("health__level")),
            When(is_judged, then=Value(_UNKNOWN_LEVEL)),
            When(is_void, then=Greatest(Cast("health__level", FloatField()), of_state)),
            *by_state,
            When(Q(run_pk=None) | is_over | is_young, then=Value(float(Level.NONE))),
            default=Value(_UNKNOWN_LEVEL),
            output_field=FloatField(),
        )
    )
    return rows


def encode(finding: Finding) -> dict[str, Any]:
    """A finding as JSON, for rows and for the API."""
    times = {name: at.isoformat() if (at := getattr(finding, name)) else None for name in _TIMES}
    ages = [(age.start, age.end, age.since.isoformat()) for age in finding.ages]
    return {**asdict(finding), "level": finding.level.word, **times, "ages": ages}


def decode_finding(row: Mapping[str, Any]) -> Finding:
    """The finding that `encode` has written."""
    times = {name: parse_datetime(row[name]) if row[name] else None for name in _TIMES}
    ages = tuple(Age(start, end, datetime.fromisoformat(since)) for start, end, since in row["ages"])
    level, waiting = Level[row["level"].upper()], tuple(row["waiting"])
    return Finding(**{**row, "level": level, "waiting": waiting, "ages": ages, **times})


def _decode(stored: JobHealth) -> Verdict:
    return Verdict(
        level=Level(stored.level),
        state=stored.run_state,
        sentence=stored.sentence,
        since=stored.since,
        findings=tuple(map(decode_finding, stored.findings)),
        silent_inputs=tuple(
            SilentInput(operator, name, datetime.fromisoformat(since)) for operator, name, since in stored.silent_inputs
        ),
        checked_at=stored.checked_at,
    )


def _valid(run: Run, now: datetime) -> Verdict | None:
    """The stored verdict on `run`, unless a later state or attempt voids it, or it is too old."""
    stored = _stored(run)
    if stored is None or not _judges(stored, run):
        return None
    return None if not run.is_terminal and now - stored.checked_at > MAX_AGE else _decode(stored)


def _judges(stored: JobHealth, run: Run) -> bool:
    return (stored.run_id, stored.run_state, stored.token) == (run.pk, run.state, run.token)


def _stored(run: Run) -> JobHealth | None:
    return getattr(run.job, "health", None)


def _rule_times(findings: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """Since when each rule has been found, from stored findings."""
    pairs = [(finding["rule"], parse_datetime(finding["since"])) for finding in findings if finding.get("since")]
    return {rule: since for rule, since in reversed(pairs) if since is not None}
