"""What the live numbers of a run tell: do records flow, has everything been read, were any late.

Pure functions and small accumulators over rows of the API; nothing here waits or asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stack.demo_api import Row

SOURCE: Final = "flights"
DAY_MS: Final = 86_400_000
END_OF_YEAR_MS: Final = int(datetime(2014, 1, 1, tzinfo=UTC).timestamp() * 1000)
#: how far the slowest subtask's watermark may lie behind: the largest disorder and the age of its last own file
LAST_FILES_MS: Final = 30 * DAY_MS


@dataclass(frozen=True, slots=True)
class Reading:
    """One report of the job master."""

    at: str
    records: int
    watermark: int | None
    late: int


def reading(run: Row) -> Reading | None:
    """The newest report; None when there is none yet."""
    live: Mapping[str, Any] | None = run["live"]
    if not live or SOURCE not in live.get("operators", {}):
        return None
    source = live["operators"][SOURCE]
    late = int(live.get("counters", {}).get("late_records", 0))
    return Reading(str(run["live_at"]), int(source["records_out"] or 0), source.get("watermark"), late)


class Flow:
    """Tells when records flow under a new attempt: two reports of that attempt, the second with more records.

    A report that was there before says nothing: the row keeps the last words of the dead.
    """

    def __init__(self, before: Row) -> None:
        self._token = int(before["token"])
        self._old = {str(before["live_at"])}
        self._first: Reading | None = None

    def flows(self, run: Row) -> bool:
        found = reading(run)
        if run["state"] != "running" or int(run["token"]) <= self._token:
            self._old.add(str(run["live_at"]))
            return False
        if found is None or found.at in self._old:
            return False
        if self._first is None or found.records < self._first.records:
            self._first = found
        return found.records > self._first.records


class AllRead:
    """Tells when a source that could go on for ever has read everything that will come.

    The feeder has ended; since then no record has come out while two whole checkpoints were triggered and completed
    (so every source subtask was at work), and the watermark stands near the end of the year.
    """

    def __init__(self) -> None:
        self._records = -1
        self._since = 0

    def settled(self, run: Row, newest_checkpoint: int) -> bool:
        found = reading(run)
        if found is None or run["state"] != "running":
            return False
        if found.records != self._records:
            self._records, self._since = found.records, newest_checkpoint
            return False
        near = found.watermark is not None and found.watermark >= END_OF_YEAR_MS - LAST_FILES_MS
        return near and newest_checkpoint >= self._since + 3  # one may have been under way
