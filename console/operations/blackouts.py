"""Blackout windows of schedules: times of the week, in UTC, in which a schedule requests nothing.

A window is a text such as `09:00-17:00` (each day) or `sat,sun 00:00-24:00`. It may pass midnight: `fri 22:00-06:00`
ends on Saturday.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = f"({'|'.join(_DAYS)})"
_TIME: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
PATTERN: Final = f"^({_DAY}(,{_DAY})* )?{_TIME}-({_TIME}|24:00)$"
MAX_WINDOWS: Final = 20


class Blackout(NamedTuple):
    """Minutes of the day; `end` is exclusive, and a window whose end is not after its begin passes midnight."""

    days: frozenset[int]
    begin: int
    end: int

    def contains(self, at: datetime) -> bool:
        local = at.astimezone(UTC)
        day, minute = local.weekday(), local.hour * 60 + local.minute
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        is_before_midnight = day in self.days and minute >= self.begin
        return is_before_midnight or ((day - 1) % 7 in self.days and minute < self.end)


def parse_blackout(text: str) -> Blackout:
    """A window of the form `PATTERN`."""
    days, _, times = text.rpartition(" ")
    begin, end = times.split("-")
    weekdays = frozenset(map(_DAYS.index, days.split(","))) if days else frozenset(range(7))
    return Blackout(weekdays, _minute(begin), _minute(end))


def is_blacked_out(at: datetime, windows: Iterable[str]) -> bool:
    return any(parse_blackout(window).contains(at) for window in windows)


def _minute(time: str) -> int:
    hours, minutes = time.split(":")
    return int(hours) * 60 + int(minutes)
