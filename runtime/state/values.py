"""Which Python values a state holds: those that come back from its encoding as the same type.

An encoder makes a list of a tuple or a set and a text of a datetime, and would never say so.
"""

from typing import Any, Final

from runtime.errors import JobRejected

_ATOMS: Final = frozenset({int, float, bool, str, bytes, type(None)})


def check_storable(state: str, value: Any) -> None:
    """Raises JobRejected naming the state: a value in it would come back as another type."""
    kind = type(value)
    if kind in _ATOMS:
        return
    if kind is list:
        for element in value:
            if type(element) not in _ATOMS:
                check_storable(state, element)
    elif kind is dict:
        for key, element in value.items():
            if type(key) not in _ATOMS or type(element) not in _ATOMS:
                check_storable(state, key)
                check_storable(state, element)
    else:
        raise not_storable(state, f"a {kind.__name__} would come back as another type")


def not_storable(state: str, problem: object) -> JobRejected:
    """The error for a value that the state `state` cannot hold."""
    detail = f"state holds None, booleans, numbers, text and bytes, in lists and dictionaries only: {problem}"
    return JobRejected("bad-state-value", state, detail)
