"""The keys of a state that were added, changed and removed between two checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from runtime.core.job.ids import OperatorId
from runtime.core.snapshot.manifest import SubtaskSnapshot, TableColumns
from runtime.errors import JobRejected
from runtime.io.filesystem import FileStore
from runtime.state.index.hashing import key_groups
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectTable
from runtime.state.schema import TableSchema
from spark_jobs.savepoints.state_tables import encode_key, write_table
from spark_jobs.state.changes import find_changes
from spark_jobs.state.rows import OpenedCheckpoint, find_state
from tests.spark_jobs.savepoints.test_savepoint_parts import opened

GROUPS = 128


def typed(root: Path, name: str, rows: dict[str, Any], kind: Any = None, column: str = "n") -> OpenedCheckpoint:
    """Text keys with a value each, in one file."""
    kind = pa.int64() if kind is None else kind
    schema = TableSchema("totals", pa.schema([("user", pa.string())]), pa.schema([(column, kind)]))
    table = KeyedTable(schema, GROUPS)
    table.restore([pa.array(list(rows), pa.string())], [pa.array(list(rows.values()), kind)])
    return opened(root, {"sums": {0: write_table(FileStore(root), name, table)}}, 1)


def objects(root: Path, name: str, rows: dict[tuple[str, int | None], Any]) -> OpenedCheckpoint:
    """Values under a user and a place."""
    table = ObjectTable("seen")
    for (user, place), value in rows.items():
        batch = pa.record_batch({"user": [user]})
        table.put((int(key_groups(batch, ["user"], GROUPS)[0]), encode_key((user,)), place), value)
    return opened(root, {"sums": {0: write_table(FileStore(root), name, table)}}, 1)


def changes(now: OpenedCheckpoint, since: OpenedCheckpoint, state: str = "totals") -> list[tuple[Any, ...]]:
    """Change, key, value now and before, read in two halves."""
    state_changes = find_changes(now, since, "sums", state)
    batches = [batch for half in (range(64), range(64, GROUPS)) for batch in state_changes.rows(half)]
    assert all(batch.schema == state_changes.schema for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(0 <= row["key_group"] < GROUPS for row in rows)
    columns = [name for name in state_changes.schema.names if name not in ("operator", "state", "key_group")]
    return sorted((tuple(row[name] for name in columns) for row in rows), key=str)


def test_keys_are_added_changed_and_removed(tmp_path: Path) -> None:
    before = typed(tmp_path, "before", {"a": 1, "b": 2, "c": None, "d": None, "e": 5})
    now = typed(tmp_path, "now", {"a": 1, "b": 3, "c": 4, "d": None, "f": 6})
    assert changes(now, before) == [
        ("added", "f", 6, None),
        ("changed", "b", 3, {"n": 2}),
        ("changed", "c", 4, {"n": None}),
        ("removed", "e", None, {"n": 5}),
    ]
    assert changes(now, now) == []


def test_rows_of_subtasks_with_different_types_have_their_common_types(tmp_path: Path) -> None:
    """After a restore with wider columns, only files of subtasks with new rows have the wider types.

    Doubles were shown as floats, and larger integers could not be read.
    """
    store, subtasks, keys = FileStore(tmp_path), dict[int, SubtaskSnapshot](), pa.array(range(20))
    kinds = [(pa.int32(), pa.float32(), 0.5), (pa.int64(), pa.float64(), 0.1)]
    for index, (key_kind, kind, value) in enumerate(kinds):
        schema = TableSchema("totals", pa.schema([("user", key_kind)]), pa.schema([("n", kind)]))
        table = KeyedTable(schema, GROUPS)
        mask = key_groups(pa.record_batch({"user": keys}), ["user"], GROUPS) // (GROUPS // 2) == index
        users = keys.filter(pa.array(mask)).cast(key_kind)
        table.restore([users], [pa.array([value] * len(users), kind)])
        subtasks[index] = write_table(store, f"part-{index}", table, {"user": str(key_kind)})
    state = find_state(opened(tmp_path, {"sums": subtasks}, 2), "sums", "totals")
    rows = [row for batch in state.rows(range(GROUPS)) for row in batch.to_pylist()]
    assert (state.schema.field("user").type, state.schema.field("n").type) == (pa.int64(), pa.float64())
    assert sorted(row["user"] for row in rows) == list(range(20))
    assert {row["n"] for row in rows} == {0.5, 0.1}


def test_a_float_that_is_no_number_has_not_changed(tmp_path: Path) -> None:
    nan = float("nan")
    before = typed(tmp_path, "before", {"a": nan, "b": 0.0, "c": nan}, pa.float64())
    now = typed(tmp_path, "now", {"a": nan, "b": -0.0, "c": 1.5}, pa.float64())
    assert [row[:3] for row in changes(now, before)] == [("changed", "c", 1.5)]


def test_a_type_that_has_become_wider_is_compared_by_value(tmp_path: Path) -> None:
    before = typed(tmp_path, "before", {"a": 1, "b": 2}, pa.int32())
    now = typed(tmp_path, "now", {"a": 1, "b": 2**40})
    assert changes(now, before) == [("changed", "b", 2**40, {"n": 2})]


def test_entries_of_python_functions_are_compared_one_by_one(tmp_path: Path) -> None:
    before = objects(tmp_path, "before", {("a", None): 1, ("b", 0): "x", ("b", 1): "y", ("c", None): 3})
    now = objects(tmp_path, "now", {("a", None): 1, ("b", 0): "x", ("b", 1): "z", ("b", 2): "new"})
    assert changes(now, before, "seen") == [
        ("added", '"b"', "2", '"new"', None, None),
        ("changed", '"b"', "1", '"z"', None, {"value": '"y"', "expires_at": None}),
        ("removed", '"c"', None, None, None, {"value": "3", "expires_at": None}),
    ]


def test_a_state_that_one_of_them_lacks_was_added_or_removed_whole(tmp_path: Path) -> None:
    checkpoint = typed(tmp_path, "one", {"a": 1})
    none = opened(tmp_path, {"other": {0: SubtaskSnapshot()}}, 1)
    assert changes(checkpoint, none) == [("added", "a", 1, None)]
    assert changes(none, checkpoint) == [("removed", "a", None, {"n": 1})]
    with pytest.raises(JobRejected, match="no operator 'sums', only other"):
        find_changes(none, none, "sums", "totals")


def test_what_cannot_be_compared_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = typed(tmp_path, "one", {"a": 1})
    other = typed(tmp_path, "other", {"a": 1}, column="m")
    with pytest.raises(JobRejected, match="it had the columns user, m, and has user, n"):
        find_changes(checkpoint, other, "sums", "totals")
    fewer = OpenedCheckpoint(checkpoint.root, msgspec.structs.replace(checkpoint.manifest, max_parallelism=64))
    with pytest.raises(JobRejected, match="since: it has 64 key groups; this one has 128"):
        find_changes(checkpoint, fewer, "sums", "totals")
    words = typed(tmp_path, "words", {"a": 1.5}, pa.float64())
    with pytest.raises(JobRejected, match="column 'n' is"):
        changes(checkpoint, words)


def test_a_state_without_rows_has_its_columns(tmp_path: Path) -> None:
    columns = TableColumns({"user": "string"}, {"n": "int64"})
    snapshot = SubtaskSnapshot(keyed={"totals": ()}, empty_tables={"totals": columns})
    empty = opened(tmp_path, {"sums": {0: snapshot}}, 1)
    assert find_state(empty, OperatorId("sums"), "totals").key_schema.names == ["user"]
    state_changes = find_changes(empty, empty, "sums", "totals")
    assert state_changes.schema.names == ["operator", "state", "key_group", "change", "user", "n", "before"]
    assert changes(empty, empty) == []
    assert changes(empty, typed(tmp_path, "one", {"a": 1})) == [("removed", "a", None, {"n": 1})]


def test_a_state_without_rows_and_known_columns_is_refused_by_name(tmp_path: Path) -> None:
    """It was an IndexError."""
    empty = opened(tmp_path, {"sums": {0: SubtaskSnapshot(keyed={"totals": ()})}}, 1)
    with pytest.raises(JobRejected, match="'totals' of 'sums' has no rows in this checkpoint"):
        find_state(empty, OperatorId("sums"), "totals")
