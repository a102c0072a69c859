"""Rows that the tasks of a run read and write: counted in each task, collected in the driver.

A task reports once, after its last row. The report is an accumulator update, which Spark delivers when the task
succeeds, so failed attempts do not count. A repeated task replaces its report: reports are stored by stage and
partition and are not added up. The rows of a task determine its partition, because Spark numbers the tasks of a union
anew.

`RowSum` compares the rows that a stage reads with the rows that earlier stages wrote. They differ if Spark lost or
doubled rows. They also differ if a repeated task emits other rows than its first attempt, of which some were read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from spark_jobs.session import current_task

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.accumulators import AccumulatorParam


_SUM_LIMIT: Final = 1 << 64


@dataclass(frozen=True)
class RowSum:
    """Rows between two stages, in any order: their number, and the sum of their owners and hashes (modulo 2^64).

    The hash is that of the keys, behind an exchange without keys that of all columns but those of nested types. So the
    sum differs if as many rows were lost as doubled, unless their keys, or these columns, are equal.
    """

    rows: int = 0
    checksum: int = 0

    @classmethod
    def of(cls, owners: Any, hashes: Any) -> RowSum:
        """The sum of rows with these owners and hashes (integer arrays)."""
        return cls(len(owners), (int(owners.sum()) + int(hashes.sum())) % _SUM_LIMIT)

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows + other.rows, (self.checksum + other.checksum) % _SUM_LIMIT)


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """Row counts of a task of plan stage `stage`: in total, and by operator (rows of its main inputs, emitted rows).

    Args:
        read: by stream, the rows of earlier stages; see `wire.WireSchema.number`.
        written: by stream, the rows for later stages.
        partition: the owner of the task's first rows; None: it has no rows.
        watermark: the watermark at the end of the task's partition of a DataFrame.
        late_from: the lowest watermark at which a row that leaves the task is late; see `late_rows`.
    """

    stage: int
    rows_read: int
    rows_written: int
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]
    read: Mapping[int, RowSum] = field(default_factory=dict)
    written: Mapping[int, RowSum] = field(default_factory=dict)
    partition: int | None = None
    watermark: int | None = None
    late_from: int | None = None
    spark_stage: int = -1  #: Spark's stage id


#: By stage and partition. A task without rows has a negative number, from its number in Spark.
Reports = dict[tuple[int, int], TaskReport]


class RowCounter:
    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_written = 0
        self.rows_in: Counter[str] = Counter()
        self.rows_out: Counter[str] = Counter()
        self._read: dict[int, RowSum] = {}
        self._written: dict[int, RowSum] = {}
        self.partition: int | None = None  #: see `TaskReport`
        self.watermark: int | None = None  #: see `TaskReport`
        self.late_from: int | None = None  #: see `TaskReport`

    def begin(self, owner: int) -> None:
        """Notes the owner of the next rows."""
        if self.partition is None:
            self.partition = owner

    def count_source_rows(self, rows: int, source: str) -> None:
        """Counts rows that enter the task from `source`."""
        self.rows_read += rows
        self.rows_out[source] += rows

    def count_sink_rows(self, rows: int, sink: str) -> None:
        """Counts rows that leave the task into `sink`."""
        self.rows_written += rows
        self.rows_in[sink] += rows

    def count_read(self, stream: int, rows: RowSum) -> None:
        """Counts rows that enter the task from an earlier stage."""
        self.rows_read += rows.rows
        self._read[stream] = self._read.get(stream, RowSum()) + rows

    def count_written(self, stream: int, rows: RowSum) -> None:
        """Counts rows that leave the task to a later stage."""
        self.rows_written += rows.rows
        self._written[stream] = self._written.get(stream, RowSum()) + rows

    def count_late_from(self, watermark: int) -> None:
        """Notes that a row is late from `watermark` on."""
        self.late_from = watermark if self.late_from is None else min(watermark, self.late_from)

    def report(self, stage: int) -> TaskReport:
        return TaskReport(
            stage=stage,
            rows_read=self.rows_read,
            rows_written=self.rows_written,
            rows_in=dict(self.rows_in),
            rows_out=dict(self.rows_out),
            read=dict(self._read),
            written=dict(self._written),
            partition=self.partition,
            watermark=self.watermark,
            late_from=self.late_from,
        )


class ReportsByTask:
    """Spark's `AccumulatorParam` for reports: the newest report of a task wins."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        return {**value1, **value2}


def report_accumulator(context: SparkContext) -> Accumulator[Reports]:
    return context.accumulator({}, cast("AccumulatorParam[Reports]", ReportsByTask()))


@dataclass(frozen=True)
class Reporter:
    """Called in a task: sends the task's report to the driver."""

    reports: Accumulator[Reports]

    def __call__(self, report: TaskReport) -> None:
        task = current_task()
        partition = -1 - task.partitionId() if report.partition is None else report.partition
        self.reports.add({(report.stage, partition): replace(report, spark_stage=task.stageId())})
