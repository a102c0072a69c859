"""Orders with their items, and customers, in the shape of TPC-H: an order has four items, a customer has a nation.

Items have the times of their orders, as far as rows are not out of order. Customers do not change.
"""

from typing import Final

from benchmarks.datasets.table import Table, event_time

US_PER_ITEM: Final = 1_000
ITEMS_PER_ORDER: Final = 4
CUSTOMERS: Final = 15_000
_NATIONS: Final = (
    "ALGERIA", "ARGENTINA", "BRAZIL", "CANADA", "EGYPT", "ETHIOPIA", "FRANCE", "GERMANY", "INDIA", "INDONESIA", "IRAN",
    "IRAQ", "JAPAN", "JORDAN", "KENYA", "MOROCCO", "MOZAMBIQUE", "PERU", "CHINA", "ROMANIA", "SAUDI ARABIA", "VIETNAM",
    "RUSSIA", "UNITED KINGDOM", "UNITED STATES",
)  # fmt: skip
_PRIORITIES: Final = "['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECIFIED', '5-LOW'][1 + mixed(id, 4) % 5]"
_SEGMENTS: Final = "['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'MACHINERY', 'HOUSEHOLD'][1 + mixed(id, 4) % 5]"
_MODES: Final = "['REG AIR', 'AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL', 'FOB'][1 + mixed(id, 8) % 7]"
_INSTRUCTIONS: Final = "['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'][1 + mixed(id, 9) % 4]"

TABLES: Final = {
    "lineitem": Table(
        columns={
            "l_orderkey": ("bigint", f"id // {ITEMS_PER_ORDER}"),
            "l_partkey": ("bigint", "mixed(id, 1) % 200000"),
            "l_suppkey": ("bigint", "mixed(id, 2) % 10000"),
            "l_linenumber": ("bigint", f"1 + id % {ITEMS_PER_ORDER}"),
            "l_quantity": ("bigint", "1 + mixed(id, 3) % 50"),
            "l_extendedprice": ("bigint", "90000 + mixed(id, 4) % 10000000"),
            "l_discount": ("bigint", "mixed(id, 5) % 11"),
            "l_tax": ("bigint", "mixed(id, 6) % 9"),
            "l_returnflag": ("string", "['R', 'A', 'N'][1 + mixed(id, 7) % 3]"),
            "l_time": ("timestamp", event_time(US_PER_ITEM)),
            "l_shipinstruct": ("string", _INSTRUCTIONS),
            "l_shipmode": ("string", _MODES),
            "l_comment": ("string", "left(md5('item' || id), 8 + mixed(id, 10) % 24)"),
        },
        has_late_rows=True,
    ),
    "orders": Table(
        columns={
            "o_orderkey": ("bigint", "id"),
            "o_custkey": ("bigint", f"mixed(id, 1) % {CUSTOMERS}"),
            "o_orderstatus": ("string", "['F', 'O', 'P'][1 + mixed(id, 2) % 3]"),
            "o_totalprice": ("bigint", "100000 + mixed(id, 3) % 50000000"),
            "o_time": ("timestamp", event_time(US_PER_ITEM * ITEMS_PER_ORDER)),
            "o_orderpriority": ("string", _PRIORITIES),
            "o_clerk": ("string", "'Clerk#' || mixed(id, 5) % 1000"),
            "o_shippriority": ("bigint", "0::bigint"),
            "o_comment": ("string", "left(md5('order' || id), 16 + mixed(id, 6) % 16)"),
        },
        share=1 / ITEMS_PER_ORDER,
        has_late_rows=True,
    ),
    "customer": Table(
        columns={
            "c_custkey": ("bigint", "id"),
            "c_name": ("string", "'Customer#' || id"),
            "c_nation": ("string", f"{list(_NATIONS)}[1 + mixed(id, 1) % {len(_NATIONS)}]"),
            "c_phone": ("string", "'25-' || mixed(id, 2) % 10000000"),
            "c_acctbal": ("bigint", "mixed(id, 3) - 100000"),
            "c_mktsegment": ("string", _SEGMENTS),
        },
        rows=CUSTOMERS,
    ),
}
