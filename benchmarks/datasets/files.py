"""The files of data sets. DuckDB writes them once; every system and every later run reads the same bytes.

A table is a folder of `FILES` files. Names and modification times of files increase with the number of their rows.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.datasets import DATASETS
from benchmarks.datasets.table import MACROS, Late, Table
from benchmarks.sql import text_literal

FILES: Final = 64  #: enough for an even distribution over two readers
_ISO: Final = "strftime({name}, '%Y-%m-%dT%H:%M:%S.%f')"  #: event times in JSON


def write(dataset: str, format: str, rows: int, folder: Path, *, late: Late = "all") -> Path:
    """The folder of the data set, which has a folder per table. Writes it unless it exists below `folder`.

    `late`: with all rows, or only with those that are on time.
    """
    tables = DATASETS[dataset]
    queries = {name: list(_queries(table, format, rows, late)) for name, table in tables.items()}
    version = hashlib.sha256(repr((MACROS, queries)).encode()).hexdigest()[:12]
    target = folder / f"{dataset}-{rows}-{format}-{version}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    with duckdb.connect(config={"threads": 2}) as database:
        for macro in MACROS:
            database.execute(macro)
        for name, parts in queries.items():
            (unfinished / name).mkdir(parents=True)
            for number, query in enumerate(parts):
                path = unfinished / name / f"part-{number:03}.{format}"
                database.execute(f"copy ({query}) to {text_literal(path)} (format {format})")
                os.utime(path, (number, number))
    unfinished.rename(target)
    return target


def _queries(table: Table, format: str, rows: int, late: Late) -> Iterator[str]:
    """SQL for each file of a table. A table with a fixed number of rows is a single file."""
    columns = [
        f"{_ISO.format(name=name)} as {name}" if format == "json" and kind == "timestamp" else name
        for name, (kind, _) in table.columns.items()
    ]
    count, parts = table.count(rows), 1 if table.rows is not None else FILES
    for part in range(parts):
        query = table.query(rows, count * part // parts, count * (part + 1) // parts, late=late)
        yield f"select {', '.join(columns)} from ({query} order by position)"
