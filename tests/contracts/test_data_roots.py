"""WEIR_DATA_ROOTS: what jobs may read and write, however a path is spelled."""

import os
from pathlib import Path

import pytest

from runtime.access.data_roots import DataRoots, check_url
from runtime.connectors.formats import JsonLinesFormat
from runtime.connectors.sources.directory import DirectorySource
from runtime.errors import DataRejected, JobRejected
from tests.contracts.files import Reading
from tests.contracts.test_sources import SCHEMA


def roots(var: Path, *allowed: Path) -> DataRoots:
    return DataRoots.of_environment({"WEIR_VAR": str(var), "WEIR_DATA_ROOTS": os.pathsep.join(map(str, allowed))})


def test_only_what_lies_below_a_root_may_be_used(tmp_path: Path) -> None:
    data_roots = roots(tmp_path / "var", tmp_path / "a", tmp_path / "b")
    assert data_roots.is_allowed(tmp_path / "a")
    assert data_roots.is_allowed(tmp_path / "b" / "not" / "there yet")
    for other in (tmp_path, tmp_path / "ab", tmp_path / "a" / ".." / "c", Path("/"), Path("relative")):
        assert not data_roots.is_allowed(other), other


@pytest.mark.parametrize("folder", ["pg/data", "redis", "run/env", "log", "storage/1/chk-1-1", "inputs/1", "spark"])
def test_folders_of_weir_are_refused_below_any_root(tmp_path: Path, folder: str) -> None:
    var = tmp_path / "var"
    for root in (tmp_path, var, Path("/"), var / folder):
        assert not roots(var, root).is_allowed(var / folder), root


def test_storage_that_lies_elsewhere_is_refused_too(tmp_path: Path) -> None:
    environment = {"WEIR_DATA_ROOTS": str(tmp_path), "WEIR_STORAGE": str(tmp_path / "shared" / "state")}
    data_roots = DataRoots.of_environment(environment)
    assert data_roots.is_allowed(tmp_path / "shared" / "statements")
    assert not data_roots.is_allowed(tmp_path / "shared" / "state" / "1")


def test_a_root_above_the_data_of_weir_does_not_open_it(tmp_path: Path) -> None:
    var = tmp_path / "var"
    assert not roots(var, tmp_path).is_allowed(var / "anything")
    assert roots(var, tmp_path, var / "data").is_allowed(var / "data" / "in")


def test_links_are_followed(tmp_path: Path) -> None:
    data, var = tmp_path / "data", tmp_path / "var"
    data.mkdir()
    (var / "run").mkdir(parents=True)
    (data / "out").symlink_to("/etc")
    (data / "own").symlink_to(var / "run")
    (data / "circle").symlink_to(data / "circle" / "again")
    (tmp_path / "alias").symlink_to(data)
    data_roots = roots(var, data)
    assert data_roots.is_allowed(tmp_path / "alias" / "in")
    for path in (data / "out", data / "out" / "passwd", data / "own" / "env", data / "circle"):
        assert not data_roots.is_allowed(path), path
    assert not data_roots.is_allowed(f"{data}/nul\0")


def test_no_root_at_all_refuses_everything_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match=r"output_dir: .* Allowed are folders below: none") as error:
        roots(tmp_path).check("output_dir", str(tmp_path))
    assert error.value.code == "path-not-allowed"


def test_a_file_that_links_out_of_the_roots_is_refused_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A malformed file is quoted in the failure text: that was how a reader saw the database password."""
    folder = tmp_path / "data" / "in"
    folder.mkdir(parents=True)
    secret = tmp_path / "env"
    secret.write_text("DATABASE_URL=postgresql://weir:swordfish@127.0.0.1/weir\n")
    (folder / "orders.jsonl").symlink_to(secret)
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "data"))
    reading = Reading(DirectorySource(str(folder), JsonLinesFormat(SCHEMA)))
    with pytest.raises(DataRejected, match="leads out of the folders that jobs may read") as error:
        reading.rows()
    assert "swordfish" not in str(error.value)


def test_a_file_that_links_to_another_one_below_the_roots_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "elsewhere.jsonl"
    folder.mkdir()
    elsewhere.write_text('{"id": 1, "at": 2}\n')
    (folder / "orders.jsonl").symlink_to(elsewhere)
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path))
    assert Reading(DirectorySource(str(folder), JsonLinesFormat(SCHEMA))).rows() == [{"id": 1, "at": 2}]


def test_the_storage_of_checkpoints_is_no_url_for_jobs() -> None:
    """A job that writes there could replace the state of every job."""
    urls = "s3://lake s3a://lake s3://lake?endpoint_override=other:1"
    environment = {"WEIR_DATA_ROOTS": "", "WEIR_DATA_URLS": urls, "WEIR_STORAGE": "s3://lake/weir"}
    check_url("folder", "s3://lake/weir-output", environment)
    paths = ("s3://lake/weir", "s3://lake/weir/7/chk-1-1", "s3://lake", "s3a://lake/weir/7")
    for url in (*paths, "s3://lake/weir/7?endpoint_override=other:1", "s3://user@lake/weir"):
        with pytest.raises(JobRejected, match="overlaps the storage of checkpoints"):
            check_url("folder", url, environment)
