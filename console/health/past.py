"""The attempts, checkpoints and missed times of a run, as the rules of health see them: a part of a query.

`collection` has the query.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from console.checkpoints.models import NOT_FAILURES
from console.checkpoints.operation_codes import INCONCLUSIVE
from console.health.facts import (
    CheckpointFacts,
    CompletedCheckpoint,
    FailedAttempt,
    FailedDrill,
    FailedSavepoint,
    MissedTime,
    StateChange,
)
from console.health.fetching import decode
from console.health.rules.attempts import MAX_ATTEMPTS
from console.health.rules.checkpoints import MAX_COUNTED_FAILURES, MIN_SLOW_COMMIT_MS
from console.jobs.models import Run
from runtime.core.job.settings import CoordinatorSettings

_RECENT: Final = 5  #: completed checkpoints whose durations count
_NOUNS: Final = {"savepoint": "savepoint", "drill": "restore drill"}  #: by operation of a schedule

COLUMNS: Final = """
    attempts.*, newest.id AS newest_pk, newest.number AS newest_number, newest.completed_at AS newest_completed_at,
    newest.duration_ms AS newest_ms, newest.operators AS newest_operators, recent.recent_ms, failed.*, begun.*, saved.*,
    lost.ended_at AS lost_at, missed.missed, drill.*, change.*,
    CASE WHEN newest.duration_ms >= %(slow_commit_ms)s THEN (
        SELECT max(at.ms::float8) FROM jsonb_each(newest.acknowledgements) AS own,
            jsonb_array_elements_text(own.value -> 'at_ms') AS at (ms)
    ) END AS newest_acknowledged_ms
"""
#: Joins to a run `r`.
JOINS: Final = """
LEFT JOIN LATERAL (
    SELECT outcome, ended_at FROM weir_attempt WHERE run_id = r.id ORDER BY token DESC LIMIT 1
) AS lost ON lost.outcome = 'lost'
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(extract(epoch FROM ended_at), reason, detail)) AS attempts FROM (
        SELECT ended_at, reason, detail FROM weir_attempt
        WHERE run_id = r.id AND outcome = 'failed' AND ended_at >= %(now)s - interval '1 hour'
        ORDER BY token DESC LIMIT %(attempts)s) AS failures
) AS attempts ON true
LEFT JOIN LATERAL (
    SELECT (array_agg(id))[1] AS id, array_agg(duration_ms) FILTER (WHERE duration_ms IS NOT NULL) AS recent_ms FROM (
        SELECT id, duration_ms FROM weir_checkpoint
        WHERE run_id = r.id AND status = 'completed' AND discarded_at IS NULL AND kind = 'checkpoint'
        ORDER BY number DESC LIMIT %(recent)s) AS kept
) AS recent ON true
LEFT JOIN weir_checkpoint AS newest ON newest.id = recent.id
LEFT JOIN LATERAL (
    SELECT count(*) AS failed, (array_agg(id))[1] AS failed_pk, (array_agg(number))[1] AS failed_number,
        (array_agg(reason))[1] AS failed_reason, (array_agg(detail))[1] AS failed_detail
    FROM (
        SELECT id, number, reason, detail FROM weir_checkpoint
        WHERE run_id = r.id AND status = 'failed' AND kind = 'checkpoint' AND reason <> ALL(%(not_failures)s)
            AND number > coalesce(newest.number, 0)
        ORDER BY number DESC LIMIT %(failures)s) AS failures
) AS failed ON true
LEFT JOIN LATERAL (
    SELECT id AS begun_pk, triggered_at AS begun_at, acknowledged, subtasks FROM weir_checkpoint
    WHERE run_id = r.id AND status = 'in_progress' AND token = r.token AND kind = 'checkpoint'
    ORDER BY number DESC LIMIT 1
) AS begun ON true
LEFT JOIN LATERAL (
    SELECT id AS saved_pk, number AS saved_number, coalesce(completed_at, triggered_at) AS saved_at,
        reason AS saved_reason, detail AS saved_detail
    FROM (
        SELECT id, number, triggered_at, completed_at, status, reason, detail FROM weir_checkpoint
        WHERE job_id = r.job_id AND run_id = r.id AND kind <> 'checkpoint'
            AND (status = 'completed' OR status = 'failed' AND reason <> ALL(%(not_failures)s))
        ORDER BY number DESC LIMIT 1) AS newest_savepoint
    WHERE status = 'failed'
) AS saved ON true
LEFT JOIN LATERAL (
    SELECT jsonb_agg(
        jsonb_build_array(operation, extract(epoch FROM missed_at), missed_reason) ORDER BY operation) AS missed
    FROM weir_schedule WHERE job_id = r.job_id AND missed_at >= r.created_at
) AS missed ON true
LEFT JOIN LATERAL (
    SELECT ended_at AS drill_at, error ->> 'message' AS drill_error,
        (SELECT number FROM weir_checkpoint WHERE id = (newest_drill.params ->> 'checkpoint')::bigint)
            AS drill_number
    FROM (
        SELECT state, ended_at, error, params FROM weir_operation
        WHERE job_id = r.job_id AND kind = 'drill' AND state IN ('succeeded', 'failed')
            AND NOT params @> '{"allow_unmapped": true}' AND coalesce(error ->> 'code', '') <> ALL(%(inconclusive)s)
        ORDER BY created_at DESC LIMIT 1) AS newest_drill
    WHERE state = 'failed'
) AS drill ON true
LEFT JOIN LATERAL (
    SELECT CASE
        WHEN r.state = 'starting' THEN (
            SELECT started_at FROM weir_attempt WHERE run_id = r.id ORDER BY token DESC LIMIT 1)
        ELSE (
            SELECT min(coalesce(started_at, created_at)) FROM weir_operation
            WHERE run_id = r.id AND kind = ANY(kinds.names) AND state IN ('queued', 'running'))
        END AS change_since, (
        SELECT max(took_ms) FROM (
            SELECT extract(epoch FROM ended_at - created_at) * 1000 AS took_ms FROM weir_operation
            WHERE job_id = r.job_id AND kind = ANY(kinds.names) AND state = 'succeeded'
            ORDER BY created_at DESC LIMIT 10) AS earlier
        ) AS change_ms
    FROM (SELECT CASE r.state WHEN 'starting' THEN ARRAY['start', 'restore'] WHEN 'stopping' THEN ARRAY['stop']
        WHEN 'draining' THEN ARRAY['drain'] ELSE ARRAY['cancel'] END AS names) AS kinds
    WHERE r.state IN ('starting', 'stopping', 'draining', 'cancelling')
) AS change ON true
"""
LIMITS: Final[Mapping[str, Any]] = {
    "recent": _RECENT, "failures": MAX_COUNTED_FAILURES, "attempts": MAX_ATTEMPTS,
    "not_failures": [str(reason) for reason in NOT_FAILURES], "slow_commit_ms": MIN_SLOW_COMMIT_MS,
    "inconclusive": list(INCONCLUSIVE),
}  # fmt: skip


class Past(NamedTuple):
    """Members of `RunFacts`. `lost_at`: end of the newest attempt if its lease was lost."""

    lost_at: datetime | None = None
    attempts: tuple[FailedAttempt, ...] = ()
    checkpoints: CheckpointFacts = CheckpointFacts()
    failed_savepoint: FailedSavepoint | None = None
    missed: tuple[MissedTime, ...] = ()
    failed_drill: FailedDrill | None = None
    change: StateChange | None = None


NO_PAST: Final = Past()


def read_past(row: Mapping[str, Any], run: Run, earlier_ms: float | None) -> Past:
    """The past of `run` from its row. A run in BATCH takes no checkpoints. `earlier_ms`: as in `CheckpointFacts`."""
    settings: Mapping[str, Any] = {} if run.version.is_batch else run.version.settings
    checkpoints = CheckpointFacts(
        interval_ms=settings.get("checkpoint_interval_ms"),
        timeout_ms=settings.get("checkpoint_timeout_ms", CoordinatorSettings().timeout_ms),
        newest=_newest_checkpoint(row),
        recent_ms=tuple(float(ms) for ms in row["recent_ms"] or ()),
        earlier_ms=earlier_ms,
        failed=row["failed"],
        failed_pk=row["failed_pk"],
        failed_number=row["failed_number"] or 0,
        failed_reason=row["failed_reason"] or "",
        failed_detail=row["failed_detail"] or "",
        begun_pk=row["begun_pk"],
        begun_at=row["begun_at"],
        acknowledged=row["acknowledged"] or 0,
        subtasks=row["subtasks"] or 0,
    )
    drill_at, changing_since, change_ms = row["drill_at"], row["change_since"], row["change_ms"]
    return Past(
        lost_at=row["lost_at"],
        attempts=_attempts(row["attempts"]),
        checkpoints=checkpoints,
        failed_savepoint=_failed_savepoint(row),
        missed=tuple(
            MissedTime(_NOUNS[operation], datetime.fromtimestamp(float(at_s), UTC), reason)
            for operation, at_s, reason in decode(row["missed"]) or ()
        ),
        failed_drill=FailedDrill(drill_at, row["drill_error"] or "", row["drill_number"]) if drill_at else None,
        change=StateChange(changing_since, change_ms and float(change_ms)) if changing_since else None,
    )


def _newest_checkpoint(row: Mapping[str, Any]) -> CompletedCheckpoint | None:
    if row["newest_pk"] is None:
        return None
    return CompletedCheckpoint(
        pk=row["newest_pk"],
        number=row["newest_number"],
        completed_at=row["newest_completed_at"],
        duration_ms=float(row["newest_ms"] or 0),
        operators=decode(row["newest_operators"]) or (),
        acknowledged_ms=row["newest_acknowledged_ms"],
    )


def _failed_savepoint(row: Mapping[str, Any]) -> FailedSavepoint | None:
    if row["saved_pk"] is None:
        return None
    return FailedSavepoint(
        pk=row["saved_pk"],
        number=row["saved_number"],
        failed_at=row["saved_at"],
        reason=row["saved_reason"],
        detail=row["saved_detail"],
    )


def _attempts(encoded: Any) -> tuple[FailedAttempt, ...]:
    """Failed attempts from an array of (end in seconds, reason, detail)."""
    attempts = []
    for ended_s, reason, detail in decode(encoded) or ():
        fields = detail or {}
        next_ms = fields.get("next_at")
        attempt = FailedAttempt(
            ended_at=datetime.fromtimestamp(float(ended_s), UTC),
            message=str(fields.get("message") or reason),
            code=str(fields.get("code") or ""),
            operator=str(fields.get("operator") or ""),
            tries=int(fields.get("tries") or 1),
            failures=fields.get("failures"),
            next_at=datetime.fromtimestamp(float(next_ms) / 1000, UTC) if next_ms else None,
        )
        attempts.append(attempt)
    return tuple(attempts)
