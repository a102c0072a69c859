"""W3: running count and sum per key, with an update per change."""

from benchmarks.workload import Workload

W3 = Workload(
    name="W3",
    title="running count and sum per key, 100,003 keys",
    kind="running",
    keys=100_003,
    rows={"weir": 100_000_000, "spark": 20_000_000, "flink_sql": 10_000_000},
    found="select key, max(count), max(sum) from found group by key",  # the last update has the largest count
    expected="select key, count(*), sum(id) from sequence group by key",
    target=5,
    check_rows=2_000_000,
)
