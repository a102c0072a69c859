"""A progress bar with the remaining time, estimated from completed steps of the same kind."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn, Self

from tqdm import tqdm

_BAR_FORMAT = "{desc} {n_fmt}/{total_fmt} |{bar:20}| {elapsed}{postfix}"


class Progress:
    """A bar on stderr.

    Args:
        expected: the steps to come, as (kind, approximate seconds). A completed step updates the estimate for the other
            steps of its kind.
        clock: monotonic seconds.
    """

    def __init__(self, expected: Sequence[tuple[str, float]], clock: Callable[[], float] = time.monotonic) -> None:
        self._remaining_steps = Counter(kind for kind, _ in expected)
        self._seconds = dict(expected)
        self._clock = clock
        self._before = clock()
        self._bar: tqdm[NoReturn] = tqdm(total=len(expected), file=sys.stderr, bar_format=_BAR_FORMAT)
        self._show_remaining()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.close()

    @property
    def remaining_s(self) -> float:
        return sum(count * self._seconds[kind] for kind, count in self._remaining_steps.items())

    def set_text(self, text: str) -> None:
        self._bar.set_description_str(text)

    def write_line(self, text: str) -> None:
        """Prints a permanent line above the bar."""
        self._bar.write(text, file=sys.stderr)

    def complete_step(self, kind: str) -> None:
        """Marks a step of this kind as completed."""
        now = self._clock()
        self._seconds[kind], self._before = now - self._before, now
        if self._remaining_steps[kind]:
            self._remaining_steps[kind] -= 1
            self._bar.update()
        self._show_remaining()

    def drop_steps(self, kind: str) -> None:
        """Drops the remaining steps of this kind."""
        self._bar.update(self._remaining_steps.pop(kind, 0))
        self._before = self._clock()
        self._show_remaining()

    def _show_remaining(self) -> None:
        self._bar.set_postfix_str(f"about {self.remaining_s / 60:.0f} min left")
