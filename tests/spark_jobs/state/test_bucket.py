"""Checkpoints in a bucket as data: the check of states, reads beside retention, and DataFrames."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, manifest_folder
from runtime.io.store import open_store
from runtime.state.files.segment_log import SegmentLog
from spark_jobs.state.check import EQUAL, answer_check
from spark_jobs.state.rows import find_state, open_checkpoint
from tests.golden.test_golden import GOLDEN
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import counts, expected_counts
from tests.s3 import BUCKET

ROOT = Path(__file__).parents[3]
SOURCE = Gated(total=50)


@pytest.fixture
def savepoint(bucket_uri: str) -> str:
    """A savepoint in a bucket, where a job would write it."""
    folder = manifest_folder(decode_manifest((GOLDEN[-1] / MANIFEST_FILE).read_bytes(), MANIFEST_FILE))
    return copied(GOLDEN[-1], f"{bucket_uri}/{folder}")


def copied(folder: Path, uri: str) -> str:
    store = open_store(uri)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), [path.read_bytes()])
    return uri


def test_the_states_of_a_savepoint_in_a_bucket_are_checked(savepoint: str, bucket_uri: str) -> None:
    for place in (savepoint, copied(GOLDEN[-1], f"{bucket_uri}/a copy")):
        answer = answer_check(place, 0, io.StringIO())
        assert answer["is_whole"]
        assert {result for *_, result in answer["states"]} == {EQUAL}
        assert len(answer["states"]) == 9


def test_a_savepoint_is_read_at_the_top_of_a_bucket(bucket_uri: str) -> None:
    """Where no storage of a job can be."""
    name = manifest_folder(decode_manifest((GOLDEN[-1] / MANIFEST_FILE).read_bytes(), MANIFEST_FILE))
    place = copied(GOLDEN[-1], f"s3://{BUCKET}/{name}")
    try:
        assert answer_check(place, 0, io.StringIO())["is_whole"]
    finally:
        store = open_store(place)
        store.delete(store.list(""))


def test_retention_leaves_a_checkpoint_that_is_read(
    bucket_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentLog, "base_inline_bytes", 0)
    monkeypatch.setattr(SegmentLog, "delta_inline_bytes", 0)
    with running(counts(SOURCE, tmp_path / "out").compile(2), bucket_uri, retained=2) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) >= SOURCE.total * SOURCE.splits)
        run.checkpoints(2)
        opened = open_checkpoint(f"{bucket_uri}/{run.records.completed[-1].folder}")
        run.checkpoints(8)
        there = set(open_store(bucket_uri).list("chk-"))
        assert files_of(opened.manifest) <= there
        assert len({path.split("/")[0] for path in there}) <= 6, "others are deleted"
        state = find_state(opened, "counts", "aggregates")
        rows = [row for batch in state.rows(range(128)) for row in batch.to_pylist()]
        run.end("cancel")
    assert {row["key"]: (row["n:count"], row["total:sum"]) for row in rows} == expected_counts(SOURCE.numbers)


SPARK = """
import sys
import weir
from spark_jobs.batch.run import run_batch
from spark_jobs.session import SparkSettings, spark_session
savepoint, storage, folder = sys.argv[1:]
with spark_session(SparkSettings(app_name="bucket")) as spark:
    state = spark.read.format("weir-state").option("operator", "counts").option("state", "aggregates")
    print("rows", state.load(savepoint).count())
    written = weir.SavepointWriter.from_savepoint(spark, savepoint).write(folder + "/written")
    print("written", state.load(written.folder).count())
    source = weir.SequenceSource(rows=100)
    flow = weir.Dataflow("batch")
    flow.source("numbers", source).sink("out", weir.ParquetSink(folder + "/out"))
    print("batch", sum(run_batch(flow, parallelism=2, spark=spark, storage=storage).rows.values()))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_dataframes_savepoints_and_batch_take_a_bucket(savepoint: str, bucket_uri: str, tmp_path: Path) -> None:
    """In a process of its own, since Python workers get the environment that Spark's JVM started with."""
    command = [sys.executable, "-c", SPARK, savepoint, f"{bucket_uri}/batch", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    lines = [line for line in process.stdout.splitlines() if line.startswith(("rows", "written", "batch"))]
    assert lines == ["rows 5", "written 5", "batch 100"], process.stderr[-2_000:]
    assert [path for path in open_store(f"{bucket_uri}/batch").list("") if path.endswith(MANIFEST_FILE)]
