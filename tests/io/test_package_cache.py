"""The cache of unpacked packages of a host."""

import os
import stat
import threading
from pathlib import Path

import pytest

from runtime.access.job_package import JobPackage
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import package_path, unpacked
from runtime.io.store import open_store


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPackage:
    for name in ("var", "source", "storage"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("WEIR_VAR", str(tmp_path / "var"))
    (tmp_path / "source" / "word.txt").write_text("hey")
    data, digest = write_archive(tmp_path / "source")
    assert open_store(str(tmp_path / "storage")).create(package_path(digest), data)
    return JobPackage(digest, str(tmp_path / "storage"))


def _stored(package: JobPackage) -> Path:
    return Path(package.storage, package_path(package.digest))


def test_a_package_is_unpacked_once(package: JobPackage) -> None:
    folder = unpacked(package)
    assert (folder / "word.txt").read_text() == "hey"
    _stored(package).unlink()
    assert unpacked(package) == folder
    assert [path.name for path in folder.parent.iterdir()] == [package.digest]


def test_processes_that_unpack_at_once_have_one_folder(package: JobPackage) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(unpacked(package))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 8
    assert len(set(folders)) == 1


def test_a_damaged_folder_of_the_cache_stays_and_another_is_used(package: JobPackage) -> None:
    """Processes may run from the damaged folder."""
    folder = unpacked(package)
    (folder / "word.txt").chmod(0o644)
    (folder / "word.txt").write_text("other")
    other = unpacked(package)
    assert (other / "word.txt").read_text() == "hey"
    assert (folder / "word.txt").read_text() == "other"
    assert unpacked(package) == other


def test_an_unpacked_package_is_read_only_and_a_file_that_a_job_writes_beside_it_is_left(package: JobPackage) -> None:
    folder = unpacked(package)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "word.txt")] == [0o555, 0o444]
    folder.chmod(0o755)  # as for root, whom modes do not bind
    (folder / "cache.db").write_text("rows of a job")
    assert unpacked(package) == folder
    (folder / "json.py").write_text("a module of another package")
    assert unpacked(package) != folder


def test_a_folder_that_a_killed_process_left_is_removed_when_it_is_old(package: JobPackage, tmp_path: Path) -> None:
    cache = tmp_path / "var" / "packages"
    for name in (".old", ".new"):
        (cache / name / "module").mkdir(parents=True)
    cache.chmod(0o700)
    (cache / ".old" / "module").chmod(0o555)
    hour_ago = (cache / ".old").stat().st_mtime - 3_700
    os.utime(cache / ".old", (hour_ago, hour_ago))
    unpacked(package)
    assert sorted(path.name for path in cache.iterdir()) == [".new", package.digest]


def test_a_damaged_file_of_the_storage_is_refused_by_name(package: JobPackage, tmp_path: Path) -> None:
    _stored(package).write_bytes(_stored(package).read_bytes()[:-20])
    with pytest.raises(JobRejected, match="damaged") as refused:
        unpacked(package)
    assert str(_stored(package)) in refused.value.detail


def test_another_package_under_the_digest_is_refused_by_name(package: JobPackage, tmp_path: Path) -> None:
    (tmp_path / "source" / "word.txt").write_text("other")
    _stored(package).write_bytes(write_archive(tmp_path / "source")[0])
    with pytest.raises(JobRejected, match="another digest") as refused:
        unpacked(package)
    assert str(_stored(package)) in refused.value.detail
    assert list((tmp_path / "var" / "packages").iterdir()) == []


def test_a_missing_package_is_refused_and_a_storage_that_is_away_is_not(package: JobPackage, tmp_path: Path) -> None:
    _stored(package).unlink()
    with pytest.raises(JobRejected, match="the storage has no package"):
        unpacked(package)
    with pytest.raises(EnvironmentFailure, match="No such file"):
        unpacked(JobPackage(package.digest, str(tmp_path / "not-mounted")))


def test_a_cache_that_others_may_write_is_refused(package: JobPackage, tmp_path: Path) -> None:
    cache = tmp_path / "var" / "packages"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(EnvironmentFailure, match="another user may write to it"):
        unpacked(package)


def test_a_text_that_is_no_digest_names_no_file() -> None:
    with pytest.raises(JobRejected, match="no digest"):
        JobPackage("../../secrets", "/storage")
