"""However a subtask ends, its operator is closed once and leaves no open file behind."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.dataflow.builder import Dataflow
from runtime.ports import Collector, Operator, OperatorContext
from tests.jobs.conftest import Jobs
from tests.jobs.live import with_operator
from tests.jobs.numbers import Numbers
from tests.shared import Shared


class Resources(Shared):
    """What the operators of one run do with their files."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.calls: list[tuple[str, int]] = []
        self.closed: list[int] = []

    def on_open(self, index: int) -> None:
        self.opened.append(index)

    def on_call(self, place: str, index: int) -> None:
        self.calls.append((place, index))

    def on_close(self, index: int) -> None:
        self.closed.append(index)


class Closing(Operator):
    """Opens a file, passes rows on, and fails at one place if it is told to."""

    def __init__(self, resources: Resources, path: Path, fails: str) -> None:
        self._resources, self._path, self._fails = resources, path, fails

    def _at(self, place: str) -> None:
        self._resources.on_call(place, self._index)
        if place == self._fails and self._index == 1:
            raise RuntimeError(f"no {place}")

    def open(self, context: OperatorContext) -> None:
        self._index = context.index
        self._file = io.FileIO(self._path / f"scratch-{context.index}", "w")
        self._resources.on_open(self._index)
        self._at("open")

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._at("process")
        out.emit(batch)

    def snapshot(self, checkpoint: int) -> None:
        self._at("snapshot")

    def finish(self, out: Collector) -> None:
        self._at("finish")

    def close(self) -> None:
        self._at("close")
        self._file.close()
        self._resources.on_close(self._index)


def job(resources: Resources, folder: Path, bounded: bool, fails: str) -> Any:
    flow = Dataflow("closing")
    source = Numbers(total=100, unbounded=not bounded)
    flow.source("numbers", source).map_batches("closing", lambda batch: batch).sink("out", ParquetSink(str(folder)))
    return with_operator(flow.compile(2), "closing", lambda: Closing(resources, folder, fails))


ENDS = {"by itself": RunState.FINISHED, "stop": RunState.STOPPED, "drain": RunState.FINISHED}


@pytest.mark.parametrize("end", ["by itself", "stop", "drain", "cancel"])
def test_an_operator_is_closed_once_at_every_end(end: str, tmp_path: Path, jobs: Jobs) -> None:
    """S0-43, S0-41: and `finish` is called at a true end only."""
    resources = Resources()
    with jobs.running(job(resources, tmp_path, end == "by itself", ""), tmp_path / "state") as run:
        if end != "by itself":
            run.wait_for(lambda: run.operator("out").get("records_in", 0) > 0)
            run.ask(end)
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is ENDS.get(end, RunState.CANCELED)
    assert sorted(index for place, index in resources.calls if place == "close") == [0, 1]
    assert sorted(resources.opened) == sorted(resources.closed) == [0, 1]
    finished = sorted(index for place, index in resources.calls if place == "finish")
    assert finished == ([0, 1] if end in ("by itself", "drain") else [])


@pytest.mark.parametrize("place", ["open", "process", "snapshot", "finish"])
def test_an_operator_that_fails_is_closed_and_so_is_its_neighbour(place: str, tmp_path: Path, jobs: Jobs) -> None:
    """S0-43, S2-36: also one whose `open` or `finish` raised; the error names subtask and hook."""
    resources = Resources()
    with jobs.running(job(resources, tmp_path, True, place), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    assert f"operator 'closing', subtask 1, in {place}: RuntimeError: no {place}" in str(run.records.failure)
    assert sorted(index for name, index in resources.calls if name == "close") == [0, 1]
    assert sorted(resources.opened) == sorted(resources.closed) == [0, 1]
