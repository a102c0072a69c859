"""Which files go at the next start, and which are left alone."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runtime.core.checkpoint import FORMAT_VERSION, SubtaskSnapshot
from runtime.core.envelope import FILE_NAME
from runtime.core.ids import Token
from runtime.hosts.retention import discard, sweep
from runtime.io.filesystem import FileStore
from runtime.io.manifests import write_manifest
from tests.core.builders import manifest, segment
from tests.waiting import until

ROOT = Path(__file__).parents[2]
WRITES = """
import sys, time
from runtime.io.filesystem import FileStore
def slowly():
    yield b"half"
    time.sleep(600)
FileStore(sys.argv[1]).put(sys.argv[2], slowly())
"""


def killed_writer(storage: Path, path: str) -> Path:
    """What a process leaves that was killed in the middle of writing `path`."""
    writer = subprocess.Popen([sys.executable, "-c", WRITES, str(storage), path], cwd=ROOT)
    folder = (storage / path).parent
    until(lambda: folder.is_dir() and any(folder.glob(".tmp-*")))
    writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    (left,) = folder.glob(".tmp-*")
    return left


@pytest.mark.parametrize("folder", ["chk-7-3/a-0", "savepoint-7-3/a-0", "savepoint-7-3"])
def test_what_a_killed_writer_left_goes_with_the_next_attempt_and_not_before(tmp_path: Path, folder: str) -> None:
    left = killed_writer(tmp_path, f"{folder}/state.arrow")
    store = FileStore(tmp_path)
    sweep(store, Token(3), [])
    assert left.exists(), "its writer may live: it is of this attempt"
    sweep(store, Token(4), [])
    assert not left.exists()
    assert not left.parent.exists(), "folders left empty go too"


def test_files_that_no_manifest_needs_go_and_savepoints_stay(tmp_path: Path) -> None:
    """S2-37: the files of early acknowledgements of a checkpoint that failed are among those that go."""
    store = FileStore(tmp_path)
    needed, savepoint = "chk-1-2/a-0/base.arrow", "savepoint-2-2/a-0/base.arrow"
    aborted, foreign = "chk-3-2/a-0/base.arrow", "notes/read-me"
    lost, running = "savepoint-4-2/a-0/base.arrow", "chk-5-3/a-0/base.arrow"
    for path in (needed, savepoint, f"savepoint-2-2/{FILE_NAME}", aborted, foreign, lost, running):
        store.put(path, [b"x"])
    kept = manifest({"a": [SubtaskSnapshot(keyed={"k": (segment(needed),)})]}, checkpoint=4, token=2)
    write_manifest(store, kept)
    assert sweep(store, Token(3), [kept]) == 2
    assert set(store.list("")) == {
        needed, savepoint, f"savepoint-2-2/{FILE_NAME}", foreign, running, f"chk-4-2/{FILE_NAME}"
    }  # fmt: skip


def test_a_discarded_checkpoint_of_newer_software_goes_as_far_as_its_own_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    own, shared = "chk-4-2/a-0/delta.arrow", "chk-3-2/a-0/base.arrow"
    for path in (own, shared):
        store.put(path, [b"x"])
    built_on = (segment(shared), segment(own))
    newer = manifest({"a": [SubtaskSnapshot(keyed={"k": built_on})]}, checkpoint=4, token=2)
    write_manifest(store, msgspec.structs.replace(newer, format=FORMAT_VERSION + 1))
    assert discard(store, ["chk-4-2"], []) == 2
    assert store.list("") == [shared]


def test_a_damaged_checkpoint_of_this_attempt_takes_no_file_that_the_next_may_name(tmp_path: Path) -> None:
    """Files that are merged beside the job lie in a folder before any manifest names them."""
    store = FileStore(tmp_path)
    delta, merged = "chk-4-2/a-0/state-000001.arrow", "chk-4-2/a-0/state-000002.arrow"
    for path in (delta, merged, f"chk-4-2/{FILE_NAME}"):
        store.put(path, [b"x"])
    newest = manifest({"a": [SubtaskSnapshot(keyed={"k": (segment(delta),)})]}, checkpoint=5, token=2)
    write_manifest(store, newest)
    discard(store, ["chk-4-2"], [newest])
    assert store.list("chk-4-2") == [delta, merged]
    sweep(store, Token(3), [newest])
    assert store.list("chk-4-2") == [delta]


def test_what_an_unreadable_checkpoint_may_need_stays_and_the_rest_goes(tmp_path: Path) -> None:
    """It names files that were there when it was taken: none in the folder of a newer checkpoint."""
    store = FileStore(tmp_path)
    paths = [f"chk-{number}-1/file" for number in range(1, 6)] + ["savepoint-2-1/file"]
    for path in paths:
        store.put(path, [b"x"])
    sweep(store, Token(2), [], ["chk-3-1"])
    assert store.list("") == ["chk-1-1/file", "chk-2-1/file", "chk-3-1/file", "savepoint-2-1/file"]
    sweep(store, Token(2), [], ["savepoint-2-1"])
    assert store.list("") == ["savepoint-2-1/file"]
