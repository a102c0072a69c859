"""Rows that the tasks of a run read and write: counted in each task, collected in the driver.

A task reports once, behind its last row. The report is an accumulator update, which Spark delivers with the success of
the task: a try that fails counts nothing. A task that runs again replaces its report, since reports are kept by stage
and partition and are not added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.accumulators import AccumulatorParam


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """The rows of one task of `stage`, in all and by operator: those of its first input, and those that it emitted."""

    stage: int
    rows_read: int
    rows_written: int
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]
    spark_stage: int = -1  #: Spark's own number of the stage


Reports = dict[tuple[int, int], TaskReport]  #: by stage and partition


class Tally:
    """Counts in one task."""

    def __init__(self) -> None:
        self.rows_read = 0
        self.rows_written = 0
        self.rows_in: Counter[str] = Counter()
        self.rows_out: Counter[str] = Counter()

    def read(self, rows: int, source: str = "") -> None:
        """Rows that enter the task: of `source`, or of an earlier stage."""
        self.rows_read += rows
        if source:
            self.rows_out[source] += rows

    def write(self, rows: int, sink: str = "") -> None:
        """Rows that leave the task: into `sink`, or for a later stage."""
        self.rows_written += rows
        if sink:
            self.rows_in[sink] += rows

    def report(self, stage: int) -> TaskReport:
        return TaskReport(
            stage=stage,
            rows_read=self.rows_read,
            rows_written=self.rows_written,
            rows_in=dict(self.rows_in),
            rows_out=dict(self.rows_out),
        )


class ReportsByTask:
    """How Spark merges reports (its `AccumulatorParam`): the newest of a task counts."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        return {**value1, **value2}


def collected_reports(context: SparkContext) -> Accumulator[Reports]:
    return context.accumulator({}, cast("AccumulatorParam[Reports]", ReportsByTask()))


@dataclass(frozen=True)
class Reporter:
    """Called in a task: sends its report to the driver."""

    reports: Accumulator[Reports]

    def __call__(self, report: TaskReport) -> None:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None, "it runs in a Spark task"
        self.reports.add({(report.stage, task.partitionId()): replace(report, spark_stage=task.stageId())})
