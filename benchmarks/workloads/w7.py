"""W7: the windows of W1 over files, into files: Parquet, and JSON lines, where parsing is what costs."""

from dataclasses import replace
from typing import Final

from benchmarks.workload import Workload
from benchmarks.workloads.windows import windows

#: Rows come in whole files, so those of a peer are so many 64ths of Weir's.
ROWS: Final = {"weir": 96_000_000, "spark": 24_000_000}
JSON_ROWS: Final = {"weir": 12_000_000, "spark": 6_000_000, "flink_sql": 6_000_000}
_W1: Final = windows("W7", 1_000, {}, target=3)

W7: Final[Workload] = replace(
    _W1,
    title="W1 from Parquet files into Parquet files",
    rows=ROWS,
    files="parquet",
    absent={"flink_sql": "no Parquet format in the distribution"},
)
W7_JSON: Final[Workload] = replace(
    _W1,
    name="W7-json",
    title="W1 from files of JSON lines",
    rows=JSON_ROWS,
    target=None,
    check_rows=4_000_000,
    files="json",
)
