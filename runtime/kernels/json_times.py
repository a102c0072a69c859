"""Parts of the JSON kernels: timestamps of ISO 8601."""

from typing import Final

import numpy as np

from runtime.kernels.jit import outlined
from runtime.kernels.json_texts import byte_at

_MONTH_DAYS: Final = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_TENS: Final = np.array([10**power for power in range(10)], dtype=np.int64)


@outlined
def _two_digits(place: int) -> int:
    tens, ones = byte_at(place) - 48, byte_at(place + 1) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -(1 << 20)
    return tens * 10 + ones


@outlined
def timestamp(place: int, end: int, fraction_digits: int) -> tuple[bool, int]:
    """(whether it is valid, value) of `YYYY-MM-DDTHH:MM:SS[.fraction][Z|±HH:MM]` in units of the column."""
    length = end - place
    if (
        length < 19
        or byte_at(place + 4) != 45
        or byte_at(place + 7) != 45
        or byte_at(place + 13) != 58
        or byte_at(place + 16) != 58
    ):
        return False, 0
    if byte_at(place + 10) != 84 and byte_at(place + 10) != 32:
        return False, 0
    century, of_century = _two_digits(place), _two_digits(place + 2)
    year, month, day = century * 100 + of_century, _two_digits(place + 5), _two_digits(place + 8)
    hour, minute, second = _two_digits(place + 11), _two_digits(place + 14), _two_digits(place + 17)
    if century < 0 or of_century < 0 or month < 1 or month > 12 or not (0 <= hour < 24):
        return False, 0
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day < 1 or day > _MONTH_DAYS[month - 1] + leap or not (0 <= minute < 60) or not (0 <= second < 60):
        return False, 0
    if fraction_digits == 9 and (year < 1678 or year > 2261):
        return False, 0
    fraction = 0
    place += 19
    if place < end and byte_at(place) == 46:
        place += 1
        start = place
        while place < end and 48 <= byte_at(place) <= 57:
            fraction = fraction * 10 + byte_at(place) - 48
            place += 1
            if place - start > fraction_digits:
                return False, 0
        if place == start:
            return False, 0
        fraction *= _TENS[fraction_digits - (place - start)]
    offset = 0
    if end - place == 1 and byte_at(place) == 90:
        place = end
    elif end - place == 6 and (byte_at(place) == 43 or byte_at(place) == 45) and byte_at(place + 3) == 58:
        hours, minutes = _two_digits(place + 1), _two_digits(place + 4)
        if not (0 <= hours < 24) or not (0 <= minutes < 60):
            return False, 0
        offset = (hours * 60 + minutes) * 60
        if byte_at(place) == 45:
            offset = -offset
        place = end
    if place != end:
        return False, 0
    # Days since 1970-01-01 (Hinnant, days_from_civil).
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719468
    return True, (days * 86400 + hour * 3600 + minute * 60 + second - offset) * _TENS[fraction_digits] + fraction
