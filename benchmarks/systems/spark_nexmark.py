"""The Nexmark queries of Structured Streaming; each is a function of the tables."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from benchmarks.systems.spark_jobs import Inputs

_BID: Final = ("auction", "bidder", "price", "date_time")


def _bids(inputs: "Inputs") -> DataFrame:
    return inputs.stream("bids", "date_time")


def _window(time: str) -> Column:
    return f.window(time, "10 seconds")


def read(inputs: "Inputs") -> DataFrame:
    return _bids(inputs)


def q0(inputs: "Inputs") -> DataFrame:
    return _bids(inputs).select(*_BID)


def q1(inputs: "Inputs") -> DataFrame:
    return _bids(inputs).select("auction", "bidder", (f.col("price") * f.lit(0.908)).alias("price"), "date_time")


def q2(inputs: "Inputs") -> DataFrame:
    return _bids(inputs).where("auction % 123 = 0").select("auction", "price")


def q5(inputs: "Inputs") -> DataFrame:
    """Counts per auction and window; the counts of a window together; the auctions with the largest count."""
    windows = f.window("date_time", "10 seconds", "2 seconds").alias("span")
    counts = _bids(inputs).groupBy(windows, "auction").agg(f.count("*").alias("bids"))
    together = counts.groupBy("span").agg(f.collect_list(f.struct("bids", "auction")).alias("every"))
    hot = together.select("span", f.expr("inline(filter(every, one -> one.bids = array_max(every).bids))"))
    return hot.select("auction", f.col("span.end").cast("timestamp_ntz").alias("ends"), "bids")


def q7(inputs: "Inputs") -> DataFrame:
    """The largest price of each window, joined with the bids of the window."""
    bids = _bids(inputs).select(*_BID).withColumn("span", _window("date_time"))
    largest = _bids(inputs).groupBy(_window("date_time").alias("span")).agg(f.max("price").alias("price"))
    return bids.join(largest, ["span", "price"]).select(*_BID)


def q8(inputs: "Inputs") -> DataFrame:
    persons = inputs.stream("persons", "date_time").select("id", "name", _window("date_time").alias("span"))
    auctions = inputs.stream("auctions", "date_time").select(
        f.col("id").alias("auction"), f.col("seller").alias("id"), _window("date_time").alias("span")
    )
    both = persons.join(auctions, ["id", "span"])
    return both.select("id", "name", "auction", f.col("span.start").cast("timestamp_ntz").alias("start"))
