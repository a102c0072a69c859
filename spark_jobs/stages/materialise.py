"""Materialising a bounded input: any DataFrame → ordered Parquet splits that a streaming source reads by offset.

A folder that is there is whole: it is written beside itself, made durable and renamed. A second call keeps it,
two calls at once wait for each other, and what a killed one left behind is removed by the next.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict
from uuid import uuid4

import pyarrow.parquet as pq

from runtime.errors import JobRejected
from runtime.pipelines import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARKER: Final = "_weir.json"  #: hidden from Parquet readers; its presence says that we made the folder


class Materialised(TypedDict):
    """What was written."""

    rows: int
    files: int


def input_of(one: Pipeline[Any], name: str) -> Callable[[Any, Any], DataFrame]:
    """The function that gives input `name` as a DataFrame.

    Raises:
        JobRejected: the pipeline has no such input.
    """
    if name not in one.inputs:
        known = ", ".join(sorted(one.inputs)) or "none"
        raise JobRejected("unknown-input", "input", f"{one.name} has no input {name!r}; known: {known}")
    function: Callable[[Any, Any], DataFrame] = one.inputs[name]
    return function


def finished(folder: Path) -> Materialised | None:
    """What `folder` holds, when it has been materialised; None when it is not there.

    Raises:
        JobRejected: something else stands there.
    """
    if (folder / MARKER).is_file():
        report: Mapping[str, int] = json.loads((folder / MARKER).read_text())
        return Materialised(rows=report["rows"], files=report["files"])
    if folder.is_dir() and not any(folder.iterdir()):
        return None
    if folder.exists():
        raise JobRejected("occupied", str(folder), "holds something else than a materialised input; left as it is")
    return None


def materialise(make: Callable[[], DataFrame], folder: Path) -> Materialised:
    """Writes the DataFrame that `make` gives to `folder`, unless that has been done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        kept = finished(folder)
        return kept if kept is not None else _written(make(), folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds a lock that ends with the process, so whatever temporary folder is seen inside it is a dead one's."""
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _written(frame: DataFrame, folder: Path) -> Materialised:
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.parent / f".{folder.name}.{uuid4().hex}.tmp"  # never shared with a dying Spark of the last call
    frame.write.parquet(temporary.as_uri())
    report = _counted(temporary)
    (temporary / MARKER).write_text(json.dumps(report))
    _make_durable(temporary)
    temporary.rename(folder)
    _sync(folder.parent)
    return report


def _counted(folder: Path) -> Materialised:
    """Rows and files from the Parquet footers, which also proves that each file can be opened."""
    files = sorted(folder.glob("part-*.parquet"))
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    return Materialised(rows=rows, files=len(files))


def _make_durable(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name.endswith(".crc"):  # Hadoop's own checksums; Parquet pages carry theirs
            file.unlink()
        else:
            _sync(file)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
