"""R4 in Weir."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import weir
from benchmarks.workloads.tpch import JOINED_WITHIN_S

if TYPE_CHECKING:
    from benchmarks.systems.weir_inputs import WeirInputs


def read(inputs: "WeirInputs") -> weir.Stream:
    return inputs.table("lineitem", "l_time")


def revenue(inputs: "WeirInputs") -> weir.Stream:
    """Revenue by nation and minute."""
    value = pc.field("l_extendedprice") * (pc.scalar(100) - pc.field("l_discount"))
    items = read(inputs).select("items", "l_orderkey", "l_time", value=value)
    orders = inputs.table("orders", "o_time").select("new", "o_orderkey", "o_time", c_custkey=pc.field("o_custkey"))
    joined = (
        orders.key_by("o_orderkey")
        .interval_join(items.key_by("l_orderkey"))
        .between(
            "ordered", timedelta(0), timedelta(seconds=JOINED_WITHIN_S), time=("o_time", "l_time"), result_time="at"
        )
        .join_broadcast("customers", inputs.table("customer"), on=["c_custkey"], take=["c_nation"])
    )
    minutes = joined.key_by("c_nation").window("minutes", timedelta(minutes=1), "at", {"revenue": weir.Sum("value")})
    return minutes.select("columns", "revenue", nation=pc.field("c_nation"), minute=pc.field("window_start"))
