"""Delta and Iceberg tables in a bucket of a real S3 server. The contract suite kills processes that write them."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

import weir
from runtime.access.data_roots import DATA_URLS_VARIABLE
from runtime.connectors.bucket import Bucket
from runtime.connectors.tables.iceberg_catalog import load_table, open_catalog
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected, is_outage
from runtime.s3 import PART_BYTES
from tests.connectors.two_phases import JOB, commit, prepared, rows, writer
from tests.iceberg import sqlite_catalog
from tests.s3 import BUCKET, S3Server, environment_of
from tests.s3_proxy import ONCE_MORE, Fault, Faults, faulty_proxy


@pytest.fixture
def uri(bucket_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DATA_URLS_VARIABLE, f"s3://{BUCKET}")
    return bucket_uri


@pytest.fixture
def faults(s3_server: S3Server, uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        yield faults


def delta(uri: str, folder: Path) -> weir.DeltaSink:
    return weir.DeltaSink(uri)


def iceberg(uri: str, folder: Path) -> weir.IcebergSink:
    return weir.IcebergSink("shop.rows", {**sqlite_catalog(folder), "warehouse": uri})


Make = Callable[[str, Path], Any]
both = pytest.mark.parametrize("make", [delta, iceberg])


def numbers(sink: Any) -> list[int]:
    """The rows that readers of the table see."""
    if isinstance(sink, weir.DeltaSink):
        table = DeltaTable(sink.path, storage_options={"allow_http": "true"}).to_pyarrow_table()
    else:
        with open_catalog(sink.catalog_name, sink.catalog) as catalog:
            table = load_table(catalog, sink.table).scan().to_arrow()
    with duckdb.connect() as connection:
        return sorted(number for (number,) in connection.from_arrow(table).fetchall())


def data_folder(sink: Any, uri: str) -> Bucket:
    return Bucket(uri if isinstance(sink, weir.DeltaSink) else f"{uri}/shop/rows/data")


@both
def test_a_table_in_a_bucket_has_each_row_once(make: Make, uri: str, tmp_path: Path) -> None:
    sink = make(uri, tmp_path)
    sink.check()
    assert sink.folders().get("path") is None
    first = writer(sink)
    ready = prepared(first, 1, 1, 2)
    assert [commit(sink, *ready), commit(sink, *ready)] == [1, 0]
    assert commit(sink, *prepared(first, 2, 3), checkpoint=2) == 1
    assert numbers(sink) == [1, 2, 3]


@both
def test_an_object_that_was_replaced_is_not_committed(make: Make, uri: str, tmp_path: Path) -> None:
    sink = make(uri, tmp_path)
    (ready,) = prepared(writer(sink), 1, 1)
    (file,) = ready["files"]
    data_folder(sink, uri).put(file["path"], bytes(file["bytes"]))
    with pytest.raises(EnvironmentFailure, match=rf"{file['path']}: the file to commit has .* it was replaced"):
        commit(sink, ready)


@both
def test_masters_that_commit_at_the_same_time_add_each_file_once(make: Make, uri: str, tmp_path: Path) -> None:
    sink = make(uri, tmp_path)
    first = writer(sink)
    for checkpoint in range(1, 6):
        ready = prepared(first, checkpoint, checkpoint)

        def commit_now(_: int, ready: list[Any] = ready, checkpoint: int = checkpoint) -> int:
            return commit(sink, *ready, checkpoint=checkpoint)

        with ThreadPoolExecutor(3) as masters:
            assert sum(masters.map(commit_now, range(3))) == 1
    assert numbers(sink) == [1, 2, 3, 4, 5]


@both
def test_a_clean_up_removes_files_and_uploads_of_killed_writers(make: Make, uri: str, tmp_path: Path) -> None:
    """Commits of an older attempt are refused from then on."""
    sink = make(uri, tmp_path)
    (kept,) = prepared(writer(sink), 1, 1)
    (lost,) = prepared(writer(sink, index=1), 1, 2)
    commit(sink, *prepared(writer(sink, index=2), 1, 3))
    folder = data_folder(sink, uri)
    killed = folder.begin_upload(lost["files"][0]["path"].replace("-1-0.parquet", "-2-0.parquet"))
    assert [upload for _, upload in folder.uploads()] == [killed]
    assert sink.committer().clean(JOB, "out", Token(2), [kept]) == 1
    assert folder.uploads() == []
    assert folder.find(lost["files"][0]["path"]) is None
    if isinstance(sink, weir.DeltaSink):
        assert commit(sink, lost) == 0
    else:
        with pytest.raises(JobRejected, match="attempt 1 must not commit: attempt 2"):
            commit(sink, lost)
    assert commit(sink, kept, token=2) == 1
    assert numbers(sink) == [1, 3]


def test_a_large_data_file_is_uploaded_in_parts(uri: str, tmp_path: Path) -> None:
    sink = delta(uri, tmp_path)
    first = writer(sink)
    values = [int.from_bytes(os.urandom(7), "big") for _ in range(PART_BYTES // 4)]
    for _ in range(2):
        first.write(rows(*values))
    assert len(Bucket(uri).uploads()) == 1, "parts are sent as rows arrive"
    (ready,) = first.prepare(1)
    assert Bucket(uri).uploads() == []
    assert int(ready["files"][0]["etag"].partition("-")[2]) > 2
    commit(sink, ready)
    assert numbers(sink) == sorted(2 * values)


def test_a_writer_that_ends_leaves_neither_files_nor_uploads(uri: str, tmp_path: Path) -> None:
    sink = delta(uri, tmp_path)
    ending = writer(sink)
    for _ in range(2):
        ending.write(rows(*(int.from_bytes(os.urandom(7), "big") for _ in range(PART_BYTES // 4))))
    assert Bucket(uri).uploads()
    ending.close()
    assert [*Bucket(uri).uploads(), *Bucket(uri).names()] == []


@pytest.mark.parametrize("fault", ONCE_MORE)
def test_a_commit_of_a_delta_table_whose_request_fails_is_exact(
    faults: Faults, uri: str, tmp_path: Path, fault: Fault
) -> None:
    sink = delta(uri, tmp_path)
    first = writer(sink)
    commit(sink, *prepared(first, 1, 1))
    ready, left = prepared(first, 2, 2), [fault]
    faults.rule = lambda method, path: left.pop() if left and method == "PUT" and "_delta_log" in path else None
    commit(sink, *ready, checkpoint=2)
    assert not left
    assert commit(sink, *ready, checkpoint=2) == 0
    assert numbers(sink) == [1, 2]


@both
def test_a_store_that_is_away_is_an_outage(make: Make, faults: Faults, uri: str, tmp_path: Path) -> None:
    sink = make(uri, tmp_path)
    ready = prepared(writer(sink), 1, 1)
    faults.rule = lambda method, path: Fault.UNAVAILABLE
    with pytest.raises(EnvironmentFailure) as failed:
        commit(sink, *ready)
    assert is_outage(failed.value), failed.value
    faults.rule = lambda method, path: None
    assert commit(sink, *ready) == 1


def test_pending_output_of_another_place_is_refused_and_committed_output_is_left_out(uri: str, tmp_path: Path) -> None:
    sink, elsewhere, folder = delta(uri, tmp_path), delta(f"{uri}-2", tmp_path), delta(str(tmp_path / "t"), tmp_path)
    pending = prepared(writer(sink), 1, 1)
    for other in (elsewhere, folder):
        with pytest.raises(JobRejected, match=rf"is pending in {uri}, not in .*: restore it into that table first"):
            commit(other, *pending)
    commit(sink, *pending)
    assert commit(elsewhere, *pending) == commit(folder, *pending) == 0


def test_a_table_whose_metadata_lie_where_jobs_may_not_write_is_refused(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of another program in the catalog: its data path is allowed, its place is not."""
    sink = iceberg(uri, tmp_path)
    first = writer(sink)
    ready = prepared(first, 1, 1)
    with (
        open_catalog(sink.catalog_name, sink.catalog) as catalog,
        load_table(catalog, sink.table).transaction() as table,
    ):
        table.set_properties(
            {"write.metadata.path": f"s3://{BUCKET}/elsewhere", "write.data.path": f"{uri}/shop/rows/data"}
        )
    monkeypatch.setenv(DATA_URLS_VARIABLE, uri)
    before = Bucket(f"s3://{BUCKET}/elsewhere").names()
    for use in (lambda: commit(sink, *ready), lambda: prepared(writer(sink), 2, 2)):
        with pytest.raises(JobRejected, match=f"catalog: s3://{BUCKET}/elsewhere is not a URL that jobs may use"):
            use()
    assert Bucket(f"s3://{BUCKET}/elsewhere").names() == before


def test_a_warehouse_that_jobs_may_not_use_is_refused_by_name(uri: str, tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match=r"catalog\.warehouse: s3://elsewhere/x is not a URL that jobs may use"):
        iceberg("s3://elsewhere/x", tmp_path).check()
    with pytest.raises(JobRejected, match=r"catalog\.warehouse: must be a folder or s3://bucket/prefix"):
        iceberg("gs://elsewhere/x", tmp_path).check()
