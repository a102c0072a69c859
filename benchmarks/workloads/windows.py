"""W1, W2 and W4: event-time windows, count and sum by key.

W1 has few keys, so its cost is almost entirely per row. W2 has ten rows per key and window, so state dominates its
cost. The overlapping windows of W4 show the gain of shared panes.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.workload import Workload
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

FOUND: Final = "select key, window_start, count, sum from found where window_start < make_timestamp(OPEN * 1000000)"
EXPECTED: Final = """
    with panes as (
        select key, event_us // 1000000 as second, count(*) as count, sum(id) as sum from sequence group by all
    ),
    windows as (select *, unnest(range(second - WINDOW + 1, second + 1)) as start from panes)
    select key, make_timestamp(start * 1000000) as window_start, sum(count)::bigint, sum(sum)::bigint
    from windows where start < OPEN group by all
"""
_PANE_ROWS: Final = 1_000_000
_FLAT: Final = 1 / 1.5  #: minimum relative rate with six times as many panes per window


def windows(
    name: str,
    keys: int,
    rows: Mapping[str, int],
    target: float,
    *,
    window_s: int = 1,
    check_rows: int = 6_000_000,
    check_us_per_row: int = 1,
    disorder_ms: int = 0,
    beside: tuple[str, float] | None = None,
) -> Workload:
    """A workload of windows with a slide of 1 s.

    Windows of the last three event seconds are not compared: they may be open. With rows out of order, this time grows
    by the bound of the disorder.
    """
    first_open = f"({{rows}} * {check_us_per_row} // 1000000 - {2 + window_s + disorder_ms // 1_000})"
    shape = "tumbling 1 s window" if window_s == 1 else f"window of {window_s} s every second"
    return Workload(
        name=name,
        title=f"{shape}, count and sum by key, {keys:,} keys",
        kind="window" if window_s == 1 else "sliding",
        keys=keys,
        rows=rows,
        window_s=window_s,
        found=FOUND.replace("OPEN", first_open),
        expected=EXPECTED.replace("OPEN", first_open).replace("WINDOW", str(window_s)),
        target=target,
        check_rows=check_rows,
        check_us_per_row=check_us_per_row,
        disorder_ms=disorder_ms,
        beside=beside,
        totals=lambda rows: totals(rows, keys, window_s),
    )


def totals(rows: int, keys: int, window_s: int = 1) -> Mapping[str, int]:
    """The output totals of a job that ends: every row is in `window_s` windows, and every key in each full second.

    The last window contains the last second only, which need not have every key.
    """
    assert keys <= _PANE_ROWS, "with more keys than rows not every key is in every window"
    assert window_s == 1 or rows >= _PANE_ROWS, "with fewer rows not every key is in every window"
    full, rest = divmod(rows, _PANE_ROWS)
    others = full + (rest > 0) + window_s - 2
    last = np.unique((np.arange(rest or _PANE_ROWS) + (rows - (rest or _PANE_ROWS))) * KEY_MULTIPLIER % keys)
    return {
        "rows_out": others * keys + len(last),
        "sum_of_key": others * keys * (keys - 1) // 2 + int(last.sum()),
        "sum_of_count": rows * window_s,
        "sum_of_sum": rows * (rows - 1) // 2 * window_s,
    }


W1 = windows("W1", 1_000, {"weir": 800_000_000, "spark": 30_000_000, "flink_sql": 30_000_000}, 10)
W2 = windows("W2", 100_003, {"weir": 200_000_000, "spark": 20_000_000, "flink_sql": 10_000_000}, 8)
#: In the small runs of W4 rows are 100 microseconds apart, so that they contain more than twenty whole windows.
W4_10 = windows(
    "W4-10", 1_000, {"weir": 500_000_000, "spark": 5_000_000, "flink_sql": 20_000_000}, 5,
    window_s=10, check_rows=350_000, check_us_per_row=100,
)  # fmt: skip
W4_60 = windows(
    "W4-60", 1_000, {"weir": 500_000_000, "spark": 1_000_000, "flink_sql": 20_000_000}, 5,
    window_s=60, check_rows=850_000, check_us_per_row=100, beside=("W4-10", _FLAT),
)  # fmt: skip
