"""W2: tumbling windows over 100,003 keys; ten rows per key and window, so state dominates the cost."""

from benchmarks.workloads.windows import windows

W2 = windows("W2", 100_003, {"weir": 200_000_000, "spark": 20_000_000, "flink_sql": 10_000_000}, target=8)
