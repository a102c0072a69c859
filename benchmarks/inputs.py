"""The files that a workload reads, the same for all systems: made by the harness, gone when the workload is done.

They hold the sequence in order: the later a file's name and its time of change, the later its rows in event time.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.workload import Workload, key_sql

FILES: Final = 64  #: enough that two readers get about the same number, however they are dealt
_TIME: Final = {"parquet": "make_timestamp(id)", "json": "strftime(make_timestamp(id), '%Y-%m-%dT%H:%M:%S.%f')"}
_WRITE: Final = """
    copy (select id, {key} as key, {time} as time from range({first}, {last}) as t(id) order by id)
    to '{path}' (format {format})
"""


@contextmanager
def made(workload: Workload, folder: Path, share: float = 1.0) -> Iterator[Path]:
    """Gives the folder with the files of the small and the measured run; nothing where the workload needs none."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if workload.files is not None:
            write(workload, folder / "check", workload.check_rows)
            write(workload, folder / "measure", round(max(workload.rows.values()) * share))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(workload: Workload, folder: Path, rows: int) -> None:
    """Writes the first `rows` rows of the sequence."""
    assert workload.files is not None, "rows that are in files have a format"
    folder.mkdir(parents=True)
    with duckdb.connect(config={"threads": 1}) as database:
        for number in range(FILES):
            path = folder / f"part-{number:03}.{workload.files}"
            query = _WRITE.format(
                key=key_sql(workload),
                time=_TIME[workload.files],
                first=rows * number // FILES,
                last=rows * (number + 1) // FILES,
                path=str(path).replace("'", "''"),
                format=workload.files,
            )
            database.execute(query)
            os.utime(path, (number, number))
