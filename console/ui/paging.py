"""Keyset pagination: rows that are added meanwhile shift no page."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)

ROWS_PER_PAGE = 20  #: per page
NAMES_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class TablePage(Generic[M]):
    """A page of a table. `older` is the key of the next page, None on the last; `first` marks the first page.

    In tables ordered by name, `older` is the key of the page that follows alphabetically.
    """

    rows: tuple[M, ...]
    older: Any
    first: bool


def by_number(rows: QuerySet[M], before: int | None, size: int = ROWS_PER_PAGE) -> TablePage[M]:
    """Rows with a `number`, newest first."""
    return _page(rows, "number", "lt", before, size)


def by_time(rows: QuerySet[M], before: datetime | None) -> TablePage[M]:
    """Rows with a `created_at`, newest first."""
    return _page(rows, "created_at", "lt", before, ROWS_PER_PAGE)


def by_name(rows: QuerySet[M], after: str) -> TablePage[M]:
    """Rows with a unique `name`, in the order of names."""
    return _page(rows, "name", "gt", after or None, NAMES_PER_PAGE)


def _page(rows: QuerySet[M], key: str, lookup: str, position: object, size: int) -> TablePage[M]:
    found = list((rows if position is None else rows.filter(**{f"{key}__{lookup}": position}))[: size + 1])
    shown = tuple(found[:size])
    return TablePage(shown, getattr(shown[-1], key) if len(found) > size else None, position is None)


def whole_number(text: str | None) -> int | None:
    """An integer from a query string; None if it is malformed or too large for Postgres."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 18 else None


def text(given: str | None) -> str:
    """Text from a query string, without NUL characters, which Postgres cannot store."""
    return (given or "").replace("\0", "").strip()


def moment(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else None
