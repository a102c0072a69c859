"""Splits of large files: every row exactly once, against plain readers, at any split size and parallelism."""

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import (
    ArrowFormat,
    AvroFormat,
    CsvFormat,
    JsonLinesFormat,
    LineFormat,
    MalformedFile,
    ParquetFormat,
    ScannedFormat,
)
from runtime.connectors.formats.input_file import LocalFile, Scan
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import DataRejected, EnvironmentFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.contracts.files import Reading, drop
from tests.example_counts import examples

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
SETTINGS = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Rows = list[dict[str, Any]]


def rows_of(random_: random.Random) -> Rows:
    alphabet = 'ab,"é '
    texts = ("".join(random_.choices(alphabet, k=random_.choice((0, 1, 3, 40)))) for _ in range(random_.randrange(60)))
    return [{"id": number, "text": f"t{text}"} for number, text in enumerate(texts)]


def blank(random_: random.Random, end: str) -> str:
    return end * random_.choice((0, 0, 0, 1, 2))


def csv_bytes(rows: Rows, random_: random.Random, *, header: bool = True) -> bytes:
    end, text = random_.choice(("\n", "\r\n")), io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    for row in [["id", "text"]] * header + [[row["id"], row["text"]] for row in rows]:
        text.write(blank(random_, end))
        writer.writerow(row)
    data = text.getvalue().encode(random_.choice(("utf-8", "utf-8-sig")))
    return data.removesuffix(end.encode()) if random_.random() < 0.5 else data


def json_bytes(rows: Rows, random_: random.Random) -> bytes:
    lines = [blank(random_, "\n") + json.dumps(row, ensure_ascii=random_.random() < 0.5) for row in rows]
    return "\n".join(lines).encode(random_.choice(("utf-8", "utf-8-sig")))


def parquet_bytes(rows: Rows, random_: random.Random) -> bytes:
    data = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA),
        data,
        row_group_size=random_.randrange(1, 30),
        use_dictionary=random_.random() < 0.5,
    )
    return data.getvalue()


def avro_bytes(rows: Rows, random_: random.Random) -> bytes:
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
    data = io.BytesIO()
    fastavro.writer(
        data,
        {"type": "record", "name": "row", "fields": fields},
        rows,
        codec=random_.choice(("null", "deflate")),
        sync_interval=random_.choice((1, 50, 500)),
    )
    return data.getvalue()


KINDS: dict[str, tuple[Callable[[Rows, random.Random], bytes], ScannedFormat]] = {
    "csv": (csv_bytes, CsvFormat(SCHEMA)),
    "csv without header": (
        lambda rows, random_: csv_bytes(rows, random_, header=False),
        CsvFormat(SCHEMA, has_header=False),
    ),
    "json lines": (json_bytes, JsonLinesFormat(SCHEMA)),
    "parquet": (parquet_bytes, ParquetFormat()),
    "avro": (avro_bytes, AvroFormat()),
}


def scanned(format_: ScannedFormat, path: Path, start: int, stop: int | None) -> list[dict[str, Any]]:
    chunks = format_.scan(LocalFile(path), Scan(start=start, stop=stop))
    return [row for chunk in chunks for row in chunk.batch.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@SETTINGS
@given(seed=st.integers(0, 2**32))
@example(seed=754)  # the first split lies in a byte order mark
def test_the_splits_of_a_file_hold_its_rows_in_order(kind: str, seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    make, format_ = KINDS[kind]
    rows = rows_of(random_)
    path = tmp_path / "file"
    path.write_bytes(make(rows, random_))
    limit = random_.randrange(1, 400)
    result: Rows = []
    size = path.stat().st_size
    for start in range(0, size, limit):
        result += scanned(format_, path, start, None if start + limit >= size else start + limit)
    assert result == rows


@SETTINGS
@given(st.lists(st.sampled_from(["", "a", "\r", "bb" * 9, "é"]), max_size=12), st.integers(1, 12), st.booleans())
@example(["", "", "a"], 1, True)
def test_the_splits_of_a_text_file_hold_its_lines(lines: list[str], limit: int, ended: bool) -> None:
    """Against `bytes.split`; blank lines are rows."""
    from runtime.connectors.blocks import read_blocks, skip_to_row

    data = ("\n".join(lines) + "\n" * ended).encode()
    expected = data.split(b"\n")[: -1 if data.endswith(b"\n") or not data else None]
    texts = []
    for start in range(0, len(data), limit):
        file = io.BytesIO(data)
        skip_to_row(file, start)
        blocks = read_blocks(file, blank_rows=True, stop=start + limit, block_bytes=4)
        texts += [block.data(row, row + 1).removesuffix(b"\n") for block in blocks for row in range(len(block))]
    assert texts == expected


def restored(
    source: DirectorySource, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot], parallelism: int
) -> list[Reading]:
    return [
        Reading(source, store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


def rest(reading: Reading) -> Rows:
    """All further rows. A poll without rows is not the end: a split may have none, and a poll reads a few splits."""
    rows, empty_polls = Rows(), 0
    while empty_polls < 100:
        batch = reading.poll(9)
        empty_polls = empty_polls + 1 if batch is None else 0
        rows += batch.to_pylist() if batch is not None else []
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounded", [True, False])
@settings(parent=SETTINGS, max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_every_row_is_read_once_across_rescales(
    kind: str, bounded: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S1-22: 3 → 7 → 1 with large and small files; a change of `split_bytes` does not change the splits."""
    random_, folder = random.Random(seed), tmp_path_factory.mktemp("in")
    make, format_ = KINDS[kind]
    rows = [rows_of(random_) for _ in range(random_.randrange(1, 5))]
    for number, content in enumerate(rows):
        drop(folder, f"{number}", make(content, random_))
    limit = random_.randrange(20, 3_000)
    store, snapshots, committed = MemorySnapshotStore(), list[SubtaskSnapshot](), Rows()
    for attempt, parallelism in enumerate((3, 7, 1)):
        source = DirectorySource(str(folder), format_, bounded=bounded, split_bytes=limit * (attempt + 1))
        readings = restored(source, store, snapshots, parallelism)
        attempt_rows: Rows = []
        for _ in range(random_.randrange(25)):
            batch = random_.choice(readings).poll(random_.randrange(1, 12))
            attempt_rows += batch.to_pylist() if batch is not None else []
        if not attempt or random_.random() < 0.8:
            snapshots = [reading.snapshot(f"chk-{attempt}") for reading in readings]
            committed += attempt_rows
    source = DirectorySource(str(folder), format_, bounded=bounded, split_bytes=None)
    for reading in restored(source, store, snapshots, 2):
        committed += rest(reading)
        assert reading.exhausted() == bounded
    assert sorted(map(str, committed)) == sorted(str(row) for content in rows for row in content)


def test_a_large_file_is_read_by_several_subtasks(tmp_path: Path) -> None:
    drop(tmp_path, "a", "".join(f"{number}\n" for number in range(2_000)))
    source = DirectorySource(str(tmp_path), LineFormat(), bounded=True, split_bytes=500)
    shares = [[int(row["line"]) for row in Reading(source, index=i, parallelism=3).rows(7)] for i in range(3)]
    assert sorted(row for share in shares for row in share) == list(range(2_000))
    assert all(len(share) > 200 and share == sorted(share) for share in shares)


@pytest.mark.parametrize(("format_", "limit"), [(ArrowFormat(), 10), (LineFormat(), None)])
def test_a_file_is_left_whole(format_: Any, limit: int | None, tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "a"), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist([{"id": 1, "text": "x"}] * 30, SCHEMA), 3)
    source = DirectorySource(str(tmp_path), format_, bounded=True, split_bytes=limit, on_malformed="skip")
    readings = [Reading(source, index=index, parallelism=3) for index in range(3)]
    assert sum(bool(reading.rows()) for reading in readings) == 1


def test_a_cut_file_that_changed_or_is_gone_is_named(tmp_path: Path) -> None:
    drop(tmp_path, "a", "".join(f"{number}\n" for number in range(500)))
    source = DirectorySource(str(tmp_path), LineFormat(), split_bytes=100)
    first = Reading(source)
    first.poll(5)
    snapshots = [first.snapshot("chk")]
    drop(tmp_path, "a", "1\n" * 700)
    with pytest.raises(DataRejected, match=r"/a: the file has changed since it was read"):
        restored(source, first.store, snapshots, 1)[0].rows()
    (tmp_path / "a").unlink()
    with pytest.raises(EnvironmentFailure, match=r"/a: the file is gone before it was read to its end"):
        restored(source, first.store, snapshots, 1)[0].rows()


@pytest.mark.parametrize("polled", [30, 1_000])
@pytest.mark.parametrize(("before", "after"), [(40, 200), (200, 400), (200, 40)])
def test_a_file_that_grew_over_the_size_of_splits_is_not_read_again(
    tmp_path: Path, before: int, after: int, polled: int
) -> None:
    """S1-22: other splits have other positions, so rows would be read twice or left out silently."""
    drop(tmp_path, "a", "".join(f"{number:04}\n" for number in range(before)))
    source = DirectorySource(str(tmp_path), LineFormat(), split_bytes=500)
    first = Reading(source)
    first.poll(polled) if polled < before else first.rows()
    snapshots = [first.snapshot("chk")]
    drop(tmp_path, "a", "".join(f"{number:04}\n" for number in range(after)))
    readings = restored(source, first.store, snapshots, 2)
    with pytest.raises(DataRejected, match=r"/a: the file has changed since it was read.* into a new file"):
        _ = [reading.rows() for reading in readings]


def test_a_bad_row_of_a_split_is_named_with_its_place(tmp_path: Path) -> None:
    drop(tmp_path, "a", "id\n" + "1\n" * 60 + "x\n" + "1\n" * 60)
    source = DirectorySource(str(tmp_path), CsvFormat(pa.schema([("id", pa.int64())])), bounded=True, split_bytes=100)
    with pytest.raises(DataRejected, match=r"/a \(from byte 100\): row 12, column 'id'"):
        Reading(source).rows()


@pytest.mark.parametrize("kind", ["parquet", "avro"])
def test_a_file_cut_short_is_malformed_in_some_split(kind: str, tmp_path: Path) -> None:
    make, format_ = KINDS[kind]
    rows = [{"id": number, "text": "x" * 50} for number in range(300)]
    data = make(rows, random.Random(7))
    (tmp_path / "a").write_bytes(data[: len(data) - 20])

    def read_all() -> None:
        for start in range(0, len(data), 500):
            scanned(format_, tmp_path / "a", start, start + 500)

    with pytest.raises(MalformedFile):
        read_all()
