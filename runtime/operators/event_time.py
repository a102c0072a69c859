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
    if name not in batch.schema.names:
        raise JobRejected("unknown-column", name, f"there is no such column; there are {', '.join(batch.schema.names)}")
    column = batch.column(name)
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise DataRejected(f"the event time in column {name!r} is null (row {row + 1} of a batch)")
    kind = column.type
    if pa.types.is_timestamp(kind):
        values = np.asarray(column.view(pa.int64()))
        return values * _MS_PER_S if kind.unit == "s" else values // _PER_MS[kind.unit]
    if pa.types.is_date32(kind):
        return np.asarray(column.view(pa.int32()), dtype=np.int64) * _MS_PER_DAY
    if pa.types.is_date64(kind):
        return np.asarray(column.view(pa.int64()))
    if pa.types.is_integer(kind):
        return np.asarray(column, dtype=np.int64)
    raise JobRejected("bad-time-column", name, f"an event time is a timestamp, a date or milliseconds, not {kind}")
