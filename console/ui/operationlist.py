"""The filters of the list of operations, and its rows as CSV."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from django.db.models import QuerySet

from console.jobs.models import choices
from console.operations.models import OPERATION_STATES, Operation, OperationKind
from console.operations.selectors import operations_matching
from console.ui.paging import all_pages, older_than, text

CSV_COLUMNS: Final = ("id", "kind", "job", "run", "state", "run_state", "phase", "requested_by", "reason", "requested",
                      "started", "ended", "error", "request_id", "changes")  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperationFilters:
    """The chosen filters; "" leaves one out. `q`: a part of the job's name or of the reason, or a request id."""

    kind: str = ""
    state: str = ""
    user: str = ""
    q: str = ""

    kinds: Any = tuple(choices(OperationKind))
    states: Any = tuple(OPERATION_STATES)

    @classmethod
    def of(cls, query: Mapping[str, Any]) -> "OperationFilters":
        return cls(**{name: text(query.get(name)) for name in ("kind", "state", "user", "q")})

    @property
    def is_empty(self) -> bool:
        return not (self.kind or self.state or self.user or self.q)

    def apply(self, rows: QuerySet[Operation]) -> QuerySet[Operation]:
        if self.kind:
            rows = rows.filter(kind=self.kind)
        if self.state:
            rows = rows.filter(state=self.state)
        if self.user:
            rows = rows.filter(requested_by__username=self.user)
        if self.q:
            rows = rows.filter(operations_matching(self.q))
        return rows


def csv_rows(rows: QuerySet[Operation]) -> Iterator[tuple[Any, ...]]:
    """The operations, newest first, in the order of `CSV_COLUMNS`, with the times in UTC."""
    pages = all_pages(rows, lambda rows, last: older_than(rows, last.created_at, last.pk))
    for row in chain.from_iterable(pages):
        error = row.error.get("message", "") if isinstance(row.error, dict) else ""
        run_state = row.run.state if row.run else ""
        yield (row.pk, row.kind, row.job.name, row.run_id, row.state, run_state, row.phase, row.requested_by,
               row.reason, row.created_at, row.started_at, row.ended_at, error, row.request_id,
               _changes(row))  # fmt: skip


def _changes(row: Operation) -> str:
    """The values before and after an edit, as JSON."""
    found = row.result.get("changes") if isinstance(row.result, dict) else None
    return json.dumps(found, ensure_ascii=False) if found else ""
