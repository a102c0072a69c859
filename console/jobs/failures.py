"""The failures of runs and attempts: one failure, and the failures of a job grouped by cause."""

import re
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db.models import (
    Case,
    Count,
    ExpressionWrapper,
    Func,
    JSONField,
    Max,
    Min,
    Q,
    QuerySet,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, NullIf, RowNumber

from console.jobs.attempts import attempt_number
from console.jobs.models import Attempt, AttemptOutcome, Job, JobVersion
from console.jobs.operator_names import operator_names
from runtime.access.redaction import Schema, redact_failure, redact_json
from runtime.core.job.lifecycle import RunState

MAX_CAUSES: Final = 8  #: causes that a page shows, newest first
NO_REASON: Final = "No reason was recorded."
_FRAME: Final = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_FIELDS: Final = (
    "code", "message", "detail", "operator", "slot", "story", "traceback", "log", "slot_log", "kept_slots",
    "restarted_operators",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetail:
    """A recorded failure, without the secrets of the version. "" and None stand for facts that were not recorded.

    Args:
        operator: its name, as the graph shows it.
        traceback: of the exception in the slot, else the end of the log.
        slot_log: file and host of the log of a lost slot.
        kept_slots: the slots that ran on while the others restarted.
        restarted_operators: names of the operators that restarted in these slots, too.
        story: the events before the failure, oldest first.
        rest: all other recorded facts.
    """

    code: str
    message: str
    operator: str
    slot: int | None
    traceback: str
    slot_log: str
    kept_slots: tuple[int, ...]
    restarted_operators: tuple[str, ...]
    story: tuple[str, ...]
    rest: Any

    @property
    def subtask(self) -> int | None:
        """The subtask that failed: subtask n of an operator runs in slot n."""
        return self.slot if self.operator else None

    @property
    def place(self) -> str:
        """File and line that raised the exception; "" without a traceback."""
        *_, last = [("", ""), *_FRAME.findall(self.traceback)]
        return f"{last[0]}, line {last[1]}" if last[0] else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """Failures of attempts with the same cause. `newest` and all members after it are of the newest of them.

    `attempt`: its token. `attempt_number`: its number within the run.
    """

    number: int
    first: datetime
    last: datetime
    newest: FailureDetail
    run: int
    attempt: int
    attempt_number: int


def failure_detail(recorded: Any, version: JobVersion, schema: Schema, reason: str = "") -> FailureDetail:
    """The failure in a row of a run or attempt, as the job master or another process `recorded` it.

    Args:
        version: it names the operators and the secrets.
        schema: of the pipeline, as it is offered now.
        reason: the message if none was recorded.
    """
    schema = version.parameter_schema(schema)
    failure = redact_failure(recorded or {}, partial(redact_json, params=version.params, schema=schema))
    detail = failure.get("detail")
    fields = {**failure, **detail} if isinstance(detail, dict) else failure
    facts = {key: value for key, value in fields.items() if key not in _FIELDS and value not in (None, "", [])}
    operator, names = str(fields.get("operator") or ""), operator_names(version.graph)
    slot, story, log = fields.get("slot"), fields.get("story") or (), fields.get("log") or ()
    return FailureDetail(
        code=str(failure.get("code") or "unknown"),
        message=str(failure.get("message") or reason),
        operator=names.get(operator, operator),
        slot=slot if isinstance(slot, int) else None,
        traceback=str(fields.get("traceback") or "\n".join(map(str, log))),
        slot_log=str(fields.get("slot_log") or ""),
        kept_slots=tuple(int(slot) for slot in fields.get("kept_slots") or ()),
        restarted_operators=tuple(names.get(str(uid), str(uid)) for uid in fields.get("restarted_operators") or ()),
        story=tuple(map(str, story)) if isinstance(story, list | tuple) else (str(story),),
        rest=facts or (None if isinstance(detail, dict) else detail),
    )


def with_recorded_failures(attempts: QuerySet[Attempt]) -> QuerySet[Any]:
    """The attempts with their recorded failure as `recorded`. That of a failed run is part of its last attempt's.

    `attempts`: all attempts of their runs.
    """
    last = attempts.order_by().values("run").annotate(last=Max("token")).values("last")
    is_last = Q(run__state=RunState.FAILED.value, token__in=last)
    nothing = Value({}, JSONField())
    of_run = Case(When(is_last, then=Coalesce("run__failure", nothing)), default=nothing, output_field=JSONField())
    failure = Func(of_run, Coalesce("detail", nothing), template="(%(expressions)s)", arg_joiner=" || ")
    return attempts.annotate(
        is_last_of_failed=Case(When(is_last, then=Value(True)), default=Value(False)),
        recorded=ExpressionWrapper(failure, output_field=JSONField()),
    )


def failure_causes(
    job: Job,
    schema: Schema,
    operator: str = "",
    most: int = MAX_CAUSES,
    between: tuple[datetime, datetime] | None = None,
) -> tuple[FailureCause, ...]:
    """The `most` newest causes of failed and lost attempts. A query.

    `operator`: of this operator only. `between`: of attempts that ended between two times only.

    The last attempt of a failed run counts even if its end was not recorded: a job may be rejected at its start.

    Attempts with the same failure code, operator and message have the same cause. Numbers in messages are ignored:
    offsets and ports differ.
    """
    failed, text = Q(outcome__in=(AttemptOutcome.FAILED, AttemptOutcome.LOST)), TextField()
    attempts = with_recorded_failures(Attempt.objects.filter(run__job=job)).filter(failed | Q(is_last_of_failed=True))
    said = Coalesce(NullIf("reason", Value("")), KeyTextTransform("message", "recorded"), Value(""), output_field=text)
    rows = attempts.annotate(
        code=Coalesce(KeyTextTransform("code", "recorded"), Value(""), output_field=text),
        operator=Coalesce(KeyTextTransform("operator", "recorded"), Value(""), output_field=text),
        message=Func(said, Value("[0-9]+"), Value("0"), Value("g"), function="regexp_replace", output_field=text),
    )
    if operator:
        rows = rows.filter(operator=operator)
    if between is not None:
        rows = rows.annotate(end=Coalesce("ended_at", "run__ended_at")).filter(end__range=between)
    cause = ["code", "operator", "message"]
    grouped = rows.annotate(
        number=Window(Count("pk"), partition_by=cause),
        first=Window(Min(Coalesce("ended_at", "run__ended_at")), partition_by=cause),
        last=Window(Max(Coalesce("ended_at", "run__ended_at")), partition_by=cause),
        place=Window(RowNumber(), order_by="-token", partition_by=cause),
    ).annotate(attempt_number=Case(When(place=1, then=attempt_number())))
    newest = (
        grouped.filter(place=1)
        .order_by("-token")
        .select_related("run__version__package", "run__version__job")
        .defer("run__live")
    )
    return tuple(
        FailureCause(
            number=row.number,
            first=row.first or row.started_at,
            last=row.last or row.started_at,
            newest=failure_detail(row.recorded, row.run.version, schema, row.reason or NO_REASON),
            run=row.run_id,
            attempt=row.token,
            attempt_number=row.attempt_number,
        )
        for row in newest[:most]
    )
