"""Revision of a page: a cheap query shows whether any row behind the page has changed.

Postgres keeps in each row the id of its last writing transaction, `xmin`. These ids form the revision, so no writer has
to maintain a counter. Job masters write without Django.
"""

import time
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any, Final
from zlib import crc32

from django.db.models import Func, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest

_MAX_AGE_S: Final = 30  #: lifetime of a revision: some texts depend on the time alone, such as an overdue checkpoint

#: Ordered rows, and the maximum number of rows that a page shows.
ShownRows = tuple[QuerySet[Any], int]


class _RowTransaction(Func):
    """The transaction that last wrote a row."""

    output_field = TextField()

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return f"{compiler.quote_name_unless_alias(compiler.query.get_initial_alias())}.xmin::text", []


def revision(request: HttpRequest, tables: Sequence[ShownRows], *facts: Any) -> str:
    """The revision of the page of `request`: of the rows of `tables` and of `facts`, values already read."""
    parts = [
        rows.annotate(row_key=Cast("pk", TextField()), written=_RowTransaction()).values_list("row_key", "written")[
            :limit
        ]
        for rows, limit in tables
    ]
    return revision_of(request, list(parts[0].union(*parts[1:], all=True)), facts)


def revision_of(request: HttpRequest, *facts: Any) -> str:
    """The revision of the page of `request`, computed from values already read."""
    path = request.get_full_path()
    return digest(path, request.user.pk, age(path), facts)


def age(name: str) -> int:
    """Changes every `_MAX_AGE_S`, at another moment for another `name`: not all open pages are read at once."""
    return int((time.time() + crc32(name.encode()) % _MAX_AGE_S) // _MAX_AGE_S)


def digest(*facts: Any) -> str:
    return blake2s(repr(facts).encode(), digest_size=12).hexdigest()
