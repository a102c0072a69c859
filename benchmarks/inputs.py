"""The files that a workload reads, the same for all systems: made by the harness, gone when the workload is done.

They hold the sequence in order: the later a file's name and its time of change, the later its rows in event time. A
system that gets fewer rows gets the first of the files.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.workload import Workload, key_sql, microseconds_sql

FILES: Final = 64  #: enough that two readers get about the same number, however they are dealt
_TIME: Final = {"parquet": "make_timestamp({at})", "json": "strftime(make_timestamp({at}), '%Y-%m-%dT%H:%M:%S.%f')"}
_WRITE: Final = """
    copy (select id, {key} as key, {time} as time from range({first}, {last}) as t(id) order by id)
    to '{path}' (format {format})
"""


@contextmanager
def made(workload: Workload, folder: Path, share: float = 1.0) -> Iterator[Path]:
    """Gives a folder that has one for each system, with the files of its small and of its measured run.

    Nothing is there where the workload needs none.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if workload.files is not None:
            check, measure, most = folder / "check", folder / "measure", max(workload.rows.values())
            write(workload, check, workload.check_rows)
            write(workload, measure, round(most * share))
            for system, rows in workload.rows.items():
                _offer(check, folder / system, FILES)
                _offer(measure, folder / system, FILES * rows // most)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _offer(every: Path, own: Path, count: int) -> None:
    """Links the first files into a folder of the same name, where they have the same times."""
    into = own / every.name
    into.mkdir(parents=True)
    for path in sorted(every.iterdir())[:count]:
        os.link(path, into / path.name)


def write(workload: Workload, folder: Path, rows: int) -> None:
    """Writes the first `rows` rows of the sequence."""
    assert workload.files is not None, "rows that are in files have a format"
    folder.mkdir(parents=True)
    with duckdb.connect(config={"threads": 1}) as database:
        for number in range(FILES):
            path = folder / f"part-{number:03}.{workload.files}"
            query = _WRITE.format(
                key=key_sql(workload),
                time=_TIME[workload.files].format(at=microseconds_sql(workload)),
                first=rows * number // FILES,
                last=rows * (number + 1) // FILES,
                path=str(path).replace("'", "''"),
                format=workload.files,
            )
            database.execute(query)
            os.utime(path, (number, number))
