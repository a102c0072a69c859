"""Orders and customers of the example `enrichment`. A tenth of the orders is sent again, unchanged, by a later file."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pyarrow as pa

from examples.samples.check import json_table, postgres_table
from runtime.durable import write_file

STEPS: Final = 12
_ORDERS: Final = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.int64()),
        ("amount", pa.float64()),
        ("ordered_at", pa.timestamp("ms")),
    ]
)
_CUSTOMERS: Final = pa.schema([("customer", pa.int64()), ("name", pa.string()), ("segment", pa.string())])
_CUSTOMER_COUNT: Final = 1_000
_ORDERS_PER_STEP: Final = 2_000
_REPEATED: Final = _ORDERS_PER_STEP // 10
_FILES: Final = 4
_BEGIN: Final = datetime(2026, 3, 2, 8, 0)  # noqa: DTZ001 - the column has no time zone
_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS enrichment;
CREATE TABLE IF NOT EXISTS enrichment.customers (customer bigint PRIMARY KEY, name text, segment text);
INSERT INTO enrichment.customers
    SELECT n, 'Customer ' || n, (ARRAY['home', 'office', 'school'])[1 + n % 3] FROM generate_series(1, {count}) n
    ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS enrichment.orders (
    order_id bigint PRIMARY KEY, customer bigint, amount double precision, ordered_at timestamp,
    name text, segment text
);
"""


def prepare(folder: Path, database: str) -> None:
    """Creates the folder of the input and the tables, unless they exist."""
    (folder / "orders").mkdir(parents=True, exist_ok=True)
    with psycopg.connect(database) as connection:
        connection.execute(_TABLES.format(count=_CUSTOMER_COUNT))


def write_step(folder: Path, database: str, step: int) -> None:
    """Writes the files of a step. A repetition writes the same bytes."""
    orders = _orders(step) + (_orders(step - 1)[:_REPEATED] if step else [])
    for file in range(_FILES):
        text = "".join(json.dumps(order) + "\n" for order in orders[file::_FILES])
        write_file(folder / "orders" / f"orders-{step:03}-{file}.json", text.encode())


def tables(folder: Path, database: str) -> dict[str, pa.Table]:
    """Input and output of the example, for `enrichment.sql`."""
    enriched = pa.schema([*_ORDERS, *list(_CUSTOMERS)[1:]])
    return {
        "orders": json_table(folder / "orders", _ORDERS),
        "customers": postgres_table(database, "enrichment.customers", _CUSTOMERS),
        "enriched_orders": postgres_table(database, "enrichment.orders", enriched),
    }


def _orders(step: int) -> list[dict[str, Any]]:
    """The new orders of a step. Some customers are unknown."""
    random = Random(step)  # noqa: S311 - sample data
    return [
        {
            "order_id": step * _ORDERS_PER_STEP + number,
            "customer": random.randrange(1, _CUSTOMER_COUNT + 20),
            "amount": random.randrange(100, 50_000) / 100,
            "ordered_at": (_BEGIN + timedelta(minutes=step, milliseconds=number)).isoformat(timespec="milliseconds"),
        }
        for number in range(_ORDERS_PER_STEP)
    ]
