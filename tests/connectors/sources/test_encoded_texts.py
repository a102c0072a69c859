"""A folder of Parquet files whose texts of few values stay dictionary-encoded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import weir
from runtime.connectors.sources.directory import DirectorySource
from runtime.errors import DataRejected
from runtime.launch.local import run_local
from runtime.state.encoded_texts import decode, encoded_columns
from tests.contracts.files import Reading

ROWS = 3_000
NAMES = pa.schema([("kind", pa.string()), ("name", pa.string())])
SCHEMA = pa.schema([("kind", pa.string()), ("id", pa.string()), ("at", pa.int64())])
KINDS = ["view", "click", None]


def table(first: int) -> pa.Table:
    rows = range(first, first + ROWS)
    kinds = [KINDS[row % 3] for row in rows]
    return pa.table([kinds, [f"{row:036}" for row in rows], list(rows)], schema=SCHEMA)


def write(folder: Path, *, dictionaries: Sequence[bool] = (True, True)) -> list[dict[str, Any]]:
    """A file per entry of `dictionaries`: with or without dictionaries."""
    folder.mkdir()
    tables = [table(number * ROWS) for number in range(len(dictionaries))]
    for number, (each, use) in enumerate(zip(tables, dictionaries, strict=True)):
        pq.write_table(each, folder / f"{number}.parquet", use_dictionary=use, row_group_size=1_000)
    return [row for each in tables for row in each.to_pylist()]


def batches(source: DirectorySource) -> list[pa.RecordBatch]:
    reading = Reading(source)
    return list(iter(reading.poll, None))


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["declared", "of the file"])
def test_only_texts_of_few_values_are_encoded(tmp_path: Path, schema: pa.Schema | None) -> None:
    rows = write(tmp_path / "in", dictionaries=(True, False))
    plain = DirectorySource(str(tmp_path / "in"), weir.ParquetFormat(schema), bounded=True)
    parts = batches(plain.with_encoded_texts())
    assert [encoded_columns(batch.schema) for batch in parts] == 3 * [["kind"]] + 3 * [[]]
    assert [row for batch in parts for row in batch.to_pylist()] == rows
    assert [decode(batch) for batch in parts] == batches(plain)
    assert not any(encoded_columns(batch.schema) for batch in batches(plain))


def test_other_declared_types_are_decoded(tmp_path: Path) -> None:
    write(tmp_path / "in")
    schema = SCHEMA.set(0, pa.field("kind", pa.large_string()))
    source = DirectorySource(str(tmp_path / "in"), weir.ParquetFormat(schema), bounded=True)
    assert {batch.schema.field("kind").type for batch in batches(source.with_encoded_texts())} == {pa.large_string()}


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_large_texts_keep_their_type(tmp_path: Path, kind: pa.DataType) -> None:
    """Arrow reads their dictionaries as `string`: a file with few values differed from a file with many."""
    (tmp_path / "in").mkdir()
    few, many = pa.table({"kind": pa.array(["x", "y"] * 500, kind)}), [f"value-{n}" for n in range(1_000)]
    pq.write_table(few, tmp_path / "in" / "0.parquet")
    pq.write_table(pa.table({"kind": pa.array(many, kind)}), tmp_path / "in" / "1.parquet", use_dictionary=False)
    source = DirectorySource(str(tmp_path / "in"), weir.ParquetFormat(), bounded=True)
    parts = batches(source.with_encoded_texts())
    assert {batch.schema.field("kind").type for batch in parts} == {kind}
    assert sum(batch.num_rows for batch in parts) == 2_000


def test_filters_and_required_values_are_those_of_the_texts(tmp_path: Path) -> None:
    rows = write(tmp_path / "in")
    source = DirectorySource(
        str(tmp_path / "in"), weir.ParquetFormat(SCHEMA), bounded=True, filter=pc.field("kind") == "view"
    )
    result = [row for batch in batches(source.with_encoded_texts()) for row in batch.to_pylist()]
    assert result == [row for row in rows if row["kind"] == "view"]
    strict = SCHEMA.set(0, pa.field("kind", pa.string(), nullable=False))
    source = DirectorySource(str(tmp_path / "in"), weir.ParquetFormat(strict), bounded=True)
    with pytest.raises(DataRejected, match="column 'kind': a value is missing"):
        batches(source.with_encoded_texts())


def only_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert batch.schema.types == [pa.string(), pa.string(), pa.int64()], "a function of the author gets texts"
    return batch


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_on_codes_counts_and_forwards_texts(tmp_path: Path, parallelism: int) -> None:
    """Filter, join and pre-aggregation read codes; a function of the author, a side of the job, reads texts."""
    rows = write(tmp_path / "in", dictionaries=(True, False, True))
    drop_names(tmp_path / "names")
    flow = weir.Dataflow("encoded")
    source = DirectorySource(str(tmp_path / "in"), weir.ParquetFormat(SCHEMA), event_time="at", bounded=True)
    source = replace(source, max_disorder_ms=len(rows))
    names = flow.source("names", DirectorySource(str(tmp_path / "names"), weir.ParquetFormat(NAMES), bounded=True))
    stream = flow.source("rows", source).filter("known", pc.field("kind") != "click")
    stream.map_batches("texts", only_texts).sink("all", weir.ParquetSink(str(tmp_path / "all")))
    joined = stream.join_broadcast("joined", names, on=["kind"], take=["name"]).key_by("name")
    counts = joined.window("counts", timedelta(seconds=1), "at", {"n": weir.Count()})
    counts.sink("out", weir.ParquetSink(str(tmp_path / "counts")))
    assert {edge.spec.target for edge in flow.compile(1).edges if edge.is_encoded} == {
        "known",
        "joined",
        "counts",
    }
    run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"))
    views = [row for row in rows if row["kind"] == "view"]
    assert sorted(read(tmp_path / "all"), key=str) == sorted(views, key=str)
    expected = Counter(("View", row["at"] // 1_000) for row in views)
    epoch, second = datetime(1970, 1, 1), timedelta(seconds=1)  # noqa: DTZ001 - windows have no time zone
    windows = {(row["name"], (row["window_start"] - epoch) // second): row["n"] for row in read(tmp_path / "counts")}
    assert windows == expected


def drop_names(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.table([["view", "none"], ["View", "None"]], schema=NAMES), folder / "names.parquet")


def read(folder: Path) -> list[dict[str, Any]]:
    return [row for path in folder.rglob("part-*.parquet") for row in pq.read_table(path).to_pylist()]
