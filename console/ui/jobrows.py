"""The rows behind the page of a job. Polls share those that no writer has touched.

Of a running job, mostly only the report of its job master changes between two polls. The marks of all other rows are
then equal (`console.ui.revision`), so their rows, their strip and their blocks are those of an earlier request.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from django.db import connection
from django.http import HttpRequest

from console.checkpoints.models import Checkpoint, Kind
from console.checkpoints.selectors import IS_DAMAGED, checkpoint_table, continuable
from console.health.models import JobHealth
from console.jobs.models import Run
from console.operations.models import ACTIVE_STATES
from console.pages.selectors import PAGE_ROWS, JobPage, job_page
from console.ui.plots.window import Chosen
from console.ui.revision import age, digest, revision_of
from console.ui.strip import Strip, strip

STRIP_COLUMNS: Final = 96
_ABOVE_ALL_NUMBERS: Final = 2**63 - 1  #: of checkpoints
_MAX_SHARED: Final = 100  #: jobs whose rows a process keeps, of about 0.3 MB each
#: Columns of a run that its worker and the reconciler write every second.
_MOVING_COLUMNS: Final = ("live", "live_at", "lease_beat", "observed_beat", "observed_since", "observed_at")
#: The rows behind the page: part, key and mark. The mark is the version of the row, or of a run that has not ended, a
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
#: Parts of the rows that each block of the page depends on.
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "attempts": ("runs", "attempts"),
    "causes": ("pipeline", "runs", "attempts"),
    "checkpoints": ("runs", "checkpoints", "older"),
    "operations": ("runs", "operations"),
    "runs": ("versions", "runs", "attempts"),
    "states": (),
    "strip": ("checkpoints",),
    "version": ("pipeline", "versions", "runs"),
}


@dataclass(frozen=True, slots=True)
class JobRows:
    """Rows that requests share: read only."""

    page: JobPage
    columns: tuple[Checkpoint, ...]  #: of the strip, without their figures by operator
    strip: Strip | None
    restorable: Checkpoint | None  #: newest of the columns, with its figures by operator
    newest: Checkpoint | None  #: to continue from


class MarkedRows:
    """The rows behind the page of the job `pk`, and their marks. The marks are read once, when they are first needed.

    The page shows checkpoints before the number `before`, triggered within `interval`.
    """

    def __init__(self, pk: int, before: int | None, interval: Chosen | None) -> None:
        self._pk, self._before, self._interval = pk, before, interval

    @cached_property
    def _marks(self) -> Mapping[str, list[tuple[str, str]]]:
        begin, end = (self._interval.begin, self._interval.end) if self._interval else ("-infinity", "infinity")
        values: dict[str, Any] = {
            "job": self._pk, "rows": PAGE_ROWS, "moving": list(_MOVING_COLUMNS), "begin": begin, "end": end,
            "active": list(ACTIVE_STATES),
            "before": _ABOVE_ALL_NUMBERS if self._before is None else self._before,
        }  # fmt: skip
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        with connection.cursor() as cursor:
            cursor.execute(_MARKS, values)
            for part, key, mark in cursor.fetchall():
                found[part].append((key, mark))
        return found

    def revision(self, request: HttpRequest) -> str:
        return revision_of(request, sorted(self._marks.items()))

    def rows(self) -> JobRows:
        """Rows of an earlier request with the present columns that move, if no other column has changed since."""
        stable = sorted(item for item in self._marks.items() if item[0] not in ("older", "report"))
        marks = digest(age(str(self._pk)), stable)
        kept = _SHARED.get(self._pk, marks)
        if kept is not None:
            return replace(kept, page=_with_moving(kept.page))
        found = _read(self._pk)
        _SHARED.put(self._pk, marks, found)
        return found

    def block_keys(self, **facts: Any) -> dict[str, str]:
        """By block: a name of its content, from the marks of its rows and from its `facts`, values beside these."""
        return {
            block: digest(facts.get(block), *(self._marks.get(part) for part in parts))
            for block, parts in _BLOCKS.items()
        }


class _Shared:
    """The newest rows of some jobs, each with a digest of its marks."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str, JobRows]] = {}
        self._changing = threading.Lock()

    def get(self, job: int, marks: str) -> JobRows | None:
        known, rows = self._rows.get(job, ("", None))
        return rows if known == marks else None

    def put(self, job: int, marks: str, rows: JobRows) -> None:
        with self._changing:
            self._rows.pop(job, None)  # the newest rows are the last
            self._rows[job] = (marks, rows)
            if len(self._rows) > _MAX_SHARED:
                del self._rows[next(iter(self._rows))]

    def clear(self) -> None:
        with self._changing:
            self._rows.clear()


_SHARED: Final = _Shared()
forget_rows: Final = _SHARED.clear  #: for tests


def _read(pk: int) -> JobRows:
    page = job_page(pk)
    columns: tuple[Any, ...] = tuple(checkpoint_table(page.job).annotate(is_damaged=IS_DAMAGED)[:STRIP_COLUMNS])
    restorable, figures = next((row for row in columns if row.is_restorable), None), page.newest_figures
    if restorable is not None and figures is not None and figures.pk == restorable.pk:
        restorable.operators = figures.operators  # spares a query
    newest = restorable if restorable is not None and _goes_on(restorable) else continuable(page.job).first()
    return JobRows(page, columns, strip(columns), restorable, newest)


def _goes_on(checkpoint: Any) -> bool:
    """Whether a run continues from a restorable row, as in `continuable`."""
    return not checkpoint.is_damaged and checkpoint.kind != Kind.DRAIN and not _all_finished(checkpoint)


def _all_finished(checkpoint: Checkpoint) -> bool:
    """Whether every operator had finished. Reads the figures by operator only if any had."""
    finished = checkpoint.finished_operators
    return bool(finished) and len(finished) >= len(checkpoint.operators)


def _with_moving(page: JobPage) -> JobPage:
    """The page with the present report of its run and the present verdict on its job. Two queries."""
    job, run = copy(page.job), copy(page.run)
    health = JobHealth.objects.filter(job=job).first()
    job._meta.get_field("health").set_cached_value(job, health)
    if run is None:
        return replace(page, job=job)
    moving: Sequence[Any] = Run.objects.filter(pk=run.pk).values_list(*_MOVING_COLUMNS).get()
    for name, value in zip(_MOVING_COLUMNS, moving, strict=True):
        setattr(run, name, value)
    run.job = job
    return replace(page, job=job, run=run)
