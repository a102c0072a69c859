"""Inputs and parameters of the example pipelines. Tables are as a stage would have written them, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from psycopg import sql

from examples import nycflights
from examples.schemas import AIRLINES, HISTORY, WEATHER, WEATHER_FILE
from spark_jobs.sources.splits import InputFolder
from tests.postgres import address_without_password

#: The outputs of each example, as `Sample.tables` names them.
OUTPUTS: Final = {
    "change_capture": ["accounts_copy", "history"],
    "clickstream": ["sessions", "late_clicks", "views", "late_views"],
    "enrichment": ["enriched_orders"],
    "order_payments": ["paid", "late_orders", "late_payments"],
}


def example_params(example: str, folder: Path, database: str) -> dict[str, str]:
    if example == "clickstream":
        return {"clicks_dir": str(folder / "clicks"), "output_dir": str(folder)}
    if example == "order_payments":
        inputs = {f"{name}_dir": str(folder / name) for name in ("orders", "payments")}
        return {**inputs, "output_dir": str(folder)}
    if example == "change_capture":
        return {"history_dir": str(folder / "history"), "database_url": address_without_password(database)}
    return {"orders_dir": str(folder / "orders"), "database_url": address_without_password(database)}


def drop_example_tables(database: str) -> None:
    """Removes the tables of all examples, with the replication slot."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'accounts'"
        )
        connection.execute("DROP PUBLICATION IF EXISTS accounts")
        for schema in ("enrichment", "change_capture"):
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


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
