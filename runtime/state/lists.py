"""Operator list state: a few JSON values, dealt anew over the subtasks when a job is restored."""

from collections.abc import Iterable
from typing import Any

import msgspec


class OperatorList:
    """Implements `ports.ListState`."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._values = list(values)

    def get(self) -> list[Any]:
        return list(self._values)

    def replace(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def capture(self) -> tuple[Any, ...]:
        """A copy that shares nothing with the operator's values.

        Raises:
            TypeError: a value is not JSON.
        """
        return tuple(msgspec.json.decode(msgspec.json.encode(self._values)))
