"""W7: the tumbling windows of W1, files to files: Parquet, JSON lines, and Parquet with unordered text keys.

S1 has equal runs, ten by default: the spread of their rates is compared with that of the peer.
"""

from dataclasses import replace
from typing import Final

from benchmarks.workload import DISORDER_MS, Workload
from benchmarks.workloads.windows import windows

#: Input consists of 64 whole files, so the rows of a peer are a multiple of 1/64 of Weir's rows.
_W1: Final = windows("W7", 1_000, {"weir": 96_000_000, "spark": 24_000_000}, target=3)

W7: Final[Workload] = replace(
    _W1,
    title="tumbling 1 s window (as W1), Parquet files to Parquet files",
    files="parquet",
    absent={"flink_sql": "no Parquet format in the distribution"},
)
W7_JSON: Final[Workload] = replace(
    _W1,
    name="W7-json",
    title="tumbling 1 s window (as W1), JSON lines to files",
    rows={"weir": 12_000_000, "spark": 6_000_000, "flink_sql": 6_000_000},
    target=None,
    check_rows=4_000_000,
    files="json",
)


def _text(name: str, keys: int, rows: dict[str, int]) -> Workload:
    late = "10 % of rows up to 2 s late"
    return replace(
        windows(name, keys, rows, target=3, check_rows=8_000_000, disorder_ms=DISORDER_MS),
        title=f"Parquet into Parquet, {keys:,} uuid keys as text, {late}, windows of 1 s",
        target=None,
        totals=None,
        files="parquet",
        text_keys=True,
        absent=W7.absent,
    )


W7_TEXT: Final[Workload] = _text("W7-text", 1_000, {"weir": 24_000_000, "spark": 12_000_000})
W7_TEXT_MANY: Final[Workload] = _text("W7-text-100k", 100_003, {"weir": 12_000_000, "spark": 12_000_000})
S1: Final[Workload] = replace(
    W7_TEXT,
    name="S1",
    title=f"equal runs in turns: {W7_TEXT.title}",
    rows={"weir": 48_000_000, "spark": 12_000_000},  # runs of some seconds, with several checkpoints
    rounds=10,
)
