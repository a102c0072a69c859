"""Operator list state: a few JSON values, redistributed over the subtasks at another parallelism."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from runtime.errors import JobRejected
from runtime.state.values import encode


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
        _check_text_keys(self._name, held)
        encode(self._name, held)  # refuses other types than it decodes to
        try:
            self._stored = json.dumps(held, allow_nan=False)  # strict, whereas msgspec encodes bytes as text
        except (TypeError, ValueError) as error:
            raise JobRejected("bad-state-value", self._name, f"list state holds JSON values only: {error}") from error

    def capture(self) -> tuple[Any, ...]:
        return tuple(msgspec.json.decode(self._stored))


def _check_text_keys(state: str, value: Any) -> None:
    """Checks that keys are text: JSON converts any other key to text."""
    if isinstance(value, list):
        for element in value:
            _check_text_keys(state, element)
    elif isinstance(value, dict):
        for key, element in value.items():
            if type(key) is not str:
                problem = f"dictionary keys in list state must be text, not {type(key).__name__}"
                raise JobRejected("bad-state-value", state, problem)
            _check_text_keys(state, element)
