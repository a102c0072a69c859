"""`docs/benchmarks/console.md`: the figures of the last whole run of the console's benchmark."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.console.measurement import GOAL_MS, MAX_PAGE_BYTES, MAX_QUERIES, TARGET_MS, Measurement, TabTimes

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "console.md"


def text(measurements: Sequence[Measurement], tabs: TabTimes, beside: str, at: datetime, cores: int) -> str:
    """The page as Markdown. `beside`: the rows of the filled tables."""
    count, slow = len(measurements), [each for each in measurements if each.p95_ms > GOAL_MS]
    slowest = max(measurements, key=lambda each: each.p95_ms)
    beyond = [f"- {each.name}: {each.p95_ms:.0f} ms" for each in slow]
    faults = [f"- {each.name}: {fault}" for each in measurements for fault in each.faults]
    limits = f"the limits of {MAX_QUERIES} queries and of {MAX_PAGE_BYTES // 1024} KB"
    return "\n".join(
        [
            "# Times of the console",
            "",
            f"`make bench-console WRITE=1` wrote this page on {at:%Y-%m-%d}, on {cores} cores.",
            "[The console](../console.md#how-fast-the-pages-are) explains the benchmark.",
            "",
            f"Beside {beside}, at the 95th percentile:",
            "",
            f"- {count - len(slow)} of {count} addresses keep the goal, {GOAL_MS:.0f} ms at most.",
            f'- The slowest is "{slowest.name}", with {slowest.p95_ms:.0f} ms.',
            f"- {tabs.tabs} tabs at one web process, each of which polls every {tabs.pause_s:.1f} s, get their answers",
            f"  within {tabs.p95_ms:.0f} ms (median: {tabs.p50_ms:.0f} ms). The goal is {TARGET_MS:.0f} ms.",
            "",
            *(["Beyond the goal:", "", *beyond] if beyond else ["No address is beyond the goal."]),
            "",
            *([f"Beyond {limits}:", "", *faults] if faults else [f"All answers keep {limits}."]),
            "",
            "Times are in ms. Processor time includes that of SQL, which has a column of its own. KB are compressed.",
            "",
            "| Page or endpoint | Queries | Median | 95th percentile | Processor | Of SQL | KB |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {each.name} | {each.queries} | {each.p50_ms:.0f} | {each.p95_ms:.0f} | {each.cpu_ms:.0f} | "
                f"{each.sql_cpu_ms:.0f} | {each.compressed_bytes / 1024:.1f} |"
                for each in measurements
            ),
            "",
        ]
    )


def write(measurements: Sequence[Measurement], tabs: TabTimes, beside: str) -> None:
    PAGE.write_text(text(measurements, tabs, beside, datetime.now(UTC), os.cpu_count() or 1))
