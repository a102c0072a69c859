"""Operator list state: a few JSON values, redistributed over the subtasks at another parallelism."""

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from runtime.errors import JobRejected

_ATOMS: Final = frozenset({int, float, bool, str, type(None)})


class OperatorList:
    """Implements `ports.ListState`. Values are encoded when they are set, so `get` returns a copy that is the same
    before and after a restore.

    Args:
        name: name of the state.
        values: the restored values.
    """

    def __init__(self, name: str, values: Iterable[Any] = ()) -> None:
        self._name = name
        self.replace(values)

    def get(self) -> list[Any]:
        return list(self.capture())

    def replace(self, values: Iterable[Any]) -> None:
        """Replaces all values.

        Raises:
            JobRejected: a manifest cannot hold a value, or a restore would return another type; the error names the
                state. The former values stay.
        """
        self._stored = encode_values(self._name, list(values))

    def capture(self) -> tuple[Any, ...]:
        return tuple(msgspec.msgpack.decode(self._stored))


def encode_values(name: str, values: list[Any]) -> bytes:
    """JSON values as msgpack, which carries them from the slot to the job master. The manifest holds them as JSON.

    Args:
        name: the state in errors.

    Raises:
        JobRejected: msgpack cannot hold a value (an integer beyond 64 bits, a lone surrogate), or JSON would return
            another type or value.
    """
    try:
        _check(name, values)
        return msgspec.msgpack.encode(values)
    except OverflowError as error:
        raise _refusal(name, "an integer in it has more than 64 bits; store it as text") from error
    except UnicodeEncodeError as error:
        raise _refusal(name, f"a text in it is not valid Unicode: {error}") from error
    except RecursionError as error:
        raise _refusal(name, "a value contains itself, or is nested too deeply") from error


def _check(name: str, value: Any) -> None:
    """Raises JobRejected if JSON would make another type or value of `value`, or of a key, which becomes text."""
    kind = type(value)
    if kind is list:
        for element in value:
            _check(name, element)
    elif kind is dict:
        for key, element in value.items():
            if type(key) is not str:
                raise _refusal(name, f"dictionary keys must be text, not {type(key).__name__}")
            _check(name, element)
    elif kind not in _ATOMS:
        raise _refusal(name, f"state holds JSON values only, not {kind.__name__}")
    elif kind is float and not math.isfinite(value):
        raise _refusal(name, f"state holds JSON values only, not {value}")


def _refusal(name: str, problem: str) -> JobRejected:
    return JobRejected("bad-state-value", name, problem)
