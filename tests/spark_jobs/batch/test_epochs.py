"""`EpochStage` in BATCH: the rows of a run are a single epoch, which the driver delivers behind the commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected, TargetAway, WeirError
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count
from spark_jobs.batch import run as running
from spark_jobs.batch.failures import TaskFailure
from spark_jobs.batch.run import BatchRun, plan_batch
from spark_jobs.sinks.parquet_table import ParquetTable
from spark_jobs.sinks.targets import DeliveredEpoch
from tests.spark_jobs.batch.flows import FILES, KEYS, ROWS_PER_FILE, events, rows_in
from tests.spark_jobs.batch.test_master import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Target:
    """A Parquet table that first raises `errors`, in order."""

    folder: Path
    errors: list[Exception] = field(default_factory=list)
    epochs: list[DeliveredEpoch] = field(default_factory=list)

    def __call__(self, spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
        self.epochs.append(epoch)
        if self.errors:
            raise self.errors.pop(0)
        ParquetTable(str(self.folder)).write(frame, epoch)


def counting(inputs: Path, root: Path, target: Any) -> Dataflow:
    """All rows through a sink to the target, and their counts to files."""
    flow = Dataflow("epochs")
    stage = EpochStage(target, folder=str(root / "streams" / "7" / "delivered"), is_bound=True)
    rows = events(flow, inputs).write_through("delivered", stage)
    rows.key_by("key").aggregate("counts", {"rows": Count()}).sink("out", ParquetSink(str(root / "out")))
    return flow


def attempt(flow: Dataflow, root: Path, token: int, records: MemoryRunStore) -> BatchRun:
    store = FileStore(str(root / "end"))
    return BatchRun(job=flow.compile(2), job_id="j", token=Token(token), records=records, store=store)


def test_an_epoch_that_was_not_delivered_is_delivered_by_the_next_attempt(
    cluster: SparkSession, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-10, S0-28: the stages run once, and the function gets the same epoch until it has returned."""
    target, records = Target(tmp_path / "table", [ValueError("not now")]), MemoryRunStore(token=Token(1))
    flow = counting(inputs, tmp_path, target)
    first = attempt(flow, tmp_path, 1, records)
    with pytest.raises(TaskFailure, match="operator 'delivered': epoch 1: ValueError: not now") as failure:
        first.run(plan_batch(first.job, cluster), cluster)
    assert failure.value.operator == "delivered"
    assert rows_in(tmp_path / "table") == []

    def execute(*_: object, **__: object) -> None:
        raise AssertionError("the end of the run is recorded")

    monkeypatch.setattr(running, "execute", execute)
    for token in (2, 3):  # the third finds nothing to deliver
        later = attempt(flow, tmp_path, token, records)
        later.run(plan_batch(later.job, cluster), cluster)
    rows = FILES * ROWS_PER_FILE
    assert [(epoch.number, epoch.sink, epoch.rows) for epoch in target.epochs] == [(1, "delivered", rows)] * 2
    assert len({epoch.source for epoch in target.epochs}) == 1
    assert (len(rows_in(tmp_path / "table")), len(rows_in(tmp_path / "out"))) == (rows, KEYS)
    stage = flow.sinks[OperatorId("delivered")]
    assert isinstance(stage, EpochStage)
    assert stage.backlog() == 0
    assert rows_in(Path(stage.folder)) == [], "files of a delivered epoch are deleted"


def test_a_target_that_cannot_take_rows_is_refused_before_a_stage_runs(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    class Missing(Target):
        def prepare(self) -> None:
            raise JobRejected("missing-table", "table", "words does not exist")

    run = attempt(counting(inputs, tmp_path, Missing(tmp_path / "table")), tmp_path, 1, MemoryRunStore(token=Token(1)))
    with pytest.raises(JobRejected, match="delivered: table: words does not exist") as refusal:
        run.run(plan_batch(run.job, cluster), cluster)
    assert (refusal.value.code, refusal.value.field) == ("missing-table", "delivered")
    assert not (tmp_path / "out").exists()


def test_a_wait_for_the_target_ends_when_the_run_is_released(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """A run that waits is not complete. The next attempt finds the target at its second call."""

    class Away(Target):
        def __call__(self, *_: object) -> None:
            run.stopping.set()
            raise TargetAway("no route")

    records = MemoryRunStore(token=Token(1))
    run = attempt(counting(inputs, tmp_path, Away(tmp_path / "table")), tmp_path, 1, records)
    with pytest.raises(WeirError, match="operator 'delivered': the run was released before its epoch was delivered"):
        run.run(plan_batch(run.job, cluster), cluster)
    target = Target(tmp_path / "table", [TargetAway("no route")])
    later = attempt(counting(inputs, tmp_path, target), tmp_path, 2, records)
    later.run(plan_batch(later.job, cluster), cluster)
    assert len(target.epochs) == 2
    assert len(rows_in(tmp_path / "table")) == FILES * ROWS_PER_FILE


def refuse(spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
    raise JobRejected("schema-differs", "path", "the table has other columns")


def fail(spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
    raise ValueError("no such word")


def leave(spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("function", "exit_code", "state"),
    [
        (refuse, MasterExitCode.DONE, RunState.FAILED),
        (fail, MasterExitCode.BROKEN, None),
        (leave, MasterExitCode.BROKEN, None),
    ],
)
def test_a_master_ends_the_run_at_a_refusal_and_leaves_other_errors_to_the_next_master(
    function: Callable[..., None],
    exit_code: MasterExitCode,
    state: RunState | None,
    cluster: SparkSession,
    inputs: Path,
    tmp_path: Path,
) -> None:
    """Both name the sink, on the page of the run or of its attempt."""
    records = MemoryRunStore(token=Token(1))
    run = Run(counting(inputs, tmp_path, function), cluster, records, tmp_path / "s")
    assert run.join() is exit_code
    ((_, outcome, reason),) = records.attempts
    assert (outcome, "delivered" in reason) == ("failed", True)
    assert (records.state is RunState.FAILED) is (state is RunState.FAILED)
    if state is RunState.FAILED:
        assert records.failure is not None
        assert (records.failure["code"], records.failure["operator"]) == ("schema-differs", "delivered")


def test_a_second_master_that_cannot_deliver_leaves_the_epoch_to_a_third(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """The end is recorded and the rows of other sinks are visible: only the delivery is left."""
    records, target = MemoryRunStore(token=Token(1)), Target(tmp_path / "table", [ValueError("no"), ValueError("no")])
    flow = counting(inputs, tmp_path, target)
    for token in (1, 2):
        records.token = Token(token)
        assert Run(flow, cluster, records, tmp_path / "s").join() is MasterExitCode.BROKEN
        assert records.state is not RunState.FAILED
    records.token = Token(3)
    assert Run(flow, cluster, records, tmp_path / "s").join() is MasterExitCode.DONE
    assert len(rows_in(tmp_path / "table")) == FILES * ROWS_PER_FILE
