"""R6: click events with fifty columns, deduplicated by uuid within an hour, into Parquet files by hour."""

from typing import Final

from benchmarks.datasets.clicks import TABLES
from benchmarks.datasets.table import DISORDER_MS
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, as_json, read_only

ROWS: Final = 2_000_000
JSON_ROWS: Final = 150_000
_VALUES: Final = ", ".join(
    f"{name}::timestamp" if kind == "timestamp" else name for name, (kind, _) in TABLES["clicks"].columns.items()
)
_ONCE: Final = """
    select distinct on (event_id, day, hour) *
    from (select *, event_time::date as day, hour(event_time) as hour from clicks)
"""
_COMPARED: Final = f"event_id, day::date as day, hour::bigint as hour, hash({_VALUES}) as every_value"

R6: Final = Workload(
    name="R6",
    title="fifty columns, deduplicated by uuid within an hour; Parquet into Parquet by hour",
    kind="clicks",
    keys=ROWS,
    rows=dict.fromkeys(SYSTEMS, ROWS),
    found=f"select {_COMPARED} from found",
    expected=f"select {_COMPARED} from ({_ONCE})",
    batch=_ONCE,
    late="select count(*) from clicks",
    target=3,
    check_rows=100_000,
    files="parquet",
    dataset="clicks",
    disorder_ms=DISORDER_MS,
    sink="files",
    partition_by=("day", "hour"),
)
R6_JSON: Final = as_json(R6, JSON_ROWS)
R6_W0: Final = read_only(R6)
R6_JSON_W0: Final = read_only(R6_JSON)
