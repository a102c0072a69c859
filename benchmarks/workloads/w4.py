"""W4: overlapping windows of 10 s or 60 s with a slide of 1 s, over 1,000 keys: the gain of shared panes."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.workload import Workload
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

KIND: Final = "sliding"
FOUND: Final = """
    select key, window_start, count, sum from found
    where window_start < make_timestamp({rows} * US // 1000000 * 1000000 - 2000000 - WINDOW * 1000000)
"""
EXPECTED: Final = """
    with panes as (
        select key, event_us // 1000000 as second, count(*) as count, sum(id) as sum
        from sequence where event_us < {rows} * US // 1000000 * 1000000 - 3000000 group by all
    ),
    windows as (select *, unnest(range(second - WINDOW + 1, second + 1)) as start from panes)
    select key, make_timestamp(start * 1000000) as window_start, sum(count)::bigint, sum(sum)::bigint
    from windows where start < {rows} * US // 1000000 - 2 - WINDOW group by all
"""
_PANE_ROWS: Final = 1_000_000
_CHECK_US_PER_ROW: Final = 100
_FLAT: Final = 1 / 1.5  #: minimum relative rate with six times as many panes per window


def _sliding(seconds: int, rows: dict[str, int], check_rows: int, beside: tuple[str, float] | None = None) -> Workload:
    """A workload of sliding windows. Windows of the last three event seconds are not compared: they may be open.

    In the small run rows are 100 microseconds apart, so that it contains more than twenty whole windows.
    """
    own = {"WINDOW": str(seconds), "US": str(_CHECK_US_PER_ROW)}
    return Workload(
        name=f"W4-{seconds}",
        title=f"window of {seconds} s every second, count and sum by key, 1,000 keys",
        kind=KIND,
        keys=1_000,
        rows=rows,
        window_s=seconds,
        found=_with(FOUND, own),
        expected=_with(EXPECTED, own),
        target=5,
        check_rows=check_rows,
        check_us_per_row=_CHECK_US_PER_ROW,
        beside=beside,
        totals=lambda rows: totals(rows, 1_000, seconds),
    )


def _with(query: str, constants: Mapping[str, str]) -> str:
    for name, value in constants.items():
        query = query.replace(name, value)
    return query


def totals(rows: int, keys: int, seconds: int) -> Mapping[str, int]:
    """The output totals of a job that ends: every row is in `seconds` windows.

    The last window contains the last second only, which need not have every key.
    """
    assert rows >= _PANE_ROWS >= keys, "with fewer rows not every key is in every window"
    full, rest = divmod(rows, _PANE_ROWS)
    windows = full + (rest > 0) + seconds - 1
    last = np.unique((np.arange(rest or _PANE_ROWS) + (rows - (rest or _PANE_ROWS))) * KEY_MULTIPLIER % keys)
    return {
        "rows_out": (windows - 1) * keys + len(last),
        "sum_of_key": (windows - 1) * keys * (keys - 1) // 2 + int(last.sum()),
        "sum_of_count": rows * seconds,
        "sum_of_sum": rows * (rows - 1) // 2 * seconds,
    }


#: For a run of about ten seconds.
_OWN_ROWS: Final = 500_000_000
W4_10 = _sliding(10, {"weir": _OWN_ROWS, "spark": 5_000_000, "flink_sql": 20_000_000}, 350_000)
W4_60 = _sliding(60, {"weir": _OWN_ROWS, "spark": 1_000_000, "flink_sql": 20_000_000}, 850_000, ("W4-10", _FLAT))
