"""The cache of unpacked packages of a host."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.access.job_package import JobPackage
from runtime.errors import EnvironmentFailure, JobRejected, is_outage
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import clean_cache, package_path, unpacked
from runtime.io.store import open_store
from tests.waiting import until


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


def test_only_a_storage_that_is_not_mounted_is_an_outage(package: JobPackage, tmp_path: Path) -> None:
    """No wait heals a file that this user may not read. `is_outage` knows it by the error of the store."""
    with pytest.raises(EnvironmentFailure) as away:
        unpacked(JobPackage(package.digest, str(tmp_path / "not-mounted")))
    assert is_outage(away.value)
    _stored(package).unlink()
    _stored(package).symlink_to(_stored(package))  # unreadable for root too
    with pytest.raises(EnvironmentFailure, match="cannot be read") as unreadable:
        unpacked(package)
    assert not is_outage(unreadable.value)


def test_a_cache_that_others_may_write_is_refused(package: JobPackage, tmp_path: Path) -> None:
    cache = tmp_path / "var" / "packages"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(EnvironmentFailure, match="another user may write to it"):
        unpacked(package)


def test_a_text_that_is_no_digest_names_no_file() -> None:
    with pytest.raises(JobRejected, match="no digest"):
        JobPackage("../../secrets", "/storage")


def _age(folder: Path, days: int = 40) -> None:
    then = folder.stat().st_mtime - days * 86_400
    os.utime(folder, (then, then))


def _is_removed(folder: Path) -> bool:
    clean_cache()
    return not folder.exists()


def _unpack_in_child(package: JobPackage) -> "subprocess.Popen[str]":
    """A process whose child uses the package until its stdin ends, as a worker of Spark's daemon does."""
    program = (
        "import os, sys\nfrom runtime.access.job_package import JobPackage\n"
        "from runtime.io.package_cache import unpacked\n"
        f"print(unpacked(JobPackage({package.digest!r}, {package.storage!r})), flush=True)\n"
        "child = os.fork()\n"
        "sys.stdin.read() if child == 0 else os._exit(0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.wait()  # its child holds the folder
    return process


def test_a_folder_that_no_process_has_used_for_its_days_goes_and_none_in_use(package: JobPackage) -> None:
    process = _unpack_in_child(package)
    (folder,) = Path(os.environ["WEIR_VAR"], "packages").iterdir()
    clean_cache()
    assert folder.exists(), "it is young"
    _age(folder)
    clean_cache()
    assert folder.exists(), "a process runs from it"
    assert process.stdin is not None
    process.stdin.close()
    until(lambda: _is_removed(folder))
    assert list(folder.parent.iterdir()) == []


def test_the_next_package_of_a_host_removes_what_is_unused(
    package: JobPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_PACKAGE_DAYS", "50")
    cache = tmp_path / "var" / "packages"
    for days, name in ((60, "a" * 64), (40, "b" * 64)):
        (cache / name / "module").mkdir(parents=True)
        (cache / name / "module").chmod(0o555)
        _age(cache / name, days)
    cache.chmod(0o700)
    folder = unpacked(package)
    assert sorted(path.name for path in cache.iterdir()) == sorted([folder.name, "b" * 64])


@pytest.mark.parametrize("days", ["0", "a month", "-1"])
def test_no_days_or_a_text_instead_of_days_removes_no_young_folder_and_fails_no_job(
    package: JobPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str
) -> None:
    """An executor has the variable from its own environment, which no console has checked."""
    monkeypatch.setenv("WEIR_PACKAGE_DAYS", days)
    other = tmp_path / "var" / "packages" / ("a" * 64)
    other.mkdir(parents=True)
    other.parent.chmod(0o700)
    _age(other, 2)
    assert unpacked(package).is_dir()
    assert other.exists()


def test_processes_use_a_package_while_others_remove_it(package: JobPackage) -> None:
    """A process that asks for a folder at the moment of its removal has another one."""
    program = (
        "import os, sys\nfrom runtime.access.job_package import JobPackage\n"
        "from runtime.io.package_cache import unpacked\n"
        f"folder = unpacked(JobPackage({package.digest!r}, {package.storage!r}))\n"
        "os.utime(folder, (0, 0))\n"
        "sys.exit((folder / 'word.txt').read_text() != 'hey')"
    )
    users: list[subprocess.Popen[bytes]] = []
    for _ in range(8):
        users += [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
        while sum(user.poll() is None for user in users) > 1:
            clean_cache()
    assert [user.wait() for user in users] == [0] * len(users)
