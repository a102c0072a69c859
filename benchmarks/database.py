"""The Postgres into which systems upsert, and its tables as files, so that they are compared like other output."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.protocol import table_of
from benchmarks.workload import Workload
from stack.services import start_postgres

PHASES: Final = ("check", "measure")
#: The event of a system's small run, for tables that `export` has written.
EXPORTED: Final[dict[str, Any]] = {"format": "csv", "pattern": "*.csv"}


@contextmanager
def target_database(workload: Workload, folder: Path) -> Iterator[str]:
    """The address of a Postgres that syncs each commit, with an empty table per phase; "" if none is needed."""
    if workload.sink != "postgres":
        yield ""
        return
    columns = ", ".join(f"{name} {kind}" for name, kind in workload.output.items())
    with start_postgres(folder, durable=True) as server:
        keys = ", ".join(workload.output_key)
        with psycopg.connect(server.url, autocommit=True) as connection:
            for phase in PHASES:
                connection.execute(f"create table {table_of(phase)} ({columns}, primary key ({keys}))")
        yield server.url


def export(url: str, phase: str, folder: Path) -> None:
    """Writes the table of a phase into a file below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    query = f"copy {table_of(phase)} to stdout (format csv)"
    with (
        psycopg.connect(url) as connection,
        connection.cursor().copy(query) as rows,
        (folder / "table.csv").open("wb") as file,
    ):
        for block in rows:
            file.write(block)
