"""The rows behind the page of a job. Polls share those that no writer has touched.

Of a running job, mostly only the report of its job master changes between two polls. The marks of all other rows are
then equal (`console.ui.revision`), so their rows, their strip and their blocks are those of an earlier request.
"""

import threading
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from django.http import HttpRequest

from console.checkpoints.models import Checkpoint, Kind
from console.checkpoints.selectors import IS_DAMAGED, checkpoint_table, continuable
from console.health.models import JobHealth
from console.jobs.models import Run
from console.operations.models import ACTIVE_STATES
from console.pages.selectors import PAGE_ROWS, JobPage, job_page
from console.runs.row_marks import MOVING_COLUMNS, row_marks
from console.ui.live.revision import age, digest, revision_of
from console.ui.plots.window import Chosen
from console.ui.strip import Strip, strip

STRIP_COLUMNS: Final = 96
_MAX_SHARED: Final = 100  #: jobs whose rows a process keeps, of about 0.3 MB each
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
        begin, end = (self._interval.begin, self._interval.end) if self._interval else (None, None)
        return row_marks(self._pk, PAGE_ROWS, ACTIVE_STATES, before=self._before, begin=begin, end=end)

    def revision(self, request: HttpRequest) -> str:
        return revision_of(request, sorted(self._marks.items()))

    def rows(self) -> JobRows:
        """Rows of an earlier request with the present columns that move, if no other column has changed since."""
        stable = sorted(item for item in self._marks.items() if item[0] not in ("older", "report"))
        marks = digest(age(str(self._pk)), stable)
        entry = _SHARED.get(self._pk, marks)
        if entry is not None:
            return replace(entry, page=_with_moving(entry.page))
        rows = _read(self._pk)
        _SHARED.put(self._pk, marks, rows)
        return rows

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
        stored_marks, rows = self._rows.get(job, ("", None))
        return rows if stored_marks == marks else None

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
    moving: Sequence[Any] = Run.objects.filter(pk=run.pk).values_list(*MOVING_COLUMNS).get()
    for name, value in zip(MOVING_COLUMNS, moving, strict=True):
        setattr(run, name, value)
    run.job = job
    return replace(page, job=job, run=run)
