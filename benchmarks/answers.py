"""Checks a system's output: DuckDB computes the answer from the sequence's formula and compares every row."""

from pathlib import Path
from typing import Any, Final

import duckdb

from benchmarks.workload import Workload, key_sql, microseconds_sql

_DIFFERENCES_QUERY: Final = """
    with one as ({found}), other as ({expected}),
    apart as ((from one except all from other) union all (from other except all from one))
    select count(*) from apart
"""


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
    with duckdb.connect(config={"threads": 2}) as database:
        database.execute(f"create temp view found as {_scan(files, checked['format'], checked['columns'])}")
        columns = f"id, {key_sql(workload)} as key, {microseconds_sql(workload)} as event_us"
        database.execute(f"create temp view sequence as select {columns} from range({rows}) as t(id)")
        query = _DIFFERENCES_QUERY.format(
            found=workload.found.format(rows=rows), expected=workload.expected.format(rows=rows)
        )
        counted = database.execute(query).fetchone()
    assert counted is not None, "a count has a row"
    return int(counted[0])


def _scan(files: list[str], format: str, columns: dict[str, str]) -> str:
    listed, typed = _listing(files), ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
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


def _listing(files: list[str]) -> str:
    return "[" + ", ".join("'" + name.replace("'", "''") + "'" for name in files) + "]"
