"""W1 and W2: event-time windows, count and sum by key.

W1 has few keys, so its cost is almost entirely per row. W2 has ten rows per key and window, so state dominates its
cost.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.workload import Workload
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

FOUND: Final = "select key, window_start, count, sum from found where window_start < make_timestamp(OPEN * 1000000)"
EXPECTED: Final = """
    select key, make_timestamp(event_us // 1000000 * 1000000) as window_start, count(*), sum(id)::bigint
    from sequence where event_us // 1000000 < OPEN group by all
"""
_PANE_ROWS: Final = 1_000_000


def windows(
    name: str, keys: int, rows: Mapping[str, int], target: float, *, check_rows: int = 6_000_000, disorder_ms: int = 0
) -> Workload:
    """A workload of tumbling windows of 1 s.

    Windows of the last three event seconds are not compared: they may be open. With rows out of order, this time grows
    by the bound of the disorder.
    """
    first_open = f"({{rows}} // 1000000 - {3 + disorder_ms // 1_000})"
    return Workload(
        name=name,
        title=f"tumbling 1 s window, count and sum by key, {keys:,} keys",
        kind="window",
        keys=keys,
        rows=rows,
        found=FOUND.replace("OPEN", first_open),
        expected=EXPECTED.replace("OPEN", first_open),
        target=target,
        check_rows=check_rows,
        disorder_ms=disorder_ms,
        totals=lambda rows: totals(rows, keys),
    )


def totals(rows: int, keys: int) -> Mapping[str, int]:
    """The output totals of a job that ends: every row is in a window, and every key in each full second."""
    assert keys <= _PANE_ROWS, "with more keys than rows not every key is in every window"
    full, remainder = divmod(rows, _PANE_ROWS)
    earlier_panes = full + (remainder > 0) - 1
    last = np.unique((np.arange(remainder or _PANE_ROWS) + (rows - (remainder or _PANE_ROWS))) * KEY_MULTIPLIER % keys)
    return {
        "rows_out": earlier_panes * keys + len(last),
        "sum_of_key": earlier_panes * keys * (keys - 1) // 2 + int(last.sum()),
        "sum_of_count": rows,
        "sum_of_sum": rows * (rows - 1) // 2,
    }


W1 = windows("W1", 1_000, {"weir": 800_000_000, "spark": 30_000_000, "flink_sql": 30_000_000}, 10)
W2 = windows("W2", 100_003, {"weir": 200_000_000, "spark": 20_000_000, "flink_sql": 10_000_000}, 8)
