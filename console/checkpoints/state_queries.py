"""Queries on a checkpoint's state as rows: created, claimed by a task of the queue `stages`, answered, cancelled.

The row is written first; a message only wakes a worker. Every claim and every end is a compare-and-set on state and
owner. A query only reads, so the reconciler can restart a query whose task was lost.
"""

from datetime import UTC, datetime
from typing import Any, Final

import structlog
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from console import wakeups
from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.rights import require_operate
from console.checkpoints.models import ACTIVE_QUERIES, Checkpoint, QueryState, StateQuery, large_columns
from console.checkpoints.timed_reads import load_pinned_manifest_in_time
from console.jobs.models import Pipeline
from console.runs.lease import ago
from runtime.core.snapshot.contents import StoredState, stored_states

log = structlog.get_logger(__name__)

MAX_ACTIVE_PER_USER: Final = 4  #: queued and running queries of a user
MAX_RUNNING: Final = 1  #: queries of all users; compilations share the queue `stages`
LEASE_S: Final = 15
MAX_LOSSES: Final = 3
RESEND_WAKE_UP_S: Final = 30
MAX_QUEUED_S: Final = 600  #: equal to the lifetime of a pin
RETENTION_S: Final = 24 * 3600  #: retention of results
#: Columns of windows and sessions in ms since 1970, which people read and type as times.
WINDOW_TIMES: Final = ("window_start", "window_end", ":session", ":last")
_SCALAR_TYPES: Final = (str, int, float, bool, type(None))
_CURSOR_FIELDS: Final = frozenset({"group", "skip"})
_MAX_POSITION: Final = 10**9  #: limit of a number in a cursor, as in `spark_jobs.state.query`


def saved_queries(checkpoint: Checkpoint) -> dict[str, str]:
    """SQL by name that the author saved with the pipeline of the checkpoint's job."""
    pipeline = Pipeline.objects.filter(pk=checkpoint.job.pipeline).first()
    return dict(sorted(pipeline.queries.items())) if pipeline else {}


def contents(checkpoint: Checkpoint) -> tuple[StoredState, ...]:
    """The states in a checkpoint, from its manifest. The checkpoint is pinned, so retention keeps it for ten minutes.

    Raises:
        Conflict: the checkpoint has not completed, or is discarded.
        Refused: names the file that is missing or damaged, or the storage does not answer in time.
    """
    if not checkpoint.is_restorable:
        why = "was discarded" if checkpoint.discarded_at else f"is {checkpoint.outcome.replace('_', ' ')}"
        raise Conflict("no-state", f"{str(checkpoint).capitalize()} {why}: there is no state to read.")
    return stored_states(load_pinned_manifest_in_time(checkpoint))


def request_rows(
    user: User, checkpoint: Checkpoint, *, operator: str, state: str, key: dict[str, Any], cursor: dict[str, Any]
) -> StateQuery:
    """Requests a page of the rows of a state.

    Args:
        key: values by key column; {} selects all rows. Times of windows and sessions are a number of ms, or a text such
            as 2013-06-12 or 2013-06-12 08:00, in UTC.
        cursor: cursor of the previous result; {} is the first page.

    Raises:
        Refused: the operator or state is unknown, or the key or cursor is malformed.
        Conflict: the checkpoint has no state any more, or the user has too many active queries.
    """
    states = contents(checkpoint)
    _require_rows(states, operator, state)
    types = next(each.keys for each in states if (each.operator, each.name) == (operator, state))
    key = {
        column: _event_time_ms(value) if column in WINDOW_TIMES and types.get(column, "int64") == "int64" else value
        for column, value in key.items()
    }
    for column, value in key.items():
        if not isinstance(value, _SCALAR_TYPES):
            raise InvalidField(f"key.{column}", "must be a text, number, boolean or null")
    if not (cursor.keys() <= _CURSOR_FIELDS and all(_is_position(value) for value in cursor.values())):
        raise InvalidField("cursor", "must be the cursor of a result, {group, skip}")
    return _create_query(
        user, checkpoint, {"kind": "rows", "operator": operator, "state": state, "key": key, "cursor": cursor}
    )


def request_saved_query(user: User, checkpoint: Checkpoint, name: str) -> StateQuery:
    """Requests the result of SQL that is saved with the pipeline.

    Raises:
        Refused: the pipeline has no query of this name; the error lists its names.
        Conflict: as in `request_rows`.
    """
    queries = saved_queries(checkpoint)
    if name not in queries:
        names = ", ".join(map(repr, queries)) or "none"
        detail = f"query: the pipeline {checkpoint.job.pipeline} has no query {name!r}; known: {names}."
        raise Refused("unknown-query", detail, field="query")
    contents(checkpoint)
    return _create_query(user, checkpoint, {"kind": "sql", "name": name, "sql": queries[name]})


def _require_rows(states: tuple[StoredState, ...], operator: str, name: str) -> None:
    operators = sorted({state.operator for state in states})
    if operator not in operators:
        names = ", ".join(operators) or "none"
        detail = f"operator: no operator {operator!r} has state in this checkpoint; known: {names}."
        raise Refused("unknown-operator", detail, field="operator")
    of_operator = {state.name: state for state in states if state.operator == operator and state.kind.has_rows}
    if name not in of_operator:
        names = ", ".join(of_operator) or "none"
        detail = f"state: {operator!r} has no state {name!r} with rows in this checkpoint; known: {names}."
        raise Refused("unknown-state", detail, field="state")


def _event_time_ms(value: Any) -> Any:
    """A date, or a date and time, as ms since 1970. Any other value stays, and the stage checks its type."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) and "-" in value else None
        return value if time is None else round(time.replace(tzinfo=time.tzinfo or UTC).timestamp() * 1000)
    except (OverflowError, ValueError):
        return value


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_POSITION


def _create_query(user: User, checkpoint: Checkpoint, request: dict[str, Any]) -> StateQuery:
    active = StateQuery.objects.filter(requested_by=user, state__in=ACTIVE_QUERIES)
    if active.count() >= MAX_ACTIVE_PER_USER:
        detail = f"You already have {MAX_ACTIVE_PER_USER} active queries. Cancel a query, or wait until it has ended."
        raise Conflict("too-many-queries", detail)
    query = StateQuery.objects.create(checkpoint=checkpoint, request=request, requested_by=user)
    wakeups.after_commit(wakeups.STATE_QUERY_TASK, query.pk)
    return query


# ---------------------------------------------------------------- called by the task


def claim(query_id: int, owner: str) -> StateQuery | None:
    """Claims a queued query. None if another task was first, the query has ended, or `MAX_RUNNING` queries run."""
    if StateQuery.objects.filter(state=QueryState.RUNNING).count() >= MAX_RUNNING:
        return None
    waiting = StateQuery.objects.filter(pk=query_id, state=QueryState.QUEUED)
    if not waiting.update(
        state=QueryState.RUNNING, owner=owner, beat_at=Now(), started_at=Coalesce("started_at", Now()), progress=None
    ):
        return None
    return (
        StateQuery.objects.select_related("checkpoint__run__version__job")
        .defer(*large_columns("checkpoint"))
        .get(pk=query_id)
    )


def renew(query_id: int, owner: str, progress: dict[str, Any] | None) -> bool:
    """Renews the lease. False if the query is cancelled or has another owner."""
    return bool(_owned_query(query_id, owner).update(beat_at=Now(), progress=progress))


def release(query_id: int, owner: str) -> None:
    """Requeues the query for another task to claim. Has no effect if `owner` no longer owns the query."""
    if _owned_query(query_id, owner).update(state=QueryState.QUEUED, owner="", progress=None):
        wakeups.send(wakeups.STATE_QUERY_TASK, query_id)


def succeed(query_id: int, owner: str, table: dict[str, Any]) -> None:
    _owned_query(query_id, owner).update(state=QueryState.SUCCEEDED, result=table, progress=None, ended_at=Now())
    _wake_next()


def fail(query_id: int, owner: str, error: dict[str, Any]) -> None:
    _owned_query(query_id, owner).update(state=QueryState.FAILED, error=error, progress=None, ended_at=Now())
    _wake_next()


def _owned_query(query_id: int, owner: str) -> Any:
    return StateQuery.objects.filter(pk=query_id, state=QueryState.RUNNING, owner=owner)


def _wake_next() -> None:
    waiting = StateQuery.objects.filter(state=QueryState.QUEUED).order_by("pk").first()
    if waiting is not None:
        wakeups.send(wakeups.STATE_QUERY_TASK, waiting.pk)


# ---------------------------------------------------------------- called by users and by the reconciler


def cancel(user: User, query: StateQuery) -> None:
    """Cancels an active query; an ended query stays as it is. The stage is killed within seconds.

    Raises:
        Forbidden: the query is another user's, and `user` may not operate.
    """
    if query.requested_by_id != user.pk:
        require_operate(user)
    active = StateQuery.objects.filter(pk=query.pk, state__in=ACTIVE_QUERIES)
    if active.update(state=QueryState.CANCELED, progress=None, ended_at=Now()):
        _wake_next()


def reconcile() -> None:
    """Requeues queries of lost tasks, fails queries without a worker, resends wake-ups, deletes old results."""
    if not StateQuery.objects.exists():
        return  # most passes end here
    silent = StateQuery.objects.filter(state=QueryState.RUNNING, beat_at__lte=ago(LEASE_S))
    loss = {"code": "stage-lost", "detail": f"The worker that read the state was lost {MAX_LOSSES} times.", "field": ""}
    silent.filter(losses__gte=MAX_LOSSES - 1).update(state=QueryState.FAILED, error=loss, ended_at=Now())
    if lost := silent.update(state=QueryState.QUEUED, owner="", progress=None, losses=F("losses") + 1):
        log.warning("state queries given back", count=lost)
    waiting = StateQuery.objects.filter(state=QueryState.QUEUED)
    late = f"No worker of the queue `stages` started the query within {MAX_QUEUED_S // 60} minutes."
    error = {"code": "no-worker", "detail": late, "field": ""}
    waiting.filter(created_at__lte=ago(MAX_QUEUED_S)).update(state=QueryState.FAILED, error=error, ended_at=Now())
    for query_id in waiting.filter(beat_at__lte=ago(RESEND_WAKE_UP_S if not lost else 0)).values_list("pk", flat=True):
        StateQuery.objects.filter(pk=query_id).update(beat_at=Now())
        wakeups.send(wakeups.STATE_QUERY_TASK, query_id)
    StateQuery.objects.filter(ended_at__lte=ago(RETENTION_S)).delete()
