"""How far a batch run has come, as Spark counts: stages with their tasks, and the records that they read and wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_jobs.batch.plan import Stage

if TYPE_CHECKING:
    from pyspark import SparkContext


def progress(context: SparkContext, group: str, stages: Sequence[Stage]) -> dict[str, Any]:
    """The live report of a run, for `RunRecords.write_live`. `stages` of the plan name the parts of the job.

    Spark submits a stage when those that it reads have ended, so the list grows.
    """
    rows = _stages(context, group)
    return {
        "batch": {
            "plan": [stage.name for stage in stages],
            "stages": rows,
            "tasks": sum(row["tasks"] for row in rows),
            "tasks_done": sum(row["tasks_done"] for row in rows),
            "records": max((row["records_read"] for row in rows), default=0),
        }
    }


def tasks_of(context: SparkContext, group: str) -> tuple[int, int]:
    """Tasks of the stages that a job group has begun, and how many of them are done."""
    rows = _stages(context, group)
    return sum(row["tasks"] for row in rows), sum(row["tasks_done"] for row in rows)


def _stages(context: SparkContext, group: str) -> list[dict[str, Any]]:
    tracker = context.statusTracker()
    found: dict[int, dict[str, Any]] = {}
    for job in sorted(tracker.getJobIdsForGroup(group)):
        info = tracker.getJobInfo(job)
        for number in sorted(info.stageIds) if info is not None else ():
            if (row := _stage(context, number)) is not None:
                found[number] = row
    return [found[number] for number in sorted(found)]


def _stage(context: SparkContext, number: int) -> dict[str, Any] | None:
    """None while Spark knows nothing of it, and for one that it skips: its output is there already."""
    info = context.statusTracker().getStageInfo(number)
    if info is None:
        return None
    data = context._jsc.sc().statusStore().lastStageAttempt(number)
    state = str(data.status().toString()).lower()
    if state in ("skipped", "pending"):
        return None
    return {
        "number": number,
        "name": str(data.description().getOrElse(None) or info.name),
        "state": state,
        "tasks": int(info.numTasks),
        "tasks_done": int(info.numCompletedTasks),
        "tasks_failed": int(info.numFailedTasks),
        "records_read": int(data.inputRecords()) + int(data.shuffleReadRecords()),
        "records_written": int(data.shuffleWriteRecords()) + int(data.outputRecords()),
    }
