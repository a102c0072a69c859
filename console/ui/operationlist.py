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
#: of which `CSV_COLUMNS` are made
_CSV_VALUES: Final = ("pk", "kind", "job__name", "run_id", "state", "run__state", "phase", "requested_by__username",
                      "reason", "created_at", "started_at", "ended_at", "error", "request_id", "result")  # fmt: skip


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
        return self == OperationFilters()

    def apply(self, rows: QuerySet[Operation]) -> QuerySet[Operation]:
        fields = {"kind": self.kind, "state": self.state, "requested_by__username": self.user}
        rows = rows.filter(**{name: value for name, value in fields.items() if value})
        return rows.filter(operations_matching(self.q)) if self.q else rows


def csv_rows(rows: QuerySet[Operation]) -> Iterator[tuple[Any, ...]]:
    """The operations, newest first, in the order of `CSV_COLUMNS`, with the times in UTC."""
    found = rows.values_list(*_CSV_VALUES, named=True)
    pages = all_pages(found, lambda rows, last: older_than(rows, last.created_at, last.pk))
    for *values, error, request_id, result in chain.from_iterable(pages):
        message = error.get("message", "") if isinstance(error, dict) else ""
        yield (*values, message, request_id, _changes(result))


def _changes(result: Any) -> str:
    """The values before and after an edit, as JSON."""
    found = result.get("changes") if isinstance(result, dict) else None
    return json.dumps(found, ensure_ascii=False) if found else ""
