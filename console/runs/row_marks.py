"""Marks of the rows behind the page of a job: they change with the rows, so that polls share what no writer touched."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import connection

from console.jobs.models import Run

#: Columns of a run that its worker and the reconciler write every second.
MOVING_COLUMNS: Final = ("live", "live_at", "lease_beat", "observed_beat", "observed_since", "observed_at")
REPORT_STEP_S: Final = 5  #: a list shows the newest report of each interval
_ABOVE_ALL_NUMBERS: Final = 2**63 - 1  #: of checkpoints
#: Part, key and mark of each row. The mark is the version of the row, or of a run that has not ended, a
#: hash of the columns that do not move; `report` has the version of that run. The query is SQL since Django would take
#: longer to compile it than Postgres to run it.
_MARKS: Final = """
SELECT 'job', id::text, xmin::text || ctid::text FROM weir_job WHERE id = %(job)s
UNION ALL (SELECT 'pipeline', p.name, p.xmin::text || p.ctid::text
    FROM weir_job j JOIN weir_pipeline p ON p.name = j.pipeline WHERE j.id = %(job)s)
UNION ALL (SELECT 'versions', id::text, xmin::text || ctid::text FROM weir_job_version
    WHERE job_id = %(job)s ORDER BY number DESC LIMIT 2)
UNION ALL (SELECT 'runs', id::text,
        CASE WHEN ended_at IS NULL THEN md5((to_jsonb(r) - %(moving)s::text[])::text) ELSE xmin::text || ctid::text END
    FROM weir_run r WHERE job_id = %(job)s ORDER BY id DESC LIMIT %(rows)s)
UNION ALL (SELECT 'report', id::text, xmin::text || ctid::text FROM weir_run
    WHERE job_id = %(job)s AND ended_at IS NULL ORDER BY id DESC LIMIT 1)
UNION ALL (SELECT 'attempts', a.id::text, a.xmin::text || a.ctid::text
    FROM weir_attempt a JOIN weir_run r ON r.id = a.run_id WHERE r.job_id = %(job)s
    ORDER BY a.token DESC LIMIT %(rows)s)
UNION ALL (SELECT 'stages', s.id::text, s.xmin::text || s.ctid::text
    FROM weir_standing_stage s JOIN weir_run r ON r.id = s.run_id WHERE r.job_id = %(job)s
    ORDER BY s.id DESC LIMIT %(rows)s)
UNION ALL (SELECT 'operations', id::text, xmin::text || ctid::text FROM weir_operation
    WHERE job_id = %(job)s ORDER BY created_at DESC, id DESC LIMIT %(rows)s)
UNION ALL (SELECT 'operations', id::text, xmin::text || ctid::text FROM weir_operation
    WHERE job_id = %(job)s AND state = ANY(%(active)s))
UNION ALL (SELECT 'checkpoints', id::text, xmin::text || ctid::text FROM weir_checkpoint
    WHERE job_id = %(job)s ORDER BY number DESC LIMIT 100)
UNION ALL (SELECT 'older', id::text, xmin::text || ctid::text FROM weir_checkpoint
    WHERE job_id = %(job)s AND number < %(before)s AND triggered_at >= %(begin)s AND triggered_at < %(end)s
    ORDER BY number DESC LIMIT 10)
"""


def listed_run_marks(runs: Iterable[int]) -> list[tuple[object, ...]]:
    """Marks of runs in a list: they change with what does not move, and once in `REPORT_STEP_S` with the report."""
    columns = [field.attname for field in Run._meta.concrete_fields if field.name not in MOVING_COLUMNS]
    marks = Run.objects.filter(pk__in=runs).order_by("pk").values_list("live_at", *columns)
    return [(at and int(at.timestamp()) // REPORT_STEP_S, *values) for at, *values in marks]


def row_marks(
    job: int,
    rows: int,
    active_states: Iterable[str],
    *,
    before: int | None,
    begin: datetime | None,
    end: datetime | None,
) -> Mapping[str, list[tuple[str, str]]]:
    """Keys and marks of the newest `rows` of each part, by part, in a single query.

    The part `older` has checkpoints before the number `before`, triggered from `begin` to `end`; None: without limit.
    """
    values: dict[str, Any] = {
        "job": job, "rows": rows, "moving": list(MOVING_COLUMNS), "active": list(active_states),
        "before": _ABOVE_ALL_NUMBERS if before is None else before,
        "begin": begin or "-infinity", "end": end or "infinity",
    }  # fmt: skip
    marks: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(_MARKS, values)
        for part, key, mark in cursor.fetchall():
            marks[part].append((key, mark))
    return marks
