"""The failures of a job's attempts, grouped by cause: how often, since when, where, and the whole traceback.

Attempts with the same failure code, operator and message have the same cause. Numbers in messages are ignored: offsets
and ports differ. Postgres groups; the newest attempt of a group gives message, traceback and events.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Count, F, Func, Max, Min, Q, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce

from console.jobs.models import Attempt, AttemptOutcome, Job
from runtime.core.job.lifecycle import RunState
from runtime.redaction import Schema, redact_json

MAX_CAUSES: Final = 8  #: causes that a page shows, newest first
_UNKNOWN: Final = "No reason was recorded."


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """Failures with the same cause; all other fields are of the newest of them. `slot` is None if no slot reported."""

    number: int
    first: datetime
    last: datetime
    code: str
    message: str
    operator: str
    slot: int | None
    traceback: str
    story: tuple[str, ...]
    run: int
    attempt: int


def failure_causes(job: Job, schema: Schema, operator: str = "") -> tuple[FailureCause, ...]:
    """The causes of failed and lost attempts, newest first; of an operator only, if one is given. Two queries."""
    failed = Attempt.objects.filter(run__job=job, outcome__in=(AttemptOutcome.FAILED, AttemptOutcome.LOST))
    last = Q(
        detail__isnull=True, run__state=RunState.FAILED.value
    )  # the reason of the last attempt is in the run's row
    if operator:
        failed = failed.filter(Q(detail__operator=operator) | (last & Q(run__failure__operator=operator)))
    text = TextField()
    same = Value("[0-9]+", text), Value("0", text), Value("g", text)
    cause = Func(F("reason"), *same, function="regexp_replace", output_field=text)
    place = Coalesce(KeyTextTransform("operator", "detail"), Value("", text))
    groups = failed.order_by().annotate(cause=cause, place=place).values("cause", "place")
    counted = groups.annotate(
        number=Count("pk"), first=Min("ended_at"), last=Max("ended_at"), newest=Max("token")
    ).order_by("-newest")[:MAX_CAUSES]
    found = list(counted.values_list("number", "first", "last", "newest"))
    tokens = [token for *_, token in found]
    rows = Attempt.objects.filter(token__in=tokens).select_related("run__version").defer("run__live")
    newest = {row.token: row for row in rows}
    return tuple(_group(newest[token], schema, number, first, last) for number, first, last, token in found)


def _group(row: Attempt, schema: Schema, number: int, first: datetime, last: datetime) -> FailureCause:
    detail = attempt_detail(row, schema)
    story = detail.get("story") or ()
    slot = detail.get("slot")
    return FailureCause(
        number=number,
        first=first or row.started_at,
        last=last or row.started_at,
        code=str(detail.get("code") or ""),
        message=str(detail.get("message") or row.reason or _UNKNOWN),
        operator=str(detail.get("operator") or ""),
        slot=slot if isinstance(slot, int) else None,
        traceback=str(detail.get("traceback") or "\n".join(map(str, detail.get("log") or ()))),
        story=tuple(map(str, story)) if isinstance(story, list) else (),
        run=row.run_id,
        attempt=row.token,
    )


def attempt_detail(row: Attempt, schema: Schema) -> Mapping[str, Any]:
    """The recorded failure of an attempt, without the secrets of its version; {} if there is none.

    A run that fails has the failure of its last attempt.
    """
    is_last = row.detail is None and row.run.state == RunState.FAILED and row.token == row.run.token
    recorded = row.run.failure if is_last else row.detail
    found = redact_json(recorded or {}, row.run.version.params, schema)
    return found if isinstance(found, Mapping) else {}
