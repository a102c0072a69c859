"""Checkpoints that cannot be read when they are needed: named, with the one before offered, or taken by policy."""

import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.retention_plan import files_of
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import encode_manifest
from runtime.core.snapshot.proofs import GroupProof
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.restore_fallback import RestoreFallback, checkpoint_number
from runtime.state.files.segment_log import SegmentLog
from runtime.state.keyed_table import KeyedTable
from tests.jobs.numbers import Numbers, committed, counts, expected_counts
from tests.waiting import until

SOURCE = Numbers(total=2_000, batch=10, unbounded=True, hurry=20)


@dataclass
class Scene:
    """A job whose first master was released after some checkpoints."""

    folder: Path
    records: MemoryRunStore

    @property
    def manifests(self) -> list[Manifest]:
        return [completed.manifest for completed in self.records.completed]

    def path(self, name: str) -> Path:
        return self.folder / "state" / name

    def own_segments(self, index: int, operator: str) -> list[str]:
        """State files of an operator that no earlier checkpoint names."""
        before = {s.path for manifest in self.manifests[:index] for s in manifest.segments()}
        paths = {s.path for t in self.manifests[index].operators[operator].subtasks.values() for s in t.segments()}
        return sorted(paths - before)

    def manifest_file(self, index: int) -> str:
        return f"{self.records.completed[index].folder}/manifest.json"


def master_of(
    folder: Path, records: MemoryRunStore, policy: Any = "fail", fallback_limit_ms: int | None = None
) -> JobMaster:
    source = replace(SOURCE, slow_until=str(folder / "hurry"))
    config = MasterConfig(
        job_id="1",
        token=records.token,
        job=counts(source, folder / "out").compile(2),
        storage=str(folder / "state"),
        coordinator=CoordinatorSettings(interval_ms=100, min_pause_ms=10),
        restart=NoRestart(),
        on_corrupt_checkpoint=policy,
        fallback_limit_ms=fallback_limit_ms,
    )
    return JobMaster(config, records, FileStore(str(folder / "state")), LocalLauncher(), SystemClock())


def play(folder: Path) -> Scene:
    first = MemoryRunStore()
    master = master_of(folder, first)
    thread = threading.Thread(target=master.run)
    scene = Scene(folder, first)
    with pytest.MonkeyPatch.context() as patch:  # the state is small; as files, it can be damaged
        patch.setattr(SegmentLog, "base_inline_bytes", 0)
        patch.setattr(SegmentLog, "delta_inline_bytes", 0)
        thread.start()
        # Rows lie between the last checkpoints: a restore of an earlier one repeats output.
        until(
            lambda: len(first.completed) >= 4 and scene.own_segments(-1, "counts") and scene.own_segments(-2, "counts")
        )
        master.release()
        thread.join(60)
    (folder / "hurry").touch()
    return scene


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return play(tmp_path_factory.mktemp("played"))


@pytest.fixture
def scene(played: Scene, tmp_path: Path) -> Scene:
    """A copy of it, to be damaged."""
    shutil.copytree(played.folder, tmp_path, dirs_exist_ok=True)
    return Scene(tmp_path, played.records)


def again(scene: Scene, policy: str, fallback_limit_ms: int | None = None) -> tuple[MemoryRunStore, JobMaster]:
    ids = itertools.count(scene.manifests[-1].checkpoint + 1)
    records = MemoryRunStore(token=Token(50), completed=list(scene.records.completed), _ids=ids)
    return records, master_of(scene.folder, records, policy, fallback_limit_ms)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def altered(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


HARMS = pytest.mark.parametrize("harm", [truncated, altered, Path.unlink])


@HARMS
@pytest.mark.parametrize("operator", ["", "counts"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_offered(
    scene: Scene, harm: Callable[[Path], None], operator: str
) -> None:
    """S0-11: operator, file, checkpoint and what can be restored instead, whether master or slot meets it."""
    file = scene.own_segments(-1, operator)[0] if operator else scene.manifest_file(-1)
    harm(scene.path(file))
    # What checkpoints that were given up have left is swept by the next attempt.
    before = {path for m in scene.manifests for path in map(scene.path, files_of(m)) if path.exists()}
    records, master = again(scene, "fail")
    assert master.run() is MasterExitCode.DONE
    assert records.state is RunState.FAILED
    numbers = [manifest.checkpoint for manifest in scene.manifests]
    assert records.failure is not None
    failure = dict(records.failure)
    message = failure.pop("message")
    assert failure == {
        "code": "corrupt-state",
        "operator": operator,
        "file": file,
        "checkpoint": numbers[-1],
        "previous": numbers[-2],
        "repeated": [numbers[-1]],
    }
    assert file in message
    assert f"Checkpoint {numbers[-2]}, completed before it, can be restored instead" in message
    assert f"the output of checkpoint {numbers[-1]} would be repeated" in message
    assert before
    assert not [path for path in before if not path.exists()], "a repair must still help"


@HARMS
@pytest.mark.parametrize("operator", ["", "counts"])
def test_by_policy_the_one_before_is_restored_and_what_is_repeated_is_recorded(
    scene: Scene, harm: Callable[[Path], None], operator: str
) -> None:
    """S0-11: also twice in a row, and under a strategy that allows no restart."""
    for index in (-1, -2):
        harm(scene.path(scene.own_segments(index, operator)[0] if operator else scene.manifest_file(index)))
    before, rows = last_counts(scene), Counter((row["key"], row["n"]) for row in committed(scene.folder / "out"))
    records, master = again(scene, "previous")
    thread = threading.Thread(target=master.run)
    thread.start()
    until(lambda: last_counts(scene) == expected_counts(SOURCE), or_else=lambda: str(records.failure))
    records.operations.append(OperationRequest("d", "drain"))
    master.poke()
    thread.join(60)
    assert records.state is RunState.FINISHED
    numbers = [manifest.checkpoint for manifest in scene.manifests]
    reasons = [reason for _, outcome, reason in records.attempts if outcome == "failed"]
    assert f"By policy checkpoint {numbers[-3]} is restored instead" in reasons[-1]
    assert f"repeats the output of checkpoint {numbers[-2]}, checkpoint {numbers[-1]}" in reasons[-1]
    assert last_counts(scene) == expected_counts(SOURCE)
    later = Counter((row["key"], row["n"]) for row in committed(scene.folder / "out")) - rows
    assert any(n <= before[key][0] for key, n in later), "output was repeated, as it was said"


def lose_a_row(scene: Scene) -> int:
    """Makes the newest checkpoint one of a state with a row more than its files hold. Returns the key group."""
    manifest = scene.manifests[-1]
    counted = manifest.operators["counts"]
    index, snapshot = next(
        (index, candidate) for index, candidate in counted.subtasks.items() if candidate.proofs["aggregates"]
    )
    group, proof = next(iter(snapshot.proofs["aggregates"].items()))
    proofs = snapshot.proofs["aggregates"] | {group: GroupProof(proof.entries + 1, proof.hash)}
    changed = msgspec.structs.replace(snapshot, proofs=snapshot.proofs | {"aggregates": proofs})
    operator = msgspec.structs.replace(counted, subtasks=counted.subtasks | {index: changed})
    changed_manifest = msgspec.structs.replace(manifest, operators=manifest.operators | {"counts": operator})
    scene.path(scene.manifest_file(-1)).write_bytes(encode_manifest(changed_manifest))
    return group


def test_a_state_that_lacks_a_row_is_refused_though_each_file_is_whole(scene: Scene) -> None:
    """Operator, state, key group and file are named; by policy the checkpoint before is restored."""
    group = lose_a_row(scene)
    records, master = again(scene, "fail")
    assert master.run() is MasterExitCode.DONE
    assert records.failure is not None
    message, numbers = str(records.failure["message"]), [manifest.checkpoint for manifest in scene.manifests]
    assert (records.failure["code"], records.failure["operator"]) == ("corrupt-state", "counts")
    assert "state 'aggregates' of operator 'counts' (chk-" in message
    assert f"key group {group} has" in message
    assert records.failure["previous"] == numbers[-2]
    records, master = again(scene, "previous")
    thread = threading.Thread(target=master.run)
    thread.start()
    until(lambda: last_counts(scene) == expected_counts(SOURCE), or_else=lambda: str(records.failure))
    records.operations.append(OperationRequest("d", "drain"))
    master.poke()
    thread.join(60)
    reasons = [reason for _, outcome, reason in records.attempts if outcome == "failed"]
    assert f"By policy checkpoint {numbers[-2]} is restored instead" in reasons[-1]


def test_a_checkpoint_beyond_the_limit_of_age_is_named_and_not_restored(scene: Scene) -> None:
    altered(scene.path(scene.manifest_file(-1)))
    records, master = again(scene, "previous", fallback_limit_ms=1)
    assert master.run() is MasterExitCode.DONE
    assert (records.state, records.failure is None) == (RunState.FAILED, False)
    message = str((records.failure or {})["message"])
    assert f"Checkpoint {scene.manifests[-2].checkpoint}, completed before it, can be restored instead" in message
    assert message.endswith("s ago, more than `fallback_limit_ms` allows.")


@pytest.mark.parametrize(("limit_ms", "usable"), [(None, True), (5_000, True), (4_999, False)])
def test_the_limit_is_of_the_age_of_the_earlier_checkpoint(limit_ms: int | None, usable: bool) -> None:
    damage = RestoreFallback(
        file="", operator="", detail="", checkpoint=3, previous=2, age_ms=5_000, limit_ms=limit_ms,
        repeated_checkpoints=(3,), unusable_folders=(),
    )  # fmt: skip
    assert damage.is_usable is usable


def last_counts(scene: Scene) -> dict[int, tuple[int, int]]:
    rows = sorted((row["key"], row["n"], row["total"]) for row in committed(scene.folder / "out"))
    return {key: (n, total) for key, n, total in rows}


@pytest.fixture
def shared_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    """All keys of this job change all the time, so that each checkpoint would have files of its own."""
    monkeypatch.setattr(KeyedTable, "is_mostly_changed", False)
    return play(tmp_path)


def test_a_file_that_the_checkpoint_before_needs_too_rules_it_out(shared_files: Scene) -> None:
    """Checkpoints share files: none of those that name the damaged one is offered."""
    scene = shared_files
    shared = {s.path for s in scene.manifests[-1].segments()} & {s.path for s in scene.manifests[-2].segments()}
    file = min(shared)
    altered(scene.path(file))
    records, master = again(scene, "fail")
    master.run()
    naming = {m.checkpoint for m in scene.manifests if any(s.path == file for s in m.segments())}
    numbers = [m.checkpoint for m in scene.manifests if m.checkpoint not in naming]
    assert records.failure is not None
    assert records.failure["file"] == file
    assert records.failure["previous"] == max(numbers, default=None)


def test_a_checkpoint_with_a_file_of_another_size_is_not_offered(scene: Scene) -> None:
    altered(scene.path(scene.own_segments(-1, "counts")[0]))
    truncated(scene.path(scene.own_segments(-2, "counts")[0]))
    records, master = again(scene, "fail")
    master.run()
    assert records.failure is not None
    assert records.failure["previous"] == scene.manifests[-3].checkpoint


@pytest.mark.parametrize("policy", ["fail", "previous"])
def test_with_nothing_left_to_restore_the_run_fails_and_does_not_begin_from_nothing(scene: Scene, policy: str) -> None:
    files = [scene.path(scene.manifest_file(index)) for index in range(len(scene.manifests))]
    for file in filter(Path.exists, files):  # a slow machine takes more checkpoints than retention keeps
        truncated(file)
    rows = len(committed(scene.folder / "out"))
    records, master = again(scene, policy)
    assert master.run() is MasterExitCode.DONE
    assert records.failure is not None
    assert (records.failure["previous"], records.failure["repeated"]) == (None, [])
    assert "No completed checkpoint before it can be restored" in records.failure["message"]
    assert len(committed(scene.folder / "out")) == rows


def test_a_damaged_savepoint_of_a_drain_is_not_passed_over(scene: Scene) -> None:
    """S0-21: the job has ended; an older checkpoint may be restored by a person, and by nobody else."""
    records, master = again(scene, "fail")
    thread = threading.Thread(target=master.run)
    thread.start()
    until(lambda: records.state is RunState.RUNNING)
    records.operations.append(OperationRequest("d", "drain"))
    master.poke()
    thread.join(60)
    assert records.completed[-1].manifest.kind is CheckpointKind.DRAIN
    ended = Scene(scene.folder, records)
    truncated(ended.path(ended.manifest_file(-1)))
    later, master = again(ended, "previous")
    assert master.run() is MasterExitCode.DONE
    assert later.state is RunState.FAILED
    assert later.failure is not None
    assert later.failure["code"] == "corrupt-state"
    assert later.failure["previous"] == ended.manifests[-2].checkpoint
    assert later.token == 50, "nothing was restarted"


def test_what_is_said_where_nothing_is_repeated_and_of_a_folder_with_another_name() -> None:
    damage = RestoreFallback(
        file="f",
        operator="",
        detail="f: gone",
        checkpoint=4,
        previous=3,
        repeated_checkpoints=(),
        unusable_folders=("chk-4-1",),
    )
    assert damage.fallback_hint == "Checkpoint 3, completed before it, can be restored instead."
    assert damage.fallback_reason.endswith("repeats the output of none")
    assert [checkpoint_number(folder) for folder in ("chk-4-1", "/mnt/savepoint-7-2", "moved")] == [4, 7, None]
