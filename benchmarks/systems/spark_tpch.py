"""R4 in Structured Streaming."""

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.workloads.tpch import JOINED_WITHIN_S

if TYPE_CHECKING:
    from benchmarks.systems.spark_inputs import SparkInputs


def read(inputs: "SparkInputs") -> DataFrame:
    return inputs.stream("lineitem", "l_time")


def revenue(inputs: "SparkInputs") -> DataFrame:
    """Revenue by nation and minute. No item is earlier than its order: the time of a pair is that of its item."""
    items = read(inputs).selectExpr("l_orderkey", "l_time", "l_extendedprice * (100 - l_discount) as value")
    orders = inputs.stream("orders", "o_time").select("o_orderkey", "o_time", "o_custkey")
    within = f"l_orderkey = o_orderkey and l_time between o_time and o_time + interval {JOINED_WITHIN_S} seconds"
    customers = inputs.table("customer").selectExpr("c_custkey as o_custkey", "c_nation as nation")
    joined = items.join(orders, f.expr(within)).join(customers, "o_custkey")
    minutes = joined.groupBy("nation", f.window("l_time", "1 minute")).agg(f.sum("value").alias("revenue"))
    return minutes.select("nation", f.col("window.start").cast("timestamp_ntz").alias("minute"), "revenue")
