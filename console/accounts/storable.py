"""Rejects JSON values that Postgres cannot store: NUL characters, lone surrogates, infinite numbers and NaN.

The API checks each request body, and the pages check each field of JSON text.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

from console.accounts.refusals import Refused

_MAX_DEPTH: Final = 64


def require_storable(document: Any) -> None:
    """Checks every name and value of parsed JSON.

    Raises:
        Refused: names the innermost member that cannot be stored.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while waiting:
        path, value = waiting.pop()
        if why := _storage_problem(value) or (len(path) > _MAX_DEPTH and f"is nested deeper than {_MAX_DEPTH}"):
            field = ".".join(path) or None
            raise Refused("invalid-field", f"{field or 'body'}: {why}.", field=field)
        waiting.extend(((*path, step), inner) for step, inner in _members(value))


def text_problem(text: str) -> str | None:
    """Why a text cannot be stored; None if it can."""
    if "\0" in text:
        return "must not hold the character NUL"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not hold half a surrogate pair"
    return None


def _storage_problem(value: Any) -> str | None:
    match value:
        case str():
            return text_problem(value)
        case float() if not isfinite(value):
            return "must be a number within bounds"
        case dict():
            return next((f"a name in it {why}" for why in map(text_problem, value) if why), None)
        case _:
            return None


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            yield from value.items()
        case list():
            yield from ((str(index), item) for index, item in enumerate(value))
