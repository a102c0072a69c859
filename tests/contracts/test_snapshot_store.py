"""Every snapshot store keeps the same promises: the file system's and its twin in memory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.filesystem import FileStore
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import SnapshotStore


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    makers: dict[str, Callable[[], SnapshotStore]] = {
        "memory": MemorySnapshotStore,
        "files": lambda: FileStore(tmp_path / "root" / "job"),
    }
    return makers[request.param]()


def test_what_is_put_can_be_got(store: SnapshotStore) -> None:
    store.put("chk-1/op-0/state.arrow", [b"one ", b"two"])
    store.put("empty", [])
    assert store.get("chk-1/op-0/state.arrow") == b"one two"
    assert store.get("empty") == b""


def test_a_part_can_be_got(store: SnapshotStore) -> None:
    """S3-21: who needs a part of the state reads a part of the file."""
    store.put("chk-1/state.arrow", [b"0123", b"456789"])
    assert store.get_range("chk-1/state.arrow", 2, 5) == b"23456"
    assert store.get_range("chk-1/state.arrow", 8, 5) == b"89"
    assert store.get_range("chk-1/state.arrow", 20, 5) == b""
    with pytest.raises(CorruptState, match="chk-1/nothing"):
        store.get_range("chk-1/nothing", 0, 1)


def test_a_file_can_be_replaced(store: SnapshotStore) -> None:
    store.put("manifest", [b"a longer first version"])
    store.put("manifest", [b"second"])
    assert store.get("manifest") == b"second"


def test_a_missing_file_is_named(store: SnapshotStore) -> None:
    for path in ("chk-1/nothing", "file/below"):
        store.put("file", [b"x"])
        with pytest.raises(CorruptState, match=path):
            store.get(path)


def test_deleting_is_success_also_when_the_file_is_gone(store: SnapshotStore) -> None:
    store.put("chk-1/a", [b"1"])
    store.put("chk-1/b", [b"2"])
    store.delete(["chk-1/a", "chk-1/a", "never/there", "chk-1/b/below"])
    assert store.list("") == ["chk-1/b"]
    store.delete(iter(["chk-1/b"]))
    assert store.list("") == []


def test_files_are_listed_by_prefix_in_order(store: SnapshotStore) -> None:
    assert store.list("") == []
    for path in ("chk-2/x", "chk-1/z", "chk-1/a/b", "chk-10/y", "top"):
        store.put(path, [b""])
    assert store.list("") == ["chk-1/a/b", "chk-1/z", "chk-10/y", "chk-2/x", "top"]
    assert store.list("chk-1/") == ["chk-1/a/b", "chk-1/z"]
    assert store.list("chk-1") == ["chk-1/a/b", "chk-1/z", "chk-10/y"]
    assert store.list("nothing") == []
    assert store.leftover_files() == []


def test_a_producer_that_fails_leaves_the_old_file_or_none(store: SnapshotStore) -> None:
    def half() -> Iterator[bytes]:
        yield b"half of it"
        raise RuntimeError("the state could not be encoded")

    store.put("old", [b"whole"])
    for path in ("old", "chk-1/new"):
        with pytest.raises(RuntimeError, match="encoded"):
            store.put(path, half())
    assert store.list("") == ["old"]
    assert store.get("old") == b"whole"


# ---------------------------------------------------------------- what only files can do wrong


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../outside", "", "."])
def test_a_path_outside_the_root_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(EnvironmentFailure, match="not a path below the storage root"):
        FileStore(tmp_path / "root").put(path, [b"x"])


def test_folders_left_empty_go_with_their_last_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.put("chk-1/op-0/a", [b"1"])
    store.put("chk-1/b", [b"2"])
    store.delete(["chk-1/op-0/a"])
    assert not (tmp_path / "root/chk-1/op-0").exists()
    store.delete(["chk-1/b"])
    assert list((tmp_path / "root").iterdir()) == []


def test_a_file_left_behind_by_a_crash_is_not_there(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("chk-1/a", [b"1"])
    (tmp_path / "chk-1" / ".tmp-99-0-b").write_bytes(b"half")
    assert store.list("") == ["chk-1/a"]
    assert store.leftover_files() == ["chk-1/.tmp-99-0-b"]


def test_a_disk_that_refuses_is_an_environment_failure_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentFailure, match="file/below"):
        FileStore(tmp_path).put("file/below", [b"x"])
    with pytest.raises(EnvironmentFailure, match="cannot be read"):
        FileStore(tmp_path.parent).get(tmp_path.name)


def test_the_data_is_durable_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    FileStore(tmp_path / "root").put("chk-1/a", [b"x"])
    name = f".tmp-{os.getpid()}-0-a"
    assert calls == [f"sync {name}", "sync root", f"sync {tmp_path.name}", "rename to a", "sync chk-1"]


def test_nobody_else_may_look_into_a_store_on_disk(tmp_path: Path) -> None:
    FileStore(tmp_path / "storage" / "7").put("chk-1-1/a-0/k.arrow", [b"secret"])
    assert (tmp_path / "storage" / "7").stat().st_mode & 0o777 == 0o700
