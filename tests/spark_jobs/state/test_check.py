"""The check of states against their proofs: of each kind of state, in files that are undamaged."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.messages import Records
from runtime.core.snapshot.contents import StateKind, stored_states
from runtime.core.snapshot.manifest import Manifest, RowsInFlight, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, encode_manifest, manifest_folder
from runtime.dataflow.plan import Edge
from runtime.errors import CorruptState, JobRejected
from runtime.io.filesystem import FileStore
from runtime.state.files.segments import write_segment
from runtime.state.index.hashing import key_groups
from runtime.task.rows_in_flight import RecordedRows
from spark_jobs.savepoints.writer import SavepointWriter
from spark_jobs.state import check
from spark_jobs.state.check import EQUAL, answer_check
from spark_jobs.state.rows import contents, has_rows, open_checkpoint
from tests.core.builders import edge, operator, sink, source
from tests.core.builders import subtask as subtask_id
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


def in_flight(savepoint: Path, lost_rows: int = 0) -> RowsInFlight:
    """Rows 0 to 9 that were in flight to 'counts', without the last `lost_rows` of them in the file."""
    folder, groups = savepoint.name, (0, stored_manifest(savepoint).max_parallelism - 1)
    batch = pa.record_batch({"key": pa.array(range(10)), "value": pa.array(range(10))})
    graph = JobGraph(
        (source("numbers"), operator("counts"), sink("out")),
        (edge("numbers", "counts", Partitioning.HASH), edge("counts", "out")),
        max_parallelism=groups[1] + 1,
    )
    records = [Records(batch, batch.num_rows, batch.nbytes)]
    recorded = RecordedRows(graph, [Edge(spec=spec) for spec in graph.edges], subtask_id("counts/0"), {0: records})
    store = FileStore(savepoint.parent)
    (rows,) = recorded.write(store, f"{folder}/counts-0.flight")
    kept = batch.slice(0, batch.num_rows - lost_rows)
    segment = write_segment(store, f"{folder}/counts-0.flight/2.arrow", [kept], kept.num_rows, groups)
    return msgspec.structs.replace(rows, segments=(segment,))


@pytest.mark.parametrize("lost_rows", [0, 1])
def test_rows_in_flight_are_checked_too(savepoint: Path, lost_rows: int) -> None:
    change(savepoint, "counts", 0, in_flight=(in_flight(savepoint, lost_rows),))
    (result,) = [each for each in checked(savepoint)["states"] if each[1] == "rows in flight from numbers, input 0"]
    assert (result[0], result[2]) == ("counts", 10)
    assert (result[3] == EQUAL) is not bool(lost_rows)
    (group,) = key_groups(pa.record_batch({"key": [9]}), ["key"], stored_manifest(savepoint).max_parallelism)
    assert not lost_rows or f"key group {group} has 0 entries instead of 1" in result[3], result[3]


def test_rows_in_flight_are_listed_beside_the_states(savepoint: Path) -> None:
    change(savepoint, "counts", 0, in_flight=(in_flight(savepoint),))
    opened = open_checkpoint(str(savepoint))
    (listed,) = [state for state in stored_states(opened.manifest) if state.kind is StateKind.IN_FLIGHT]
    assert (listed.operator, listed.name, listed.rows) == ("counts", "rows in flight from numbers, input 0", 10)
    assert listed.view == ""
    assert [row["rows"] for row in contents(opened).to_pylist() if row["kind"] == "in flight"] == [10]


def test_a_savepoint_with_rows_in_flight_is_not_rewritten(savepoint: Path) -> None:
    """A changed operator may not understand them."""
    change(savepoint, "counts", 0, in_flight=(in_flight(savepoint),))
    with pytest.raises(JobRejected, match="counts: the savepoint holds rows in flight") as refused:
        SavepointWriter.from_savepoint(None, str(savepoint))  # type: ignore[arg-type]
    assert refused.value.code == "rows-in-flight"
