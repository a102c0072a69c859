"""JSON that can be spelled and not kept: Postgres has no NUL, no half of a surrogate pair, no infinite number.

Asked at both doors, by the API of each body and by the pages of each field of JSON text. It knows nothing of what the
values mean.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

from console.accounts.refusals import Refused

_DEPTH_MAX: Final = 64


def must_be_storable(given: Any) -> None:
    """Look through parsed JSON.

    Raises:
        Refused: naming the innermost member that cannot be kept.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), given)]
    while waiting:
        path, value = waiting.pop()
        if why := _unfit(value) or (len(path) > _DEPTH_MAX and f"is nested deeper than {_DEPTH_MAX}"):
            field = ".".join(path) or None
            raise Refused("invalid-field", f"{field or 'body'}: {why}.", field=field)
        waiting.extend(((*path, step), inner) for step, inner in _members(value))


def unfit_text(text: str) -> str | None:
    """Why a text cannot be kept; None when it can."""
    if "\0" in text:
        return "must not hold the character NUL"
    return None if _is_unicode(text) else "must not hold half a surrogate pair"


def _unfit(value: Any) -> str | None:
    match value:
        case str():
            return unfit_text(value)
        case float() if not isfinite(value):
            return "must be a number within bounds"
        case dict():
            return next((f"a name in it {why}" for why in map(unfit_text, value) if why), None)
        case _:
            return None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            yield from value.items()
        case list():
            yield from ((str(index), one) for index, one in enumerate(value))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
