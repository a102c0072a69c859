"""A paginator for long lists: the number of all rows is an estimate, because a count reads every row."""

from functools import cached_property
from typing import Any, Final

from django.core.paginator import Paginator
from django.db import connections

MIN_ESTIMATED: Final = 100_000  #: fewer rows are counted


class EstimatedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts filtered rows. For a whole table, the number is that of Postgres' last VACUUM or ANALYZE, if it is large.

    The last pages of a whole table may be empty or missing; filters reach every row.
    """

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        if not rows.query.where:
            with connections[rows.db].cursor() as cursor:
                cursor.execute(
                    "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", [rows.model._meta.db_table]
                )
                estimated = int(cursor.fetchone()[0])
            if estimated >= MIN_ESTIMATED:
                return estimated
        return int(rows.count())
