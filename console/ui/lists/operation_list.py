"""The filters of the list of operations, and its rows as CSV."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db.models import QuerySet

from console.jobs.models import choices
from console.operations.models import OPERATION_STATES, Operation, OperationKind
from console.operations.selectors import operations_matching
from console.ui.paging import all_pages, older_than, text
from console.ui.tables.operations import OPERATIONS


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
    """The fields of the operations, newest first."""
    records = rows.values_list(*OPERATIONS.field_paths, named=True)
    return chain.from_iterable(all_pages(records, lambda rows, last: older_than(rows, last.created_at, last.pk)))
