"""The page with the figures of the console's benchmark."""

from datetime import UTC, datetime

from benchmarks.console.measurement import Measurement, TabTimes
from benchmarks.console.results_page import text

AT = datetime(2026, 11, 27, tzinfo=UTC)
TABS = TabTimes(100, p50_ms=49.6, p95_ms=215.8, pause_s=5.04, statuses={200: 900})


def measurement(name: str, p95_ms: float, queries: int = 7) -> Measurement:
    return Measurement(
        name=name, status=200, queries=queries, p50_ms=61.7, p95_ms=p95_ms, cpu_ms=64.2, sql_cpu_ms=20.1,
        compressed_bytes=12_288, is_page=True,
    )  # fmt: skip


def test_the_page_counts_the_addresses_that_keep_the_goal() -> None:
    page = text([measurement("list of jobs", 84), measurement("run", 17)], TABS, "5,000 jobs", AT, 2)
    assert "on 2026-11-27, on 2 cores" in page
    assert "Beside 5,000 jobs, at the 95th percentile:\n" in page
    assert "2 of 2 addresses keep the goal, 100 ms at most." in page
    assert 'The slowest is "list of jobs", with 84 ms.' in page
    assert "No address is beyond the goal." in page
    assert "All answers keep the limits of 12 queries and of 30 KB." in page
    assert "| list of jobs | 7 | 62 | 84 | 64 | 20 | 12.0 |\n| run |" in page


def test_the_page_names_what_is_beyond_goal_and_limits() -> None:
    page = text([measurement("run", 17), measurement("restore", 130, queries=13)], TABS, "5,000 jobs", AT, 2)
    assert "1 of 2 addresses keep the goal" in page
    assert "Beyond the goal:\n\n- restore: 130 ms\n" in page
    assert "Beyond the limits of 12 queries and of 30 KB:\n\n- restore: more than 12 queries\n" in page
