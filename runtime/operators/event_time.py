"""Event times: columns of times as int64 milliseconds since the epoch."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import DataRejected, JobRejected

Times = npt.NDArray[np.int64]

_UNITS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MAX_TIME_MS: Final = 1 << 62  #: 146 million years; windows of such times begin and end within 64 bits
_MS_PER_S: Final = 1_000
_MS_PER_DAY: Final = 86_400_000


def check_time_column(schema: pa.Schema, name: str) -> None:
    """Raises JobRejected unless `schema` has a column `name` of timestamps, dates or integers."""
    if name not in schema.names:
        raise JobRejected("unknown-column", name, f"there is no such column; there are {', '.join(schema.names)}")
    kind = schema.field(name).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)):
        detail = f"event times are a timestamp, a date or integer milliseconds, not {kind}"
        raise JobRejected("bad-time-column", name, detail)


def time_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column `name`. Raises as `check_time_column`, and DataRejected if a time is null."""
    check_time_column(batch.schema, name)
    column = batch.column(name)
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataRejected(f"the event time in column {name!r} is null (row {row + 1} of a batch)")
    return column


def event_times_ms(batch: pa.RecordBatch, name: str) -> Times:
    """The times in column `name`, rounded down to milliseconds; integers are milliseconds.

    Raises:
        JobRejected: the column does not exist, or holds no times.
        DataRejected: a time is null or out of range.
    """
    ticks, per_ms = _ticks(batch, name)
    if len(ticks):
        _check_range(ticks, name, per_ms, int(ticks.min()), int(ticks.max()))
    return ticks // per_ms if per_ms > 1 else ticks


def last_event_time_ms(batch: pa.RecordBatch, name: str) -> int:
    """The largest of the times in column `name` of a batch with rows. Raises as `event_times_ms`."""
    ticks, per_ms = _ticks(batch, name)
    least, greatest = int(ticks.min()), int(ticks.max())
    _check_range(ticks, name, per_ms, least, greatest)
    return greatest // per_ms


def is_in_range(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.bool_]:
    """By row, whether windows can hold the event time. Raises as `event_times_ms`, but not for a time out of range."""
    ticks, per_ms = _ticks(batch, name)
    limit = _MAX_TIME_MS * per_ms
    if not len(ticks) or (-limit <= ticks.min() and ticks.max() < limit):
        return np.ones(len(ticks), dtype=bool)
    return np.asarray((-limit <= ticks) & (ticks < limit))


def pane_numbers(batch: pa.RecordBatch, name: str, size_ms: int) -> Times | int:
    """By row, the number of the row's pane, counted from the epoch; a single int if all rows lie in the same pane.

    Raises as `event_times_ms`.
    """
    ticks, per_ms = _ticks(batch, name)
    size = size_ms * per_ms
    least, greatest = int(ticks.min()), int(ticks.max())
    _check_range(ticks, name, per_ms, least, greatest)
    first, last = least // size, greatest // size
    return first if first == last else ticks // size


def _ticks(batch: pa.RecordBatch, name: str) -> tuple[Times, int]:
    """The times in the unit of the column, and the number of units per millisecond."""
    column = time_column(batch, name)
    kind = column.type
    if pa.types.is_timestamp(kind):
        values = column.view(pa.int64()).to_numpy()  # without a copy, unlike `asarray`
        return (_milliseconds(values), 1) if kind.unit == "s" else (values, _UNITS_PER_MS[kind.unit])
    if pa.types.is_date32(kind):
        return np.asarray(column.view(pa.int32()), dtype=np.int64) * _MS_PER_DAY, 1
    if pa.types.is_date64(kind):
        return np.asarray(column.view(pa.int64())), 1
    if pa.types.is_uint64(kind):
        return np.minimum(np.asarray(column), _MAX_TIME_MS).astype(np.int64), 1
    return np.asarray(column, dtype=np.int64), 1


def _milliseconds(seconds: Times) -> Times:
    """Seconds to milliseconds. Times out of range stay out of range instead of wrapping around."""
    limit = _MAX_TIME_MS // _MS_PER_S + 1
    return np.clip(seconds, -limit, limit) * _MS_PER_S


def _check_range(ticks: Times, name: str, per_ms: int, least: int, greatest: int) -> None:
    limit = _MAX_TIME_MS * per_ms
    if -limit <= least and greatest < limit:
        return
    row = int(np.flatnonzero(ticks == (least if least < -limit else greatest))[0])
    raise DataRejected(f"the event time in column {name!r} is out of range (row {row + 1} of a batch)")
