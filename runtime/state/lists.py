"""Operator list state: a few JSON values, redistributed over the subtasks at a rescale."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec


class OperatorList:
    """Implements `ports.ListState`. Values are encoded when they are put: what `get` returns is a copy, and the same
    before and after a restore.

    Args:
        name: of the state.
        values: what was restored.
    """

    def __init__(self, name: str, values: Iterable[Any] = ()) -> None:
        self._name = name
        self.replace(values)

    def get(self) -> list[Any]:
        return list(self.capture())

    def replace(self, values: Iterable[Any]) -> None:
        """Holds these and nothing else.

        Raises:
            TypeError: one is not JSON; the state is named.
        """
        try:
            self._stored = json.dumps(list(values), allow_nan=False)  # strict, where msgspec makes text of bytes
        except (TypeError, ValueError) as error:
            raise TypeError(f"state {self._name!r} holds JSON values only: {error}") from error

    def capture(self) -> tuple[Any, ...]:
        return tuple(msgspec.json.decode(self._stored))
