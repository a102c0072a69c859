"""Data sets in the shape of real data: text keys, several columns, disorder. A file per data set."""

from benchmarks.datasets import ads, clicks, nexmark
from benchmarks.datasets.table import Table

#: Data set -> table -> definition.
DATASETS: dict[str, dict[str, Table]] = {"ads": ads.TABLES, "clicks": clicks.TABLES, "nexmark": nexmark.TABLES}
