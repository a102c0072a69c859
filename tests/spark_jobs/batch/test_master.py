"""The job master of a run in BATCH: what it records, reports and obeys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.dataflow.builder import Dataflow
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count
from spark_jobs.batch.master import BatchMaster
from tests.spark_jobs.batch.flows import FILES, KEYS, ROWS_PER_FILE, events, rows_in
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def waits_for(gate: Path) -> Any:
    """A step that goes on when the file is there; the sample in the driver passes."""

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyspark

        while pyspark.TaskContext.get() is not None and not gate.exists():
            time.sleep(0.05)
        return batch

    return step


def raises(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyspark

    if pyspark.TaskContext.get() is not None:
        raise KeyError("no such airport")
    return batch


def counting(inputs: Path, output: Path, step: Any) -> Dataflow:
    flow = Dataflow("counting")
    rows = events(flow, inputs).map_batches("step", step)
    rows.key_by("key").aggregate("counts", {"rows": Count()}).sink("out", ParquetSink(str(output)))
    return flow


class Run:
    """A master in a thread, on a session that other tests use too."""

    def __init__(
        self,
        flow: Dataflow,
        spark: SparkSession,
        records: MemoryRunStore,
        storage: Path,
        *,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        @contextmanager
        def session() -> Iterator[SparkSession]:
            yield spark
            on_end()

        self.records = records
        self.beats = 0
        self.master = BatchMaster(
            job=flow.compile(2),
            job_id=str(uuid4()),
            token=records.token,
            records=records,
            store=FileStore(str(storage)),
            session=session,
            alive=self._beat,
        )
        self.exit: MasterExitCode | None = None
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _beat(self) -> None:
        self.beats += 1

    def _go(self) -> None:
        self.exit = self.master.run()

    def join(self) -> MasterExitCode | None:
        self._thread.join(300)
        assert not self._thread.is_alive()
        return self.exit


def has_tasks(cluster: SparkSession, run: Run) -> bool:
    """Whether Spark works for the run, and its page shows an active stage."""
    stages = run.records.live.get("batch", {}).get("stages", ())
    is_active = any(stage["state"] == "active" for stage in stages)
    return is_active and bool(cluster.sparkContext.statusTracker().getActiveStageIds())


def test_a_run_records_its_end_and_shows_stages_with_tasks_and_records(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    records = MemoryRunStore(token=Token(3))
    run = Run(counting(inputs, tmp_path / "out", lambda batch: batch), cluster, records, tmp_path / "s")
    assert run.join() is MasterExitCode.DONE
    assert (records.state, records.failure) == (RunState.FINISHED, None)
    assert records.attempts == [(3, "ended", "")]
    assert len(rows_in(tmp_path / "out")) == KEYS
    assert run.beats > 1
    batch, rows = records.live["batch"], FILES * ROWS_PER_FILE
    stages = [(stage["number"], stage["name"], stage["state"], stage["tasks"]) for stage in batch["stages"]]
    assert stages == [(1, "events → step", "complete", 2), (2, "counts → out", "complete", 2)]
    assert (batch["tasks"], batch["tasks_done"], batch["tasks_failed"]) == (4, 4, 0)
    assert [stage["records_read"] for stage in batch["stages"]] == [rows, rows]
    assert [stage["records_written"] for stage in batch["stages"]] == [rows, KEYS]
    assert all(stage["tasks_failed"] == 0 and stage["duration_ms"] > 0 for stage in batch["stages"])
    assert records.live["operators"] == {
        "events": {"state": "finished", "records_in": 0, "records_out": rows},
        "step": {"state": "finished", "records_in": rows, "records_out": rows},
        "counts": {"state": "finished", "records_in": rows, "records_out": KEYS},
        "out": {"state": "finished", "records_in": KEYS, "records_out": 0},
    }


def test_a_report_while_spark_stops_does_not_end_the_master(
    cluster: SparkSession, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context stops within a report: it has answered with the stages, and its JVM is gone when asked for its UI."""

    class Stopped(type(cluster.sparkContext)):  # type: ignore[misc]
        @property
        def uiWebUrl(self) -> str:  # noqa: N802 - of pyspark
            raise AttributeError("'NoneType' object has no attribute 'sc'")

    def stop() -> None:
        monkeypatch.setattr(cluster.sparkContext, "__class__", Stopped)
        records.live = {}
        until(lambda: bool(records.live))

    records = MemoryRunStore(token=Token(1))
    job = counting(inputs, tmp_path / "out", lambda batch: batch)
    run = Run(job, cluster, records, tmp_path / "s", on_end=stop)
    assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED


def test_a_cancel_ends_the_run_and_nothing_is_visible(cluster: SparkSession, inputs: Path, tmp_path: Path) -> None:
    """A savepoint is answered with the reason why there is none."""
    gate, records = tmp_path / "gate", MemoryRunStore(token=Token(1))
    job = counting(inputs, tmp_path / "out", waits_for(gate))
    run = Run(job, cluster, records, tmp_path / "s")
    until(lambda: has_tasks(cluster, run), 120.0)
    records.operations += [OperationRequest("a", "savepoint"), OperationRequest("b", "cancel")]
    assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.CANCELED
    assert records.attempts == [(1, "canceled", "")]
    assert records.settled["b"] == ({}, None)
    assert records.settled["a"][1] is not None
    assert "takes no checkpoints" in records.settled["a"][1]["message"]
    assert rows_in(tmp_path / "out") == []


def test_a_run_that_is_released_is_run_again_by_the_next_master(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    gate, records = tmp_path / "gate", MemoryRunStore(token=Token(1))
    job = counting(inputs, tmp_path / "out", waits_for(gate))
    run = Run(job, cluster, records, tmp_path / "s")
    until(lambda: has_tasks(cluster, run), 120.0)
    run.master.release()
    assert run.join() is MasterExitCode.RELEASED
    assert rows_in(tmp_path / "out") == []
    gate.touch()
    records.token = Token(2)
    assert Run(job, cluster, records, tmp_path / "s").join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert len(rows_in(tmp_path / "out")) == KEYS


def test_a_run_that_fails_records_operator_and_reason(cluster: SparkSession, inputs: Path, tmp_path: Path) -> None:
    records = MemoryRunStore(token=Token(1))
    run = Run(counting(inputs, tmp_path / "out", raises), cluster, records, tmp_path / "s")
    assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FAILED
    assert records.failure is not None
    assert (records.failure["code"], records.failure["operator"]) == ("batch-failed", "step")
    assert "operator 'step'" in records.failure["message"]
    assert "KeyError: 'no such airport'" in records.failure["message"]
    assert rows_in(tmp_path / "out") == []


def test_a_master_that_is_superseded_commits_nothing(cluster: SparkSession, inputs: Path, tmp_path: Path) -> None:
    records = MemoryRunStore(token=Token(1), superseded=True)
    run = Run(counting(inputs, tmp_path / "out", lambda batch: batch), cluster, records, tmp_path / "s")
    assert run.join() is MasterExitCode.SUPERSEDED
    assert rows_in(tmp_path / "out") == []
