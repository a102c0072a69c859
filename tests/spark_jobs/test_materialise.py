"""Materialising a bounded input: ordered, atomic, idempotent, and refused where it would harm."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from runtime.errors import JobRejected
from spark_jobs.schemas import AIRLINES, spark_schema
from spark_jobs.stages import airlines
from spark_jobs.stages.materialise import MARKER, finished, materialise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def never() -> DataFrame:
    raise AssertionError("must not be computed again")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """As a source reads it: splits by name, rows in their order."""
    return [row for part in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


def test_the_airlines_of_the_demo_are_sixteen_and_ordered(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "version" / "airlines"
    report = materialise(lambda: airlines.frame(spark), folder)
    found = rows_of(folder)
    assert report["rows"] == len(found) == 16
    assert [row["carrier"] for row in found] == sorted(row["carrier"] for row in found)
    assert found[-1] == {"carrier": "YV", "name": "Mesa Airlines Inc."}
    assert {path.name for path in folder.parent.iterdir()} == {"airlines", ".airlines.lock"}


def test_several_splits_keep_the_order(spark: SparkSession, tmp_path: Path) -> None:
    report = materialise(lambda: spark.range(5_000, numPartitions=3).sortWithinPartitions("id"), tmp_path / "ids")
    assert report == {"rows": 5_000, "files": 3}
    assert [row["id"] for row in rows_of(tmp_path / "ids")] == list(range(5_000))


def test_a_finished_folder_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "ids"
    first = materialise(lambda: spark.range(10), folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert materialise(never, folder) == first
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_two_calls_at_once_write_once(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[int] = []
    reports: list[object] = []

    def make() -> DataFrame:
        calls.append(1)
        return spark.range(100)

    threads = [threading.Thread(target=lambda: reports.append(materialise(make, tmp_path / "ids"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert reports[0] == reports[1]


def test_what_a_killed_call_left_behind_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    leftover = tmp_path / ".ids.0123.tmp"
    leftover.mkdir()
    (leftover / "part-00000.parquet").write_bytes(b"half a file")
    assert materialise(lambda: spark.range(7), tmp_path / "ids")["rows"] == 7
    assert not leftover.exists()


def test_a_failure_leaves_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        materialise(lambda: spark.range(3).select(f.expr("1 / id")), tmp_path / "ids")
    assert finished(tmp_path / "ids") is None


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "precious.txt").write_text("mine")
    with pytest.raises(JobRejected, match="something else than a materialised input"):
        materialise(never, tmp_path / "ids")
    assert (tmp_path / "ids" / "precious.txt").read_text() == "mine"


def test_airlines_are_trimmed_and_unique(spark: SparkSession) -> None:
    raw = [(" AA", "American "), ("AA", "Zzz"), ("", "nobody"), (None, "nobody"), ("UA", None), ("B6", "JetBlue")]
    found = airlines.clean(spark.createDataFrame(raw, spark_schema(AIRLINES))).collect()
    assert [tuple(row) for row in found] == [("AA", "American"), ("B6", "JetBlue")]


def test_a_missing_airlines_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match=r"nowhere\.csv is not a file") as refusal:
        airlines.frame(spark, str(tmp_path / "nowhere.csv"))
    assert refusal.value.field == "airlines_csv"


def test_the_marker_tells_rows_and_files(spark: SparkSession, tmp_path: Path) -> None:
    materialise(lambda: spark.range(10, numPartitions=2), tmp_path / "ids")
    assert json.loads((tmp_path / "ids" / MARKER).read_text()) == {"rows": 10, "files": 2}
