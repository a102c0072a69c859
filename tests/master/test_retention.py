"""Which files go at the next start, and which are left alone."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runtime.clock import SystemClock
from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.job.ids import Token
from runtime.core.snapshot.manifest import FORMAT_VERSION, Manifest, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.core.snapshot.pins import PIN_VALIDITY_MS
from runtime.io.filesystem import FileStore
from runtime.io.manifests import read_manifest, write_manifest
from runtime.io.pins import EXPIRED_PIN_RETENTION_MS, PinnedCheckpoint, active_pin_folders
from runtime.master.retention import discard_checkpoints, readable_manifests, sweep_orphans
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
    sweep_orphans(store, Token(3), [])
    assert left.exists(), "its writer may live: it is of this attempt"
    sweep_orphans(store, Token(4), [])
    assert not left.exists()
    assert not left.parent.exists(), "folders left empty go too"


def test_files_that_no_manifest_needs_go_and_savepoints_stay(tmp_path: Path) -> None:
    """S2-37: the files of early acknowledgements of a checkpoint that failed are among those that go."""
    store = FileStore(tmp_path)
    base, savepoint = "chk-1-2/a-0/base.arrow", "savepoint-2-2/a-0/base.arrow"
    aborted, foreign = "chk-3-2/a-0/base.arrow", "notes/read-me"
    lost, running = "savepoint-4-2/a-0/base.arrow", "chk-5-3/a-0/base.arrow"
    for path in (base, savepoint, f"savepoint-2-2/{MANIFEST_FILE}", aborted, foreign, lost, running):
        store.put(path, [b"x"])
    checkpoint = manifest({"a": [SubtaskSnapshot(keyed={"k": (segment(base),)})]}, checkpoint=4, token=2)
    write_manifest(store, checkpoint)
    assert sweep_orphans(store, Token(3), [checkpoint]) == 2
    assert set(store.list("")) == {
        base, savepoint, f"savepoint-2-2/{MANIFEST_FILE}", foreign, running, f"chk-4-2/{MANIFEST_FILE}"
    }  # fmt: skip


def test_a_discarded_checkpoint_of_newer_software_goes_as_far_as_its_own_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    delta, shared = "chk-4-2/a-0/delta.arrow", "chk-3-2/a-0/base.arrow"
    for path in (delta, shared):
        store.put(path, [b"x"])
    built_on = (segment(shared), segment(delta))
    newer = manifest({"a": [SubtaskSnapshot(keyed={"k": built_on})]}, checkpoint=4, token=2)
    write_manifest(store, msgspec.structs.replace(newer, format=FORMAT_VERSION + 1))
    assert discard_checkpoints(store, ["chk-4-2"], []) == []
    assert store.list("") == [shared]


def test_a_damaged_checkpoint_of_this_attempt_takes_no_file_that_the_next_may_name(tmp_path: Path) -> None:
    """Files that are merged beside the job lie in a folder before any manifest names them."""
    store = FileStore(tmp_path)
    delta, merged = "chk-4-2/a-0/state-000001.arrow", "chk-4-2/a-0/state-000002.arrow"
    for path in (delta, merged, f"chk-4-2/{MANIFEST_FILE}"):
        store.put(path, [b"x"])
    newest = manifest({"a": [SubtaskSnapshot(keyed={"k": (segment(delta),)})]}, checkpoint=5, token=2)
    write_manifest(store, newest)
    discard_checkpoints(store, ["chk-4-2"], [newest])
    assert store.list("chk-4-2") == [delta, merged]
    sweep_orphans(store, Token(3), [newest])
    assert store.list("chk-4-2") == [delta]


def test_a_damaged_checkpoint_takes_no_file_that_a_kept_slot_may_name(tmp_path: Path) -> None:
    """The slot writes into folders of the attempt that deployed it, while a newer attempt takes the checkpoints."""
    store = FileStore(tmp_path)
    merged = "chk-4-2/a-0/state-000002.arrow"
    for path in (merged, f"chk-4-2/{MANIFEST_FILE}"):
        store.put(path, [b"x"])
    newest = manifest({"a": [SubtaskSnapshot()]}, checkpoint=5, token=3)
    write_manifest(store, newest)
    discard_checkpoints(store, ["chk-4-2"], [newest], oldest=Token(2))
    assert store.list("chk-4-2") == [merged]


def test_what_an_unreadable_checkpoint_may_need_stays_and_the_rest_goes(tmp_path: Path) -> None:
    """It names files that were there when it was taken: none in the folder of a newer checkpoint.

    A savepoint names the last snapshot of a subtask that had finished, which lies in the folder of a checkpoint.
    """
    store = FileStore(tmp_path)
    paths = [f"chk-{number}-1/file" for number in range(1, 6)] + ["savepoint-2-1/file"]
    for path in paths:
        store.put(path, [b"x"])
    sweep_orphans(store, Token(2), [], ["chk-3-1"])
    assert store.list("") == ["chk-1-1/file", "chk-2-1/file", "chk-3-1/file", "savepoint-2-1/file"]
    sweep_orphans(store, Token(2), [], ["savepoint-2-1"])
    assert store.list("") == ["chk-1-1/file", "chk-2-1/file", "savepoint-2-1/file"]


# ---------------------------------------------------------------- what is being read


def checkpoints(store: FileStore, count: int = 5) -> list[Manifest]:
    """Each with a file of its own and that of the one before it."""
    manifests = []
    for number in range(1, count + 1):
        files = [f"chk-{n}-1/a-0/{n}.arrow" for n in (number - 1, number) if n]
        store.put(files[-1], [b"x"])
        keyed = {"k": tuple(map(segment, files))}
        manifests.append(manifest({"a": [SubtaskSnapshot(keyed=keyed)]}, checkpoint=number, token=1))
        write_manifest(store, manifests[-1])
    return manifests


def test_what_is_being_read_stays_with_all_that_it_names_and_goes_later(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    manifests = checkpoints(store)
    PinnedCheckpoint(str(tmp_path), "chk-2-1").renew()
    now = SystemClock().now_ms()
    left = discard_checkpoints(
        store, ["chk-1-1", "chk-2-1", "chk-3-1"], manifests[3:], (), lambda: active_pin_folders(store, now)
    )
    assert left == ["chk-2-1"]
    assert files_of(manifests[1]) <= set(store.list("")), "it is whole, the file of an older checkpoint included"
    assert not {f"chk-1-1/{MANIFEST_FILE}", f"chk-3-1/{MANIFEST_FILE}"} & set(store.list(""))
    sweep_orphans(store, Token(2), [*manifests[3:], *readable_manifests(store, left)])
    assert files_of(manifests[1]) <= set(store.list("")), "also for the next attempt"
    later = now + PIN_VALIDITY_MS + 1
    assert discard_checkpoints(store, left, manifests[3:], (), lambda: active_pin_folders(store, later)) == [], (
        "its reader has died"
    )
    paths = {path for manifest in manifests[3:] for path in files_of(manifest)}
    assert {path for path in store.list("") if not path.startswith("pins/")} == paths
    active_pin_folders(store, later + EXPIRED_PIN_RETENTION_MS)
    assert set(store.list("")) == paths, "pins that ended long ago go too"


def test_a_reader_that_comes_in_the_middle_finds_everything_or_no_manifest(tmp_path: Path) -> None:
    """It pins and opens before retention has taken the manifest away, and after retention looked for pins."""
    store = FileStore(tmp_path)
    manifests = checkpoints(store)
    looks: list[bool] = []

    def pins() -> frozenset[str]:
        if looks:
            PinnedCheckpoint(str(tmp_path), "chk-1-1").renew()
        looks.append(True)
        return active_pin_folders(store, SystemClock().now_ms())

    assert discard_checkpoints(store, ["chk-1-1", "chk-2-1"], manifests[2:], (), pins) == ["chk-1-1"]
    assert read_manifest(store, "chk-1-1") == manifests[0], "it can be opened again"
    assert files_of(manifests[0]) <= set(store.list(""))
    assert f"chk-2-1/{MANIFEST_FILE}" not in store.list("")


def test_a_reader_that_may_not_write_reads_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "pins").write_text("no folder")
    PinnedCheckpoint(str(tmp_path), "chk-1-1").renew()
    assert active_pin_folders(FileStore(tmp_path), 0) == frozenset()
