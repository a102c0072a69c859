"""How many random examples a property is tried with.

A property whose examples are slow gets `@settings(max_examples=examples(60))`. `make test` tries three tenths of them,
others in each run. The slow suite, and `make test PYTEST=--hypothesis-profile=thorough`, try all.
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings

_THOROUGH: Final = 100  #: examples of a property that names no number
_MIN: Final = 5

settings.register_profile("weir", deadline=None, max_examples=30)  # machines are busy with other things
settings.register_profile("thorough", deadline=None, max_examples=_THOROUGH)
settings.load_profile("weir")


def examples(thorough: int) -> int:
    """The number of examples under the loaded profile, where `thorough` tries all of them."""
    return max(_MIN, thorough * settings().max_examples // _THOROUGH)
