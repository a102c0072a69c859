"""Common parts of W1 and W2: tumbling one-second windows, count and sum by key."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.workload import Workload
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

KIND: Final = "window"
FOUND: Final = """
    select key, window_start, count, sum from found
    where window_start < make_timestamp({rows} // 1000000 * 1000000 - OPEN)
"""
EXPECTED: Final = """
    select key, time_bucket(interval 1 second, make_timestamp(event_us)) as window_start, count(*), sum(id)
    from sequence where event_us < {rows} // 1000000 * 1000000 - OPEN group by all
"""
_WINDOW_ROWS: Final = 1_000_000


def windows(name: str, keys: int, rows: dict[str, int], target: float, disorder_ms: int = 0) -> Workload:
    """A workload of tumbling windows. The last three event seconds are not compared: their windows may be open.

    With rows out of order, the excluded time grows by the bound of the disorder.
    """
    open_microseconds = str(3_000_000 + disorder_ms * 1_000)
    return Workload(
        name=name,
        title=f"tumbling 1 s window, count and sum by key, {keys:,} keys",
        kind=KIND,
        keys=keys,
        rows=rows,
        found=FOUND.replace("OPEN", open_microseconds),
        expected=EXPECTED.replace("OPEN", open_microseconds),
        target=target,
        totals=lambda rows: totals(rows, keys),
    )


def totals(rows: int, keys: int) -> Mapping[str, int]:
    """The output totals of a job that ends: a row per key and window. Every key is in each full window."""
    assert keys <= _WINDOW_ROWS, "with more keys than rows not every key is in every window"
    full, rest = divmod(rows, _WINDOW_ROWS)
    last = np.unique((np.arange(rest) + full * _WINDOW_ROWS) * KEY_MULTIPLIER % keys)
    return {
        "rows_out": full * keys + len(last),
        "sum_of_key": full * keys * (keys - 1) // 2 + int(last.sum()),
        "sum_of_count": rows,
        "sum_of_sum": rows * (rows - 1) // 2,
    }
