"""The definition of a table: its rows are a pure function of their number, as SQL for DuckDB.

Rows are in the order of `id`, from 0. Every tenth row lags up to 5 s of event time behind its neighbours. In the last
eighth of a table a row in 125 is too late: it lags by seven eighths of all rows. Every watermark has passed it, unless
a subtask stands still for as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DISORDER_MS: Final = 5_000
EPOCH_US: Final = 1_767_225_600_000_000  #: 2026-01-01, the event time of row 0
TOO_LATE: Final = "(id % 125 = 60 and id >= {n} * 7 // 8)"
#: Macros of the expressions. `mixed` has values from 0 to 2**22 - 1.
MACROS: Final = (
    "create or replace temp macro mixed(id, salt) as (id + salt * 7919) * 2654435761 % 4294967296 // 1024",
    "create or replace temp macro uuid_text(kind, number) as cast(cast(md5(kind || number) as uuid) as varchar)",
)


Late = Literal["all", "on time", "too late"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Args:
        columns: name -> type and SQL over `id`, in which `{n}` is the number of rows. Types are "string", "bigint",
            "double", "boolean" and "timestamp" (microseconds, UTC).
        rows: the number of rows; None: chosen by the workload.
        share: number of rows relative to the number chosen by the workload.
        source: SQL for the number of the row whose values row `id` has; "id" unless rows are repeated.
        has_late_rows: whether rows of `TOO_LATE` are too late.
    """

    columns: Mapping[str, tuple[str, str]]
    rows: int | None = None
    share: float = 1.0
    source: str = "id"
    has_late_rows: bool = False

    def count(self, rows: int) -> int:
        """The number of rows of this table in a data set of `rows` rows."""
        return round(rows * self.share) if self.rows is None else self.rows

    def query(self, rows: int, first: int = 0, last: int | None = None, *, late: Late = "all") -> str:
        """SQL for the rows from `first` to before `last`, of `rows` rows in all; they may be ordered by `position`.

        `late`: "all" rows, those that are "on time", or those that are "too late".
        """
        listed = ", ".join(f"{sql} as {name}" for name, (_, sql) in self.columns.items())
        stop = self.count(rows) if last is None else last
        numbers = f"select id as position, {self.source} as id from range({first}, {stop}) as t(id)"
        conditions = {"all": "", "on time": f" where not {TOO_LATE}", "too late": f" where {TOO_LATE}"}
        query = f"select {listed} from ({numbers}){conditions[late] if self.has_late_rows else ''}"
        return query.replace("{n}", f"{self.count(rows)}::bigint")


def event_time(us_per_row: int) -> str:
    """SQL for the event time of a row with disorder and late rows. `us_per_row`: microseconds between two rows."""
    late = f"when {TOO_LATE} then {{n}} * 7 // 8 * {us_per_row}"
    disordered = f"when id % 10 = 3 then mixed(id, 17) * 1000 % {DISORDER_MS * 1_000}"
    return f"make_timestamp({EPOCH_US} + greatest(id * {us_per_row} - case {late} {disordered} else 0 end, 0))"
