"""W1: tumbling windows over 1,000 keys; the cost is almost entirely per row."""

from benchmarks.workloads.windows import windows

W1 = windows("W1", 1_000, {"weir": 800_000_000, "spark": 30_000_000, "flink_sql": 30_000_000}, target=10)
