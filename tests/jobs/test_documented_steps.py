"""The program of `docs/steps.md` runs, and gives the answer of DuckDB over the same files."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb

import weir
from tests.contracts.files import Reading

PAGE = Path(__file__).parents[2] / "docs/steps.md"
ORDERS = [  # in the order of event time, so that no row is late
    *({"order_id": f"o{n}", "ordered_at": f"2026-01-01T10:{n % 60:02}:00", "amount": n} for n in range(60)),
    {"order_id": None, "ordered_at": "2026-01-03T00:00:00", "amount": 0},
]
PAYMENTS = [
    *({"order": f"o{n}", "paid_at": f"2026-01-01T10:{n:02}:{n % 6}0", "paid": n} for n in range(0, 60, 3)),
    {"order": None, "paid_at": "2026-01-01T12:00:00", "paid": 1},
    {"order": "o1", "paid_at": "2026-01-01T12:00:00", "paid": 1},
]


def test_the_page_is_a_program_that_runs(tmp_path: Path) -> None:
    """Union, both joins, sessions, a function with two streams, side outputs and late rows."""
    inputs = {"orders": ORDERS[::2], "web_orders": ORDERS[1::2], "payments": PAYMENTS}
    for name, rows in inputs.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = "\n".join(re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text()))
    for folder in ("in", "state", "letters"):
        code = code.replace(f'"/{folder}', f'"{tmp_path}/{folder}')
    names: dict[str, Any] = {"__name__": "steps"}
    exec(compile(code, str(PAGE), "exec"), names)  # the page of this repository

    def answer(query: str) -> list[Any]:
        return (
            duckdb.connect()
            .execute(
                f"""with
            orders as (select * from read_json('{tmp_path}/in/*orders/*.jsonl', columns={{
                'order_id': 'varchar', 'ordered_at': 'timestamp', 'amount': 'bigint'}})),
            payments as (select * from read_json('{tmp_path}/in/payments/*.jsonl', columns={{
                'order': 'varchar', 'paid_at': 'timestamp', 'paid': 'bigint'}}))
            {query}"""
            )
            .fetchall()
        )

    def collected(name: str, *columns: str) -> list[Any]:
        return sorted(tuple(row[column] for column in columns) for row in names[name].rows())

    pairs = 'from orders join payments on order_id = payments."order"'
    assert collected("paid_rows", "order_id", "paid_at", "settled_at", "amount", "paid") == answer(
        f"""select order_id, paid_at, greatest(ordered_at, paid_at), amount, paid {pairs}
        where paid_at between ordered_at and ordered_at + interval 15 minutes order by all"""
    )
    assert collected("same_hour_rows", "order_id", "paid_at", "window_start") == answer(
        f"""select order_id, paid_at, date_trunc('hour', paid_at) {pairs}
        where date_trunc('hour', paid_at) = date_trunc('hour', ordered_at) order by all"""
    )
    counted: Counter[tuple[int, int]] = Counter()
    for row in names["orders_with_rows"].rows():
        counted[row["payments"], row["orders"]] += -1 if row["op"] in ("update_before", "delete") else 1
    assert sorted(counted.elements()) == answer(
        """select payments, count(*) from (select count(*) payments from payments group by "order") group by all
        order by all"""
    )
    assert sum(row["orders"] for row in names["visit_rows"].rows()) == len(ORDERS)
    once = collected("once_rows", "ordered_at", "amount")
    assert len(once) == len(set(once))
    assert set(once) <= set(answer("select ordered_at, amount from orders"))
    assert collected("current_rows", "amount") == answer("select amount from orders order by all"), "an order has a row"
    settled, unpaid = {row["order_id"] for row in names["settled_rows"].rows()}, collected("unpaid_rows", "amount")
    assert settled == {order for (order,) in answer(f"select distinct order_id {pairs}")}
    assert len(settled) + len(unpaid) == len(ORDERS)
    late = len(names["late_rows"].rows())
    assert sum(row["orders"] for row in names["total_rows"].rows()) + late == len(ORDERS)
    shared = len(names["share_rows"].rows())
    assert shared + len(Reading(weir.dead_letters(str(tmp_path / "letters"))).rows()) == len(ORDERS)
    assert shared == len(ORDERS) - 2, "the others have the amount 0"
