"""Ends of live jobs that go wrong: a savepoint that fails, a failure while all wait, output that comes too late."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.ports import Collector, Operator, OperatorContext
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import with_operator
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.shared import Notes
from tests.small_states import DEPLOYMENT_OF_SLOTS, small_deployment

ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)
AGAIN = FixedDelay(attempts=9, delay_ms=20)


def job(source: Any, output: Path, make: Any = None) -> CompiledJob:
    flow = Dataflow("ends")
    rows = flow.source("numbers", source).map_batches("step", lambda batch: batch)
    rows.sink("out", ParquetSink(str(output)))
    compiled = flow.compile(2)
    return compiled if make is None else with_operator(compiled, "step", make)


def test_a_job_goes_on_if_the_savepoint_of_its_stop_fails(
    tmp_path: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-70: the stop has failed by name, the next attempt reads on, and a later stop ends the job."""
    monkeypatch.setattr(DEPLOYMENT_OF_SLOTS, small_deployment)
    source, output, storage = Gated(total=20), tmp_path / "out", tmp_path / "state"
    (storage / "savepoint-1-1").mkdir(parents=True)
    (storage / "savepoint-1-1" / "numbers-1").touch()  # in the place of a folder
    with jobs.running(job(source, output), storage, settings=ASKED, restart=AGAIN) as run:
        run.wait_for(lambda: run.operator("out").get("records_in") == 80)
        run.ask("stop")
        run.wait_for(lambda: "stop" in run.records.settled and run.records.token == 2)
        result, error = run.records.settled["stop"]
        assert result is None
        assert "numbers/1" in str(error)
        run.wait_for(lambda: run.records.state is RunState.RUNNING)
        source.total = 50
        run.wait_for(lambda: run.operator("out").get("records_in") == 200)
        run.records.operations.append(OperationRequest("again", "stop"))
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.STOPPED
    assert sorted(row["value"] for row in committed(output)) == sorted(list(range(50)) * 4)


class FailsAtTheEnd(Operator):
    """Emits a row in `finish`. Subtask 1 fails once in the snapshot after it, while all others wait."""

    def __init__(self, failures: Notes) -> None:
        self._failures, self._finished = failures, False

    def open(self, context: OperatorContext) -> None:
        self._index = context.index

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def finish(self, out: Collector) -> None:
        self._finished = True
        out.emit(pa.RecordBatch.from_pydict({"key": [self._index], "value": [-1]}, schema=SCHEMA))

    def snapshot(self, checkpoint: int) -> None:
        if self._finished and self._index == 1 and not self._failures.values:
            self._failures.add(checkpoint)
            raise RuntimeError("no snapshot at the end")


def test_a_failure_while_all_wait_for_the_last_checkpoint_repeats_the_end_exactly(tmp_path: Path, jobs: Jobs) -> None:
    """S0-32, S0-67, S0-85: nothing is committed at the end without a checkpoint, so nothing is there twice."""
    output, failures = tmp_path / "out", Notes()
    compiled = job(Numbers(total=100), output, lambda: FailsAtTheEnd(failures))
    with jobs.running(compiled, tmp_path / "state", settings=ASKED, restart=AGAIN) as run:
        run.wait_for(lambda: run.records.attempts)
        visible = len(committed(output)) if run.records.token == 1 else 0
        assert run.join() is MasterExitCode.DONE
    assert visible == 0
    assert len(failures.values) == 1
    _, outcome, reason = run.records.attempts[0]
    assert outcome == "failed"
    assert "no snapshot at the end" in reason
    assert sorted(row["value"] for row in committed(output)) == sorted([-1, -1, *list(range(100)) * 4])


class TooLate(Operator):
    """Emits a row at one place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def open(self, context: OperatorContext) -> None:
        self._index = context.index

    def start(self, out: Collector) -> None:
        self._out = out

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._emit("after finish")

    def close(self) -> None:
        self._emit("from close")

    def _emit(self, place: str) -> None:
        if self._place == place and self._index == 1:
            self._out.emit(pa.RecordBatch.from_pydict({"key": [0], "value": [-1]}, schema=SCHEMA))


@pytest.mark.parametrize("place", ["after finish", "from close"])
def test_output_that_would_be_lost_at_the_end_is_refused_by_name(tmp_path: Path, jobs: Jobs, place: str) -> None:
    """S0-42: no checkpoint would hold it."""
    with jobs.running(job(Numbers(total=50), tmp_path / "out", lambda: TooLate(place)), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    assert f"operator 'step', subtask 1, in {'checkpoint_completed' if place == 'after finish' else 'close'}" in str(
        run.records.failure
    )
    assert f"output {place} is refused" in str(run.records.failure)
