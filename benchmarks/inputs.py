"""The input files of a workload, the same for all systems; they exist while the workload runs.

The files hold the rows in order: names and modification times of files increase with event time. A system that gets
fewer rows gets the first files.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from benchmarks.datasets import files as datasets
from benchmarks.datasets.files import FILES
from benchmarks.sql import text_literal
from benchmarks.workload import Workload, key_sql, microseconds_sql

_TIME: Final = {"parquet": "make_timestamp({at})", "json": "strftime(make_timestamp({at}), '%Y-%m-%dT%H:%M:%S.%f')"}
_WRITE: Final = """
    copy (select id, {key} as key, {time} as time from range({first}, {last}) as t(id) order by id)
    to {path} (format {format})
"""


@contextmanager
def input_files(workload: Workload, folder: Path, share: float = 1.0) -> Iterator[Path]:
    """A folder with a subfolder per system, which holds the input files of the system's small and measured run.

    The folder is empty if the workload needs no files. The files of a data set stay in `data` beside it, for later
    workloads and runs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if workload.dataset is not None:
            _link_dataset(workload, folder, share)
        elif workload.files is not None:
            check, measure, most = folder / "check", folder / "measure", max(workload.rows.values())
            write(workload, check, workload.check_rows)
            write(workload, measure, round(most * share))
            for system, rows in workload.rows.items():
                _link_files(check, folder / system, FILES)
                _link_files(measure, folder / system, FILES * rows // most)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_dataset(workload: Workload, folder: Path, share: float) -> None:
    assert workload.dataset is not None, "the workload has a data set"
    assert workload.files is not None, "the files of a data set have a format"
    data = folder.parent / "data"
    for system, rows in workload.rows.items():
        # A small run is short: if a subtask stands still for a moment, rows that are too late are in time.
        small = datasets.write(workload.dataset, workload.files, workload.check_rows, data, late="on time")
        full = datasets.write(workload.dataset, workload.files, round(rows * share), data)
        for phase, written in (("check", small), ("measure", full)):
            for table in written.iterdir():
                _link_files(table, folder / system / phase, FILES)


def _link_files(every: Path, folder: Path, count: int) -> None:
    """Links the first `count` files of `every` below `folder`; hard links keep the modification times."""
    into = folder / every.name
    into.mkdir(parents=True)
    for path in sorted(every.iterdir())[:count]:
        os.link(path, into / path.name)


def write(workload: Workload, folder: Path, rows: int) -> None:
    """Writes `rows` rows, with ids from 0, as `FILES` files."""
    assert workload.files is not None, "a workload with files has a format"
    folder.mkdir(parents=True)
    with duckdb.connect(config={"threads": 1}) as database:
        for number in range(FILES):
            path = folder / f"part-{number:03}.{workload.files}"
            query = _WRITE.format(
                key=key_sql(workload),
                time=_TIME[workload.files].format(at=microseconds_sql(workload)),
                first=rows * number // FILES,
                last=rows * (number + 1) // FILES,
                path=text_literal(path),
                format=workload.files,
            )
            database.execute(query)
            os.utime(path, (number, number))
