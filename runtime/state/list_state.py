"""Operator list state: a few JSON values, redistributed over the subtasks at another parallelism."""

import json
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
            JobRejected: a value is not JSON, or would be restored as another type; the error names the state.
        """
        held = list(values)
        _check(self._name, held)
        try:
            self._stored = json.dumps(held, allow_nan=False)  # strict, whereas msgspec encodes bytes as text
        except (TypeError, ValueError) as error:
            raise JobRejected("bad-state-value", self._name, f"list state holds JSON values only: {error}") from error

    def capture(self) -> tuple[Any, ...]:
        return tuple(msgspec.json.decode(self._stored))


def _check(state: str, value: Any) -> None:
    """Raises JobRejected if JSON would make another type of `value`, or of a key, which becomes text."""
    kind = type(value)
    if kind is list:
        for element in value:
            _check(state, element)
    elif kind is dict:
        for key, element in value.items():
            if type(key) is not str:
                problem = f"dictionary keys in list state must be text, not {type(key).__name__}"
                raise JobRejected("bad-state-value", state, problem)
            _check(state, element)
    elif kind not in _ATOMS:
        raise JobRejected("bad-state-value", state, f"list state holds JSON values only, not {kind.__name__}")
