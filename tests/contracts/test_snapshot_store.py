"""Every snapshot store keeps the same promises: memory, files, and a bucket on a real S3 server."""

import errno
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import CorruptState, EnvironmentFailure, is_outage
from runtime.io.filesystem import FileStore
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.io.store import open_store
from runtime.ports import SnapshotStore
from runtime.s3 import PART_BYTES


@pytest.fixture(params=["memory", "files", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    makers: dict[str, Callable[[], SnapshotStore]] = {
        "memory": MemorySnapshotStore,
        "files": lambda: open_store(f"file://{tmp_path}/root/job"),
        "s3": lambda: open_store(request.getfixturevalue("bucket_uri")),
    }
    return makers[request.param]()


def test_what_is_put_can_be_got(store: SnapshotStore) -> None:
    store.put("chk-1/op-0/state.arrow", [b"one ", b"two"])
    store.put("empty", [])
    assert store.get("chk-1/op-0/state.arrow") == b"one two"
    assert store.get("empty") == b""


@pytest.mark.parametrize("nbytes", [PART_BYTES - 1, PART_BYTES, 3 * PART_BYTES + 5])
def test_a_large_file_is_whole(store: SnapshotStore, nbytes: int) -> None:
    content = random.Random(nbytes).randbytes(nbytes)
    store.put("large", (content[start : start + 1_000_003] for start in range(0, nbytes, 1_000_003)))
    assert store.get("large") == content
    assert store.sizes("") == {"large": nbytes}
    assert store.get_range("large", nbytes - 3, 10) == content[-3:]


@pytest.mark.parametrize("name", ["a%2Fb", "a b", "key=ä", "a+b&c", "x#y?z", "~*|"])
def test_names_keep_their_characters(store: SnapshotStore, name: str) -> None:
    store.put(f"chk-1/{name}/state", [b"x"])
    assert store.list("") == [f"chk-1/{name}/state"]
    assert store.get(f"chk-1/{name}/state") == b"x"
    store.delete([f"chk-1/{name}/state"])
    assert store.list("") == []


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


def test_of_several_writers_a_single_one_creates_a_file(store: SnapshotStore) -> None:
    tokens = [f"writer {number}".encode() for number in range(8)]
    with ThreadPoolExecutor(len(tokens)) as pool:
        for path in (f"chk-1/claim-{number}" for number in range(3)):
            created = list(pool.map(partial(store.create, path), tokens))
            assert created.count(True) == 1
            assert store.get(path) == tokens[created.index(True)]
    assert store.leftover_files() == []


def test_a_writer_that_did_not_get_the_reply_recognises_its_own_file(store: SnapshotStore) -> None:
    assert store.create("claim", b"mine")
    assert store.create("claim", b"mine")
    assert not store.create("claim", b"of another")
    assert store.get("claim") == b"mine"


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


def test_sizes_are_those_of_the_files_with_the_prefix(store: SnapshotStore) -> None:
    assert store.sizes("") == {}
    for path, size in (("chk-1/a", 3), ("chk-1/b/c", 0), ("chk-10/a", 1)):
        store.put(path, [b"x" * size])
    assert store.sizes("chk-1/") == {"chk-1/a": 3, "chk-1/b/c": 0}
    assert store.sizes("") == {"chk-1/a": 3, "chk-1/b/c": 0, "chk-10/a": 1}


def test_a_file_has_a_size_and_a_folder_its_newest_change(store: SnapshotStore) -> None:
    store.put("chk-1/a", [b"one"])
    assert (store.size("chk-1/a"), store.size("chk-1/b")) == (3, None)
    assert list(store.folders()) == ["chk-1"]
    assert store.newest_change("chk-1") is not None
    assert store.newest_change("chk-2") is None


def test_a_copy_is_a_file_of_its_own_name(store: SnapshotStore) -> None:
    store.put("1/chk-1/a", [b"one"])
    store.copy("1/chk-1/a", "2/savepoint-1/a")
    store.delete(["1/chk-1/a"])
    assert (store.list(""), store.get("2/savepoint-1/a")) == (["2/savepoint-1/a"], b"one")
    with pytest.raises(CorruptState, match="1/chk-1/a"):
        store.copy("1/chk-1/a", "2/b")
    assert store.list("2/b") == []


def test_a_producer_that_fails_leaves_the_old_file_or_none(store: SnapshotStore) -> None:
    def half(nbytes: int) -> Iterator[bytes]:
        yield b"x" * nbytes
        yield b"half of it"
        raise RuntimeError("the state could not be encoded")

    store.put("old", [b"whole"])
    for path, nbytes in itertools.product(("old", "chk-1/new"), (1, 2 * PART_BYTES)):
        with pytest.raises(RuntimeError, match="encoded"):
            store.put(path, half(nbytes))
    assert store.list("") == ["old"]
    assert store.get("old") == b"whole"


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../outside", "", "."])
@pytest.mark.parametrize("root", ["/nonexistent/root", "s3://weir/root"])
def test_a_path_outside_the_root_is_refused(root: str, path: str) -> None:
    with pytest.raises(EnvironmentFailure, match="not a path below the storage root"):
        open_store(root).put(path, [b"x"])


# ---------------------------------------------------------------- what only files can do wrong


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
    (tmp_path / "chk-1" / ".tmp-99-b").write_bytes(b"half")
    assert store.list("") == ["chk-1/a"]
    assert store.leftover_files() == ["chk-1/.tmp-99-b"]


def test_a_disk_that_refuses_is_an_environment_failure_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentFailure, match="file/below"):
        FileStore(tmp_path).put("file/below", [b"x"])
    with pytest.raises(EnvironmentFailure, match="cannot be read"):
        FileStore(tmp_path.parent).get(tmp_path.name)


def test_a_disk_that_fails_is_an_outage_and_a_file_that_is_missing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is waited out. After the second another checkpoint must be restored."""
    store = FileStore(tmp_path)
    with pytest.raises(CorruptState) as missing:
        store.get("chk-1/nothing")
    assert not is_outage(missing.value)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    for write in (lambda: store.put("chk-1/a", [b"x"]), lambda: store.create("chk-1/a", b"x")):
        with pytest.raises(EnvironmentFailure, match="chk-1/a cannot be written") as failed:
            write()
        assert is_outage(failed.value)
    assert store.leftover_files() == store.list("") == []


def test_without_links_a_file_is_created_by_a_rename_that_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path, source: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = FileStore(tmp_path)
    assert store.create("claim", b"mine")
    assert not store.create("claim", b"of another")
    assert (store.get("claim"), store.leftover_files()) == (b"mine", [])


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
    assert re.fullmatch(r"sync \.tmp-\w+-a", calls.pop(0))
    assert calls == ["sync root", f"sync {tmp_path.name}", "rename to a", "sync chk-1"]


def test_a_file_that_is_recognised_as_the_own_one_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer may have been killed between the link and the sync of the folder."""
    FileStore(tmp_path).create("chk-1/claim", b"mine")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    assert FileStore(tmp_path).create("chk-1/claim", b"mine")
    assert synced[-1] == "chk-1"


def test_a_root_that_is_a_dangling_link_is_an_environment_failure(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to(tmp_path / "unmounted")
    store = FileStore(tmp_path / "root")
    for write in (lambda: store.put("chk-1/a", [b"x"]), lambda: store.create("chk-1/a", b"x")):
        with pytest.raises(EnvironmentFailure, match="chk-1/a cannot be written") as failed:
            write()
        assert not isinstance(failed.value, CorruptState)


def test_a_place_that_is_taken_and_has_no_file_is_an_environment_failure(tmp_path: Path) -> None:
    (tmp_path / "claim").symlink_to(tmp_path / "unmounted")
    with pytest.raises(EnvironmentFailure, match="claim cannot be created") as failed:
        FileStore(tmp_path).create("claim", b"mine")
    assert not isinstance(failed.value, CorruptState)


def test_writers_of_a_file_in_several_containers_leave_each_other_alone(tmp_path: Path) -> None:
    """The numbers of their processes are the same."""
    first, second = FileStore(tmp_path), FileStore(tmp_path)

    def content() -> Iterator[bytes]:
        yield b"first "
        second.put("claim", [b"second"])
        yield b"writer"

    first.put("claim", content())
    assert first.get("claim") == b"first writer"
    assert first.leftover_files() == []


def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a restore would call a checkpoint incomplete, and retention would see no pin."""
    store = FileStore(tmp_path)
    store.put("chk-1/a", [b"x"])
    scandir = os.scandir

    def fail(path: str) -> Any:
        if Path(path).name == "chk-1":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    for listing in (lambda: store.list("chk-1/"), lambda: store.sizes(""), store.leftover_files):
        with pytest.raises(EnvironmentFailure, match="chk-1 cannot be listed") as failed:
            listing()
        assert is_outage(failed.value)


def test_a_link_to_itself_is_an_environment_failure(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(EnvironmentFailure, match="loop cannot be listed"):
        FileStore(tmp_path).sizes("")
    with pytest.raises(EnvironmentFailure, match="loop cannot be listed"):
        FileStore(tmp_path / "loop").list("")


def test_nobody_else_may_look_into_a_store_on_disk(tmp_path: Path) -> None:
    FileStore(tmp_path / "storage" / "7").put("chk-1-1/a-0/k.arrow", [b"secret"])
    assert (tmp_path / "storage" / "7").stat().st_mode & 0o777 == 0o700
