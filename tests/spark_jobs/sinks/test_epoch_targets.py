"""Epochs of a sink in Postgres and in a Parquet table: each once, whatever dies; types; what is refused."""

import datetime as dt
import decimal
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.postgres.columns import TableColumn, check_columns
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import JobRejected, TargetAway
from spark_jobs.sinks.delivery import Delivery, DeliveryProgress, FunctionFailed
from spark_jobs.sinks.parquet_table import ParquetTable
from spark_jobs.sinks.postgres_table import PostgresTable
from spark_jobs.sinks.targets import DeliveredEpoch
from spark_jobs.stages.deliver import _reporter
from tests.contracts.test_sinks import context
from tests.spark_jobs.conftest import ROOT
from tests.spark_jobs.sinks.deliver_program import STEPS

# ---------------------------------------------------------------- without Spark


def frame_of(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema(list(kinds.items()))


TABLE = [
    TableColumn("id", "int8", True),
    TableColumn("text", "varchar", False),
    TableColumn("at", "timestamptz", False),
]


@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        (frame_of(id=pa.int64(), other=pa.int64()), "unknown-column", "other"),
        (frame_of(text=pa.string()), "missing-column", "id"),
        (frame_of(id=pa.string()), "type-differs", "id"),
        (frame_of(id=pa.int64(), at=pa.timestamp("us")), "type-differs", "at"),
        (frame_of(id=pa.list_(pa.int64())), "type-differs", "id"),
        (frame_of(ID=pa.int64()), "unknown-column", "ID"),
    ],
)
def test_columns_that_do_not_fit_are_named(frame: pa.Schema, code: str, field: str) -> None:
    with pytest.raises(JobRejected, match="the table t") as error:
        check_columns("t", TABLE, frame)
    assert (error.value.code, error.value.field) == (code, field)


def test_columns_that_fit() -> None:
    check_columns("t", TABLE, frame_of(id=pa.int64(), text=pa.string(), at=pa.timestamp("us", "UTC")))
    check_columns("t", TABLE, frame_of(id=pa.int32()))


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (EpochStage(None), "bad-function"),
        (EpochStage(print, max_backlog=0), "bad-backlog"),
        (EpochStage(print), "no-stage"),
        (EpochStage(PostgresTable("postgresql://h/d", "a.b.c"), is_bound=True), "bad-table"),
        (EpochStage(PostgresTable("no address", "a"), is_bound=True), "bad-url"),
        (EpochStage(ParquetTable(""), is_bound=True), "bad-path"),
    ],
)
def test_a_sink_with_bad_settings_is_refused(stage: EpochStage, code: str) -> None:
    with pytest.raises(JobRejected) as error:
        stage.check()
    assert error.value.code == code


def test_a_slot_gets_neither_the_function_nor_its_password() -> None:
    from pyspark import cloudpickle

    stage = EpochStage(PostgresTable("postgresql://user:hidden@h/d", "t"), folder="/x", is_bound=True)
    assert stage.guarantee == "exactly-once"
    data = cloudpickle.dumps(stage)  # type: ignore[no-untyped-call]
    assert b"hidden" not in data
    assert cloudpickle.loads(data).guarantee == "exactly-once"
    assert "hidden" not in repr(stage)
    assert EpochStage(print).guarantee == "at-least-once"


@pytest.mark.parametrize("target", [PostgresTable("postgresql://h/d", "words"), ParquetTable("/data/words")])
def test_a_second_write_of_an_epoch_is_refused_instead_of_skipped(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be lost without a word: to the target it looks like a repeat after a crash."""
    monkeypatch.setattr(type(target), "_write", lambda *_: True)
    epoch = DeliveredEpoch("a", 1, "7", "out", 1, 4)
    assert target.write(None, epoch)
    with pytest.raises(JobRejected, match=r"writes into .*words twice in an epoch") as error:
        target.write(None, epoch)
    assert error.value.code == "written-twice"
    assert target.write(None, replace(epoch)), "another call of the function"


def test_a_write_that_failed_may_be_tried_again() -> None:
    epoch = DeliveredEpoch("a", 1, "7", "out", 1, 4)

    def fail() -> None:
        with epoch.written_once("words"):
            raise TargetAway("gone")

    with pytest.raises(TargetAway):
        fail()
    with epoch.written_once("words"):
        pass


def test_the_page_tells_the_epoch_under_way_and_why_sources_wait() -> None:
    standing: Any = SimpleNamespace(
        report=lambda figures, *, steps: reports.append({f.label: f.value for f in figures})
    )
    reports: list[dict[str, Any]] = []
    report = _reporter(standing, 3)
    report(DeliveryProgress(backlog=3, under_way=7))
    report(DeliveryProgress(backlog=4, last=7))
    assert (reports[0]["Epoch under way"], reports[0].get("Back-pressure")) == (7, None)
    assert reports[1]["Back-pressure"] == "sources are paused: 4 epochs wait, and max_backlog is 3"


# ---------------------------------------------------------------- on Spark and Postgres


def commit_epoch(folder: Path, number: int, batch: pa.RecordBatch, subtasks: int = 2) -> None:
    """As the slots of an attempt and their master do."""
    stage = EpochStage(print, folder=str(folder), is_bound=True)
    committables: list[Any] = []
    for index in range(subtasks):
        writer = stage.writer()
        writer.open(context("7", number, "out", index))
        part = batch.slice(index * batch.num_rows // subtasks, batch.num_rows // subtasks)
        writer.write(part)
        committables += writer.prepare(number)
    stage.committer().commit_epoch(CommitPermit("7", Token(number), CheckpointId(number), Token(number)), committables)


def numbers(first: int, count: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + count), pa.int64())})


@pytest.fixture
def database(database_url: str) -> Iterator[Callable[..., list[Any]]]:
    """Executes SQL in a schema of its own."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def execute(query: Any, *values: Any) -> list[Any]:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

        yield execute


@pytest.fixture
def table(database: Callable[..., list[Any]]) -> Iterator[str]:
    schema = f"epochs_{uuid4().hex[:8]}"
    database(f"CREATE SCHEMA {schema}")
    yield f"{schema}.target"
    database(f"DROP SCHEMA {schema} CASCADE")


def run(folder: Path, spark: SparkSession, function: Any) -> list[DeliveryProgress]:
    """Delivers all that waits."""
    reports: list[DeliveryProgress] = []
    delivery = Delivery(EpochStage(function, folder=str(folder), is_bound=True), spark, reports.append)
    while delivery.deliver_next(threading.Event()):
        pass
    return reports


def delivered(folder: Path) -> int:
    return CommitLog(folder).delivered_epoch("7", "out")


def test_an_epoch_is_written_once_whatever_the_spelling_of_its_table(
    database: Any, database_url: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch may be written but not released when the job is changed to spell its table with its schema."""
    schema = table.split(".", maxsplit=1)[0]
    database(f"CREATE TABLE {table} (n int8)")
    monkeypatch.setattr(PostgresTable, "_check", lambda *_: ["n"])  # these two steps run in Spark
    monkeypatch.setattr(PostgresTable, "_stage", lambda *_: {})
    url = psycopg.conninfo.make_conninfo(database_url, options=f"-csearch_path={schema}")
    frame, epoch = SimpleNamespace(columns=["n"]), DeliveredEpoch("a", 1, "7", "out", 1, 4)
    short, long = PostgresTable(url, "target"), PostgresTable(url, table)
    assert short.write(frame, epoch)  # type: ignore[arg-type]
    assert not long.write(frame, replace(epoch))  # type: ignore[arg-type]
    assert not short.write(frame, replace(epoch))  # type: ignore[arg-type]
    assert long.write(frame, replace(epoch, number=2))  # type: ignore[arg-type]
    assert not short.write(frame, replace(epoch, number=2))  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="twice in an epoch"):
        short.write(frame, epoch)  # type: ignore[arg-type]
    third = replace(epoch, number=3)
    assert short.write(frame, third)  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="twice in an epoch"):
        long.write(frame, third)  # type: ignore[arg-type]


def test_a_table_that_is_missing_is_named_before_the_first_epoch(
    tmp_path: Path, database: Any, database_url: str, table: str
) -> None:
    target = PostgresTable(database_url, table)
    stopping, reports = threading.Event(), list[DeliveryProgress]()
    stage = EpochStage(target, folder=str(tmp_path), is_bound=True)
    with pytest.raises(JobRejected, match=f"there is no table {table}"):
        Delivery(stage, SimpleNamespace(), reports.append).run(stopping)  # type: ignore[arg-type]

    database(f"CREATE TABLE {table} (n int8)")
    stopping.set()
    Delivery(stage, SimpleNamespace(), reports.append).run(stopping)  # type: ignore[arg-type]
    assert not any(progress.away for progress in reports)


def test_a_target_that_is_away_is_waited_for_before_the_first_epoch(tmp_path: Path) -> None:
    stopping = threading.Event()
    target = PostgresTable("postgresql://weir@127.0.0.1:1/weir", "t")

    def report(progress: DeliveryProgress) -> None:
        if progress.away:
            stopping.set()

    Delivery(EpochStage(target, folder=str(tmp_path), is_bound=True), SimpleNamespace(), report).run(stopping)  # type: ignore[arg-type]
    assert stopping.is_set()


def test_jobs_that_make_the_table_of_epochs_at_once(database: Any, database_url: str, table: str) -> None:
    database(f"CREATE TABLE {table} (n int8)")
    schema = table.partition(".")[0]
    for _ in range(5):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: PostgresTable(database_url, table).prepare(), range(8)))
        database(f"DROP TABLE {schema}.weir_epochs")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_function_gets_each_epoch_once_in_order_and_releases_it(spark: SparkSession, tmp_path: Path) -> None:
    folder, epochs = tmp_path / "epochs [1]", list[Any]()
    for number in (1, 2, 3):
        commit_epoch(folder, number, numbers(number * 10))

    def function(session: SparkSession, frame: Any, epoch: DeliveredEpoch) -> None:
        assert session is spark
        epochs.append((epoch.number, epoch.checkpoint, epoch.rows, sorted(row.n for row in frame.collect())))

    reports = run(folder, spark, function)
    assert epochs == [(n, n, 10, [*range(n * 10, n * 10 + 10)]) for n in (1, 2, 3)]
    assert (reports[-1].last, reports[-1].delivered, reports[-1].rows) == (3, 3, 10)
    assert {progress.backlog for progress in reports} == {0, 1, 2, 3}
    assert not list(folder.glob("part-*"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_function_that_raises_is_named_with_its_epoch_and_gets_it_again(spark: SparkSession, tmp_path: Path) -> None:
    commit_epoch(tmp_path / "epochs", 1, numbers(0))

    def raising(session: Any, frame: Any, epoch: Any) -> None:
        raise KeyError("no such key")

    with pytest.raises(FunctionFailed, match="epoch 1: KeyError: 'no such key'"):
        run(tmp_path / "epochs", spark, raising)
    assert delivered(tmp_path / "epochs") == 0
    counts: list[int] = []
    run(tmp_path / "epochs", spark, lambda session, frame, epoch: counts.append(frame.count()))
    assert counts == [10]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_postgres_gets_every_type_and_each_epoch_once(
    spark: SparkSession, tmp_path: Path, database: Any, database_url: str, table: str
) -> None:
    database(
        f"CREATE TABLE {table} (b bool, i2 int2, i8 int8, f8 float8, d numeric(10,2), s text, x bytea, day date, "
        "at timestamp, tz timestamptz, other int DEFAULT 5)"
    )
    rows: dict[str, Any] = {
        "b": [True, None], "i2": pa.array([-1, None], pa.int16()), "i8": [2**62, None], "f8": [0.1, float("nan")],
        "d": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)), "s": ['a "q", \n \\. ü', ""],
        "x": [b"\x00\xff", None], "day": [dt.date(2026, 1, 2), None],
        "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5), None], pa.timestamp("ms")),  # noqa: DTZ001
        "tz": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC), None], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    commit_epoch(tmp_path / "epochs", 1, pa.RecordBatch.from_pydict(rows))
    target, epochs = PostgresTable(database_url, table), list[DeliveredEpoch]()

    def twice(session: Any, frame: Any, epoch: DeliveredEpoch) -> None:
        epochs.append(epoch)
        assert [target.write(frame, epoch), target.write(frame, replace(epoch))] == [True, False]

    run(tmp_path / "epochs", spark, twice)
    first, second = database(f"SELECT * FROM {table} ORDER BY i8 NULLS LAST")
    assert first[:6] == (True, -1, 2**62, 0.1, decimal.Decimal("1.25"), 'a "q", \n \\. ü')
    assert (first[6], first[7], first[10]) == (b"\x00\xff", dt.date(2026, 1, 2), 5)
    assert first[8] == dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001
    assert first[9] == dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)
    assert (second[0], second[5], second[6]) == (None, "", None)
    assert str(second[3]) == "nan"
    schema = table.split(".", maxsplit=1)[0]
    recorded = database(f"SELECT source, target, epoch, job, sink, checkpoint, rows FROM {schema}.weir_epochs")
    assert recorded == [(epochs[0].source, table, 1, "7", "out", 1, 2)]
    assert not database("SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'weir_staging%%'", schema)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_postgres_cannot_take_is_named_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, database: Any, database_url: str, table: str
) -> None:
    commit_epoch(tmp_path / "epochs", 1, pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["abc", "a\0c"]}))
    target = PostgresTable(database_url, table)

    def refused(kind: type[Exception], match: str) -> Any:
        with pytest.raises(kind, match=match) as error:
            run(tmp_path / "epochs", spark, target)
        return getattr(error.value, "code", None)

    assert refused(JobRejected, f"there is no table {table}") == "missing-table"
    database(f"CREATE TABLE {table} (n int8, s varchar(2))")
    refused(FunctionFailed, "DataRejected: .*target: (value too long|invalid byte sequence)")
    database(f"DROP TABLE {table}; CREATE TABLE {table} (n int8)")
    assert refused(JobRejected, "has no column 's', only n") == "unknown-column"
    database(f"DROP TABLE {table}; CREATE TABLE {table} (n int8 CHECK (n < 2), s text)")
    commit_epoch(tmp_path / "epochs2", 1, pa.RecordBatch.from_pydict({"n": [1, 2], "s": ["abc", "ac"]}))
    with pytest.raises(FunctionFailed, match="CheckViolation"):
        run(tmp_path / "epochs2", spark, target)
    assert database(f"SELECT count(*) FROM {table}") == [(0,)]
    assert delivered(tmp_path / "epochs") == 0
    away = PostgresTable("postgresql://weir@127.0.0.1:1/weir", "t")
    with pytest.raises(TargetAway, match="refused"):
        away.write(spark.range(1), DeliveredEpoch("x", 1, "7", "out", 1, 1))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_parquet_table_takes_each_epoch_once_and_only_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    table, path = ParquetTable(str(tmp_path / "table")), tmp_path / "table"
    epochs = [DeliveredEpoch(source, number, "7", "out", number, 4) for source in ("a", "b") for number in (1, 2)]
    for epoch in epochs:
        frame = spark.range(4)
        assert [table.write(frame, epoch), table.write(frame, replace(epoch))] == [True, False]
    assert spark.read.format("weir-output").load(str(path)).count() == 16, "another source has epochs of its own"
    assert spark.read.parquet(str(path)).count() == 16
    selection = spark.read.format("weir-output").option("sink", "out.b").option("from_epoch", 2).load(str(path))
    assert selection.count() == 4
    other = DeliveredEpoch("a", 3, "7", "out", 3, 4)
    with pytest.raises(JobRejected, match="has other columns than the DataFrame") as error:
        table.write(spark.range(4).withColumnRenamed("id", "other"), other)
    assert error.value.code == "schema-differs"
    assert spark.read.parquet(str(path)).count() == 16
    assert table.write(spark.range(0), other)
    assert not [entry.name for entry in path.iterdir() if entry.name.startswith(".weir")]


# ---------------------------------------------------------------- SIGKILL


def program(spark: SparkSession, *arguments: str) -> int:
    """The process dies; the JVM in which it works is that of the test, so it goes on with what was asked of it."""
    command = [sys.executable, "-m", "tests.spark_jobs.sinks.deliver_program", *arguments]
    gateway: Any = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    jvm = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.auth_token}
    environment = os.environ | jvm | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=400, check=False, capture_output=True, text=True
    )
    assert process.returncode in (0, -signal.SIGKILL), process.stderr[-3_000:]
    return process.returncode


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_stage_that_is_killed_at_each_step_leaves_both_targets_exact(
    spark: SparkSession, tmp_path: Path, database: Any, database_url: str, table: str
) -> None:
    """Each process dies at the next step, with the next epoch; the one after the last delivers the rest."""
    database(f"CREATE TABLE {table} (n int8)")
    folder, parquet = tmp_path / "epochs", tmp_path / "table"
    places = (str(folder), database_url, table, str(parquet))
    for number in range(1, len(STEPS) + 1):
        commit_epoch(folder, number, numbers(number * 100))
    for number, step in enumerate(STEPS, 1):
        assert program(spark, *places, step, str(number)) == -signal.SIGKILL, step
    assert program(spark, *places) == 0
    expected = sorted(n for number in range(1, len(STEPS) + 1) for n in range(number * 100, number * 100 + 10))
    assert [n for (n,) in database(f"SELECT n FROM {table} ORDER BY n")] == expected
    assert sorted(n for file in parquet.glob("part-*") for n in pq.read_table(file)["n"].to_pylist()) == expected
    log = CommitLog(parquet)
    ((job, sink),) = log.sinks()
    logged = [file.name for epoch in log.epochs(job, sink) for file in epoch.files]
    assert sorted(logged) == sorted(file.name for file in parquet.glob("part-*"))
    assert not list(folder.glob("part-*"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_without_the_recorded_epoch_rows_double(
    spark: SparkSession, tmp_path: Path, database: Any, database_url: str, table: str
) -> None:
    """What the test before would see if the target forgot its epochs."""
    database(f"CREATE TABLE {table} (n int8)")
    commit_epoch(tmp_path / "epochs", 1, numbers(100))
    places = (str(tmp_path / "epochs"), database_url, table, str(tmp_path / "table"), "--forgetful")
    assert program(spark, *places, "postgres: committed", "1") == -signal.SIGKILL
    assert program(spark, *places) == 0
    assert database(f"SELECT count(*), count(DISTINCT n) FROM {table}") == [(20, 10)]
