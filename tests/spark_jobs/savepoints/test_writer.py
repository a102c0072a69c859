"""Savepoints written by Spark, and what jobs restored from them give out."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from runtime.clock import SystemClock
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import Token
from runtime.core.restore.mapping import OperatorMatch
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest
from runtime.dataflow.builder import Dataflow
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import newest_ids, run_local
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import ProcessContext
from spark_jobs.savepoints import writer as writer_module
from spark_jobs.session import SparkSettings, spark_session
from spark_jobs.state.rows import find_state, open_checkpoint
from tests.jobs.live import running
from tests.spark import ROOT
from tests.spark_jobs.visits import VISITS, Remember, flow, outputs, put, visits
from weir import SavepointWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]
HISTORY, ALL = 1_500, 2_500
OPERATORS = ("seen", "totals", "hourly", "sliding")
SUBTASKS = 5
KEY = "k" * 32


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    settings = SparkSettings(
        app_name="savepoints",
        master="local-cluster[2,1,1024]",
        shuffle_partitions=2,
        extra={
            "spark.authenticate": "false",  # an earlier local session leaves it in the JVM
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.task.maxFailures": "4",
        },
    )
    with spark_session(settings) as session:
        yield session


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    """In several partitions and no order."""
    rows = spark.createDataFrame(visits(0, HISTORY))
    return rows.orderBy("page", "user").repartition(3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job that has processed everything itself."""
    folder = tmp_path_factory.mktemp("whole")
    put(folder, visits(0, ALL))
    run_local(flow(folder), parallelism=2, storage=str(folder / "storage"))
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that was stopped after half of the visits, and its savepoint, in `savepoint`."""
    folder = tmp_path_factory.mktemp("stopped")
    put(folder, visits(0, HISTORY))
    with running(flow(folder, bounded=False).compile(2), folder / "storage") as run:
        run.wait_for(lambda: all(run.operator(uid).get("records_in", 0) for uid in OPERATORS))
        run.wait_for(lambda: run.operator("seen").get("records_in", 0) >= HISTORY)
        run.checkpoints(1)
        savepoint = run.end("stop")
    (folder / "storage" / savepoint).rename(folder / "savepoint")
    return folder


def go_on(job: Dataflow, folder: Path, savepoint: str, parallelism: int, kind: str = "") -> None:
    """Restores the job by path and runs it to its end; an unbounded one by `kind`."""
    store = FileStore(str(folder / "storage"))
    records = MemoryRunStore(token=Token(SystemClock().now_ms()), restore_from=savepoint)
    if not kind:
        run_local(job, parallelism=parallelism, storage=str(folder / "storage"), records=records)
        return
    records.reserve_ids_above(*newest_ids(store, savepoint))
    with running(job.compile(parallelism), folder / "storage", records) as run:
        run.wait_for(lambda: run.operator("seen").get("records_in", 0) >= ALL - HISTORY)
        run.end(kind)


def new(spark: SparkSession, history: DataFrame, job: Dataflow, **seen_options: Any) -> SavepointWriter:
    writer = SavepointWriter.new_savepoint(spark, job)
    for uid in OPERATORS:
        options = seen_options if uid == "seen" else {}
        writer.bootstrap_operator(uid, history, columns=VISITS, subtasks=SUBTASKS, **options)
    return writer


class DiesOnce(Remember):
    """Its process is killed once, in the middle of the rows."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        if row["id"] > HISTORY // 2 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().process(row, context, out)


def test_a_bootstrapped_job_goes_on_as_if_it_had_processed_the_rows(
    spark: SparkSession, history: DataFrame, reference: Path, tmp_path: Path
) -> None:
    """Also when a task is killed on the way: its second try is the one that counts."""
    put(tmp_path, visits(HISTORY, ALL))
    job = flow(tmp_path)
    written = new(spark, history, job, function=lambda: DiesOnce(tmp_path / "died")).write(str(tmp_path / "made"))
    assert (tmp_path / "died").exists()
    assert written.report is not None
    operators = {operator.uid: operator for operator in written.report.operators}
    assert all("bootstrapped from rows" in operators[uid].reason for uid in OPERATORS)
    assert operators["visits"].fate is OperatorMatch.NEW
    files = {segment.path.partition("/")[2] for segment in written.manifest.segments()}
    assert set(FileStore(written.folder).list("")) == {*files, MANIFEST_FILE}, "nothing of the first try is left"
    go_on(job, tmp_path, written.folder, parallelism=3)
    expected = outputs(reference, since=HISTORY)
    assert all(expected.values())
    assert outputs(tmp_path, since=HISTORY) == expected


def test_a_savepoint_with_other_key_groups_goes_on_as_before(
    spark: SparkSession, stopped: Path, reference: Path, tmp_path: Path
) -> None:
    """Source positions, timers, windows and what has fired move along, also to a number that shares no factor."""
    copy_outputs(stopped, tmp_path)
    put(tmp_path, visits(HISTORY, ALL), "more")
    job = flow(tmp_path, max_parallelism=75, bounded=False)
    writer = SavepointWriter.from_savepoint(spark, str(stopped / "savepoint"), flow=job)
    written = writer.change_max_parallelism(75).write(str(tmp_path / "changed"))
    assert written.report is not None
    totals = next(operator for operator in written.report.operators if operator.uid == "totals")
    assert "redistributed to 75 key groups, from 128" in totals.reason
    go_on(job, tmp_path, written.folder, 3, "drain")
    assert outputs(tmp_path) == outputs(reference)


def test_a_sequence_does_not_follow_other_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    """Its splits are defined by their number."""

    def job(groups: int) -> Dataflow:
        dataflow = Dataflow("sequence", max_parallelism=groups)
        dataflow.source("ids", SequenceSource(rows_per_second=1_000)).sink("out", DiscardSink())
        return dataflow

    with running(job(128).compile(1), tmp_path / "storage") as run:
        run.checkpoints(1)
        savepoint = run.end("stop")
    (tmp_path / "storage" / savepoint).rename(tmp_path / "savepoint")
    writer = SavepointWriter.from_savepoint(spark, str(tmp_path / "savepoint"), flow=job(256))
    written = writer.change_max_parallelism(256).write(str(tmp_path / "changed"))
    records = MemoryRunStore(token=Token(SystemClock().now_ms()), restore_from=written.folder)
    with running(job(256).compile(2), tmp_path / "storage", records) as successor:
        successor.join()
    assert "its ids are split by 128 key groups, and 256 would repeat and skip ids" in str(records.failure)


def test_a_re_keyed_savepoint_goes_on_under_the_new_keys(
    spark: SparkSession, stopped: Path, reference: Path, tmp_path: Path
) -> None:
    copy_outputs(stopped, tmp_path)
    put(tmp_path, visits(HISTORY, ALL), "more")
    job = flow(tmp_path, prefix="u:", bounded=False)
    writer = SavepointWriter.from_savepoint(spark, str(stopped / "savepoint"), flow=job)
    user = pa.schema([("user", pa.string())])
    for uid in ("seen", "totals", "hourly"):
        writer.rekey_operator(uid, lambda user: f"u:{user}", user)
    pair = pa.schema([("user", pa.string()), ("page", pa.int32())])
    writer.rekey_operator("sliding", lambda key: (f"u:{key[0]}", key[1]), pair)
    go_on(job, tmp_path, writer.write(str(tmp_path / "re-keyed")).folder, 1, "drain")
    output, expected = outputs(tmp_path), outputs(reference)
    for part in ("hourly", "sliding", "timers", "totals"):
        assert without_prefix(output[part], part) == without_prefix(expected[part], part), part
    assert {row["id"]: row["recent"] for row in output["seen"]} == {r["id"]: r["recent"] for r in expected["seen"]}


def without_prefix(rows: list[dict[str, Any]], part: str) -> list[Any]:
    """Users by their own names; totals of those who have come under both names are the later ones."""
    entries = [{**row, "user": row["user"].removeprefix("u:")} for row in rows]
    if part == "totals":
        return sorted({row["user"]: row for row in sorted(entries, key=lambda row: int(row["n"]))}.values(), key=str)
    return sorted(entries, key=str)


def copy_outputs(before: Path, after: Path) -> None:
    """The files that were committed until the stop, and what was read until then."""
    for name in ("in", "seen", "totals", "hourly", "sliding"):
        shutil.copytree(before / name, after / name)


def test_operators_are_removed_renamed_and_added(
    spark: SparkSession, history: DataFrame, stopped: Path, tmp_path: Path
) -> None:
    writer = SavepointWriter.from_savepoint(spark, str(stopped / "savepoint"), job=12)
    writer.remove_operator("seen").rename_operator("totals", "sums")
    written = writer.write(str(tmp_path / "changed"))
    manifest = open_checkpoint(written.folder).manifest
    assert manifest.job == "12"
    assert "seen" not in manifest.operators
    assert manifest.operators["sums"].origin == "renamed from 'totals'"
    before = rows_in(stopped / "savepoint", "totals", "aggregates")
    assert rows_in(Path(written.folder), "sums", "aggregates") == [{**row, "operator": "sums"} for row in before]
    job = flow(tmp_path)
    second_writer = SavepointWriter.from_savepoint(spark, str(stopped / "savepoint"), flow=job).remove_operator("seen")
    second_writer.bootstrap_operator("seen", history, columns=VISITS, subtasks=2).write(str(tmp_path / "again"))
    assert rows_in(tmp_path / "again", "seen", "last") == rows_in(stopped / "savepoint", "seen", "last")


def rows_in(savepoint: Path, operator: str, state: str) -> list[dict[str, Any]]:
    opened = open_checkpoint(str(savepoint))
    batches = find_state(opened, operator, state).rows(range(opened.manifest.max_parallelism))
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)


def test_a_savepoint_is_signed_and_only_made_of_what_is(
    spark: SparkSession, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_MANIFEST_KEY", KEY)
    with pytest.raises(JobRejected, match="carries no signature"):
        SavepointWriter.from_savepoint(spark, str(stopped / "savepoint"))
    written = SavepointWriter.new_savepoint(spark, flow(tmp_path)).write(str(tmp_path / "signed"))
    data = (Path(written.folder) / MANIFEST_FILE).read_bytes()
    assert decode_manifest(data, "signed", (KEY.encode(),), signed=True) == written.manifest
    SavepointWriter.from_savepoint(spark, written.folder)
    monkeypatch.setenv("WEIR_MANIFEST_KEY", "short")
    with pytest.raises(JobRejected, match="32 characters or more"):
        SavepointWriter.new_savepoint(spark, flow(tmp_path))


def test_bad_rows_are_refused_by_name_and_leave_nothing(
    spark: SparkSession, history: DataFrame, stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.functions import col, lit

    job, target = flow(tmp_path), str(tmp_path / "made" / "savepoint")

    def refused(error: type[Exception], match: str, rows: DataFrame, uid: str = "totals", **options: Any) -> None:
        with pytest.raises(error, match=match):
            SavepointWriter.new_savepoint(spark, job).bootstrap_operator(uid, rows, **options).write(target)
        assert not list((tmp_path / "made").glob("*")), "something is left"

    refused(JobRejected, "no operator 'total', only", history, "total")
    refused(JobRejected, "not sources and sinks", history, "seen-out")
    refused(JobRejected, "only process functions behind key_by, aggregates and windows", history, "names")
    refused(JobRejected, "its rows have no column 'user'; there are id, page, at", history.drop("user"))
    refused(JobRejected, "its rows have no column 'at'", history.drop("at"), "hourly")
    refused(JobRejected, "two columns of its rows are called 'page'", history.withColumn("x", lit(1)).toDF(
        "id", "user", "page", "at", "page"))  # fmt: skip
    refused(JobRejected, "a function fills only process-function state", history, function=Remember)
    refused(JobRejected, "fills state 'other'; the operator has only", history, "seen", function=Other)
    nulls = history.withColumn("user", lit(None).cast("string"))
    refused(JobRejected, "totals: key column 'user' is null", nulls, columns=VISITS, subtasks=1)
    words = history.withColumn("page", col("user"))
    refused(DataRejected, "operator 'totals', column 'page': a value is no int32", words, columns=VISITS, subtasks=1)
    with pytest.raises(JobRejected, match="needs the job"):
        SavepointWriter.from_savepoint(spark, str(stopped / "savepoint")).bootstrap_operator("totals", history)
    monkeypatch.setattr(writer_module, "_rename_durably", full)
    with pytest.raises(EnvironmentFailure, match="no space"):
        SavepointWriter.new_savepoint(spark, job).write(target)
    assert not list((tmp_path / "made").glob("*"))
    assert not list((tmp_path / "made").glob(".*")), "a hidden folder is left"


class Other(Remember):
    """Has a state that `Seen` lacks."""

    def open(self, context: ProcessContext) -> None:
        super().open(context)
        context.value_state("other")


def full(*_: Any) -> None:
    raise EnvironmentFailure("no space left on device")


def test_bad_changes_are_refused_by_name(spark: SparkSession, stopped: Path, tmp_path: Path) -> None:
    place, user = str(stopped / "savepoint"), pa.schema([("user", pa.string())])
    writer = SavepointWriter.from_savepoint(spark, place)
    with pytest.raises(JobRejected, match="no operator 'total'; there are: hourly"):
        writer.remove_operator("total")
    with pytest.raises(JobRejected, match="has an operator of this uid already"):
        writer.rename_operator("totals", "seen")
    with pytest.raises(JobRejected, match="a uid is a letter"):
        writer.rename_operator("totals", "no uid")
    with pytest.raises(JobRejected, match="between the parallelism of the savepoint, 2, and"):
        writer.change_max_parallelism(1)
    with pytest.raises(JobRejected, match=r"list<item: int64> cannot be a key"):
        writer.rekey_operator("totals", str.lower, pa.schema([("user", pa.list_(pa.int64()))]))
    with pytest.raises(JobRejected, match="must be the absolute path of a folder"):
        writer.write("here")
    with pytest.raises(JobRejected, match="exists already"):
        writer.write(place)

    savepoint_writer = SavepointWriter.from_savepoint(spark, place).rekey_operator("totals", lambda _: "all", user)
    with pytest.raises(JobRejected, match="totals: state 'aggregates' would have two rows with the same key: 'all'"):
        savepoint_writer.write(str(tmp_path / "changed" / "savepoint"))
    assert not list((tmp_path / "changed").iterdir()), "something is left"
    lacking = Dataflow("visits")
    lacking.source("visits", SequenceSource(rows=1)).sink("out", DiscardSink())
    writer = SavepointWriter.from_savepoint(spark, place, flow=lacking)
    with pytest.raises(JobRejected, match="the checkpoint holds state for an operator that the job lacks"):
        writer.write(str(tmp_path / "changed" / "savepoint"))
