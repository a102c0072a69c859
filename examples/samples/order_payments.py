"""Orders and payments of the example `order_payments`: a few payments per hundred are too late for their order.

A step has ten minutes of rows in four files per stream. Some orders are paid twice, some never, some after more than 15
minutes. Every hundredth row is a straggler: it comes six steps later. All other rows lag at most `DISORDER_MS` behind.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from examples.samples.check import committed_table, json_table
from runtime.durable import write_file

STEPS: Final = 12
DISORDER_MS: Final = 60_000
_TIME: Final = pa.timestamp("ms")
_ORDERS: Final = pa.schema(
    [("order_id", pa.int64()), ("ordered_at", _TIME), ("customer", pa.string()), ("amount", pa.float64())]
)
_PAYMENTS: Final = pa.schema([("order_id", pa.int64()), ("paid_at", _TIME), ("method", pa.string())])
_OUTPUTS: Final = {
    "paid": pa.unify_schemas([_ORDERS, _PAYMENTS]),
    "late_orders": _ORDERS,
    "late_payments": _PAYMENTS,
}
_STEP_MS: Final = 600_000
_BEGIN: Final = datetime(2026, 3, 2, 8, 0)  # noqa: DTZ001 - the columns have no time zone
_FILES: Final = 4
_ORDERS_PER_STEP: Final = 500
_DELAY_STEPS: Final = 6
_LONGEST_PAYMENT_STEPS: Final = 2

Row = dict[str, Any]


def prepare(folder: Path, database: str) -> None:
    """Creates the folders of the input."""
    for name in ("orders", "payments"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def write_step(folder: Path, database: str, step: int) -> None:
    """Writes the files of a step. A repetition writes the same bytes."""
    earliest = max(0, step - _DELAY_STEPS - _LONGEST_PAYMENT_STEPS)
    batches = [_rows(number) for number in range(earliest, step + 1)]
    for name, time, rows in (
        ("orders", "ordered_at", [row for orders, _ in batches for row in orders]),
        ("payments", "paid_at", [row for _, payments in batches for row in payments]),
    ):
        due = sorted((row for row in rows if row["sent"] // _STEP_MS == step), key=lambda row: row["sent"])
        for file in range(_FILES):
            share = due[file * len(due) // _FILES : (file + 1) * len(due) // _FILES]
            text = "".join(_line(row, time) for row in share)
            write_file(folder / name / f"{name}-{step:03}-{file}.json", text.encode())


def tables(folder: Path, database: str) -> dict[str, pa.Table]:
    """Input and output of the example, for `order_payments.sql`."""
    inputs = {"orders": json_table(folder / "orders", _ORDERS), "payments": json_table(folder / "payments", _PAYMENTS)}
    return inputs | {name: committed_table(folder / name, schema) for name, schema in _OUTPUTS.items()}


def _line(row: Row, time: str) -> str:
    at = _BEGIN + timedelta(milliseconds=row[time])
    return (
        json.dumps(
            {name: value for name, value in row.items() if name != "sent"}
            | {time: at.isoformat(timespec="milliseconds")}
        )
        + "\n"
    )


def _rows(step: int) -> tuple[list[Row], list[Row]]:
    """The orders of a step and their payments. Times, and `sent`, are milliseconds since the beginning."""
    random = Random(step)  # noqa: S311 - sample data
    orders, payments = [], []
    for number in range(_ORDERS_PER_STEP):
        order, at = step * _ORDERS_PER_STEP + number, step * _STEP_MS + random.randrange(_STEP_MS)
        amount = random.randrange(100, 50_000) / 100
        row = {"order_id": order, "ordered_at": at, "customer": f"customer-{order % 97:02}", "amount": amount}
        orders.append(row | {"sent": _sent(at, random)})
        for _ in range(random.choice((0, 1, 1, 1, 1, 2))):
            paid_at = at + random.randrange(-5_000, 18 * 60_000)
            method = random.choice(("card", "transfer"))
            payments.append({"order_id": order, "paid_at": paid_at, "method": method, "sent": _sent(paid_at, random)})
    return orders, payments


def _sent(at: int, random: Random) -> int:
    """When a row arrives: at most `DISORDER_MS` after its time, or `_DELAY_STEPS` later."""
    delay = random.randrange(DISORDER_MS) if random.random() >= 0.01 else _DELAY_STEPS * _STEP_MS
    return max(0, at + delay)
