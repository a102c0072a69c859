"""The rows between the stages of a plan, on a Spark with two executors: a lost or doubled row fails the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow.builder import Dataflow
from runtime.errors import EnvironmentFailure
from runtime.operators.aggregates import Count
from spark_jobs.batch.execute import _Execution
from spark_jobs.batch.plan import ReadRows
from spark_jobs.batch.run import run_batch
from tests.spark_jobs.batch.flows import events, flow_of, joined, rows_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def losing(frame: DataFrame) -> DataFrame:
    return frame.where(functions.col("order") % 1_000 != 7)


def doubling(frame: DataFrame) -> DataFrame:
    return frame.union(frame.where(functions.col("order") % 1_000 == 7))


def exchanging(frame: DataFrame) -> DataFrame:
    """As many rows, of which some are lost and others doubled."""
    number = functions.col("order") % 1_000
    kept, others = frame.where(number != 7), frame.where(number == 8)
    return kept.union(others)


@pytest.mark.parametrize("trouble", [losing, doubling, exchanging])
def test_rows_that_spark_loses_or_doubles_between_two_stages_fail_the_run(
    trouble: Callable[[DataFrame], DataFrame],
    cluster: SparkSession,
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = _Execution._rows

    def rows(self: _Execution, number: int, head: ReadRows) -> DataFrame:
        return trouble(before(self, number, head))

    monkeypatch.setattr(_Execution, "_rows", rows)
    flow = Dataflow("broken")
    counts = events(flow, inputs).key_by("key", "value").aggregate("counts", {"rows": Count()})
    counts.sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(EnvironmentFailure, match=r"'counts → out' was to read 2000 rows .* No output is committed"):
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert rows_in(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["union with several readers", "connect", "connect without keys"])
def test_a_row_that_is_doubled_on_the_way_into_a_union_or_a_step_with_two_streams_fails_the_run(
    name: str, cluster: SparkSession, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a stage reads one of several outputs of another stage."""
    before = _Execution._rows
    broken: list[int] = []

    def rows(self: _Execution, number: int, head: ReadRows) -> DataFrame:
        broken.append(number)
        frame = before(self, number, head)
        return doubling(frame) if number == max(broken) else frame

    monkeypatch.setattr(_Execution, "_rows", rows)
    with pytest.raises(EnvironmentFailure, match=r"was to read \d+ rows of earlier stages, and read \d+ rows"):
        run_batch(flow_of(name, inputs, tmp_path / "out"), parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert rows_in(tmp_path / "out") == []


def test_a_build_side_that_loses_rows_fails_the_run(
    cluster: SparkSession, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _Execution._broadcast_build

    def broadcast(self: _Execution, number: int, tail: object) -> object:
        self.frames[number] = self.frames[number].limit(3)
        return before(self, number, tail)  # type: ignore[arg-type]

    monkeypatch.setattr(_Execution, "_broadcast_build", broadcast)
    flow = Dataflow("broken")
    joined(events(flow, inputs), inputs).sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(EnvironmentFailure, match=r"the broadcast of names.* read 3 rows"):
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert rows_in(tmp_path / "out") == []
