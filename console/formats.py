"""Formats of numbers, sizes, rates and times, so that a value reads the same on every page and in every sentence.

A `Quantity` keeps number and unit apart, because template tags render the unit in a lighter tone.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK

NARROW_SPACE = "\u202f"
NO_VALUE = "\u2013"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LETTERS = ("", "k", "M", "G", "T", "P")
_DAY_MS = 86_400_000
MAX_LIVE_LAG_MS = 2 * _DAY_MS  #: the data of a watermark that is further behind the clock is historic


class Quantity(NamedTuple):
    """A number and its unit, as text."""

    number: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".rstrip()


NO_QUANTITY = Quantity(NO_VALUE)


def size(nbytes: int | None) -> Quantity:
    """Binary units, two significant digits: 1.2 MiB, 84 KiB."""
    if nbytes is None:
        return NO_QUANTITY
    return _scale(float(nbytes), 1024.0, _BINARY)


def rate(per_second: float | None) -> Quantity:
    """Per second, with SI letters: 84 k/s."""
    if per_second is None:
        return NO_QUANTITY
    number, letter = _scale(per_second, 1000.0, _LETTERS)
    return Quantity(number, f"{letter}/s")


def compact(count: int | None) -> Quantity:
    """A count with an SI letter, for narrow places: 337 k."""
    return NO_QUANTITY if count is None else _scale(float(count), 1000.0, _LETTERS)


def count(value: int | None) -> str:
    """A count in full, grouped by narrow spaces: 336 776."""
    return NO_VALUE if value is None else f"{value:,}".replace(",", NARROW_SPACE)


def percent(share: float | None) -> Quantity:
    return NO_QUANTITY if share is None else Quantity(f"{round(min(max(share, 0.0), 1.0) * 100)}", "%")


def duration(ms: float | None) -> Quantity:
    """Single unit below a minute, two units above: 48 ms, 0.31 s, 42 s, 3 min 12 s, 3 h 12 min, 2 d 4 h."""
    if ms is None:
        return NO_QUANTITY
    if ms < 99.5:
        return Quantity(f"{ms:.1f}" if 0 < ms < 9.95 else f"{max(ms, 0):.0f}", "ms")
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return Quantity(_short_seconds(seconds), "s")
    return Quantity(_long(int(seconds)))


def since(start: datetime | None, now: datetime) -> str:
    """Elapsed time in whole seconds."""
    if start is None:
        return NO_VALUE
    seconds = max(int((now - start).total_seconds()), 0)
    if seconds == 0:
        return "under 1 s"
    return f"{seconds} s" if seconds < 60 else _long(seconds)


def ago(moment: datetime | None, now: datetime) -> str:
    """A moment relative to now: 14 s ago. After a week its date instead."""
    if moment is None:
        return "never"
    if (now - moment).total_seconds() < 1:
        return "now"
    if (now - moment).days >= 7:
        return f"{moment.astimezone(UTC):%Y-%m-%d}"
    return f"{since(moment, now)} ago"


def utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def watermark(time_ms: int | None, now: datetime) -> Quantity:
    """A watermark: as lag for fresh data, as event time for historic data."""
    if time_ms is None or time_ms == MIN_WATERMARK:
        return NO_QUANTITY
    if time_ms >= MAX_WATERMARK:
        return Quantity("end of data")
    lag_ms = now.timestamp() * 1000 - time_ms
    if abs(lag_ms) < MAX_LIVE_LAG_MS:
        return Quantity(f"lag {duration(lag_ms)}")
    return Quantity(event_time(time_ms))


def event_time(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def _scale(value: float, step: float, units: tuple[str, ...]) -> Quantity:
    """Divides until at most three digits are left; a value that would round up to `step` takes the next unit."""
    unit = 0
    while round(value) >= step and unit < len(units) - 1:
        value /= step
        unit += 1
    number = f"{value:.1f}" if 0 < value < 9.95 and (unit or value != int(value)) else f"{value:.0f}"
    return Quantity(number, units[unit])


def _short_seconds(seconds: float) -> str:
    if seconds < 0.995:
        return f"{seconds:.2f}"
    return f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"


def _long(seconds: int) -> str:
    days, remainder = divmod(seconds, 86_400)
    hours, remainder = divmod(remainder, 3600)
    minutes, remainder = divmod(remainder, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {remainder} s" if remainder else f"{minutes} min"
