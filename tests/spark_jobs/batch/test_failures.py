"""A batch run whose tasks fail: Spark tries them again, the output stays exact, a failed run leaves nothing visible."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import weir
from runtime.connectors.formats import CsvFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.ids import Token
from runtime.dataflow.builder import Dataflow
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, OperatorFailure, WeirError
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Sum
from spark_jobs.batch import run as running
from spark_jobs.batch.execute import execute
from spark_jobs.batch.failures import TaskError, TaskFailure, call_hook, errors_for_spark, typed_task_errors
from spark_jobs.batch.run import BatchRun, plan_batch, run_batch
from tests.spark_jobs.batch.flows import (
    EVENTS,
    FILES,
    KEYS,
    MINUTE,
    NUMBERED,
    ROWS_PER_FILE,
    SESSIONS,
    Positive,
    Sessions,
    events,
    rows_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

Step = Callable[[pa.RecordBatch], pa.RecordBatch]


def _first_in(marks: Path) -> bool:
    """True for the first process that asks."""
    try:
        marks.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def raises_once(marks: Path) -> Step:
    driver = os.getpid()

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.getpid() != driver and _first_in(marks):
            raise ValueError("once")
        return batch

    return step


def dies_once(marks: Path) -> Step:
    driver = os.getpid()

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.getpid() != driver and _first_in(marks):
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return step


def always_raises() -> Step:
    driver = os.getpid()

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if os.getpid() != driver:
            raise KeyError("no such airport")
        return batch

    return step


def flow_with(before: Step, behind: Step, inputs: Path, output: Path) -> Dataflow:
    """Trouble before the shuffle, and between the shuffle and the sink."""
    flow = Dataflow("trouble")
    rows = events(flow, inputs).map_batches("before", before).key_by("key")
    sums = rows.aggregate("sums", {"rows": Count(), "total": Sum("value")})
    sums.map_batches("behind", behind).sink("out", ParquetSink(str(output)))
    return flow


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.fixture(scope="module")
def expected(cluster: SparkSession, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("expected")
    run_batch(flow_with(same, same, inputs, root / "out"), parallelism=2, spark=cluster, storage=str(root / "end"))
    return rows_in(root / "out")


@pytest.mark.parametrize("trouble", [raises_once, dies_once])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_task_that_fails_once_is_tried_again_and_the_output_is_exact(
    trouble: Callable[[Path], Step],
    place: str,
    cluster: SparkSession,
    inputs: Path,
    expected: list[str],
    tmp_path: Path,
) -> None:
    """An exception, and a SIGKILL of the executor's Python worker, before the shuffle and between it and the sink."""
    step = trouble(tmp_path / "mark")
    before, behind = (step, same) if place == "before" else (same, step)
    job = flow_with(before, behind, inputs, tmp_path / "out")
    run_batch(job, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert (tmp_path / "mark").exists()
    assert rows_in(tmp_path / "out") == expected
    assert not list((tmp_path / "out").glob(".weir-*"))


def test_a_task_that_runs_again_repeats_its_requests(cluster: SparkSession, inputs: Path, tmp_path: Path) -> None:
    """The output is exact, as after a restart in STREAMING."""
    mark, requests = tmp_path / "mark", tmp_path / "requests"

    async def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
        with requests.open("a") as file:
            file.write(".")
        if row["value"] > 800 and _first_in(mark):
            raise ValueError("once")
        return [row]

    flow = Dataflow("requests")
    answers = events(flow, inputs).async_map("ask", ask, EVENTS, capacity=10, parallelism=1)
    answers.key_by("key").aggregate("sums", {"rows": Count()}).sink("out", ParquetSink(str(tmp_path / "out")))
    run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert mark.exists()
    assert requests.stat().st_size > FILES * ROWS_PER_FILE
    files = (tmp_path / "out").glob("*.parquet")
    counts = {row["key"]: row["rows"] for path in files for row in pq.read_table(path).to_pylist()}
    assert (len(counts), sum(counts.values())) == (KEYS, FILES * ROWS_PER_FILE)


def test_a_run_that_fails_leaves_nothing_visible_and_names_the_operator(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """One sink has written all its rows when the other one's tasks have failed four times."""
    flow = Dataflow("two-sinks")
    rows = events(flow, inputs)
    rows.sink("first", ParquetSink(str(tmp_path / "first")))
    broken = rows.map_batches("broken", always_raises())
    broken.sink("second", ParquetSink(str(tmp_path / "second")))
    raised = r"operator 'broken', subtask \d, in process: KeyError: 'no such airport' \(in test_failures.py, line \d+\)"
    with pytest.raises(TaskFailure, match=raised) as failure:
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert failure.value.operator == "broken"
    assert list((tmp_path / "first").iterdir()) == []
    assert list((tmp_path / "second").iterdir()) == []
    assert not list((tmp_path / "end").glob("savepoint-*"))


def far_away(rows: pa.RecordBatch, subtasks: int) -> list[int]:
    return [subtasks] * rows.num_rows


ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms")), ("value", pa.int64())])
BAD_ROWS = {
    "a number": "k,2024-02-28 00:00:00,many\n",
    "no time": "k,,1\n",
    "large values": f"k,2024-02-28 00:00:00,{2**62}\n" * 3,
    "a long key": f"{'k' * 300},2024-02-28 00:00:00,1\n",
}
#: Bad row, steps behind the source, and the operator at fault with the message.
FAULTS: dict[str, tuple[str, Callable[[weir.Stream], weir.Stream], str, str]] = {
    "source": ("a number", lambda rows: rows, "rows", r"bad\.csv.*value"),
    "expression": (
        "a long key",
        lambda rows: rows.with_columns("numbers", number=pc.field("key").cast(pa.int64())),
        "numbers",
        "a value cannot be computed",
    ),
    "pre-aggregation": (
        "no time",
        lambda rows: rows.key_by("key").window("minutes", MINUTE, "at", {"n": Count()}),
        "minutes",
        "the event time in column 'at' is null",
    ),
    "keyed step": (
        "large values",
        lambda rows: rows.key_by("key").aggregate("sums", {"sum": Sum("value")}),
        "sums",
        "the sum 'sum' exceeds the range of a 64-bit integer",
    ),
    "order by time": (
        "no time",
        lambda rows: rows.key_by("key").process("sessions", Sessions, SESSIONS, time="at"),
        "sessions",
        "the event time in column 'at' is null",
    ),
    "partitioner": (
        "no time",
        lambda rows: rows.partition_custom(far_away, "key").process("positive", Positive, NUMBERED),
        "positive",
        "the partitioner before operator 'positive'",
    ),
    "sink": ("a long key", lambda rows: rows, "out", "partition_by: column 'key'"),
}


@pytest.mark.parametrize("place", FAULTS)
def test_a_row_that_cannot_be_taken_fails_the_run_and_the_operator_is_named(
    place: str, cluster: SparkSession, tmp_path: Path
) -> None:
    """As in STREAMING, whichever task meets the row: that of the source, or one behind a shuffle."""
    row, steps, operator, message = FAULTS[place]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.csv").write_text("key,at,value\n" + BAD_ROWS[row])
    flow = Dataflow("bad")
    rows = flow.source("rows", DirectorySource(str(tmp_path / "in"), CsvFormat(ROWS), bounded=True))
    sink = ParquetSink(str(tmp_path / "out"), partition_by=("key",) if place == "sink" else ())
    steps(rows).sink("out", sink)
    with pytest.raises(TaskFailure, match=message) as failure:
        run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    assert failure.value.operator == operator
    assert f"operator {operator!r}" in str(failure.value)
    assert isinstance(failure.value, DataRejected) is (place != "partitioner")
    assert rows_in(tmp_path / "out") == []


def test_a_folder_that_cannot_be_written_is_named_with_its_sink(cluster: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    flow = Dataflow("bad")
    flow.source("numbers", weir.SequenceSource(rows=10)).sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(JobRejected, match="is not a folder") as refusal:
        run_batch(flow, parallelism=1, spark=cluster, storage=str(tmp_path / "end"))
    assert (refusal.value.code, refusal.value.field) == ("bad-path", "out")


def test_a_commit_that_is_cut_off_is_finished_from_the_record(
    cluster: SparkSession, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is recorded before anything is visible: whoever finds it commits it, and runs nothing again."""
    flow = Dataflow("two-sinks")
    rows = events(flow, inputs)
    for name in ("first", "second"):
        rows.sink(name, ParquetSink(str(tmp_path / name)))
    job = flow.compile(2)
    records, store = MemoryRunStore(token=Token(1)), FileStore(str(tmp_path / "end"))
    first = BatchRun(job=job, job_id="j", token=Token(1), records=records, store=store)
    committers = {uid: sink.committer() for uid, sink in job.sinks.items()}

    def cut_off(*_: object) -> int:
        raise EnvironmentFailure("the process is gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(committers["second"]), "commit", cut_off)  # type: ignore[index]
        with pytest.raises(EnvironmentFailure, match="the process is gone"):
            first.run(plan_batch(job), cluster)
    assert rows_in(tmp_path / "first") == rows_in(tmp_path / "second") == []
    second = BatchRun(job=job, job_id="j", token=Token(2), records=records, store=store)
    with monkeypatch.context() as patch:
        patch.setattr(running, "execute", cut_off)
        second.run(plan_batch(job), cluster)
    assert len(rows_in(tmp_path / "first")) == FILES * ROWS_PER_FILE
    assert rows_in(tmp_path / "first") == rows_in(tmp_path / "second")
    assert not [path for name in ("first", "second") for path in (tmp_path / name).glob(".weir-*")]


def test_two_tries_of_a_task_that_both_write_are_committed_once(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """What an execution that was given up has prepared is removed, and what the later one has prepared is shown."""
    job = flow_with(same, same, inputs, tmp_path / "out").compile(2)
    run = BatchRun(
        job=job,
        job_id="j",
        token=Token(1),
        records=MemoryRunStore(token=Token(1)),
        store=FileStore(str(tmp_path / "s")),
    )
    given_up = execute(cluster, plan_batch(job).stages, run.job_facts, run.group)
    assert sum(each.rows for each in given_up) == KEYS
    assert list((tmp_path / "out").glob(".weir-*.pending"))
    assert rows_in(tmp_path / "out") == []
    run.run(plan_batch(job), cluster)
    assert len(rows_in(tmp_path / "out")) == KEYS
    assert not list((tmp_path / "out").glob(".weir-*"))


def test_an_exit_and_a_name_that_cannot_be_encoded_keep_the_operator() -> None:
    """Threads ignore `SystemExit`: the run would end as if all were done. JSON refuses half of a surrogate pair."""
    with pytest.raises(OperatorFailure, match="words"):
        call_hook("words", 0, "process", sys.exit, 1)
    with pytest.raises(TaskError, match="words") as failure, errors_for_spark():
        raise TaskFailure("words", "file \udce9.csv")
    assert failure.value.__cause__ is None
    with pytest.raises(WeirError, match=r"TaskError: \[1, 2\]"), typed_task_errors():
        raise ValueError("TaskError: [1, 2]")
