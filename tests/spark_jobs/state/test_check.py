"""The check of states against their proofs: of each kind of state, in files that are undamaged."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.core.snapshot.manifest import Manifest, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, encode_manifest, manifest_folder
from runtime.errors import CorruptState
from spark_jobs.state import check
from spark_jobs.state.check import EQUAL, answer_check
from spark_jobs.state.rows import has_rows, open_checkpoint
from tests.golden.test_golden import GOLDEN


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    manifest = decode_manifest((GOLDEN[-1] / MANIFEST_FILE).read_bytes(), MANIFEST_FILE)
    return Path(shutil.copytree(GOLDEN[-1], tmp_path / manifest_folder(manifest)))


def stored_manifest(savepoint: Path) -> Manifest:
    """With the paths as they are stored."""
    return decode_manifest((savepoint / MANIFEST_FILE).read_bytes(), MANIFEST_FILE)


def checked(savepoint: Path, skip: int = 0) -> dict[str, Any]:
    return answer_check(str(savepoint), skip, io.StringIO())


def change(savepoint: Path, operator: str, index: int, **changes: Any) -> None:
    """Writes the manifest again, with `changes` to a subtask."""
    manifest = stored_manifest(savepoint)
    snapshot = manifest.operators[operator]
    subtask = msgspec.structs.replace(snapshot.subtasks[index], **changes)
    snapshot = msgspec.structs.replace(snapshot, subtasks={**snapshot.subtasks, index: subtask})
    changed = msgspec.structs.replace(manifest, operators={**manifest.operators, operator: snapshot})
    (savepoint / MANIFEST_FILE).write_bytes(encode_manifest(changed))


def subtask(manifest: Manifest, operator: str, index: int) -> SubtaskSnapshot:
    return manifest.operators[operator].subtasks[index]


def test_all_states_are_equal_to_their_proofs(savepoint: Path) -> None:
    answers = io.StringIO()
    answer = answer_check(str(savepoint), 0, answers)
    assert {(operator, name): entries for operator, name, entries, _ in answer["states"]} == {
        ("counts", "aggregates"): 5, ("kept", "_event_timers"): 5, ("kept", "_processing_timers"): 0, ("kept", "n"): 5,
        ("kept", "names"): 80, ("kept", "seen"): 80, ("numbers", "positions"): 4, ("rules", "positions"): 1,
        ("tally", "rules"): 3,
    }  # fmt: skip
    assert {result for *_, result in answer["states"]} == {EQUAL}
    assert json.loads(answers.getvalue().splitlines()[0]) == {"progress": [1, 9]}


@pytest.mark.parametrize(
    ("operator", "kind", "name"),
    [("counts", "keyed", "aggregates"), ("kept", "keyed", "names"), ("tally", "broadcast", "rules")],
)
def test_a_subtask_without_its_files_is_named(savepoint: Path, operator: str, kind: str, name: str) -> None:
    snapshot = subtask(stored_manifest(savepoint), operator, 1)
    change(savepoint, operator, 1, **{kind: {**getattr(snapshot, kind), name: ()}})
    different = {(uid, state): result for uid, state, _, result in checked(savepoint)["states"] if result != EQUAL}
    assert list(different) == [(operator, name)]
    assert "0 entries instead of" in different[operator, name]


def test_a_state_without_all_its_files_is_refused_by_every_read(savepoint: Path) -> None:
    for index in range(2):
        snapshot = subtask(stored_manifest(savepoint), "counts", index)
        change(savepoint, "counts", index, keyed={**snapshot.keyed, "aggregates": ()})
    (different,) = [state for state in checked(savepoint)["states"] if state[3] != EQUAL]
    assert different[:3] == ["counts", "aggregates", 5]
    with pytest.raises(CorruptState, match=r"state 'aggregates' of operator 'counts'.* 0 entries instead of 1"):
        has_rows(open_checkpoint(str(savepoint)), "counts", "aggregates")


def test_files_of_another_subtask_are_named(savepoint: Path) -> None:
    other = subtask(stored_manifest(savepoint), "counts", 0)
    change(savepoint, "counts", 1, keyed=other.keyed)
    (different,) = [state for state in checked(savepoint)["states"] if state[3] != EQUAL]
    assert different[:2] == ["counts", "aggregates"]


def test_a_long_check_goes_on_with_the_next_state(savepoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = checked(savepoint)["states"]
    monkeypatch.setattr(check, "_MAX_CHECK_S", -1.0)
    states: list[Any] = []
    is_whole = False
    while not is_whole:
        answer = checked(savepoint, len(states))
        assert len(answer["states"]) == 1
        states += answer["states"]
        is_whole = answer["is_whole"]
    assert states == reference
