"""Checks a system's output: DuckDB computes the answer from the sequence's formula and compares every row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from benchmarks.workload import Workload, key_sql, microseconds_sql

_APART: Final = """
    {views} one as ({one}), other as ({other}),
    apart as ((from one except all from other) union all (from other except all from one))
    select (select count(*) from apart), (select count(*) from other)
"""


def count(query: str) -> tuple[int, ...]:
    """The numbers in the single row of the answer to `query`."""
    with duckdb.connect(config={"threads": 2}) as database:
        counted = database.execute(query).fetchone()
    assert counted is not None, "a count has a row"
    return counted


def compare(one: str, other: str, views: Mapping[str, str]) -> tuple[int, ...]:
    """The number of rows that only one of two queries has, and the number of rows of `other`."""
    named = "".join(f"{name} as ({query}), " for name, query in views.items())
    return count(_APART.format(views=f"with {named}", one=one, other=other))


def differences(workload: Workload, output: Path, checked: dict[str, Any]) -> int | None:
    """The number of rows that differ between the files of a run and the answer; None if there is no output.

    Args:
        output: folder of the files.
        checked: the event of the system's small run; "rows" is the number of input rows of the compared run.
    """
    files = [str(path) for path in sorted(output.glob(checked["pattern"])) if path.stat().st_size]
    if not files:
        return None
    rows = int(checked["rows"])
    columns = f"id, {key_sql(workload)} as key, {microseconds_sql(workload)} as event_us"
    views = {
        "found": _scan(files, checked["format"], checked["columns"]),
        "sequence": f"select {columns} from range({rows}) as t(id)",
    }
    return compare(workload.found.format(rows=rows), workload.expected.format(rows=rows), views)[0]


def _scan(files: list[str], format: str, columns: dict[str, str]) -> str:
    listed, typed = listing(files), ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    match format:
        case "parquet":
            scan = f"read_parquet({listed})"
        case "csv":
            scan = f"read_csv({listed}, header=false, columns={{{typed}}})"
        case "changes":
            lines = f"read_json({listed}, format='newline_delimited', columns={{{typed}}})"
            scan = f"(select after.* from {lines} where op = 'c')"
        case _:
            raise ValueError(f"output of format {format!r} cannot be read")
    return f"from {scan}"


def listing(files: list[str]) -> str:
    return "[" + ", ".join("'" + name.replace("'", "''") + "'" for name in files) + "]"
