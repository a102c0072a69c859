"""W1: tumbling windows over 1,000 keys; nearly everything is per-row cost."""

from benchmarks.workloads.windows import windows

W1 = windows("W1", 1_000, {"weir": 800_000_000, "spark": 30_000_000, "flink_sql": 30_000_000}, target=10)
