"""Read models of incidents: the jobs that are not well now, and the timeline of an incident.

Attempts, operations, versions and alerts are read from their own rows by the time of the incident.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now
from django.shortcuts import get_object_or_404
from django.utils import timezone

from console.alerts.models import Delivery, Silence
from console.health.findings import Level
from console.incidents.models import Incident, IncidentFinding, IncidentNote, NoteKind
from console.jobs.differences import Difference, differences
from console.jobs.failures import FailureCause, failure_causes
from console.jobs.models import Attempt, Pipeline, Run
from console.operations.models import Operation, OperationKind
from console.operations.selectors import with_runs
from runtime.access.redaction import Schema

MAX_NOW: Final = 200  #: jobs that the first page lists
MAX_ROWS: Final = 50  #: newest attempts, operations, notes and alerts of an incident
MAX_DIFFERENCES: Final = 10
BEFORE: Final = timedelta(days=1)  #: operations so long before an incident are shown as changes before it
#: Operations after which a job may behave differently.
CHANGES: Final = (
    OperationKind.START, OperationKind.RESTORE, OperationKind.RESCALE, OperationKind.ROLLBACK, OperationKind.EDIT,
    OperationKind.DEFINE,
)  # fmt: skip
_NOTES: Final = {
    NoteKind.NOTE: "Note", NoteKind.TAKE: "Taken", NoteKind.RELEASE: "Released", NoteKind.SILENCE: "Alerts silenced",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """An event of an incident. `meaning`: of its mark. `operation`, `run`: the row with the page of the event."""

    at: datetime
    event: str
    text: str = ""
    by: str = ""
    meaning: str = "neutral"
    operation: Operation | None = None
    run: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentPage:
    """An incident with its time. `version_changes`: from the version of the run before to that of its run."""

    incident: Incident
    latest_run: Run | None  #: of the job, now
    run: Run | None  #: latest run of the job when it opened
    timeline: tuple[TimelineEntry, ...]  #: newest first
    findings: tuple[IncidentFinding, ...]
    causes: tuple[FailureCause, ...]  #: of attempts that failed in its time
    deliveries: tuple[Delivery, ...]  #: newest first
    changes: tuple[Operation, ...]  #: before it, newest first
    versions: tuple[int, int] | None  #: of the run before and of its run, if they differ
    version_changes: tuple[Difference, ...]


def open_incidents() -> QuerySet[Incident]:
    """The open incidents whose jobs are not well now, the most severe and the newest first."""
    rows = Incident.objects.filter(closed_at=None, well_since=None, job__archived_at=None)
    return rows.select_related("job", "taken_by").order_by("-level", "-opened_at", "-pk")


def listed_incidents() -> QuerySet[Incident]:
    return Incident.objects.select_related("job", "taken_by").order_by("-pk")


def find_incident(pk: int) -> Any:
    """The incident with its job, annotated with `parameter_schema` of the pipeline and `silenced_until`.

    Raises:
        Http404: there is no such incident.
    """
    schema = Pipeline.objects.filter(pk=OuterRef("job__pipeline")).values("schema")
    is_of_job = Q(job=OuterRef("job")) | Q(job=None)
    silences = Silence.objects.filter(is_of_job, until__gt=Now()).order_by("-until").values("until")[:1]
    facts = {"parameter_schema": Subquery(schema), "silenced_until": Subquery(silences)}
    return get_object_or_404(Incident.objects.select_related("job", "taken_by").annotate(**facts), pk=pk)


def incident_page(incident: Any) -> IncidentPage:
    """The page of an incident that `find_incident` has found."""
    schema: Schema = incident.parameter_schema or {}
    begin, end = incident.opened_at, incident.closed_at or timezone.now()
    findings = tuple(incident.findings.all())
    notes = incident.notes.select_related("created_by").order_by("-created_at")[:MAX_ROWS]
    ended = Attempt.objects.filter(run__job=incident.job, ended_at__range=(begin, end))
    attempts = list(ended.order_by("-ended_at").defer("detail", "launch")[:MAX_ROWS])
    operations = Operation.objects.filter(job=incident.job, part_of=None, created_at__range=(begin - BEFORE, end))
    newest = list(with_runs(operations).order_by("-created_at")[:MAX_ROWS])
    of_job = Run.objects.filter(job=incident.job)
    until_it = of_job.filter(pk__lte=incident.run_id).order_by("-pk").values("pk")[:2]
    read = of_job.filter(Q(pk__in=until_it) | Q(pk=incident.job.latest_run_id)).select_related("version", "job")
    latest, runs = None, list[Run]()
    for run in read.defer("live").order_by("-pk"):
        latest = latest or run
        runs += [run] if run.pk <= incident.run_id else []
    entries = [
        *_entries_of_incident(incident), *_entries_of_findings(findings), *map(_entry_of_note, notes),
        *map(_entry_of_attempt, attempts), *(_entry_of_operation(row) for row in newest if row.created_at >= begin),
    ]  # fmt: skip
    versions = [run.version for run in runs]
    is_other = len(versions) > 1 and versions[0].pk != versions[1].pk
    return IncidentPage(
        incident=incident,
        latest_run=latest,
        run=runs[0] if runs else None,
        timeline=tuple(sorted(entries, key=lambda entry: entry.at, reverse=True)),
        findings=findings,
        causes=failure_causes(incident.job, schema, between=(begin, end)) if attempts or _has_failed(runs) else (),
        deliveries=tuple(incident.deliveries.select_related("channel").order_by("-created_at")[:MAX_ROWS]),
        changes=tuple(row for row in newest if row.created_at < begin and row.kind in CHANGES),
        versions=(versions[1].number, versions[0].number) if is_other else None,
        version_changes=differences(versions[1], versions[0], schema)[:MAX_DIFFERENCES] if is_other else (),
    )


def rows_of_incident(incident: Incident) -> list[tuple[QuerySet[Any], int]]:
    """Queries for the rows behind the page of an incident, each with its maximum number of rows."""
    return [
        (Incident.objects.filter(pk=incident.pk), 1),
        (incident.findings.order_by("pk"), MAX_ROWS),
        (incident.notes.order_by("-pk"), MAX_ROWS),
        (incident.deliveries.order_by("-created_at"), MAX_ROWS),
        (Attempt.objects.filter(run__job=incident.job_id).order_by("-token"), 2),
        (Operation.objects.filter(job=incident.job_id).order_by("-created_at", "-pk"), 5),
    ]


def _has_failed(runs: Sequence[Run]) -> bool:
    return bool(runs) and runs[0].failure is not None


def _entries_of_incident(incident: Incident) -> Iterator[TimelineEntry]:
    yield TimelineEntry(at=incident.opened_at, event="Incident opened", meaning=incident.level_word)
    if incident.closed_at is not None:
        yield TimelineEntry(at=incident.closed_at, event="Incident ended", meaning="ok")
    elif incident.well_since is not None:
        yield TimelineEntry(at=incident.well_since, event="Job is well", meaning="ok")


def _entries_of_findings(findings: Sequence[IncidentFinding]) -> Iterator[TimelineEntry]:
    for row in findings:
        meaning = Level(row.level).word
        returns = f" It came back {row.returns} times." if row.returns else ""
        yield TimelineEntry(at=row.since, event="Finding", text=f"{row.first_sentence}{returns}", meaning=meaning)
        if row.worsened_at is not None:
            yield TimelineEntry(at=row.worsened_at, event="Finding became severe", text=row.sentence, meaning=meaning)
        if row.ended_at is not None:
            yield TimelineEntry(at=row.ended_at, event="Finding ended", text=row.sentence, meaning="ok")


def _entry_of_note(note: IncidentNote) -> TimelineEntry:
    return TimelineEntry(
        at=note.created_at, event=_NOTES[NoteKind(note.kind)], text=note.text, by=note.created_by.get_username()
    )


def _entry_of_attempt(attempt: Attempt) -> TimelineEntry:
    outcome = attempt.get_outcome_display() or "Ended"
    meaning = "failed" if attempt.outcome in ("failed", "lost") else "neutral"
    assert attempt.ended_at is not None
    return TimelineEntry(
        at=attempt.ended_at, event=f"Attempt {outcome.lower()}", text=attempt.reason, meaning=meaning,
        run=attempt.run_id,
    )  # fmt: skip


def _entry_of_operation(operation: Operation) -> TimelineEntry:
    by = operation.requested_by.get_username() if operation.requested_by else ""
    return TimelineEntry(
        at=operation.created_at, event=operation.kind.capitalize(), text=operation.reason, by=by, operation=operation
    )
