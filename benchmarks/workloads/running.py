"""W3: running count and sum per key, with an update per change; few and many keys, uniform and skewed."""

from typing import Final

from benchmarks.workload import Workload

MANY: Final = 10_000_000


def _running(name: str, keys: int, zipf: float | None, rows: dict[str, int]) -> Workload:
    spread = "uniform" if zipf is None else f"Zipf {zipf}"
    return Workload(
        name=name,
        title=f"running count and sum per key, {keys:,} keys, {spread}",
        kind="running",
        keys=keys,
        zipf=zipf,
        rows=rows,
        found="select key, max(count), max(sum) from found group by key",  # the last update has the largest count
        expected="select key, count(*), sum(id) from sequence group by key",
        target=5,
        check_rows=2_000_000,
    )


W3 = _running("W3", 100_003, None, {"weir": 100_000_000, "spark": 20_000_000, "flink_sql": 10_000_000})
W3_ZIPF = _running("W3-zipf", 100_003, 1.2, {"weir": 100_000_000, "spark": 20_000_000, "flink_sql": 10_000_000})
#: The same number of rows for all systems: with more rows, Weir would update keys where its peers insert keys.
W3_MANY = _running("W3-10M", MANY, None, {"weir": 10_000_000, "spark": 10_000_000, "flink_sql": 10_000_000})
W3_MANY_ZIPF = _running("W3-10M-zipf", MANY, 1.2, {"weir": 10_000_000, "spark": 10_000_000, "flink_sql": 10_000_000})
