"""R4: TPC-H as a stream. Items are joined with their orders within 3 s, and revenue is summed by nation and minute."""

from typing import Final

from benchmarks.datasets.table import DISORDER_MS, EPOCH_US
from benchmarks.datasets.tpch import CUSTOMERS, US_PER_ITEM
from benchmarks.workload import Workload
from benchmarks.workloads.variants import SYSTEMS, read_only

ROWS: Final = 1_000_000  #: items; orders are a quarter more
JOINED_WITHIN_S: Final = 3
#: Minutes that end in the last minute are not compared: a system that has not reached their end keeps them open.
_CLOSED: Final = f"make_timestamp({EPOCH_US} + {{rows}}::bigint * {US_PER_ITEM} - 120000000)"

R4: Final = Workload(
    name="R4",
    title="TPC-H: items joined with orders within 3 s, revenue by nation and minute; Parquet into Postgres (upserts)",
    kind="tpch",
    keys=CUSTOMERS,
    rows=dict.fromkeys(SYSTEMS, ROWS),
    found=f"select nation, minute, revenue from found where minute < {_CLOSED}",
    expected=f"""
        from (
            select c_nation as nation, date_trunc('minute', l_time)::timestamp as minute,
                sum(l_extendedprice * (100 - l_discount))::bigint as revenue
            from lineitem join orders on l_orderkey = o_orderkey
                and l_time between o_time and o_time + interval '{JOINED_WITHIN_S} seconds'
            join customer on o_custkey = c_custkey group by all
        ) where minute < {_CLOSED}
    """,
    late="select count(*) from (select l_orderkey from lineitem union all select o_orderkey from orders)",
    late_is_bound=True,
    target=3,
    check_rows=300_000,
    files="parquet",
    dataset="tpch",
    disorder_ms=DISORDER_MS,
    sink="postgres",
    output={"nation": "text", "minute": "timestamp", "revenue": "bigint"},
    output_key=("nation", "minute"),
)
R4_W0: Final = read_only(R4)
