"""One program over bounded and unbounded input, record by record, while its source goes on."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.lifecycle import RunState
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import FinishedState, Manifest
from runtime.dataflow.builder import Dataflow
from runtime.launch.spark import SparkLauncher
from runtime.operators.aggregates import Count, Sum
from tests.jobs.conftest import Jobs
from tests.jobs.live import run_to_end
from tests.jobs.numbers import Numbers, NumbersReader, committed, counts, expected_counts, final_counts
from tests.shared import Notes

ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)


def updates(output: Path) -> dict[int, list[tuple[int, int]]]:
    """The series of results of each key, in the order in which they were put out (one subtask writes)."""
    updates: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in committed(output):
        updates[row["key"]].append((row["n"], row["total"]))
    return {key: sorted(series) for key, series in updates.items()}


def test_one_program_reads_bounded_and_unbounded_input(tmp_path: Path, jobs: Jobs) -> None:
    """S0-01, S0-23: the same flow, the same results, by checkpoints in both; the author does nothing for it."""
    bounded, unbounded = (Numbers(total=2_000, batch=5, unbounded=endless) for endless in (False, True))
    records = jobs.run_to_end(counts(bounded, tmp_path / "bounded").compile(1), tmp_path / "b")
    with jobs.running(counts(unbounded, tmp_path / "unbounded").compile(1), tmp_path / "u") as run:
        run.wait_for(lambda: final_counts(tmp_path / "unbounded") == expected_counts(unbounded))
        run.end("stop")
    assert updates(tmp_path / "bounded") == updates(tmp_path / "unbounded")
    assert final_counts(tmp_path / "bounded") == expected_counts(bounded)
    assert records.state is RunState.FINISHED
    assert len(records.completed) > 1, "checkpoints were taken on the way, not only at the end"
    assert records.completed[-1].manifest.finished_operators() == ("numbers", "counts", "out")
    assert {o.finished for m in run.manifests for o in m.operators.values()} == {FinishedState.RUNNING}


@pytest.mark.parametrize("batch", [1, 10, 50])
def test_results_follow_the_arrival_of_records_one_by_one(tmp_path: Path, jobs: Jobs, batch: int) -> None:
    """S0-02: each record updates the state of its key, and results leave in the order of arrival.

    Of the records of one key in one batch only the last one's result leaves. Keys come in no order.
    """
    source = Numbers(total=150, splits=3, batch=batch)
    arrived = Notes()

    def note(rows: pa.RecordBatch) -> pa.RecordBatch:
        arrived.add([(row["key"], row["value"]) for row in rows.to_pylist()])
        return rows

    flow = Dataflow("one by one")
    numbers = flow.source("numbers", source).map_batches("arrival", note)
    counted = numbers.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
    counted.sink("out", ParquetSink(str(tmp_path / "out")))
    jobs.run_to_end(flow.compile(1), tmp_path / "state", settings=CoordinatorSettings(interval_ms=None))
    state: dict[int, tuple[int, int]] = {}
    expected: list[set[tuple[int, int, int]]] = []
    for rows in arrived.values:
        for key, value in rows:
            n, total = state.get(key, (0, 0))
            state[key] = (n + 1, total + value)
        expected.append({(key, *state[key]) for key, _ in rows})
    results = iter((row["key"], row["n"], row["total"]) for row in committed(tmp_path / "out"))
    assert [{next(results) for _ in each} for each in expected] == expected
    assert next(results, None) is None
    assert state == expected_counts(source)
    assert len(arrived.values) == 3 * -(-150 // batch)


@pytest.mark.spark
@pytest.mark.slow
def test_bounded_input_in_streaming_mode_gives_what_a_batch_of_spark_gives(
    tmp_path: Path, spark_launcher: SparkLauncher
) -> None:
    """S0-06: all sources are bounded, the barrier runtime runs them, and its checkpoints are listed."""
    source = Numbers(total=2_000, batch=20, keys=50)
    job = counts(source, tmp_path / "out").compile(2)
    records = run_to_end(job, tmp_path / "state", launcher=spark_launcher)
    assert len(records.completed) > 1, "on the way, not only at the end"
    session = SparkSession.builder.getOrCreate()
    rows = [(value * 31 + split) % source.keys for split in range(source.splits) for value in range(source.total)]
    values = [value for _ in range(source.splits) for value in range(source.total)]
    frame = session.createDataFrame(list(zip(rows, values, strict=True)), "key long, value long")
    answer = frame.groupBy("key").agg(count("*").alias("n"), sum_("value").alias("total")).collect()
    assert final_counts(tmp_path / "out") == {row["key"]: (row["n"], row["total"]) for row in answer}


def _held_open(manifest: Manifest) -> dict[str, Any]:
    """All that a manifest holds of its operators but paths, checksums and sizes."""
    return {
        uid: (
            operator.finished,
            operator.parallelism,
            {
                index: (s.finished, s.watermark, {name: len(parts) for name, parts in s.keyed.items()}, s.lists)
                for index, s in operator.subtasks.items()
            },
        )
        for uid, operator in manifest.operators.items()
    }


def test_while_nothing_has_finished_a_bounded_source_makes_no_difference_to_a_manifest(
    tmp_path: Path, jobs: Jobs
) -> None:
    """S0-52: class 3. Whether sources are bounded shows only once one of them has ended."""
    states = []
    for unbounded in (False, True):
        let = tmp_path / f"let-{unbounded}"
        source = Slowed(total=40, unbounded=unbounded, let=let)
        with jobs.running(
            counts(source, tmp_path / f"out-{unbounded}").compile(2), tmp_path / f"state-{unbounded}", settings=ASKED
        ) as run:
            run.wait_for(lambda: run.operator("numbers").get("records_out") == 4 * 40)
            run.ask("checkpoint")
            run.wait_for(lambda: run.manifests)
            states.append(_held_open(run.manifests[0]))
            let.touch()
            run.end("cancel")
    assert {finished for finished, _, _ in states[0].values()} == {FinishedState.RUNNING}
    assert states[0] == states[1]


@dataclass(frozen=True)
class Slowed(Numbers):
    """Bounded or not, none of its subtasks ends before the file `let` is there."""

    let: Path = Path()

    def reader(self) -> "SlowedReader":
        return SlowedReader(self)


class SlowedReader(NumbersReader):
    def __init__(self, source: Slowed) -> None:
        super().__init__(source)
        self._let = source.let

    @property
    def exhausted(self) -> bool:
        return super().exhausted and self._let.exists()


def test_records_reach_the_sink_before_the_source_has_ended(tmp_path: Path, jobs: Jobs) -> None:
    """S4-06: data is pipelined along the edges."""
    source = Numbers(total=500, batch=10, unbounded=True)
    with jobs.running(counts(source, tmp_path / "out").compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: committed(tmp_path / "out"))
        run.wait_for(lambda: run.operator("out").get("records_in", 0) > 0)
        run.wait_for(lambda: run.operator("numbers")["state"] == "running")  # as the heartbeats of all slots have it
        assert not run.manifests[-1].finished_operators()
