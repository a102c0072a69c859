"""The tables of a task as sources of a job."""

from datetime import timedelta
from typing import Final

import pyarrow as pa

import weir
from benchmarks.datasets import DATASETS
from benchmarks.protocol import Task

_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
}


class WeirInputs:
    """The tables of a task as sources of a job."""

    def __init__(self, flow: weir.Dataflow, task: Task, phase: str) -> None:
        self._flow, self._task, self._phase = flow, task, phase

    def table(
        self,
        name: str,
        time: str | None = None,
        *,
        disorder_ms: int | None = None,
        max_drift: timedelta | None = None,
    ) -> weir.Stream:
        """A table. `time`: its column of event times; `disorder_ms`: by default that of the data set."""
        assert self._task.dataset is not None, "the task has a data set"
        columns = DATASETS[self._task.dataset][name].columns
        schema = pa.schema([(column, _TYPES[kind]) for column, (kind, _) in columns.items()])
        rows = weir.ParquetFormat(schema) if self._task.files == "parquet" else weir.JsonLinesFormat(schema)
        folder = str(self._task.input(self._phase) / name)
        if disorder_ms is None:
            disorder_ms = 0 if time is None else self._task.disorder_ms
        source = weir.DirectorySource(folder, rows, event_time=time, max_disorder_ms=disorder_ms, bounded=True)
        return self._flow.source(name, source, max_drift=max_drift)
