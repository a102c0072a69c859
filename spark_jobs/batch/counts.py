"""Rows that the tasks of a run read and write: counted in each task, collected in the driver.

A task reports once, after its last row. The report is an accumulator update, which Spark delivers when the task
succeeds, so failed attempts do not count. A repeated task replaces its report: reports are stored by stage and
partition and are not added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from spark_jobs.session import current_task

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.accumulators import AccumulatorParam


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """Row counts of a task of plan stage `stage`: in total, and by operator (rows of its first input, emitted rows).

    Args:
        watermark: the watermark at the end of the task's partition of a DataFrame.
        late_from: the lowest watermark at which a row that leaves the task is late; see `late_rows`.
    """

    stage: int
    rows_read: int
    rows_written: int
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]
    watermark: int | None = None
    late_from: int | None = None
    spark_stage: int = -1  #: Spark's stage id


Reports = dict[tuple[int, int], TaskReport]  #: by stage and partition


class RowCounter:
    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_written = 0
        self.rows_in: Counter[str] = Counter()
        self.rows_out: Counter[str] = Counter()
        self.watermark: int | None = None  #: see `TaskReport`
        self.late_from: int | None = None  #: see `TaskReport`

    def count_read(self, rows: int, source: str = "") -> None:
        """Counts rows that enter the task, from `source` or from an earlier stage."""
        self.rows_read += rows
        if source:
            self.rows_out[source] += rows

    def count_written_rows(self, rows: int, sink: str = "") -> None:
        """Counts rows that leave the task, into `sink` or to a later stage."""
        self.rows_written += rows
        if sink:
            self.rows_in[sink] += rows

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
        self.reports.add({(report.stage, task.partitionId()): replace(report, spark_stage=task.stageId())})
