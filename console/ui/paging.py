"""Keyset pagination: rows that are added meanwhile shift no page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from django.db.models import DateTimeField, Model, Q, QuerySet, Value
from django.db.models.functions import Coalesce

M = TypeVar("M", bound=Model)

ROWS_PER_PAGE = 20  #: per page
NAMES_PER_PAGE = 50
FIRST_ROWS = 200  #: of a whole table, so that its file begins early
ROWS_AT_ONCE = 500  #: of the rest


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


def several_by_number(tables: Sequence[tuple[QuerySet[Any], int | None]], size: int) -> list[TablePage[Any]]:
    """As `by_number` for several tables of the same columns, each with its own position, in a single query."""
    parts = [
        (rows if before is None else rows.filter(number__lt=before)).annotate(table=Value(place))[: size + 1]
        for place, (rows, before) in enumerate(tables)
    ]
    union = sorted(parts[0].union(*parts[1:], all=True), key=lambda row: -row.number)
    return [
        _cut([row for row in union if row.table == place], "number", size, is_first=before is None)
        for place, (_, before) in enumerate(tables)
    ]


def by_id(rows: QuerySet[M], before: int | None, size: int) -> TablePage[M]:
    """Rows by their id, newest first."""
    return _page(rows.order_by("-pk"), "pk", "lt", before, size)


def first_page(rows: Sequence[M], size: int) -> TablePage[M]:
    """The first page of a table whose newest `rows`, with a `number`, are read already."""
    return _cut(rows[: size + 1], "number", size, is_first=True)


def by_time(rows: QuerySet[M], before: UUID | None) -> TablePage[M]:
    """Rows with a `created_at`, newest first. Several rows may have the same.

    `before`: primary key of the last row of the page before, which need not be among `rows` any more.
    """
    ordered, manager = rows.order_by("-created_at", "-pk"), cast(Any, rows.model._default_manager)
    last = manager.filter(pk=before).values_list("created_at", flat=True).first() if before else None
    if last is not None:
        ordered = older_than(ordered, last, before)
    return _cut(ordered[: ROWS_PER_PAGE + 1], "pk", ROWS_PER_PAGE, is_first=last is None)


def older_than(rows: QuerySet[M], created_at: datetime, pk: object) -> QuerySet[M]:
    """The rows behind a row in the order of `by_time`. The condition on the time alone is a range of the index."""
    return rows.filter(Q(created_at__lt=created_at) | Q(pk__lt=pk), created_at__lte=created_at)


def by_name(rows: QuerySet[M], after: str) -> TablePage[M]:
    """Rows with a unique `name`, in the order of names."""
    return _page(rows, "name", "gt", after or None, NAMES_PER_PAGE)


def by_urgency(jobs: QuerySet[Any], after: int | None) -> TablePage[Any]:
    """Jobs that need an operator first: by `shown_level`, then the oldest recovery point, then by name.

    `after`: primary key of the last job of the page before; the order of jobs may have changed meanwhile.
    """
    oldest = Value(datetime(1970, 1, 1, tzinfo=UTC), DateTimeField())
    ordered = jobs.annotate(recovery=Coalesce("health__recovery_at", oldest)).order_by(
        "-shown_level", "recovery", "name"
    )
    last = None if after is None else ordered.filter(pk=after).first()
    if last is not None:
        same = Q(shown_level=last.shown_level)
        ordered = ordered.filter(
            Q(shown_level__lt=last.shown_level)
            | (same & Q(recovery__gt=last.recovery))
            | (same & Q(recovery=last.recovery, name__gt=last.name))
        )
    return _cut(ordered[: NAMES_PER_PAGE + 1], "pk", NAMES_PER_PAGE, is_first=last is None)


def by_column(jobs: QuerySet[Any], column: str, after: int | None) -> TablePage[Any]:
    """Jobs by an annotated column that is never null, then by name. A leading "-" puts the highest value first.

    `after`: as in `by_urgency`.
    """
    key = column.removeprefix("-")
    ordered = jobs.order_by(column, "name")
    last = None if after is None else ordered.filter(pk=after).first()
    if last is not None:
        value, lookup = getattr(last, key), "gt" if key == column else "lt"
        ordered = ordered.filter(Q(**{f"{key}__{lookup}": value}) | Q(**{key: value, "name__gt": last.name}))
    return _cut(ordered[: NAMES_PER_PAGE + 1], "pk", NAMES_PER_PAGE, is_first=last is None)


def all_pages(rows: Any, following: Callable[[Any, Any], Any]) -> Iterator[list[Any]]:
    """Every row of an ordered queryset. No statement reads more than `ROWS_AT_ONCE` rows, and no page is kept.

    Between two pages no cursor and no transaction is open: a slow client of a download holds no connection.

    Args:
        following: filters the queryset to the rows behind a row.
    """
    remainder = rows
    for size in chain([FIRST_ROWS], repeat(ROWS_AT_ONCE)):
        page = list(remainder[:size])
        yield page
        if len(page) < size:
            return
        remainder = following(rows, page[-1])


def _page(rows: QuerySet[M], key: str, lookup: str, position: object, size: int) -> TablePage[M]:
    later = rows if position is None else rows.filter(**{f"{key}__{lookup}": position})
    return _cut(later[: size + 1], key, size, is_first=position is None)


def _cut(rows: Iterable[M], key: str, size: int, *, is_first: bool) -> TablePage[M]:
    """A page of `size` rows; a row more shows that there is a next page."""
    items = tuple(rows)
    return TablePage(items[:size], getattr(items[size - 1], key) if len(items) > size else None, is_first)


def whole_number(text: str | None) -> int | None:
    """An integer from a query string; None if it is malformed or too large for Postgres."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 18 else None


def text(value: str | None) -> str:
    """Text from a query string, without NUL characters, which Postgres cannot store."""
    return (value or "").replace("\0", "").strip()


def uuid(text: str | None) -> UUID | None:
    """An id from a query string; None if it is malformed."""
    try:
        return UUID(text or "")
    except ValueError:
        return None


def moment(text: str | None) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return instant if instant.tzinfo else None
