"""The same act on several jobs: its effect on each before, and its result for each. A refusal stops no other job.

The results are recorded as a `BulkOperation`, so that they have an address.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import OuterRef, Subquery

from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.rights import AnyUser, define_refusal, require_define, require_operate
from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.editing import change_tags, checked_tags
from console.jobs.models import Job, Run, choices
from console.jobs.services import lock_job
from console.operations import services
from console.operations.expected_times import expected_savepoints
from console.operations.job_state import run_conflict
from console.operations.kinds.job.delegated import BulkProgress, DelegatedOperation
from console.operations.legality import request_refusal
from console.operations.models import ACTIVE_STATES, BulkOperation, Operation
from console.operations.registry import operation_of
from console.operations.selectors import with_runs
from console.runs.selectors import with_latest_run
from runtime.core.job.lifecycle import RunAct

MAX_JOBS: Final = 100


class BulkAct(StrEnum):
    SAVEPOINT = RunAct.SAVEPOINT.value
    STOP = RunAct.STOP.value
    DRAIN = RunAct.DRAIN.value
    CANCEL = RunAct.CANCEL.value
    TAG = "tag"
    UNTAG = "untag"

    @property
    def is_of_tags(self) -> bool:
        return self in (BulkAct.TAG, BulkAct.UNTAG)


BULK_ACTS: Final = choices(BulkAct)
BULK_STATES: Final = [
    ("accepted", "Accepted"), ("changed", "Changed"), ("unchanged", "Unchanged"), ("refused", "Refused"),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLine:
    """A selected job. `effect`: of the act on it, or the change that was made.

    `changes`: whether the act changes the tags of the job, or has changed them; `refusal`: why the act is not possible,
    or was refused; `operation`: the accepted request; `active`: operations on the run that were requested before.
    """

    job: Job
    run: Run | None
    effect: str = ""
    changes: bool = False
    refusal: str = ""
    operation: Operation | None = None
    active: tuple[Operation, ...] = ()

    @property
    def state(self) -> str:
        if self.refusal:
            return "refused"
        if self.operation:
            return "accepted"
        return "changed" if self.changes else "unchanged"


def bulk_lines(act: BulkAct, jobs: Sequence[int], tags: Sequence[str], user: AnyUser, now: datetime) -> list[BulkLine]:
    """The jobs by name, with the effect of `act` on each now. At most five queries.

    Raises:
        InvalidField: there are too many jobs, or the tags cannot be stored.
    """
    if len(jobs) > MAX_JOBS:
        raise InvalidField("jobs", f"at most {MAX_JOBS} jobs")
    job_rows: list[Any] = list(with_latest_run().filter(pk__in=jobs).order_by("name"))
    if act.is_of_tags:
        valid_tags = checked_tags(tags)
        if not valid_tags:
            raise InvalidField("tags", "at least one tag")
        refused = define_refusal(user) or ""
        return [_tag_line(act, job, valid_tags, refused) for job in job_rows]
    completed = Checkpoint.objects.filter(run=OuterRef("pk"), status=Status.COMPLETED, discarded_at=None)
    newest = completed.order_by("-number").values("pk")
    rows: Any = Run.objects.select_related("version").annotate(
        newest=Subquery(newest[:1]), committed=Subquery(newest.exclude(kind=Kind.SAVEPOINT)[:1])
    )
    runs: Mapping[int, Any] = rows.in_bulk([job.run_pk for job in job_rows])
    pks = {pk for run in runs.values() for pk in (run.newest, run.committed)}
    checkpoints = Checkpoint.objects.defer("operators").in_bulk(pks)
    active: dict[int | None, list[Operation]] = {}
    on_runs = Operation.objects.filter(run__in=runs, state__in=ACTIVE_STATES)
    for row in on_runs.select_related("requested_by").order_by("created_at"):
        active.setdefault(row.run_id, []).append(row)
    operation, refused, lines = operation_of(DelegatedOperation, act), request_refusal(act, user), []
    streaming = {run.job_id: checkpoints.get(run.newest) for run in runs.values() if not run.version.is_batch}
    expected = expected_savepoints(streaming, act) if operation.takes_savepoint else {}
    for job in job_rows:
        run = runs.get(job.run_pk)
        operations = tuple(active.get(job.run_pk, ()))
        conflict = run_conflict(run, operation.act, operations)
        why = refused or (conflict.detail if conflict else "")
        effect = ""
        if run is not None and not why:
            progress = BulkProgress(
                run=run, newest=checkpoints.get(run.newest), committed=checkpoints.get(run.committed),
                expected=expected.get(job.pk), now=now,
            )  # fmt: skip
            effect = operation.effect(progress)
        lines.append(BulkLine(job=job, run=run, effect=effect, refusal=why, active=operations))
    return lines


def carry_out(
    act: BulkAct,
    lines: Sequence[BulkLine],
    tags: Sequence[str],
    context: services.OperationRequestContext,
    runs: Collection[int] = (),
) -> BulkOperation:
    """A request for each job. The idempotency key of `context` is that of all of them together.

    `runs`: the runs that the user confirmed. If any are given, a job is refused when another run is its latest. A
    repetition is recorded as the same `BulkOperation`: it requests again what was refused, and nothing else.

    Raises:
        Forbidden: the user may not request this act on any job.
        InvalidField: the key or the reason cannot be stored.
    """
    require_define(context.user) if act.is_of_tags else require_operate(context.user)
    services.check_texts(context)
    confirmed = dict(Run.objects.filter(pk__in=runs).values_list("job", "pk")) if runs else None
    outcomes = [_carry_out(act, line, tags, context, confirmed) for line in lines]
    facts = {
        "kind": act.value, "tags": [tag.strip() for tag in tags], "requested_by": context.user,
        "reason": context.reason, "results": [_result(line) for line in outcomes],
    }  # fmt: skip
    return BulkOperation.objects.update_or_create(pk=_request_id(act, lines, tags, context), defaults=facts)[0]


def result_lines(row: BulkOperation) -> list[BulkLine]:
    """The jobs of a request by name, with the state of their present runs and the result for each. Three queries."""
    results = {result["job"]: result for result in row.results}
    jobs: list[Any] = list(with_latest_run().filter(pk__in=results).order_by("name"))
    runs = Run.objects.only("state").in_bulk([job.run_pk for job in jobs])
    requested = [result["operation"] for result in row.results if result["operation"]]
    operations = {str(each.pk): each for each in with_runs(Operation.objects.filter(pk__in=requested))}
    return [
        BulkLine(
            job=job, run=runs.get(job.run_pk), effect=result["effect"], changes=result["changes"],
            refusal=result["refusal"], operation=operations.get(result["operation"] or ""),
        )
        for job in jobs
        for result in [results[job.pk]]
    ]  # fmt: skip


def _result(line: BulkLine) -> dict[str, Any]:
    operation = str(line.operation.pk) if line.operation else None
    return {
        "job": line.job.pk, "operation": operation, "refusal": line.refusal, "changes": line.changes,
        "effect": line.effect,
    }  # fmt: skip


def _request_id(
    act: BulkAct, lines: Sequence[BulkLine], tags: Sequence[str], context: services.OperationRequestContext
) -> UUID:
    """The id of the request: the same for a repetition with the same idempotency key."""
    if context.idempotency_key is None:
        return uuid4()
    jobs = sorted(line.job.pk for line in lines)
    parts = repr((context.user.pk, act.value, jobs, list(tags), context.idempotency_key))
    return UUID(bytes=hashlib.sha256(parts.encode()).digest()[:16])


def _carry_out(
    act: BulkAct,
    line: BulkLine,
    tags: Sequence[str],
    context: services.OperationRequestContext,
    confirmed: Mapping[int, int] | None,
) -> BulkLine:
    """`confirmed`: the confirmed run of each job."""
    try:
        if act.is_of_tags:
            return _change_tags(act, line, checked_tags(tags), context)
        job_context = replace(context, idempotency_key=_key_for(context.idempotency_key, line.job))
        params = {} if confirmed is None else {"run": _confirmed_run(line.job, confirmed)}
        operation = services.request(job_context, line.job, act.value, params).operation
    except Refused as refused:
        return replace(line, refusal=refused.detail)
    return replace(line, refusal="", operation=operation)


def _confirmed_run(job: Job, confirmed: Mapping[int, int]) -> int:
    """Raises Conflict if the job had no run when the user confirmed the act."""
    if job.pk not in confirmed:
        raise Conflict("run-changed", f"The request names no run of {job.name}.")
    return confirmed[job.pk]


def _change_tags(
    act: BulkAct, line: BulkLine, tags: Sequence[str], context: services.OperationRequestContext
) -> BulkLine:
    """Changes the tags of a job. A repetition of a request that changed some has the result of the first.

    A request that changed nothing has no entry, so its repetition is a request of its own.
    """
    key = _key_for(context.idempotency_key, line.job, act, *tags)
    with transaction.atomic():
        lock_job(line.job)  # before the look-up: the first request may not have committed its entry yet
        entry = key and Operation.objects.filter(requested_by=context.user, idempotency_key=key).first()
        if entry:
            before, after = (entry.result or {})["changes"]["tags"]
            changed = sorted({*before} ^ {*after})
            return replace(line, effect=_tag_effect(act, changed), changes=True, refusal="")
        added, removed = (tags, []) if act is BulkAct.TAG else ([], tags)
        has_changed = change_tags(
            context.user, line.job, add=added, remove=removed, reason=context.reason, request_key=key
        )  # fmt: skip
    return replace(line, changes=has_changed, refusal="")


def _key_for(key: str | None, job: Job, *parts: str) -> str | None:
    """The idempotency key of the request for `job`, by a digest: it is as long for each `key` and equal to no `key`."""
    return None if key is None else f"bulk-{hashlib.sha256(' '.join([str(job.pk), *parts, key]).encode()).hexdigest()}"


def _tag_line(act: BulkAct, job: Job, tags: Sequence[str], refused: str) -> BulkLine:
    """The tags that the job gets or loses, as a sentence."""
    adds = act is BulkAct.TAG
    changed = [tag for tag in tags if (tag in job.tags) is not adds]
    if changed:
        effect = _tag_effect(act, changed)
    else:
        effect = "nothing changes: it has these tags" if adds else "nothing changes: it has none of these tags"
    return BulkLine(job=job, run=None, effect=effect, changes=bool(changed), refusal=refused)


def _tag_effect(act: BulkAct, tags: Sequence[str]) -> str:
    return f"{'gets' if act is BulkAct.TAG else 'loses'} {', '.join(tags)}"
