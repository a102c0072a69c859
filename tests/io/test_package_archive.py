"""The archive of a package: equal for equal contents, and refused with one error otherwise."""

import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from runtime.errors import JobRejected
from runtime.io import package_archive
from runtime.io.package_archive import read_archive, unpack_archive, write_archive


def _folder(path: Path) -> Path:
    (path / "shout" / "__pycache__").mkdir(parents=True)
    (path / "shout" / "__init__.py").write_text("WORD = 'hey'\n")
    (path / "shout" / "data.bin").write_bytes(bytes(range(256)))
    (path / "shout" / "__pycache__" / "x.pyc").write_bytes(b"bytecode")
    return path


def _archive(fill: Callable[[zipfile.ZipFile], object]) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        fill(archive)
    return data.getvalue()


def test_equal_contents_have_equal_bytes_and_another_content_another_digest(tmp_path: Path) -> None:
    first, second = _folder(tmp_path / "a"), _folder(tmp_path / "b")
    (second / "shout" / "data.bin").touch()  # another time
    assert write_archive(first) == write_archive(second)
    _, digest = write_archive(first)
    (second / "shout" / "data.bin").write_bytes(b"")
    assert write_archive(second)[1] != digest


def test_an_unpacked_package_has_its_files_without_bytecode_and_its_digest(tmp_path: Path) -> None:
    data, digest = write_archive(_folder(tmp_path / "a"))
    assert unpack_archive(data, tmp_path / "b") == digest
    files = sorted(path.relative_to(tmp_path / "b").as_posix() for path in (tmp_path / "b").rglob("*.*"))
    assert files == ["shout/__init__.py", "shout/data.bin"]
    assert (tmp_path / "b" / "shout" / "data.bin").read_bytes() == bytes(range(256))


def test_the_digest_does_not_depend_on_the_compression(tmp_path: Path) -> None:
    data, digest = write_archive(_folder(tmp_path / "a"))
    stored = BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        for name, content in reversed(list(read_archive(data))):
            archive.writestr(name, content)
    assert stored.getvalue() != data
    assert unpack_archive(stored.getvalue(), tmp_path / "b") == digest


def _link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("shout/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(entry, "/etc/passwd")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("fill", "problem"),
    [
        (lambda archive: archive.writestr("../evil.py", "x"), "'../evil.py' leaves the folder"),
        (lambda archive: archive.writestr("shout/../../evil.py", "x"), "leaves the folder"),
        (lambda archive: archive.writestr("/etc/evil", "x"), "'/etc/evil' leaves the folder"),
        (lambda archive: archive.writestr("shout\\evil.py", "x"), "a name that no package has"),
        (lambda archive: archive.writestr("shout/", ""), "is a folder"),
        (_link, "'shout/link' is no plain file"),
        (lambda archive: [archive.writestr("a", "x"), archive.writestr("a/b", "y")], "'a' is a file and a folder"),
        (lambda archive: [archive.writestr("a", "x"), archive.writestr("a", "y")], "two entries of one name"),
        (lambda archive: archive.writestr("shout/__pycache__/x.pyc", "x"), "is bytecode"),
        (lambda archive: archive.writestr("a/" * 32 + "b", "x"), "more than 32 parts"),
        (lambda archive: None, "0 files"),
    ],
)
def test_an_entry_that_no_package_has_is_refused(
    tmp_path: Path, fill: Callable[[zipfile.ZipFile], object], problem: str
) -> None:
    with pytest.raises(JobRejected, match="package: ") as refused:
        unpack_archive(_archive(fill), tmp_path / "files")
    assert refused.value.code == "bad-package"
    assert problem in refused.value.detail
    assert not (tmp_path / "files").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        archive.writestr("zeros", bytes(2_000_000), compress_type=zipfile.ZIP_DEFLATED)

    data = _archive(fill)
    assert len(data) < 5_000
    monkeypatch.setattr(package_archive, "MAX_UNPACKED_BYTES", 1_000_000)
    with pytest.raises(JobRejected, match="unpacks to 2,000,000 bytes"):
        next(read_archive(data))
    monkeypatch.undo()
    monkeypatch.setattr(package_archive, "MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(JobRejected, match="'zeros' has 2,000,000 bytes"):
        next(read_archive(data))


def test_a_bomb_with_a_small_size_in_its_directory_is_not_inflated() -> None:
    size = 60_000_000
    data = _archive(lambda archive: archive.writestr("zeros", bytes(size), compress_type=zipfile.ZIP_DEFLATED))
    declared = size.to_bytes(4, "little")
    assert data.count(declared) == 2
    data = data.replace(declared, (10).to_bytes(4, "little"))
    tracemalloc.start()
    try:
        with pytest.raises(JobRejected, match="damaged"):
            list(read_archive(data))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_too_many_files_are_refused_before_an_object_is_made_for_each() -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for number in range(package_archive.MAX_FILES + 1):
            archive.writestr(str(number), b"")

    data = _archive(fill)
    tracemalloc.start()
    try:
        with pytest.raises(JobRejected, match="20,001 files"):
            next(read_archive(data))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    data, _ = write_archive(_folder(tmp_path))
    content = bytearray(data)
    content[60] ^= 0xFF
    for damaged in (bytes(content), data[:-30], b"", b"no zip"):
        with pytest.raises(JobRejected, match="damaged"):
            list(read_archive(damaged))


def test_a_link_in_the_folder_is_refused(tmp_path: Path) -> None:
    _folder(tmp_path)
    (tmp_path / "shout" / "link").symlink_to("/etc")
    with pytest.raises(JobRejected, match="shout/link is no plain file"):
        write_archive(tmp_path)
