"""Opens, updates and closes incidents by the stored verdicts. The pass of the verdicts calls it.

An incident opens with a verdict that is not well. It closes once the verdict has been well for `WELL_FOR`, so that a
verdict that flaps is a single incident. Times are of the verdicts, not of the pass: a verdict that is not renewed
closes no incident. A verdict on a run that has ended is not renewed, and counts as present.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models import Q

from console.advisory_lock import try_lock
from console.health.findings import Level
from console.health.models import JobHealth
from console.health.verdicts import decode_finding
from console.incidents.models import Incident, IncidentFinding
from console.jobs.models import Run
from console.jobs.operator_names import operator_names
from runtime.core.job.lifecycle import TERMINAL_STATES

WELL_FOR: Final = timedelta(minutes=2)
_LOCK: Final = 0x57454952_494E4344  #: key of the advisory lock: a pass at a time
_CAUSE_COLUMNS: Final = ("level", "cause", "operator_name", "well_since", "closed_at")
_FINDING_COLUMNS: Final = ("level", "finding", "worsened_at", "ended_at", "returns")

log = structlog.get_logger(__name__)

#: Called within the transaction of the changes, with all incidents that were open before it, and the new ones.
Announce = Callable[[Sequence[Incident], datetime], None]


def follow_verdicts(announce: Announce, now: datetime | None = None) -> None:
    """Brings all incidents up to the stored verdicts. `now`: the time by default.

    Raises:
        Exception: no job could be followed. A single job that fails is logged, and stops no other.
    """
    with try_lock(_LOCK) as is_free:
        if is_free:
            _follow_all(announce, now or datetime.now(UTC))


def _follow_all(announce: Announce, now: datetime) -> None:
    incidents = Incident.objects.filter(closed_at=None)
    is_concerned = Q(level__gt=Level.OK, job__archived_at=None) | Q(job__in=incidents.values("job"))
    jobs = list(JobHealth.objects.filter(is_concerned).values_list("job", flat=True))
    try:
        _follow(jobs, announce, now)
    except Exception:
        failed = [job for job in jobs if not _is_followed_alone(job, announce, now)]
        if len(failed) == len(jobs):
            raise


def _is_followed_alone(job: int, announce: Announce, now: datetime) -> bool:
    try:
        _follow([job], announce, now)
    except Exception:
        log.exception("no incident of a job", job=job)
        return False
    return True


@transaction.atomic
def _follow(jobs: Collection[int], announce: Announce, now: datetime) -> None:
    open_incidents = Incident.objects.filter(job__in=jobs, closed_at=None).select_related("job")
    incidents = {incident.job_id: incident for incident in open_incidents.select_for_update(of=("self",))}
    verdicts = list(JobHealth.objects.filter(job__in=jobs).select_related("job"))
    former = {incident.pk: _values(incident) for incident in incidents.values()}
    names = _names_of_operators(verdicts, incidents)
    for verdict in verdicts:
        incident, at = incidents.get(verdict.job_id), _time_of(verdict, now)
        if not _is_well(verdict):
            incidents[verdict.job_id] = incident = incident or _open(verdict, at)
            _take_cause(incident, verdict, names.get(verdict.run_id))
        elif incident is not None:
            _take_recovery(incident, at)
    Incident.objects.bulk_create([incident for incident in incidents.values() if incident.pk is None])
    changed = [incident for incident in incidents.values() if former.get(incident.pk) not in (None, _values(incident))]
    Incident.objects.bulk_update(changed, _CAUSE_COLUMNS)
    _store_findings(incidents, verdicts, now)
    announce(list(incidents.values()), now)


def _values(incident: Incident) -> tuple[Any, ...]:
    return tuple(getattr(incident, column) for column in _CAUSE_COLUMNS)


def _is_well(verdict: JobHealth) -> bool:
    return verdict.level <= Level.OK or not verdict.findings or verdict.job.archived_at is not None


def _time_of(verdict: JobHealth, now: datetime) -> datetime:
    """The time of the verdict; the present if it is not renewed, since its run has ended or its job is archived."""
    is_final = verdict.run_state in TERMINAL_STATES or verdict.job.archived_at is not None
    return now if is_final else verdict.checked_at


def _open(verdict: JobHealth, at: datetime) -> Incident:
    return Incident(job=verdict.job, run_id=verdict.run_id, opened_at=verdict.since or at)


def _take_cause(incident: Incident, verdict: JobHealth, names: Mapping[str, str] | None) -> None:
    cause = verdict.findings[0]
    incident.level, incident.cause, incident.well_since = verdict.level, cause, None
    if names is not None:
        incident.operator_name = names.get(cause["operator"], cause["operator"])


def _take_recovery(incident: Incident, at: datetime) -> None:
    if incident.well_since is None:
        incident.well_since = at
    elif at - incident.well_since >= WELL_FOR:
        incident.closed_at = incident.well_since


def _names_of_operators(
    verdicts: Sequence[JobHealth], incidents: Mapping[int, Incident]
) -> dict[int, Mapping[str, str]]:
    """By run: the names of its operators, if the cause has become another operator. A graph is large."""
    runs = [
        verdict.run_id
        for verdict in verdicts
        if not _is_well(verdict) and _operator_of(incidents.get(verdict.job_id)) != verdict.findings[0]["operator"]
    ]
    graphs = Run.objects.filter(pk__in=runs).values_list("pk", "version__graph") if runs else ()
    return {run: operator_names(graph) for run, graph in graphs}


def _operator_of(incident: Incident | None) -> str | None:
    return None if incident is None else str(incident.cause["operator"])


def _store_findings(incidents: Mapping[int, Incident], verdicts: Sequence[JobHealth], now: datetime) -> None:
    """Brings the findings of the incidents up to the verdicts."""
    stored: dict[int, dict[tuple[str, str], IncidentFinding]] = {}
    for each in IncidentFinding.objects.filter(incident__in=list(incidents.values())):
        stored.setdefault(each.incident_id, {})[each.rule, each.operator] = each
    fresh: list[IncidentFinding] = []
    changed: list[IncidentFinding] = []
    for verdict in verdicts:
        if (incident := incidents.get(verdict.job_id)) is None:
            continue
        rows, at = stored.get(incident.pk, {}), _time_of(verdict, now)
        present = {} if _is_well(verdict) else _by_rule_and_operator(verdict.findings)
        for key, finding in present.items():
            if (row := rows.get(key)) is None:
                fresh.append(_new_finding(incident, finding, at))
            elif _is_renewed(row, finding, at):
                changed.append(row)
        over = [row for key, row in rows.items() if key not in present and row.ended_at is None]
        for each in over:
            each.ended_at = at
        changed += over
    IncidentFinding.objects.bulk_create(fresh)
    IncidentFinding.objects.bulk_update(changed, _FINDING_COLUMNS)


def _by_rule_and_operator(findings: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The most severe finding of each rule and operator."""
    present: dict[tuple[str, str], Mapping[str, Any]] = {}
    for finding in findings:
        present.setdefault((finding["rule"], finding["operator"]), finding)
    return present


def _new_finding(incident: Incident, finding: Mapping[str, Any], at: datetime) -> IncidentFinding:
    decoded = decode_finding(finding)
    return IncidentFinding(
        incident=incident, rule=decoded.rule, operator=decoded.operator, level=decoded.level,
        first_sentence=decoded.sentence, finding=finding, since=decoded.since or at,
    )  # fmt: skip


def _is_renewed(row: IncidentFinding, finding: Mapping[str, Any], at: datetime) -> bool:
    """Takes the present form of a finding over. False if the row has it already."""
    level = Level[finding["level"].upper()]
    if row.finding == finding and row.ended_at is None:
        return False
    if row.ended_at is not None:
        row.ended_at, row.returns = None, row.returns + 1
    if level > row.level:
        row.level, row.worsened_at = level, at
    row.finding = dict(finding)
    return True
