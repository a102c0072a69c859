"""Checks a system's output: DuckDB computes the answer from the formulas of the input and compares every row."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import duckdb

from benchmarks.datasets import DATASETS
from benchmarks.datasets.table import MACROS, Late
from benchmarks.sql import listing
from benchmarks.workload import Workload, key_sql, microseconds_sql

_APART: Final = """
    {views} one as ({one}), other as ({other}),
    apart as ((from one except all from other) union all (from other except all from one))
    select (select count(*) from apart), (select count(*) from other)
"""


def count(query: str) -> tuple[int, ...]:
    """The numbers in the single row of the answer to `query`."""
    with duckdb.connect(config={"threads": 2}) as database:
        for macro in MACROS:
            database.execute(macro)
        counted = database.execute(query).fetchone()
    assert counted is not None, "a count has a row"
    return counted


def compare(base: str, other: str, views: Mapping[str, str]) -> tuple[int, ...]:
    """The number of rows that only one of two queries has, and the number of rows of `other`."""
    clauses = "".join(f"{name} as ({query}), " for name, query in views.items())
    return count(_APART.format(views=f"with {clauses}", one=base, other=other))


def differences(workload: Workload, output: Path, checked: dict[str, Any], *, late: Late = "on time") -> int | None:
    """The number of rows that differ between the files of a run and the answer; None if there is no output.

    Args:
        output: folder of the files.
        checked: the event of the system's small run; "rows" is the number of input rows of the compared run.
        late: the rows of a data set that count for the answer: "all" for a batch, and for a job that drops no rows.
    """
    paths = _committed_by_spark(output) or output.glob(checked["pattern"])
    files = [str(path) for path in sorted(paths) if path.stat().st_size]
    if not files:
        return None
    rows = int(checked["rows"])
    views = {
        "found": _scan(files, checked["format"], checked["columns"]),
        **_input(workload, rows, late),
    }
    return compare(workload.found.format(rows=rows), workload.expected.format(rows=rows), views)[0]


def late_rows(workload: Workload, rows: int) -> int:
    """The number of rows of a data set that a job has to drop as too late."""
    assert workload.dataset is not None, "the rows are from a data set"
    tables = DATASETS[workload.dataset]
    clauses = ", ".join(f"{name} as ({table.query(rows, late='too late')})" for name, table in tables.items())
    return count(f"with {clauses} {workload.late.format(rows=rows)}")[0]


def _input(workload: Workload, rows: int, late: Late) -> dict[str, str]:
    """The views of the input: computed by formula, not read from files."""
    if workload.dataset is not None:
        tables = DATASETS[workload.dataset]
        return {name: table.query(rows, late=late) for name, table in tables.items()}
    columns = f"id, {key_sql(workload)} as key, {microseconds_sql(workload)} as event_us"
    return {"sequence": f"select {columns} from range({rows}) as t(id)"}


def _committed_by_spark(output: Path) -> set[Path]:
    """The files that Spark's file sink has committed; others are of killed batches. Empty without such a sink."""
    entries = (output / "_spark_metadata").glob("[0-9]*")
    lines = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()[1:]]
    return {Path(url2pathname(urlsplit(line["path"]).path)) for line in lines}


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
