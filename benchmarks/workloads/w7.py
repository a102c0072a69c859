"""W7: the windows of W1 over files, into files: Parquet, and JSON lines, where parsing is what costs."""

from dataclasses import replace
from typing import Final

from benchmarks.workload import Workload
from benchmarks.workloads.windows import windows

ROWS: Final = 96_000_000
JSON_ROWS: Final = 12_000_000
_W1: Final = windows("W7", 1_000, {}, target=3)

W7: Final[Workload] = replace(
    _W1,
    title="W1 from Parquet files into Parquet files",
    rows=dict.fromkeys(("weir", "spark"), ROWS),
    files="parquet",
    absent={"flink_sql": "no Parquet format in the distribution"},
)
W7_JSON: Final[Workload] = replace(
    _W1,
    name="W7-json",
    title="W1 from files of JSON lines",
    rows=dict.fromkeys(("weir", "spark", "flink_sql"), JSON_ROWS),
    target=None,
    files="json",
)
