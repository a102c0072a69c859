"""What W1 and W2 share: tumbling one-second windows, count and sum by key."""

from typing import Final

from benchmarks.workload import Workload

KIND: Final = "window"
FOUND: Final = """
    select key, window_start, count, sum from found
    where window_start < make_timestamp({rows} // 1000000 * 1000000 - 3000000)
"""
EXPECTED: Final = """
    select key, time_bucket(interval 1 second, make_timestamp(id)) as window_start, count(*), sum(id)
    from sequence where id < {rows} // 1000000 * 1000000 - 3000000 group by all
"""


def windows(name: str, keys: int, rows: dict[str, int], target: float) -> Workload:
    """The last three event seconds are not compared: a system that has not seen their end keeps them open."""
    return Workload(
        name=name,
        title=f"tumbling 1 s window, count and sum by key, {keys:,} keys",
        kind=KIND,
        keys=keys,
        rows=rows,
        found=FOUND,
        expected=EXPECTED,
        target=target,
    )
