"""When a record happened: columns of times as int64 milliseconds since the epoch."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import DataRejected, JobRejected

Times = npt.NDArray[np.int64]

_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MS_PER_S: Final = 1_000
_MS_PER_DAY: Final = 86_400_000


def event_times_ms(batch: pa.RecordBatch, name: str) -> Times:
    """The times in column `name`, rounded down to milliseconds; integers are milliseconds already.

    Raises:
        JobRejected: there is no such column, or it holds no times.
        DataRejected: a time is null.
    """
    ticks, per_ms = _ticks(batch, name)
    return ticks // per_ms if per_ms > 1 else ticks


def panes(batch: pa.RecordBatch, name: str, size_ms: int) -> Times | int:
    """By row, the number of the pane of `size_ms` that its time lies in, from the epoch; one number if all are alike.

    Raises:
        JobRejected, DataRejected: as `event_times_ms`.
    """
    ticks, per_ms = _ticks(batch, name)
    size = size_ms * per_ms
    first, last = int(ticks.min()) // size, int(ticks.max()) // size
    return first if first == last else ticks // size


def _ticks(batch: pa.RecordBatch, name: str) -> tuple[Times, int]:
    """The times, and how many of their units make a millisecond."""
    if name not in batch.schema.names:
        raise JobRejected("unknown-column", name, f"there is no such column; there are {', '.join(batch.schema.names)}")
    column = batch.column(name)
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataRejected(f"the event time in column {name!r} is null (row {row + 1} of a batch)")
    kind = column.type
    if pa.types.is_timestamp(kind):
        values = np.asarray(column.view(pa.int64()))
        return (values * _MS_PER_S, 1) if kind.unit == "s" else (values, _PER_MS[kind.unit])
    if pa.types.is_date32(kind):
        return np.asarray(column.view(pa.int32()), dtype=np.int64) * _MS_PER_DAY, 1
    if pa.types.is_date64(kind):
        return np.asarray(column.view(pa.int64())), 1
    if pa.types.is_integer(kind):
        return np.asarray(column, dtype=np.int64), 1
    raise JobRejected("bad-time-column", name, f"an event time is a timestamp, a date or milliseconds, not {kind}")
