"""`from_spark`: any DataFrame as a bounded source of a job.

In STREAMING a PySpark stage computes the DataFrame once per run and writes each partition as a split (`stages.tables`).
The job reads each completed split, in the order of the partitions. In BATCH the DataFrame itself is the first step of
the Spark plan.

Compilation does not call the function `make`. With `schema`, it knows the columns and checks keys before the first run.
Without `schema`, the columns are those of the DataFrame, and keys are checked with the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from runtime.connectors.epochs import no_stage_error
from runtime.connectors.formats.base import check_schema
from runtime.connectors.sources.event_clock import check_event_time
from runtime.errors import JobRejected
from runtime.ports import StageFolders
from spark_jobs.sources.reader import SplitReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeFrame = Callable[["SparkSession"], "DataFrame"]


def from_spark(
    make: MakeFrame,
    *,
    schema: pa.Schema | None = None,
    event_time: str | None = None,
    max_disorder_ms: int | None = None,
    early: bool = True,
) -> SparkTable:
    """A bounded source for any DataFrame: a table, SQL, JDBC, a custom Python data source.

    A job with this source runs in the console, or by `run_batch`. `run_local` refuses it, since it starts no stage.

    The source emits the rows of a single computation of the DataFrame. After a SIGKILL of the stage the DataFrame is
    computed again. The run fails with `input-changed` unless the existing splits come again with the same rows. So give
    `rand` a seed and `limit` an order, and read a snapshot of a table that others write to.

    Args:
        make: gets a SparkSession, returns a DataFrame. It runs in a PySpark stage, or in BATCH in the job master.
        schema: columns that the job reads, with their types; the DataFrame may have more. None: all, in Spark's types.
        event_time: column of event times, by which the DataFrame should be ordered: a subtask reads several partitions
            one after another. None: the source emits no watermark before its end.
        max_disorder_ms: how far a row's event time may lag behind the maximum before it in the same subtask. None: 0,
            and a late row fails the job.
        early: read the first splits while later splits are written. False: the job reads after all splits are written,
            so a killed stage begins anew and may compute other rows.
    """
    return SparkTable(make, schema, event_time, max_disorder_ms, early)


@dataclass(frozen=True)
class SparkTable:
    """The source that `from_spark` returns. `path`: the folder of its splits; "": not bound yet."""

    guarantee: ClassVar[str] = "exactly-once"
    bounded: ClassVar[bool] = True
    stage: ClassVar[str] = "tables"  #: shared by all tables of a run

    make: MakeFrame | None
    schema: pa.Schema | None = None
    event_time: str | None = None
    max_disorder_ms: int | None = None
    early: bool = True
    path: str = ""

    def bind(self, uid: str, folders: StageFolders) -> SparkTable:
        return self.in_folder(f"{folders.inputs}/{uid}" if folders.inputs else "")

    def in_folder(self, folder: str) -> SparkTable:
        """The source that reads the splits in `folder`."""
        return replace(self, path=folder)

    def output_columns(self) -> pa.Schema | None:
        return self.schema

    def folders(self) -> Mapping[str, str]:
        return {"path": self.path} if self.path else {}

    def reader(self) -> SplitReader:
        if not self.path:
            raise no_stage_error("from_spark", runs_in_batch=True)
        return SplitReader(self.path, self.schema, self.event_time, self.max_disorder_ms, self.early)

    def check(self) -> None:
        if not callable(self.make):
            raise JobRejected("bad-function", "make", f"a function of a SparkSession is needed, not {self.make!r}")
        if self.schema is not None:
            check_schema(self.schema)
        check_event_time(self.event_time, self.max_disorder_ms, self.schema)

    def __getstate__(self) -> dict[str, Any]:
        """The fields without `make`: slots only read splits, and its closure may hold secrets such as a password."""
        return {**self.__dict__, "make": None}
