"""Progress of a batch run: the stages of its plan, with their tasks and records.

Tasks report their rows by stage of the plan (`counts`), even where Spark splits such a stage into several stages.
Failed attempts and durations come from Spark's counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from spark_jobs.batch.counts import Reporter, Reports, TaskReport, report_accumulator
from spark_jobs.batch.plan import BatchStage, ReadRows

if TYPE_CHECKING:
    from pyspark import SparkContext


class StageState(StrEnum):
    """State of a stage of the plan, in Spark's terms."""

    PENDING = "pending"  #: an input stage has not ended, or no action has requested the stage yet
    ACTIVE = "active"  #: its tasks are submitted to Spark
    COMPLETE = "complete"


class BatchProgress:
    """Progress of the stages of a plan. The executing thread calls `action`; any thread may call `live`."""

    def __init__(self, context: SparkContext, stages: Sequence[BatchStage], group: str) -> None:
        self._context, self._stages, self._group = context, stages, group
        self._reports = report_accumulator(context)
        self._begun_stages: frozenset[int] = frozenset()
        self._ended_stages: frozenset[int] = frozenset()

    @property
    def reporter(self) -> Reporter:
        """The callback by which tasks report."""
        return Reporter(self._reports)

    @property
    def reports(self) -> Reports:
        """The reports of the tasks that have succeeded."""
        return self._reports.value

    @property
    def has_begun(self) -> bool:
        return bool(self._begun_stages)

    @contextmanager
    def action(self, stage: BatchStage) -> Iterator[None]:
        """Context of the Spark action that computes `stage` and the stages that it needs."""
        stages = self._required_stages(stage)
        self._begun_stages |= stages
        yield
        self._ended_stages |= stages

    def live(self) -> dict[str, Any]:
        """The live report of the run, for `RunStore.write_live`. Records count for ended tasks only."""
        reports = self.reports
        counts = Counter(stage for stage, _ in reports)
        rows: list[dict[str, Any]] = []
        reports_by_operator: dict[str, list[TaskReport]] = {}
        states_by_operator: dict[str, set[StageState]] = {}
        for stage in self._stages:
            stage_reports = [report for (number, _), report in reports.items() if number == stage.number]
            state = self._state(stage, counts)
            rows.append(self._stage_row(stage, state, stage_reports))
            for uid in stage.operators:  # several stages contain the steps behind a union
                reports_by_operator.setdefault(uid, []).extend(stage_reports)
                states_by_operator.setdefault(uid, set()).add(state)
        operators = {
            uid: _operator(uid, "finished" if states == {StageState.COMPLETE} else "running", reports_by_operator[uid])
            for uid, states in states_by_operator.items()
            if states != {StageState.PENDING}
        }
        return {
            "batch": {
                "stages": rows,
                "tasks": sum(row["tasks"] or 0 for row in rows),
                "tasks_done": sum(row["tasks_done"] for row in rows),
                "tasks_failed": sum(failed for _, _, failed in _tasks_by_stage(self._context, self._group)),
            },
            "operators": operators,
        }

    # ------------------------------------------------------------ parts

    def _required_stages(self, stage: BatchStage) -> frozenset[int]:
        numbers = frozenset({stage.number})
        return numbers.union(*(self._required_stages(self._stages[number]) for number in stage.inputs))

    def _state(self, stage: BatchStage, counts: Counter[int]) -> StageState:
        if self._is_complete(stage, counts):
            return StageState.COMPLETE
        ready = all(self._is_complete(self._stages[number], counts) for number in stage.inputs)
        return StageState.ACTIVE if ready and stage.number in self._begun_stages else StageState.PENDING

    def _is_complete(self, stage: BatchStage, counts: Counter[int]) -> bool:
        tasks = self._planned_tasks(stage)
        return stage.number in self._ended_stages or (tasks is not None and counts[stage.number] >= tasks)

    def _planned_tasks(self, stage: BatchStage) -> int | None:
        """The number of tasks; None for a DataFrame, whose partitions Spark chooses."""
        if isinstance(stage.head, ReadRows):
            return stage.head.owners or self._planned_tasks(self._stages[stage.head.stages[0]])
        return stage.head.parallelism if stage.head.shape is None else None

    def _stage_row(self, stage: BatchStage, state: StageState, reports: Sequence[TaskReport]) -> dict[str, Any]:
        of_spark = reports[-1].spark_stage if reports else None
        facts = _spark_facts(self._context, of_spark) if of_spark is not None else {}
        return {
            "number": stage.number + 1,
            "name": stage.name,
            "operators": list(stage.operators),
            "state": state,
            "tasks": len(reports) if stage.number in self._ended_stages else self._planned_tasks(stage),
            "tasks_done": len(reports),
            "tasks_failed": facts.get("tasks_failed"),
            "records_read": sum(report.rows_read for report in reports),
            "records_written": sum(report.rows_written for report in reports),
            "duration_ms": facts.get("duration_ms"),
        }


def _operator(uid: str, state: str, reports: Iterable[TaskReport]) -> dict[str, Any]:
    return {
        "state": state,
        "records_in": sum(report.rows_in.get(uid, 0) for report in reports),
        "records_out": sum(report.rows_out.get(uid, 0) for report in reports),
    }


# ---------------------------------------------------------------- Spark's counters


def task_counts(context: SparkContext, group: str) -> tuple[int, int]:
    """Tasks, and completed tasks, of the stages that a job group has begun."""
    rows = _tasks_by_stage(context, group)
    return sum(tasks for tasks, _, _ in rows), sum(count for _, count, _ in rows)


def _tasks_by_stage(context: SparkContext, group: str) -> list[tuple[int, int, int]]:
    """(tasks, completed tasks, failed attempts) of each Spark stage that a job group has begun."""
    tracker = context.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    numbers = {number for job in jobs if job is not None for number in job.stageIds}
    rows = []
    for number in sorted(numbers):
        info = tracker.getStageInfo(number)
        if info is not None and str(_stage_data(context, number).status().toString()) not in ("SKIPPED", "PENDING"):
            rows.append((int(info.numTasks), int(info.numCompletedTasks), int(info.numFailedTasks)))
    return rows


def _spark_facts(context: SparkContext, number: int) -> dict[str, Any]:
    """Failed attempts and duration in ms of a Spark stage; empty once Spark has dropped the stage."""
    if context.statusTracker().getStageInfo(number) is None:
        return {}
    data = _stage_data(context, number)
    facts: dict[str, Any] = {"tasks_failed": int(data.numFailedTasks())}
    began, ended = data.submissionTime(), data.completionTime()
    if began.isDefined() and ended.isDefined():
        facts["duration_ms"] = int(ended.get().getTime()) - int(began.get().getTime())
    return facts


def _stage_data(context: SparkContext, number: int) -> Any:
    return context._jsc.sc().statusStore().lastStageAttempt(number)
