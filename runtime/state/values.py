"""The Python values that state accepts: values of types that a restore preserves.

An encoder silently turns a tuple or a set into a list, and a datetime into text.
"""

from typing import Any, Final

from runtime.errors import JobRejected

_ATOMIC_TYPES: Final = frozenset({int, float, bool, str, bytes, type(None)})


def check_storable(state: str, value: Any) -> None:
    """Raises JobRejected naming the state if `value` would be restored as another type."""
    kind = type(value)
    if kind in _ATOMIC_TYPES:
        return
    if kind is list:
        for element in value:
            if type(element) not in _ATOMIC_TYPES:
                check_storable(state, element)
    elif kind is dict:
        for key, element in value.items():
            if type(key) not in _ATOMIC_TYPES or type(element) not in _ATOMIC_TYPES:
                check_storable(state, key)
                check_storable(state, element)
    else:
        raise storage_error(state, f"a {kind.__name__} would be restored as another type")


def storage_error(state: str, problem: object) -> JobRejected:
    """The error for a value that the state named `state` cannot hold."""
    detail = f"state holds None, booleans, numbers, text and bytes, in lists and dictionaries only: {problem}"
    return JobRejected("bad-state-value", state, detail)
