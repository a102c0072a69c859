"""State with a single value per key: value, reducing, aggregating.

While a batch of rows or timers is handled, stored values are cached in a list by key number. Each is read from the
table once and written back once, however many rows its key has. The cache does not outlive the batch, so a snapshot
never misses a value. Values with a time to live are not cached.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, SupportsIndex

from runtime.operators.functions.keyed_state import Cells, no_key
from runtime.state.object_table import GREATEST, LEAST, Place, is_plain

_THE_VALUE: Final[Place] = None  #: the place of a single value
_PLAIN: Final = frozenset({int, float, bool, str})  #: types that are stored without encoding
_UNREAD: Final = object()  #: not yet read from the table
_ABSENT: Final = object()  #: the key has no value
_NOTHING: Final = object()


class _NoKeys(list[Any]):
    """Stands in for the values while there is no current key, so that reads and writes need no check."""

    def __getitem__(self, number: SupportsIndex | slice) -> NoReturn:
        raise no_key()

    def __setitem__(self, number: SupportsIndex | slice, value: Any) -> NoReturn:
        raise no_key()


class ValueState:
    """A value per key, without a time to live."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._key = cells.current
        self._values: list[Any] = _NoKeys()  #: by key number, in stored form
        self._before: list[Any] = []  #: by key number, as in the table

    def get(self, default: Any = None) -> Any:
        value = self._values[self._key.number]
        return value if type(value) in _PLAIN else self._opened(value, default)

    def update(self, value: Any) -> None:
        if (type(value) is int and LEAST <= value <= GREATEST) or is_plain(value):  # the comparison saves a call
            self._values[self._key.number] = value
        else:
            self._values[self._key.number] = self._cells.encoded(value)

    def clear(self) -> None:
        self._values[self._key.number] = _ABSENT

    # ------------------------------------------------------------ for the context

    def begin(self, count: int) -> None:
        """Start a batch of `count` keys, numbered from 0."""
        self._values = [_UNREAD] * count
        self._before = [_UNREAD] * count

    def grow(self) -> None:
        """Add a key to the batch."""
        self._values.append(_UNREAD)
        self._before.append(_UNREAD)

    def end(self) -> None:
        """End the batch: write changed values to the table."""
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
    """A value per key, with a time to live."""

    def get(self, default: Any = None) -> Any:
        there, value = self._cells.read(_THE_VALUE)
        return value if there else default

    def update(self, value: Any) -> None:
        self._cells.write(_THE_VALUE, value)

    def clear(self) -> None:
        self._cells.remove(_THE_VALUE)


class AggregatingState:
    """An accumulator per key: `create` makes it, `add` returns it with a value added, `result` reads it."""

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
    """All values of a key reduced to a single value by a function of two values."""

    def __init__(self, folded: ValueState, function: Callable[[Any, Any], Any]) -> None:
        self._folded = folded
        self._function = function

    def get(self) -> Any:
        """The reduced value so far; None before the first value."""
        return self._folded.get()

    def add(self, value: Any) -> None:
        before = self._folded.get(_NOTHING)
        self._folded.update(value if before is _NOTHING else self._function(before, value))

    def clear(self) -> None:
        self._folded.clear()
