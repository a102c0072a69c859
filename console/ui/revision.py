"""Whether anything that a page shows has been written since it was last read: one cheap query instead of a page.

Postgres keeps in each row the id of the transaction that wrote it last, `xmin`. The ids of the rows behind a page make
its revision, so that no writer has to keep a counter: job masters write without Django.
"""

import time
from collections.abc import Sequence
from hashlib import blake2s
from typing import Any, Final

from django.db.models import Func, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest

_AGE_S: Final = 30  #: some sentences depend on the time alone, such as that a checkpoint is overdue

#: Rows in an order, and how many of them a page shows.
Shown = tuple[QuerySet[Any], int]


class _Written(Func):
    """The transaction that wrote a row last."""

    output_field = TextField()

    def as_sql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return f"{compiler.quote_name_unless_alias(compiler.query.get_initial_alias())}.xmin::text", []


def revision(request: HttpRequest, shown: Sequence[Shown], *facts: Any) -> str:
    """The revision of the page that `request` asks for, made of `shown` rows and of `facts` that were read already."""
    parts = [
        rows.annotate(row_key=Cast("pk", TextField()), written=_Written()).values_list("row_key", "written")[:limit]
        for rows, limit in shown
    ]
    found = list(parts[0].union(*parts[1:], all=True))
    whole = (request.get_full_path(), request.user.pk, time.time() // _AGE_S, facts, found)
    return blake2s(repr(whole).encode(), digest_size=12).hexdigest()
