"""Conclusions from the live numbers of a run: whether records flow, all input is read, and records are late.

Pure functions and small accumulators over rows of the API, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from weir.control.console import Row

SOURCE: Final = "flights"
DAY_MS: Final = 86_400_000
END_OF_YEAR_MS: Final = int(datetime(2014, 1, 1, tzinfo=UTC).timestamp() * 1000)
#: maximum lag of the slowest subtask's watermark: the largest disorder plus the age of the last file that it reads
MAX_WATERMARK_LAG_MS: Final = 30 * DAY_MS


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The time and the source's numbers of a report of the job master; `late` counts late records."""

    at: str
    records: int
    watermark: int | None
    late: int


def live_report(run: Row) -> LiveReport | None:
    """The newest report; None if there is none yet."""
    live: Mapping[str, Any] | None = run["live"]
    if not live or SOURCE not in live.get("operators", {}):
        return None
    source = live["operators"][SOURCE]
    late = int(live.get("counters", {}).get("late_records", 0))
    return LiveReport(str(run["live_at"]), int(source["records_out"] or 0), source.get("watermark"), late)


class FlowDetector:
    """Detects that records flow in a new attempt: its second report has more records than its first.

    Reports from before the new attempt are ignored: the row keeps the last report of the failed attempt.
    """

    def __init__(self, before: Row) -> None:
        self._token = int(before["token"])
        self._old = {str(before["live_at"])}
        self._first: LiveReport | None = None

    def flows(self, run: Row) -> bool:
        report = live_report(run)
        if run["state"] != "running" or int(run["token"]) <= self._token:
            self._old.add(str(run["live_at"]))
            return False
        if report is None or report.at in self._old:
            return False
        if self._first is None or report.records < self._first.records:
            self._first = report
        return report.records > self._first.records


class InputEndDetector:
    """Detects that an unbounded source has read all input, once the feeder has ended.

    Two conditions must hold: the watermark is near the end of the year, and no record was emitted while two whole
    checkpoints were triggered and completed, which proves that every source subtask was running.
    """

    def __init__(self) -> None:
        self._records = -1
        self._since = 0

    def is_complete(self, run: Row, newest_checkpoint: int) -> bool:
        report = live_report(run)
        if report is None or run["state"] != "running":
            return False
        if report.records != self._records:
            self._records, self._since = report.records, newest_checkpoint
            return False
        near = report.watermark is not None and report.watermark >= END_OF_YEAR_MS - MAX_WATERMARK_LAG_MS
        return near and newest_checkpoint >= self._since + 3  # the first of three checkpoints may have been in progress
