"""Ages in the sentences of findings: text for every reader, and the moments from which a page lets them tick.

A rule marks an age in its sentence. `read_ages` takes the marks out, and keeps the place of each age.
"""

import re
from datetime import datetime
from typing import Final, NamedTuple

from console import formats

_OPEN, _CLOSE = "\ue000", "\ue001"  # for private use, so that no message contains them
_MARK: Final = re.compile(f"{_OPEN}([0-9T:.+-]+) ([^{_CLOSE}]+){_CLOSE}")


class Age(NamedTuple):
    """The characters from `start` to `end` of a sentence are the time since the moment `since`."""

    start: int
    end: int
    since: datetime


def marked_age(since: datetime, now: datetime) -> str:
    return f"{_OPEN}{since.isoformat()} {formats.since(since, now)}{_CLOSE}"


def read_ages(marked: str) -> tuple[str, tuple[Age, ...]]:
    """The sentence without marks, and its ages in order."""
    text, place, ages = "", 0, []
    for mark in _MARK.finditer(marked):
        text += marked[place : mark.start()]
        ages.append(Age(len(text), len(text) + len(mark[2]), datetime.fromisoformat(mark[1])))
        text += mark[2]
        place = mark.end()
    return text + marked[place:], tuple(ages)
