"""Inputs of the flights job as a stage would have written them, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from examples import nycflights
from examples.schemas import AIRLINES, HISTORY, WEATHER, WEATHER_FILE
from spark_jobs.sources.splits import InputFolder


def write_input(folder: Path, *splits: pa.Table) -> None:
    """A complete input of these splits."""
    input_folder = InputFolder(folder)
    input_folder.begin(splits[0].schema, keep=True)
    for number, split in enumerate(splits):
        file = input_folder.staging_path()
        pq.write_table(split, file)
        input_folder.publish(file, number)
    input_folder.finish(set(range(len(splits))))


def write_flight_inputs(root: Path, flights: pa.Table) -> None:
    """What the flights job joins, with the history of `flights` alone."""
    history = flights.select(HISTORY.names)
    write_input(root / "airlines", airlines())
    write_input(root / "weather", hours())
    write_input(root / "history", history.slice(0, history.num_rows // 2), history.slice(history.num_rows // 2))


def airlines() -> pa.Table:
    return pacsv.read_csv(nycflights.locate("airlines.csv")).cast(AIRLINES)


def hours() -> pa.Table:
    """One row per airport and hour."""
    rows = weather()
    wet = rows.append_column("wet", pc.greater(rows["precip"], 0))
    keys = ["origin", "year", "month", "day", "hour"]
    totals = wet.group_by(keys).aggregate([("wet", "max"), ("wind_speed", "max")])
    return totals.rename_columns(WEATHER.names).cast(WEATHER)


def weather() -> pa.Table:
    convert = pacsv.ConvertOptions(column_types=WEATHER_FILE, null_values=[nycflights.NULL], strings_can_be_null=True)
    return pacsv.read_csv(nycflights.locate("weather.csv"), convert_options=convert)
