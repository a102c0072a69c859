"""Folders by URL: on a server of S3's protocol (moto), and refusals without any."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import boto3  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from runtime.connectors.formats import ArrowFormat, AvroFormat, CsvFormat, JsonLinesFormat, LineFormat, ParquetFormat
from runtime.connectors.formats.input_file import InputFile, Scan
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.parquet import ParquetSource
from runtime.connectors.sources.remote_folder import RemoteFolder
from runtime.dataflow.plan import source_with_input
from runtime.errors import EnvironmentFailure, JobRejected
from tests.connectors.sources.test_splits import avro_bytes, csv_bytes, json_bytes, parquet_bytes
from tests.contracts.files import Reading, drop

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
KINDS: dict[str, tuple[Any, Any]] = {
    "csv": (csv_bytes, CsvFormat(SCHEMA)),
    "json lines": (json_bytes, JsonLinesFormat(SCHEMA)),
    "parquet": (parquet_bytes, ParquetFormat()),
    "avro": (avro_bytes, AvroFormat()),
}
ROWS = [{"id": number, "text": f"t{number % 7}"} for number in range(400)]


def lines(url: str, **arguments: Any) -> DirectorySource:
    return DirectorySource(url, LineFormat(), bounded=True, **arguments)


# ---------------------------------------------------------------- refusals before the start


@pytest.fixture
def no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_DATA_ROOTS", raising=False)


@pytest.mark.parametrize("url", ["ftp://host/in", "http://host/in", "dbfs:/in", "S4://bucket/in"])
def test_an_unsupported_scheme_is_refused(url: str, no_roots: None) -> None:
    with pytest.raises(JobRejected, match=r"is not supported: name a folder, or a URL of file:, s3://") as error:
        lines(url).check()
    assert (error.value.code, error.value.field) == ("unsupported-scheme", "path")


@pytest.mark.parametrize("url", ["s3://b/in", "gs://b/in", "abfs://c@a.dfs.core.windows.net/in", "hdfs://nn:8020/in"])
def test_schemes_of_pyarrow_are_taken(url: str, no_roots: None) -> None:
    source = lines(url)
    source.check()
    assert source.folders() == {}, "no local folder"


@pytest.mark.parametrize("url", ["file://data/in", "file:///data#1", "file:/data/in?x=1"])
def test_a_file_url_with_more_than_a_path_is_refused(url: str, no_roots: None) -> None:
    """The host and the rest would be ignored, and another folder read."""
    with pytest.raises(JobRejected, match="three slashes") as error:
        lines(url).check()
    assert error.value.field == "path"


def test_dead_letters_are_not_in_the_folder_of_a_url(tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match="would be read as input"):
        lines(f"file://{tmp_path}", on_malformed="dead_letter", dead_letter_path=str(tmp_path)).check()


def test_a_key_must_be_a_reference(no_roots: None) -> None:
    lines("s3://${secret:id}:${secret:key}@bucket/in").check()
    with pytest.raises(JobRejected) as error:
        lines("s3://AKIA:hunter2@bucket/in").check()
    assert error.value.code == "literal-secret"
    assert "hunter2" not in str(error.value)


def test_dead_letters_go_to_a_folder_or_to_s3(no_roots: None) -> None:
    with pytest.raises(JobRejected) as error:
        lines("s3://b/in", on_malformed="dead_letter", dead_letter_path="gs://b/letters").check()
    assert error.value.field == "dead_letter_path"
    with pytest.raises(JobRejected, match="would be read as input"):
        lines("s3://bucket/in", on_malformed="dead_letter", dead_letter_path="s3://bucket/in/").check()


@pytest.mark.parametrize(
    ("urls", "url", "allowed"),
    [
        ("", "s3://lake/raw", False),
        ("s3://lake", "s3://lake/raw/x", True),
        ("s3://lake/raw", "s3://lake/raw", True),
        ("s3://lake/raw/", "s3://${secret:a}:${secret:b}@lake/raw/x", True),
        ("gs://other s3://lake/raw", "s3://lake/raw/x/", True),
        ("s3://lake/raw", "s3://lake/rawer", False),
        ("s3://lake/raw", "s3://lake", False),
        ("s3://lake/raw", "s3://lakes/raw", False),
        ("s3://lake/raw", "gs://lake/raw", False),
        ("hdfs://nn:8020/raw", "hdfs://nn:8020/raw/../secret", False),
        ("hdfs://nn:8020/raw", "hdfs://nn:8020/raw/%2e%2e/secret", False),
        ("hdfs://nn:8020/raw", "hdfs://nn:9000/raw/x", False),
        ("s3://lake/raw", "s3://lake/raw/x?endpoint_override=evil:80", False),
        ("s3://lake/raw?endpoint_override=minio:90", "s3://lake/raw/x?endpoint_override=minio:90", True),
        ("abfs://c@a.dfs.core.windows.net", "abfs://c@a.dfs.core.windows.net/raw", True),
        ("abfs://c@a.dfs.core.windows.net", "abfs://d@a.dfs.core.windows.net/raw", False),
    ],
)
def test_urls_lie_below_the_allowed_urls(urls: str, url: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With WEIR_DATA_ROOTS, as under the console, a URL needs an entry of WEIR_DATA_URLS."""
    monkeypatch.setenv("WEIR_DATA_ROOTS", "/data")
    monkeypatch.setenv("WEIR_DATA_URLS", urls)
    if allowed:
        lines(url).check()
        return
    with pytest.raises(JobRejected, match="An administrator adds URLs in WEIR_DATA_URLS") as error:
        lines(url).check()
    assert (error.value.code, error.value.field) == ("path-not-allowed", "path")


def test_a_file_url_is_a_local_folder_under_the_data_roots(tmp_path: Path) -> None:
    drop(tmp_path / "a b", "a", "1\n")
    source = lines(f"file://{tmp_path}/a%20b")
    source.check()
    assert source.folders() == {"path": f"{tmp_path}/a b"}
    assert Reading(source).rows() == [{"line": "1"}]
    with pytest.raises(JobRejected, match="WEIR_DATA_ROOTS"):
        Reading(lines("file:///etc")).poll()


def test_a_store_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch, no_roots: None) -> None:
    monkeypatch.setenv("WEIR_SECRET_KEY_PART", "s/e+c r%et")
    url = "s3://id:${secret:key-part}@bucket/in?region=x&scheme=http&endpoint_override=127.0.0.1:9&connect_timeout=1"
    with pytest.raises((EnvironmentFailure, JobRejected)) as failed:
        lines(url).list_input()
    assert "s/e+c" not in str(failed.value)
    assert "s3://bucket/in" in str(failed.value)


# ---------------------------------------------------------------- a real server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """host:port of an S3 server in a process of its own."""
    program = """
import contextlib, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0)
with contextlib.redirect_stdout(sys.stderr):
    server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        yield f"127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.terminate()
        server.wait(60)


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, fs.FileSystem]:
    """A URL with references, and the file system below it."""
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path))
    monkeypatch.setenv("WEIR_DATA_URLS", f"s3://lake/in?region=eu-central-1&scheme=http&endpoint_override={s3}")
    monkeypatch.setenv("WEIR_SECRET_KEY_ID", "AKIATEST")
    monkeypatch.setenv("WEIR_SECRET_KEY", "key/+%")
    system = fs.S3FileSystem(
        access_key="AKIATEST", secret_key="key/+%", region="eu-central-1", scheme="http", endpoint_override=s3,
        allow_bucket_creation=True, allow_bucket_deletion=True,
    )  # fmt: skip
    name = f"lake/in/{time.monotonic_ns()}"
    system.create_dir("lake")
    return (
        f"s3://${{secret:key-id}}:${{secret:key}}@{name}?region=eu-central-1&scheme=http&endpoint_override={s3}",
        fs.SubTreeFileSystem(name, system),
    )


def put(system: fs.FileSystem, path: str, data: bytes) -> None:
    with system.open_output_stream(path) as out:
        out.write(data)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_s3_are_read_in_splits_across_a_rescale(kind: str, bucket: tuple[str, fs.FileSystem]) -> None:
    url, system = bucket
    make, format_ = KINDS[kind]
    put(system, "a", make(ROWS, random.Random(1)))
    put(system, "_hidden", b"nonsense")
    source = DirectorySource(url, format_, bounded=True, split_bytes=1_500)
    source.check()
    listing = source.list_input()
    put(system, "later", b"nonsense")
    first = [Reading(source_with_input(source, listing), index=index, parallelism=3) for index in range(3)]
    store, rows = first[0].store, list[dict[str, Any]]()
    for index, reading in enumerate(first):
        reading.state._store = store
        batch = reading.poll(40 + index)
        rows += batch.to_pylist() if batch is not None else []
    snapshots = [_in(store, reading) for reading in first]
    for index in range(2):
        rows += Reading(source, store=store, snapshots=snapshots, index=index, parallelism=2).rows(50)
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, ROWS))


def _in(store: Any, reading: Reading) -> Any:
    reading.reader.snapshot(1)
    return reading.state.capture(False).write(store, f"chk/{reading.context.index}")[0]


def test_partitions_and_filters_on_s3(bucket: tuple[str, fs.FileSystem]) -> None:
    url, system = bucket
    with system.open_output_stream("day=1/a.parquet") as out:
        pq.write_table(pa.table({"id": range(40)}), out, row_group_size=10)
    put(system, "day=2/b.parquet", b"nonsense")
    condition = (pc.field("day") == 1) & (pc.field("id") > 33)
    source = ParquetSource(url, pa.schema([("id", pa.int64())]), partition_by=("day",), filter=condition)
    assert Reading(source).rows() == [{"id": number, "day": 1} for number in range(34, 40)]


def test_a_watched_folder_of_s3_may_appear_later(bucket: tuple[str, fs.FileSystem]) -> None:
    url, system = bucket
    reading = Reading(DirectorySource(url, LineFormat()))
    assert reading.rows() == []
    for name in "ab":
        put(system, name, name.encode())
        assert reading.rows() == [{"line": name}]


def test_files_below_the_folder_are_left_out_as_in_a_local_folder(s3: str, bucket: tuple[str, fs.FileSystem]) -> None:
    """Keys of S3 may have empty steps, as in `in//a`."""
    url, system = bucket
    put(system, "top", b"top")
    put(system, "sub/a", b"no")
    client = boto3.client(
        "s3", endpoint_url=f"http://{s3}", aws_access_key_id="AKIATEST", aws_secret_access_key="key/+%",
        region_name="eu-central-1",
    )  # fmt: skip
    folder = url.partition("@lake/")[2].partition("?")[0]
    client.put_object(Bucket="lake", Key=f"{folder}//a", Body=b"no")
    assert Reading(lines(url)).rows() == [{"line": "top"}]
    for key in ("day=1/a", "day=1/sub/a", "day=1//a"):
        client.put_object(Bucket="lake", Key=f"{folder}/by/{key}", Body=b"1")
    by_day = url.replace(folder, f"{folder}/by")
    assert Reading(lines(by_day, partition_by=("day",))).rows() == [{"line": "1", "day": 1}]


def test_a_missing_folder_bucket_or_file_of_s3_is_named(bucket: tuple[str, fs.FileSystem]) -> None:
    url, system = bucket
    with pytest.raises(EnvironmentFailure, match=r"there is no folder s3://lake/in/\d+"):
        lines(url).list_input()
    put(system, "a", b"1\n")
    reading = Reading(source := lines(url))
    snapshot = reading.snapshot("chk")
    system.delete_file("a")
    put(system, "b", b"1\n")
    with pytest.raises(EnvironmentFailure, match=r"s3://lake/in/\d+/a: the file is gone"):
        Reading(source, store=reading.store, snapshots=[snapshot]).poll()


@dataclass(frozen=True)
class Vanishing:
    """A file whose object is deleted as soon as it is open."""

    file: InputFile
    delete: Callable[[], None]

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    def open(self) -> BinaryIO:
        opened = self.file.open()
        self.delete()
        return opened

    def open_native(self) -> pa.NativeFile:
        opened = self.file.open_native()
        self.delete()
        return opened


@pytest.mark.parametrize("kind", [*KINDS, "arrow"])
def test_an_error_of_the_store_is_no_fault_of_the_file(kind: str, bucket: tuple[str, fs.FileSystem]) -> None:
    """Whatever the parser: a malformed file could be skipped by the policy."""
    url, system = bucket
    make, format_ = KINDS.get(kind, (parquet_bytes, ArrowFormat()))
    put(system, "a", make(ROWS, random.Random(1)))
    file = Vanishing(RemoteFolder(url).open("a").file, lambda: system.delete_file("a"))
    chunks = format_.scan(file, Scan())
    with pytest.raises(EnvironmentFailure, match=r"s3://lake/in/\d+/a: the store cannot be read"):
        next(chunks)


def test_a_bucket_that_is_not_there_is_refused(
    bucket: tuple[str, fs.FileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEIR_DATA_ROOTS")
    with pytest.raises((JobRejected, EnvironmentFailure), match="s3://nowhere/in"):
        lines(bucket[0].replace("lake/in", "nowhere/in")).list_input()
