"""Value axes: a round maximum, two grid lines, and labels with units."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, product
from typing import Final

from console import formats
from console.formats import Quantity

_MINUTE, _HOUR, _DAY = 60_000.0, 3_600_000.0, 86_400_000.0
#: First digits of round maxima; half of each is round too.
_DIGITS: Final = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8)
_DURATIONS: Final = (
    *(10.0**power * digit for power, digit in product(range(4), _DIGITS)),
    *(n * 1_000.0 for n in (10, 12, 16, 20, 30, 40)),
    *(n * _MINUTE for n in (1, 2, 3, 4, 6, 10, 20, 30, 40)),
    *(n * _HOUR for n in (1, 2, 3, 4, 6, 12)),
    _DAY,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from 0 to `most`, which is positive."""

    most: float
    write: Callable[[float | None], Quantity]

    @property
    def labels(self) -> tuple[Quantity, Quantity]:
        """At the top and at half of the height."""
        return self.write(self.most), self.write(self.most / 2)


def rates(largest: float) -> Scale:
    return Scale(_round_decimal(largest), formats.rate)


def durations(largest_ms: float) -> Scale:
    most = next((step for step in _DURATIONS if step >= largest_ms), None)
    return Scale(_DAY * _round_decimal(largest_ms / _DAY) if most is None else most, formats.duration)


def sizes(largest: float) -> Scale:
    """Round in binary units: 1, 1.5, 2, 3, 4, … KiB."""
    steps = (step for power in count() for step in (2.0**power, 1.5 * 2.0**power))
    most = next(step for step in steps if step >= largest)
    return Scale(most, lambda nbytes: formats.size(None if nbytes is None else round(nbytes)))


def _round_decimal(largest: float) -> float:
    """The smallest round number that is not below `largest`."""
    return next(step for power in count() for digit in _DIGITS if (step := digit * 10.0**power) >= largest)
