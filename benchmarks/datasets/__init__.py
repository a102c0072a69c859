"""Data sets in the shape of real data: text keys, several columns, disorder. A file per data set."""

from benchmarks.datasets import ads, clicks, nexmark, payments, records, tpch
from benchmarks.datasets.table import Table

#: Data set -> table -> definition.
DATASETS: dict[str, dict[str, Table]] = {
    "ads": ads.TABLES,
    "clicks": clicks.TABLES,
    "nexmark-auctions": nexmark.AUCTION_TABLES,
    "nexmark-bids": nexmark.BID_TABLES,
    "nexmark-sellers": nexmark.SELLER_TABLES,
    "payments": payments.TABLES,
    "records": records.TABLES,
    "tpch": tpch.TABLES,
}
