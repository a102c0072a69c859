"""Keyed state made from rows, and dealt anew, without Spark: rows in, files out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from runtime.clock import SystemClock
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot
from runtime.dataflow.builder import Dataflow
from runtime.errors import CorruptState, JobRejected, OperatorFailure
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.process import ProcessFunction, SubtaskContext
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState
from runtime.state.files.segments import read_segment
from runtime.state.index.hashing import key_groups
from runtime.state.object_table import ObjectTable
from runtime.state.rows import segment_batches
from spark_jobs.savepoints.bootstrap import Bootstrap
from spark_jobs.savepoints.jobs import StoredSnapshots
from spark_jobs.savepoints.redistribution import Assembly, Part, PartKind, Redistribution, Rekey
from spark_jobs.savepoints.state_tables import encode_key, key_groups_of, write_table
from spark_jobs.savepoints.table_rows import TableRows
from spark_jobs.savepoints.tasks import _group_by_place, units_of
from spark_jobs.state.rows import OpenedCheckpoint, contents, find_state
from tests.jobs.numbers import Numbers, committed
from tests.spark_jobs.visits import Seen, flow, visits
from weir import SavepointWriter

VISITS = visits(0, 400).combine_chunks().to_batches()[0]
OPERATORS = {"seen": ("last", "recent", "pages", "_event_timers"), "totals": ("aggregates",),
             "hourly": ("windows", "fired"), "sliding": ("panes", "fired")}  # fmt: skip
RANGE = 50  #: key groups that are read at a time
STATES = [(uid, state) for uid, states in OPERATORS.items() for state in states]


def opened(
    root: Path, operators: dict[str, dict[int, SubtaskSnapshot]], parallelism: int, groups: int = 128
) -> OpenedCheckpoint:
    snapshots = {
        uid: OperatorSnapshot(parallelism=parallelism, finished=FinishedState.RUNNING, subtasks=subtasks)
        for uid, subtasks in operators.items()
    }
    manifest = Manifest(job="visits", checkpoint=1, kind=CheckpointKind.SAVEPOINT, token=0, triggered_at=0,
                        max_parallelism=groups, operators=snapshots)  # fmt: skip
    return OpenedCheckpoint(str(root), manifest)


def bootstrap(root: Path, uid: str, subtasks: int) -> dict[int, SubtaskSnapshot]:
    """The state of each subtask after its share of the visits."""
    job = flow(root).compile(1)
    bootstrap = Bootstrap(job=job, uid=uid, function=None, parallelism=subtasks)
    bootstrap.check()
    owners = key_groups(VISITS, bootstrap.edge.keys, 128) * subtasks // 128
    return {
        index: bootstrap.snapshot(
            index, [VISITS.filter(pa.array(owners == index))], FileStore(root), f"{uid}/{subtasks}-{index}", lambda: 5
        )
        for index in range(subtasks)
    }


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> OpenedCheckpoint:
    """In three subtasks."""
    root = tmp_path_factory.mktemp("made")
    return opened(root, {uid: bootstrap(root, uid, 3) for uid in OPERATORS}, 3)


def read(checkpoint: OpenedCheckpoint, uid: str, state: str, groups: range | None = None) -> list[dict[str, Any]]:
    group_range = range(checkpoint.manifest.max_parallelism) if groups is None else groups
    batches = find_state(checkpoint, uid, state).rows(group_range)
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)


Parts = list[Part]


def shares(
    redistribution: Redistribution, change: Callable[[Parts], Parts] = lambda parts: parts
) -> dict[int, SubtaskSnapshot]:
    """Read in ranges of key groups, stored by new owner, as Spark's tasks do it. `change`: what the shuffle does."""
    checkpoint, uid, rekey = redistribution.checkpoint, redistribution.uid, redistribution.rekey
    before = checkpoint.manifest.max_parallelism
    starts = range(0, before, RANGE)
    ranges = [range(start, min(start + RANGE, before)) for start in starts]
    parts = change([part for groups in ranges for part in redistribution.read_parts(groups)])
    subtasks = {}
    for index in range(redistribution.parallelism):
        assembly = Assembly(redistribution, index)
        for part in parts:
            if part.owner == index:
                assembly.add(part)
        folder = f"dealt-{uid}-{redistribution.max_parallelism}-{rekey is None}"
        subtasks[index] = assembly.snapshot(checkpoint.store, f"{folder}/{index}")
    return subtasks


def dealt(
    checkpoint: OpenedCheckpoint, uid: str, parallelism: int, groups: int, rekey: Rekey | None = None
) -> OpenedCheckpoint:
    redistribution = Redistribution(
        checkpoint=checkpoint, uid=uid, parallelism=parallelism, max_parallelism=groups, rekey=rekey
    )
    snapshots = StoredSnapshots(snapshots={uid: shares(redistribution)}, redistributions={uid: redistribution})
    subtasks = snapshots.with_redistributed_state(uid, checkpoint.manifest.operators[uid]).subtasks
    return opened(Path(checkpoint.root), {uid: dict(subtasks)}, parallelism, groups)


def without_a_row(parts: Parts) -> Parts:
    last = max(number for number, part in enumerate(parts) if part.kind is not PartKind.TIMES)
    return [*parts[:last], replace(parts[last], batch=parts[last].batch.slice(1)), *parts[last + 1 :]]


@pytest.mark.parametrize("uid", OPERATORS)
def test_a_redistribution_that_loses_a_row_is_refused_by_operator_and_state(
    savepoint: OpenedCheckpoint, uid: str
) -> None:
    redistribution = Redistribution(checkpoint=savepoint, uid=uid, parallelism=2, max_parallelism=96)
    snapshots = {uid: shares(redistribution, without_a_row)}
    stored = StoredSnapshots(snapshots=snapshots, redistributions={uid: redistribution})
    message = rf"state '\w+' of operator '{uid}': \d+ entries were read, and \d+ stored"
    with pytest.raises(CorruptState, match=message):
        stored.with_redistributed_state(uid, savepoint.manifest.operators[uid])


def test_rekeyed_state_is_that_of_the_new_key_columns(savepoint: OpenedCheckpoint) -> None:
    """A job keyed by the new columns restores it, and a job keyed by the old ones is refused."""
    rekey = Rekey(lambda user: user, pa.schema([("customer", pa.string())]))
    redistribution = Redistribution(checkpoint=savepoint, uid="totals", parallelism=1, max_parallelism=128, rekey=rekey)
    stored = StoredSnapshots(snapshots={"totals": shares(redistribution)}, redistributions={"totals": redistribution})
    operator = msgspec.structs.replace(savepoint.manifest.operators["totals"], keys=(("user",),))
    assert stored.with_redistributed_state("totals", operator).keys == (("customer",),)


def test_rows_that_are_lost_while_they_are_written_or_read_are_noticed(
    tmp_path: Path, savepoint: OpenedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ObjectTable("seen")
    for number in range(20):
        table.put((number, encode_key([number]), None), b"\x01")
    with monkeypatch.context() as patch:
        patch.setattr(
            "spark_jobs.savepoints.state_tables.segment_batches",
            lambda parts: (batch.slice(1) for batch in segment_batches(parts)),
        )
        with pytest.raises(CorruptState, match=r"kept/0/seen-000001\.arrow: .*key group 0"):
            write_table(FileStore(str(tmp_path)), "kept/0", table)
    monkeypatch.setattr("spark_jobs.state.rows.read_segment", lambda *arguments: read_segment(*arguments).slice(1))
    for uid, state in STATES:
        with pytest.raises(CorruptState, match=f"state {state!r} of operator {uid!r}: .*key group"):
            read(savepoint, uid, state)


def without_group(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({**row, "key_group": None} for row in rows), key=str)


@pytest.mark.parametrize("uid", OPERATORS)
def test_state_is_the_same_in_however_many_subtasks_it_is_made(savepoint: OpenedCheckpoint, uid: str) -> None:
    root = Path(savepoint.root)
    alone = opened(root, {uid: bootstrap(root, uid, 1)}, 1)
    for state in OPERATORS[uid]:
        rows = read(savepoint, uid, state)
        assert rows == read(alone, uid, state)
        assert rows
        halves = [*read(savepoint, uid, state, range(50)), *read(savepoint, uid, state, range(50, 128))]
        assert sorted(halves, key=str) == rows, "each row lies in one range of key groups"


@pytest.mark.parametrize(("uid", "groups"), [("seen", 75), ("totals", 64), ("hourly", 75), ("sliding", 256)])
def test_rows_follow_their_keys_to_other_key_groups(savepoint: OpenedCheckpoint, uid: str, groups: int) -> None:
    checkpoint = dealt(savepoint, uid, 4, groups)
    round_trip = dealt(checkpoint, uid, 3, 128)
    for state in OPERATORS[uid]:
        assert read(round_trip, uid, state) == read(savepoint, uid, state), "there and back again"
        if state == "fired":
            assert {row["key_group"] for row in read(checkpoint, uid, state)} == set(range(groups))
        else:
            assert without_group(read(checkpoint, uid, state)) == without_group(read(savepoint, uid, state))
    for index, snapshot in checkpoint.manifest.operators[uid].subtasks.items():
        group_range = key_group_range(index, groups, 4)
        for segment in (each for segments in snapshot.keyed.values() for each in segments):
            assert {segment.first_group, segment.last_group} <= set(group_range)


def test_keys_hash_as_the_columns_that_they_came_from() -> None:
    columns = [
        pa.array(["a", None, "ü" * 40]),
        pa.array([2**64 - 1, 0, 2**63], pa.uint64()),
        pa.array([True, False, None]),
        pa.array([b"\xff", b"", None], pa.binary()),
        pa.array([-5, None, 7], pa.int8()),
        pa.nulls(3),
    ]
    names = [str(number) for number in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    keys = [encode_key(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    assert key_groups_of(keys, 1000).tolist() == key_groups(batch, names, 1000).tolist()


USER = pa.schema([("user", pa.string())])


@pytest.mark.parametrize(
    ("uid", "function", "keys", "match"),
    [
        ("totals", lambda _: "all", USER, "totals: state 'aggregates' would have two rows with the same key: 'all'"),
        ("seen", lambda _: "all", USER, "seen: state '_event_timers' would have two rows with the same key: 'all'"),
        ("seen", lambda _: None, USER, "the new key of 'user-.*' is null in column 'user'"),
        ("seen", lambda _: 7, USER, "a new key does not fit column 'user' of type string"),
        ("seen", lambda key: key["user"], USER, "the function for the new keys raised TypeError for the key 'user-"),
        ("sliding", lambda key: key[0], pa.schema([*USER, ("page", pa.int32())]), "has 1 values; there are 2 key"),
    ],
)
def test_bad_new_keys_are_refused_by_name(
    savepoint: OpenedCheckpoint, uid: str, function: Callable[[Any], Any], keys: pa.Schema, match: str
) -> None:
    with pytest.raises(JobRejected, match=match):
        dealt(savepoint, uid, 2, 128, Rekey(function, keys))


def test_new_key_columns_take_the_place_of_the_old(savepoint: OpenedCheckpoint) -> None:
    keys = pa.schema([("group", pa.string()), ("number", pa.int16())])
    rekey = Rekey(lambda user: (user.partition("-")[0], int(user.partition("-")[2])), keys)
    rows = read(dealt(savepoint, "totals", 2, 128, rekey), "totals", "aggregates")
    assert {(row["group"], row["number"]): row["n:count"] for row in rows} == {
        ("user", int(row["user"].partition("-")[2])): row["n:count"] for row in read(savepoint, "totals", "aggregates")
    }
    values = read(dealt(savepoint, "seen", 2, 128, rekey), "seen", "last")
    assert {row["key"] for row in values} == {
        '["user",' + msgspec.json.decode(row["key"]).partition("-")[2] + "]" for row in read(savepoint, "seen", "last")
    }


def by_group(root: Path, state: str, entries: Sequence[tuple[int, bytes, bytes]]) -> OpenedCheckpoint:
    table = ObjectTable(state)
    for group, key, value in entries:
        table.put((group, key, None), value)
    return opened(root, {"kept": {0: write_table(FileStore(root), "kept/0", table)}}, 1)


def test_what_has_no_key_to_follow_is_refused(tmp_path: Path) -> None:
    encode = msgspec.msgpack.encode
    rows_held = by_group(tmp_path / "rows", "_buffered", [(3, encode(None), b"\xff\xff\xff\xff rows")])
    with pytest.raises(JobRejected, match="kept: state '_buffered' holds rows by key group"):
        dealt(rows_held, "kept", 1, 64)


@pytest.mark.parametrize("state", ["fired", "watermarks"])
def test_different_watermarks_of_key_groups_that_meet_are_refused(tmp_path: Path, state: str) -> None:
    encode = msgspec.msgpack.encode
    times = by_group(tmp_path, state, [(g, encode(9), encode(100 + (g == 5))) for g in range(128)])
    assert len(read(dealt(times, "kept", 2, 256), "kept", state)) == 256, "no two key groups meet"
    with pytest.raises(JobRejected, match=r"its watermarks differ \(100 and 101 ms\) in key groups that meet"):
        dealt(times, "kept", 2, 64)


class Dropped:
    def emit(self, batch: pa.RecordBatch) -> None:
        """Drops the joined rows."""

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Drops late rows."""


@pytest.mark.parametrize("rows", [0, 1])
def test_a_join_is_redistributed_while_it_keeps_no_rows(tmp_path: Path, rows: int) -> None:
    sides = (JoinSide(("user",), "at"), JoinSide(("user",), "at"))
    join = IntervalJoin(sides, Interval(0, 10), JoinColumns((("user", "user"),), ("_a", "_b")))
    state, store = SubtaskState(range(128), 128, None), FileStore(tmp_path)
    join.open(OperatorContext(job="1", uid="kept", index=0, parallelism=1, max_parallelism=128, token=Token(1),
                              state=state, now_ms=lambda: 0))  # fmt: skip
    batch = pa.RecordBatch.from_pydict({"user": ["a"], "at": [1_000]})
    join.process(0, batch.slice(0, rows), Dropped())
    join.on_watermark(1_000, Dropped())
    join.snapshot(1)
    snapshot, _ = state.capture(full=True).write(store, "kept/0")
    savepoint = opened(tmp_path, {"kept": {0: snapshot}}, 1)
    if rows:
        with pytest.raises(JobRejected, match="kept: state 'first' holds rows by key group"):
            dealt(savepoint, "kept", 2, 64)
        return
    watermarks = read(dealt(savepoint, "kept", 2, 64), "kept", "watermarks")
    assert {row["key_group"] for row in watermarks} == set(range(64))
    assert {row["value"] for row in watermarks} == {row["value"] for row in read(savepoint, "kept", "watermarks")}


def test_an_error_of_the_function_names_operator_and_row(tmp_path: Path) -> None:
    job = flow(tmp_path).compile(1)
    bootstrap = Bootstrap(job=job, uid="seen", function=Failing, parallelism=1)
    with pytest.raises(OperatorFailure, match="operator 'seen', subtask 0, in process: ZeroDivisionError"):
        bootstrap.snapshot(0, [VISITS], FileStore(tmp_path), "seen/0", lambda: 0)


class Failing(Seen):
    def remember(self, row: dict[str, Any], context: Any) -> None:
        1 / 0  # noqa: B018


def test_rows_are_taken_place_by_place() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for places in ([0, 0, 2], [2, 2], [], [2, 3], [5]):
            yield pa.record_batch({"place": pa.array(places, pa.int32()), "row": pa.array(places, pa.int64())})

    rows_by_place = {
        place: [row for batch in group for row in batch["row"].to_pylist()]
        for place, group in _group_by_place(batches())
    }
    assert rows_by_place == {0: [0, 0], 2: [2, 2, 2, 2], 3: [3], 5: [5]}


def test_old_state_is_read_in_as_many_ranges_as_its_size_asks_for(savepoint: OpenedCheckpoint) -> None:
    redistribution = Redistribution(checkpoint=savepoint, uid="totals", parallelism=2, max_parallelism=64)
    assert units_of(redistribution) == [range(128)]
    units = units_of(redistribution, unit_bytes=redistribution.nbytes // 3)
    assert 3 <= len(units) <= 5
    assert [group for unit in units for group in unit] == list(range(128))


def test_every_kind_of_state_can_be_read(savepoint: OpenedCheckpoint) -> None:
    """Timers have no value, and what has fired has no key: both were errors."""
    rows = contents(savepoint).to_pylist()
    assert {(row["operator"], row["state"]) for row in rows if row["state"]} == set(STATES)
    timers = read(savepoint, "seen", "_event_timers")
    assert {(row["value"], row["expires_at"]) for row in timers} == {(None, None)}
    assert sorted(int(row["place"]) for row in timers) == [(10 * n + 3600) * 1000 for n in range(40)]
    assert len(read(savepoint, "hourly", "fired")) == 128


# ---------------------------------------------------------------- rows and lists of a state


@pytest.mark.parametrize(("uid", "state"), [("totals", "aggregates"), ("hourly", "windows"), ("sliding", "panes")])
def test_rows_of_a_state_make_the_state_again(savepoint: OpenedCheckpoint, uid: str, state: str) -> None:
    root = Path(savepoint.root)
    table = TableRows.of(flow(root).compile(1), uid, state, 2)
    checkpoint_state = find_state(savepoint, uid, state)
    batches = [batch.select(checkpoint_state.stored.names[2:]) for batch in checkpoint_state.rows(range(128))]
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    owners = key_groups(rows, table.keys, 128) * 2 // 128
    parts = [rows.filter(pa.array(owners == index)) for index in range(2)]
    store = FileStore(root)
    snapshots = {i: table.snapshot(i, [part], store, f"again-{uid}/{i}", lambda: 0) for i, part in enumerate(parts)}
    assert read(opened(root, {uid: snapshots}, 2), uid, state) == read(savepoint, uid, state)
    assert snapshots[0].key_types == savepoint.manifest.operators[uid].subtasks[0].key_types
    with pytest.raises(JobRejected, match=f"{uid}: state '{state}' would have two rows with the same key"):
        table.snapshot(0, [parts[0], parts[0].slice(0, 1)], store, "twice/0", lambda: 0)


def test_bad_rows_of_a_state_are_refused_by_name(tmp_path: Path) -> None:
    job = flow(tmp_path).compile(1)
    with pytest.raises(JobRejected, match="totals: it has no state 'sums'; its states: aggregates"):
        TableRows.of(job, "totals", "sums", 1)
    with pytest.raises(JobRejected, match="state 'last' is keyed state without columns: fill it with a function"):
        TableRows.of(job, "seen", "last", 1)
    with pytest.raises(JobRejected, match="a sink has no state"):
        TableRows.of(job, "totals-out", "aggregates", 1)
    table = TableRows.of(job, "hourly", "windows", 1)
    start = pa.array([0], pa.int64())
    nulls = pa.record_batch({"user": ["a"], "window_start": start, "n:count": pa.nulls(1, pa.int64())})
    with pytest.raises(JobRejected, match="hourly: column 'n:count' has no value in some rows"):
        table.snapshot(0, [nulls], FileStore(tmp_path), "nulls/0", lambda: 0)


class Lists(ProcessFunction):
    """Gives its lists out with each row."""

    def open(self, context: SubtaskContext) -> None:
        self.own, self.all = context.list_state("own"), context.union_list_state("all")

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        out.emit({"own": self.own.get(), "all": self.all.get()})


def test_lists_are_assigned_to_the_subtasks_and_union_lists_given_to_each(tmp_path: Path) -> None:
    """Nothing but the manifest is written, so no Spark is needed."""
    job = Dataflow("lists")
    schema = pa.schema([("own", pa.list_(pa.int64())), ("all", pa.list_(pa.string()))])
    numbers = job.source("numbers", Numbers(total=5, splits=16))
    numbers.process("lists", Lists, schema).sink("out", ParquetSink(str(tmp_path / "out")))
    no_spark: Any = None
    writer = SavepointWriter.new_savepoint(no_spark, job)
    writer.write_list("lists", "own", list(range(10)), subtasks=3).write_list("lists", "all", ["a", "b"], subtasks=3)
    with pytest.raises(JobRejected, match="state 'own' is written twice"):
        writer.write_list("lists", "own", [], subtasks=3)
    with pytest.raises(JobRejected, match="its states are split into 3 subtasks"):
        writer.write_list("lists", "other", [])
    with pytest.raises(JobRejected, match="state holds JSON values only"):
        SavepointWriter.new_savepoint(no_spark, job).write_list("lists", "own", [b"bytes"])
    with pytest.raises(JobRejected, match="lists: it has no state 'other'; its states: all, own"):
        SavepointWriter.new_savepoint(no_spark, job).write_list("lists", "other", [])
    written = writer.write(str(tmp_path / "made"))
    records = MemoryRunStore(token=Token(SystemClock().now_ms()), restore_from=written.folder)
    run_local(job, parallelism=2, storage=str(tmp_path / "storage"), records=records)
    lists = {(tuple(row["own"]), tuple(row["all"])) for row in committed(tmp_path / "out")}
    assert sorted(number for numbers, _ in lists for number in numbers) == list(range(10))
    assert len(lists) == 2
    assert {everything for _, everything in lists} == {("a", "b")}
