"""How far a run is and how long the rest takes, from what its like have taken. It does not know what is measured."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn, Self

from tqdm import tqdm

_FORM = "{desc} {n_fmt}/{total_fmt} |{bar:20}| {elapsed}{postfix}"


class Progress:
    """A bar on stderr.

    Args:
        expected: of each step to come, of what kind it is and about how many seconds that takes. What the last of a
            kind has taken is what the others of it are expected to take.
        clock: seconds that only grow.
    """

    def __init__(self, expected: Sequence[tuple[str, float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = Counter(kind for kind, _ in expected)
        self._seconds = dict(expected)
        self._clock = clock
        self._before = clock()
        self._bar: tqdm[NoReturn] = tqdm(total=len(expected), file=sys.stderr, bar_format=_FORM)
        self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.close()

    @property
    def left_s(self) -> float:
        return sum(count * self._seconds[kind] for kind, count in self._waiting.items())

    def says(self, text: str) -> None:
        self._bar.set_description_str(text)

    def notes(self, text: str) -> None:
        """A line that stays."""
        self._bar.write(text, file=sys.stderr)

    def done(self, kind: str) -> None:
        """One more of this kind."""
        now = self._clock()
        self._seconds[kind], self._before = now - self._before, now
        if self._waiting[kind]:
            self._waiting[kind] -= 1
            self._bar.update()
        self._tell()

    def over(self, kind: str) -> None:
        """No more of this kind will come."""
        self._bar.update(self._waiting.pop(kind, 0))
        self._before = self._clock()
        self._tell()

    def _tell(self) -> None:
        self._bar.set_postfix_str(f"about {self.left_s / 60:.0f} min left")
