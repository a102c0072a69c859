"""Events of a job over time, as rows for the axis of its plots."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.db import connection

#: Kind, time, reference, words, restored checkpoint and duration of each event. Django would take longer to compile the
#: query than Postgres to run it.
_EVENTS: Final = """
(SELECT 'operation', created_at AS at, id::text, kind || ', ' || state, '', NULL::float8 FROM weir_operation
    WHERE job_id = %(job)s AND part_of_id IS NULL AND kind = ANY(%(operations)s)
        AND created_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'version', created_at AS at, number::text, '', '', NULL FROM weir_job_version
    WHERE job_id = %(job)s AND created_at BETWEEN %(begin)s AND %(end)s ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'savepoint', triggered_at AS at, id::text,
        number || ' ' || CASE status WHEN 'failed' THEN 'aborted' ELSE status END, '', NULL FROM weir_checkpoint
    WHERE job_id = %(job)s AND kind <> 'checkpoint' AND (status <> 'failed' OR reason = ANY(%(not_failures)s))
        AND triggered_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'failed-savepoint', coalesce(completed_at, triggered_at) AS at, id::text,
        number || ' ' || CASE reason WHEN 'expired' THEN reason ELSE 'failed' END, '',
        extract(epoch FROM completed_at - triggered_at) * 1000
    FROM weir_checkpoint
    WHERE job_id = %(job)s AND kind <> 'checkpoint' AND status = 'failed' AND reason <> ALL(%(not_failures)s)
        AND triggered_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'failed-checkpoint', completed_at, id::text,
        number || ' ' || CASE reason WHEN 'expired' THEN reason ELSE 'failed' END, '',
        extract(epoch FROM completed_at - triggered_at) * 1000
    FROM unnest(%(failures)s::text[]) AS known (failure) CROSS JOIN LATERAL (
        SELECT id, number, kind, reason, triggered_at, completed_at FROM weir_checkpoint
        WHERE job_id = %(job)s AND status = 'failed' AND reason = known.failure
        ORDER BY number DESC LIMIT %(newest)s
    ) AS newest WHERE kind = 'checkpoint' AND completed_at BETWEEN %(begin)s AND %(end)s)
UNION ALL (SELECT 'restart', a.started_at AS at, a.run_id::text, earlier.reason,
        coalesce(
            CASE WHEN a.ended_at IS NULL AND r.state = ANY(%(starting)s) THEN 'restoring ' ELSE 'restored ' END
            || CASE restored.kind WHEN 'checkpoint' THEN 'checkpoint ' ELSE 'savepoint ' END || restored.number, ''),
        NULL
    FROM weir_attempt a JOIN weir_run r ON r.id = a.run_id
    LEFT JOIN weir_checkpoint restored ON restored.id = a.restored_checkpoint_id CROSS JOIN LATERAL (
        SELECT reason FROM weir_attempt WHERE run_id = a.run_id AND token < a.token ORDER BY token DESC LIMIT 1
    ) AS earlier
    WHERE r.job_id = %(job)s AND a.started_at BETWEEN %(begin)s AND %(end)s ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'failure', ended_at AS at, id::text, coalesce(failure ->> 'message', ''), '', NULL FROM weir_run
    WHERE job_id = %(job)s AND state = 'failed' AND ended_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
"""


def event_rows(
    job: int,
    begin: datetime,
    end: datetime,
    *,
    operations: Sequence[str],
    starting: Sequence[str],
    failures: Sequence[str],
    not_failures: Sequence[str],
    most: int,
    newest: int,
) -> list[tuple[Any, ...]]:
    """Kind, time, reference, words, restored checkpoint and duration of the events of a job. A single query.

    Args:
        operations: kinds of operations that are events.
        starting: states of a run whose attempt is being started.
        failures: reasons of failed checkpoints; of each reason, the newest `newest` are events.
        not_failures: reasons of savepoints that were aborted.
        most: newest events of every other kind.
    """
    values: dict[str, Any] = {
        "job": job, "begin": begin, "end": end, "operations": list(operations), "starting": list(starting),
        "failures": list(failures), "not_failures": list(not_failures), "most": most, "newest": newest,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, values)
        return list(cursor.fetchall())
