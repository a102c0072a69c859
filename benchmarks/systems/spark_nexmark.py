"""The Nexmark queries of Structured Streaming; each is a function of the tables."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from benchmarks.systems.spark_inputs import SparkInputs

_BID: Final = ("auction", "bidder", "price", "date_time")


def _bids(inputs: "SparkInputs") -> DataFrame:
    return inputs.stream("bids", "date_time")


def _window(time: str) -> Column:
    return f.window(time, "10 seconds")


def read(inputs: "SparkInputs") -> DataFrame:
    return _bids(inputs)


def q0(inputs: "SparkInputs") -> DataFrame:
    return _bids(inputs).select(*_BID)


def q1(inputs: "SparkInputs") -> DataFrame:
    return _bids(inputs).select("auction", "bidder", (f.col("price") * f.lit(0.908)).alias("price"), "date_time")


def q2(inputs: "SparkInputs") -> DataFrame:
    return _bids(inputs).where("auction % 123 = 0").select("auction", "price")


def q3(inputs: "SparkInputs") -> DataFrame:
    """All pairs: without a condition on event time every row is kept."""
    persons = inputs.stream("persons", "date_time", delay="1 day").where("state in ('OR', 'ID', 'CA')")
    auctions = inputs.stream("auctions", "date_time", delay="1 day").where("category = 10")
    opened = auctions.select("seller", f.col("id").alias("auction"))
    return persons.join(opened, f.expr("id = seller")).select("name", "city", "state", "auction")


def q5(inputs: "SparkInputs") -> DataFrame:
    """Counts per auction and window; the counts of a window together; the auctions with the largest count."""
    windows = f.window("date_time", "10 seconds", "2 seconds").alias("span")
    counts = _bids(inputs).groupBy(windows, "auction").agg(f.count("*").alias("bids"))
    together = counts.groupBy("span").agg(f.collect_list(f.struct("bids", "auction")).alias("every"))
    hot = together.select("span", f.expr("inline(filter(every, one -> one.bids = array_max(every).bids))"))
    return hot.select("auction", f.col("span.end").cast("timestamp_ntz").alias("ends"), "bids")


def q7(inputs: "SparkInputs") -> DataFrame:
    """The largest price of each window, joined with the bids of the window. A stream may have one event time only."""
    time = f.col("date_time").cast("timestamp_ntz").alias("date_time")
    bids = _bids(inputs).select("auction", "bidder", "price", time, _window("date_time").alias("span"))
    largest = _bids(inputs).groupBy(_window("date_time").alias("span")).agg(f.max("price").alias("price"))
    return bids.join(largest, ["span", "price"]).select(*_BID)


def q8(inputs: "SparkInputs") -> DataFrame:
    persons = inputs.stream("persons", "date_time").select("id", "name", _window("date_time").alias("span"))
    auctions = inputs.stream("auctions", "date_time").select(
        f.col("id").alias("auction"), f.col("seller").alias("id"), _window("date_time").alias("span")
    )
    sellers = persons.join(auctions, ["id", "span"])
    return sellers.select("id", "name", "auction", f.col("span.start").cast("timestamp_ntz").alias("start"))


def q11(inputs: "SparkInputs") -> DataFrame:
    session = f.session_window("date_time", "10 seconds").alias("session")
    counts = _bids(inputs).groupBy("bidder", session).agg(f.count("*").alias("bids"))
    starts, ends = (f.col(f"session.{name}").cast("timestamp_ntz") for name in ("start", "end"))
    return counts.select("bidder", "bids", starts.alias("starts"), ends.alias("ends"))


def q17(inputs: "SparkInputs") -> DataFrame:
    ranks = {"low": "price < 10000", "middle": "price >= 10000 and price < 1000000", "high": "price >= 1000000"}
    return (
        _bids(inputs)
        .groupBy("auction", f.to_date("date_time").alias("day"))
        .agg(
            f.count("*").alias("bids"),
            *(f.count_if(f.expr(rank)).alias(f"{name}_bids") for name, rank in ranks.items()),
            f.min("price").alias("min_price"),
            f.max("price").alias("max_price"),
            f.avg("price").alias("mean_price"),
            f.sum("price").alias("sum_price"),
        )
    )


def q18(inputs: "SparkInputs") -> DataFrame:
    time = f.col("date_time").cast("timestamp_ntz").alias("date_time")
    values = f.struct("price", "channel", "url", time, "extra")
    last = _bids(inputs).groupBy("bidder", "auction").agg(f.max_by(values, "date_time").alias("last"))
    return last.select("bidder", "auction", "last.*")
