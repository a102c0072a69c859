"""State with one value per key: value, reducing, aggregating.

While rows or timers are handled, what is stored lies in a list by the number of its key: it is looked up in the table
once, and put back once, however many rows of the key come between. Nothing of it outlives the batch, so a snapshot
never meets it. Values with a time to live lie in the table at all times.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, SupportsIndex

from runtime.operators.functions.keyed_state import Cells, no_key
from runtime.state.object_table import GREATEST, LEAST, Place, is_plain

_THE_VALUE: Final[Place] = None  #: the place of a state that has one
_PLAIN: Final = frozenset({int, float, bool, str})  #: types of what is stored as it is
_UNREAD: Final = object()  #: what the table has was not looked up
_ABSENT: Final = object()  #: there is nothing
_NOTHING: Final = object()


class _NoKeys(list[Any]):
    """In place of the values while there is no current key, so that reading and writing need not ask each time."""

    def __getitem__(self, number: SupportsIndex | slice) -> NoReturn:
        raise no_key()

    def __setitem__(self, number: SupportsIndex | slice, value: Any) -> NoReturn:
        raise no_key()


class ValueState:
    """One value per key."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._key = cells.current
        self._values: list[Any] = _NoKeys()  #: as they are to be stored
        self._before: list[Any] = []  #: what the table has

    def get(self, default: Any = None) -> Any:
        value = self._values[self._key.number]
        return value if type(value) in _PLAIN else self._opened(value, default)

    def update(self, value: Any) -> None:
        if (type(value) is int and LEAST <= value <= GREATEST) or is_plain(value):  # a call is more than a comparison
            self._values[self._key.number] = value
        else:
            self._values[self._key.number] = self._cells.encoded(value)

    def clear(self) -> None:
        self._values[self._key.number] = _ABSENT

    # ------------------------------------------------------------ for the context

    def begin(self, count: int) -> None:
        """Keys 0 to `count` are handled from now on."""
        self._values = [_UNREAD] * count
        self._before = [_UNREAD] * count

    def grow(self) -> None:
        """One more key."""
        self._values.append(_UNREAD)
        self._before.append(_UNREAD)

    def end(self) -> None:
        """Puts what has changed into the table."""
        values, self._values = self._values, _NoKeys()
        for at, value, before in zip(self._key.keys, values, self._before, strict=True):
            if value is _ABSENT and before is not _ABSENT:
                self._cells.delete((*at, _THE_VALUE))
            elif value is not before:
                self._cells.put_for_ever((*at, _THE_VALUE), value)

    def _opened(self, stored: Any, default: Any) -> Any:
        if stored is _UNREAD:
            stored, number = self._cells.stored(_THE_VALUE), self._key.number
            stored = _ABSENT if stored is None else stored
            self._values[number] = self._before[number] = stored
        if stored is _ABSENT:
            return default
        there, value = self._cells.opened(stored)
        return value if there else default


class ExpiringValueState(ValueState):
    """One value per key, for a time."""

    def get(self, default: Any = None) -> Any:
        there, value = self._cells.read(_THE_VALUE)
        return value if there else default

    def update(self, value: Any) -> None:
        self._cells.write(_THE_VALUE, value)

    def clear(self) -> None:
        self._cells.remove(_THE_VALUE)


class AggregatingState:
    """An accumulator per key: `create` makes it, `add` folds a value into it, `result` reads it."""

    def __init__(
        self,
        accumulator: ValueState,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
    ) -> None:
        self._accumulator = accumulator
        self._create, self._add, self._result = create, add, result

    def get(self) -> Any:
        """The result so far; None before the first value."""
        accumulator = self._accumulator.get(_NOTHING)
        return None if accumulator is _NOTHING else self._result(accumulator)

    def add(self, value: Any) -> None:
        before = self._accumulator.get(_NOTHING)
        self._accumulator.update(self._add(self._create() if before is _NOTHING else before, value))

    def clear(self) -> None:
        self._accumulator.clear()


class ReducingState:
    """All values of a key folded into one by a function of two."""

    def __init__(self, folded: ValueState, function: Callable[[Any, Any], Any]) -> None:
        self._folded = folded
        self._function = function

    def get(self) -> Any:
        """The value so far; None before the first."""
        return self._folded.get()

    def add(self, value: Any) -> None:
        before = self._folded.get(_NOTHING)
        self._folded.update(value if before is _NOTHING else self._function(before, value))

    def clear(self) -> None:
        self._folded.clear()
