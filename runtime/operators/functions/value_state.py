"""State with a single value per key: value, reducing, aggregating.

While a batch of rows or timers is handled, stored values are cached in a list by key number. Each value is read from
the table once and written back once, however many rows its key has. The cache does not outlive the batch, so a snapshot
never misses a value. Values with a time to live are not cached.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, SupportsIndex

from runtime.operators.functions.keyed_state import StateElements, no_key_error
from runtime.state.object_table import MAX_PLAIN_INT, MIN_PLAIN_INT, Place, is_plain

_SINGLE_PLACE: Final[Place] = None  #: the place of a single value
_PLAIN_TYPES: Final = frozenset({int, float, bool, str})  #: types that are stored without encoding
_UNREAD: Final = object()  #: not yet read from the table
_ABSENT: Final = object()  #: the key has no value
_NO_VALUE: Final = object()


class _NoKeys(list[Any]):
    """The list of cached values while there is no current key: reads and writes then need no check."""

    def __getitem__(self, number: SupportsIndex | slice) -> NoReturn:
        raise no_key_error()

    def __setitem__(self, number: SupportsIndex | slice, value: Any) -> NoReturn:
        raise no_key_error()


class ValueState:
    """A value per key, without a time to live. `ProcessContext.value_state` creates it.

    Every method raises WeirError outside `process`, `on_timer` and other hooks that have a current key.
    """

    def __init__(self, cells: StateElements) -> None:
        self._cells = cells
        self._key = cells.current
        self._values: list[Any] = _NoKeys()  #: cached values by key number, in stored form
        self._before: list[Any] = []  #: values by key number, as they are in the table

    def get(self, default: Any = None) -> Any:
        """The value of the current key; `default` if it has none, or if the value has expired.

        A list or dictionary is a copy: after a change, write it back by `update`.
        """
        stored = self._values[self._key.number]
        if stored is _UNREAD:
            stored = self._read()
        if type(stored) in _PLAIN_TYPES:
            return stored
        return default if stored is _ABSENT else self._cells.decode_value(stored, default)

    def update(self, value: Any) -> None:
        """Sets the value of the current key.

        Args:
            value: None, a boolean, number, text or bytes, or a list or dictionary of them. It is copied.

        Raises:
            JobRejected: a restore would return another type (a tuple, set, datetime or numpy value), or an integer
                exceeds 64 bits. The run ends, and the error names the state.
        """
        if (type(value) is int and MIN_PLAIN_INT <= value <= MAX_PLAIN_INT) or is_plain(
            value
        ):  # the comparison saves a call
            self._values[self._key.number] = value
        else:
            self._values[self._key.number] = self._cells.encode(value)

    def clear(self) -> None:
        """Removes the value of the current key."""
        self._values[self._key.number] = _ABSENT

    # ------------------------------------------------------------ for the context

    def begin_batch(self, count: int) -> None:
        """Starts a batch of `count` keys, numbered from 0."""
        self._values = [_UNREAD] * count
        self._before = [_UNREAD] * count

    def add_key(self) -> None:
        """Adds a key to the batch."""
        self._values.append(_UNREAD)
        self._before.append(_UNREAD)

    def end_batch(self) -> None:
        """Ends the batch: writes changed values to the table."""
        values, self._values = self._values, _NoKeys()
        for at, value, before in zip(self._key.keys, values, self._before, strict=True):
            if value is _ABSENT and before is not _ABSENT:
                self._cells.delete((*at, _SINGLE_PLACE))
            elif value is not before:
                self._cells.put_without_expiry((*at, _SINGLE_PLACE), value)

    def _read(self) -> Any:
        """Caches the value of the current key. Returns its stored form, or `_ABSENT`."""
        number = self._key.number
        stored = self._cells.stored_single(self._key.keys[number])
        self._values[number] = self._before[number] = content = _ABSENT if stored is None else stored
        return content


class ExpiringValueState(ValueState):
    """A value per key, with a time to live."""

    def get(self, default: Any = None) -> Any:
        stored = self._cells.stored_single(self._key.get())
        return default if stored is None else self._cells.decode_value(stored, default)

    def update(self, value: Any) -> None:
        self._cells.write(_SINGLE_PLACE, value)

    def clear(self) -> None:
        self._cells.remove(_SINGLE_PLACE)


class AggregatingState:
    """An accumulator per key. `ProcessContext.aggregating_state` creates it, with the functions of the accumulator."""

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
        accumulator = self._accumulator.get(_NO_VALUE)
        return None if accumulator is _NO_VALUE else self._result(accumulator)

    def add(self, value: Any) -> None:
        """Adds a value of the current key. Raises as `ValueState.update` if the accumulator cannot be stored."""
        before = self._accumulator.get(_NO_VALUE)
        self._accumulator.update(self._add(self._create() if before is _NO_VALUE else before, value))

    def clear(self) -> None:
        """Removes the accumulator of the current key."""
        self._accumulator.clear()


class ReducingState:
    """All values of a key reduced to a single value. `ProcessContext.reducing_state` creates it."""

    def __init__(self, folded: ValueState, function: Callable[[Any, Any], Any]) -> None:
        self._folded = folded
        self._function = function

    def get(self) -> Any:
        """The reduced value so far; None before the first value."""
        return self._folded.get()

    def add(self, value: Any) -> None:
        """Adds a value of the current key. Raises as `ValueState.update` if the reduced value cannot be stored."""
        before = self._folded.get(_NO_VALUE)
        self._folded.update(value if before is _NO_VALUE else self._function(before, value))

    def clear(self) -> None:
        """Removes the reduced value of the current key."""
        self._folded.clear()
