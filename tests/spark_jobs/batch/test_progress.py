"""How far the stages of a plan have come, from the reports of tasks; without Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.dataflow.builder import Dataflow
from runtime.operators.aggregates import Count
from spark_jobs.batch.counts import Reports, ReportsByTask, RowCounter, RowSum, TaskReport
from spark_jobs.batch.plan import BatchStage
from spark_jobs.batch.progress import BatchProgress
from spark_jobs.batch.run import plan_batch


class Accumulator:
    """As Spark's, in one process."""

    def __init__(self, value: Reports, merge: ReportsByTask) -> None:
        self.value, self._merge = value, merge

    def add(self, reports: Reports) -> None:
        self.value = self._merge.addInPlace(self.value, reports)


class Context:
    """A Spark that knows nothing of its stages any more."""

    def __init__(self) -> None:
        self.reports: Accumulator

    def accumulator(self, value: Reports, merge: ReportsByTask) -> Accumulator:
        self.reports = Accumulator(value, merge)
        return self.reports

    def statusTracker(self) -> Context:  # noqa: N802 - Spark's name
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802 - Spark's name
        return []

    def getStageInfo(self, number: int) -> None:  # noqa: N802 - Spark's name
        return None


def counting() -> tuple[BatchStage, ...]:
    flow = Dataflow("counting")
    numbers = flow.source("numbers", SequenceSource(rows=1_000))
    numbers.key_by("key").aggregate("counts", {"rows": Count()}).sink("out", DiscardSink())
    return plan_batch(flow.compile(2)).stages


def report(stage: int, read: int, written: int, rows_in: dict[str, int], rows_out: dict[str, int]) -> TaskReport:
    return TaskReport(
        stage=stage, rows_read=read, rows_written=written, rows_in=rows_in, rows_out=rows_out, spark_stage=7
    )


@pytest.fixture
def run() -> tuple[BatchProgress, Context, tuple[BatchStage, ...]]:
    stages, context = counting(), Context()
    return BatchProgress(cast(Any, context), stages, "group"), context, stages


def states(progress: BatchProgress) -> list[str]:
    return [row["state"] for row in progress.live()["batch"]["stages"]]


def test_a_stage_is_active_once_those_that_it_reads_are_complete(run: Any) -> None:
    """S0-10: all stages of the plan are listed from the beginning, numbered without gaps, with all of their tasks."""
    progress, context, stages = run
    assert not progress.has_begun
    with progress.action(stages[-1]):
        assert progress.has_begun
        assert states(progress) == ["active", "pending"]
        batch = progress.live()["batch"]
        assert [row["number"] for row in batch["stages"]] == [1, 2]
        assert [row["operators"] for row in batch["stages"]] == [["numbers"], ["counts", "out"]]
        assert (batch["tasks"], batch["tasks_done"]) == (4, 0)
        for partition in range(2):
            assert states(progress) == ["active", "pending"]
            context.reports.add({(0, partition): report(0, 500, 400, {}, {"numbers": 500})})
        assert states(progress) == ["complete", "active"]
        assert progress.live()["operators"] == {
            "numbers": {"state": "finished", "records_in": 0, "records_out": 1_000},
            "counts": {"state": "running", "records_in": 0, "records_out": 0},
            "out": {"state": "running", "records_in": 0, "records_out": 0},
        }
    assert states(progress) == ["complete", "complete"]


def test_an_operator_behind_a_union_has_the_rows_of_all_stages_that_contain_it() -> None:
    flow = Dataflow("union")
    numbers, more = (flow.source(uid, SequenceSource(rows=10)) for uid in ("numbers", "more"))
    numbers.union("both", more).sink("out", DiscardSink())
    stages, context = plan_batch(flow.compile(1)).stages, Context()
    progress = BatchProgress(cast(Any, context), stages, "group")
    with progress.action(stages[0]):
        context.reports.add({(0, 0): report(0, 10, 10, {"both": 10, "out": 10}, {"both": 10})})
    assert progress.live()["operators"]["both"] == {"state": "running", "records_in": 10, "records_out": 10}
    with progress.action(stages[1]):
        context.reports.add({(1, 0): report(1, 7, 7, {"both": 7, "out": 7}, {"both": 7})})
    assert progress.live()["operators"]["both"] == {"state": "finished", "records_in": 17, "records_out": 17}
    assert progress.live()["operators"]["out"]["records_in"] == 17


def test_a_task_that_runs_again_is_counted_once(run: Any) -> None:
    """Spark computes a lost output again: the numbers stay."""
    progress, context, stages = run
    with progress.action(stages[-1]):
        for _ in range(3):
            context.reports.add({(0, 1): report(0, 500, 400, {}, {"numbers": 500})})
    row = progress.live()["batch"]["stages"][0]
    assert (row["tasks_done"], row["records_read"], row["records_written"]) == (1, 500, 400)


def test_a_stage_for_which_spark_needed_no_task_has_none(run: Any) -> None:
    """Spark leaves out tasks where it knows that there are no rows: an ended stage has no task that is left to do."""
    progress, _, stages = run
    with progress.action(stages[-1]):
        pass
    batch = progress.live()["batch"]
    assert [(row["tasks"], row["tasks_done"]) for row in batch["stages"]] == [(0, 0), (0, 0)]
    assert batch["tasks"] == 0


def test_an_action_that_fails_completes_nothing(run: Any) -> None:
    progress, _, stages = run
    with pytest.raises(RuntimeError), progress.action(stages[-1]):
        raise RuntimeError
    assert states(progress) == ["active", "pending"]


def test_a_tally_counts_what_enters_leaves_and_passes() -> None:
    tally = RowCounter()
    tally.count_source_rows(3, "numbers")
    tally.count_source_rows(4, "numbers")
    tally.count_read(0, RowSum(2, 9))
    tally.count_written(1, RowSum(2, 8))
    tally.count_sink_rows(1, "out")
    tally.begin(6)
    tally.begin(7)
    assert tally.report(5) == TaskReport(
        stage=5,
        rows_read=9,
        rows_written=3,
        rows_in={"out": 1},
        rows_out={"numbers": 7},
        read={0: RowSum(2, 9)},
        written={1: RowSum(2, 8)},
        partition=6,
    )
