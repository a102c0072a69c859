"""A part of the selected tests: `--slice K/N` keeps whole files, so that N calls run each test once.

The heaviest file goes first, and each file to the slice with the least work, so that slices last about as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent

#: Seconds of a test that takes minutes with its stack, unless `long(seconds)` names them, and of any other one.
_LONG_S: Final = 60
_SHORT_S: Final = 1

#: The file of slice 0, which has no other: it builds the image and starts the composition of `docker/`.
COMPOSITION: Final = "tests/docker/test_composition.py"


def parse_slice(text: str) -> tuple[int, int]:
    """K and N of `K/N`, where K is 0 to N - 1."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise pytest.UsageError(f"--slice: must be K/N with K below N, not {text!r}")
    return int(number), int(count)


def files_of_slice(weights: dict[str, int], number: int, count: int) -> set[str]:
    """The files of a slice. `weights`: expected seconds by file."""
    if COMPOSITION in weights and count > 1:
        if number == 0:
            return {COMPOSITION}
        others = {file: seconds for file, seconds in weights.items() if file != COMPOSITION}
        return files_of_slice(others, number - 1, count - 1)
    slices: list[tuple[int, int]] = [(0, each) for each in range(count)]  # seconds so far, slice
    files = set()
    for file in sorted(weights, key=lambda name: (-weights[name], name)):
        seconds, least = min(slices)
        slices[slices.index((seconds, least))] = (seconds + weights[file], least)
        if least == number:
            files.add(file)
    return files


def select_slice(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of other slices, if `--slice` is given."""
    selection = config.getoption("slice")
    if selection is None:
        return
    weights: defaultdict[str, int] = defaultdict(int)
    for item in items:
        long = item.get_closest_marker("long")
        weights[_file_of(item)] += long.kwargs.get("seconds", _LONG_S) if long else _SHORT_S
    files = files_of_slice(weights, *selection)
    remainder: Sequence[pytest.Item] = [item for item in items if _file_of(item) not in files]
    config.hook.pytest_deselected(items=remainder)
    items[:] = [item for item in items if _file_of(item) in files]


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
