"""Epochs of a standing stage: whole or not there, never changed, kept as long as a checkpoint needs them."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.connectors.epochs import EpochFolder
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sources.epochs import LANE_COUNT, EpochSource, schema_file
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import OperatorId
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import HasStandingStage, ReleasesInput, StageFolders
from spark_jobs.stages.compile import graph_with_stages
from tests.contracts.files import Reading

COLUMNS = pa.schema([("id", pa.int64())])


def write(folder: Path, number: int, ids: range, columns: pa.Schema = COLUMNS) -> None:
    epochs = EpochFolder(folder)
    epochs.prepare()
    with epochs.write_epoch(number, token=1) as aside:
        aside.mkdir()
        table = pa.table([pa.array(ids, columns.field(0).type)], schema=columns)
        pq.write_table(table, aside / "part-00000.parquet")


def source(folder: Path, **settings: Any) -> EpochSource:
    lineage = settings.pop("lineage", "7")
    return EpochSource(make=print, folder=str(folder), lineage=lineage, columns=COLUMNS, is_bound=True, **settings)


def ids(reading: Reading, max_rows: int = 1_000) -> list[int]:
    return [row["id"] for row in reading.rows(max_rows)]


# ---------------------------------------------------------------- the folder


def test_an_epoch_appears_whole_and_is_never_overwritten(tmp_path: Path) -> None:
    epochs = EpochFolder(tmp_path)
    write(tmp_path, 0, range(3))
    before = {path.name: path.read_bytes() for path in (epochs.epochs / f"{0:012}").iterdir()}
    with pytest.raises(FileExistsError):
        write(tmp_path, 0, range(9))
    assert {path.name: path.read_bytes() for path in (epochs.epochs / f"{0:012}").iterdir()} == before
    epoch = epochs.find(0)
    assert epoch is not None
    assert (epoch.rows, epoch.files) == (3, (("part-00000.parquet", 3),))


def test_what_fails_while_it_is_written_is_no_epoch_and_goes_at_the_next_start(tmp_path: Path) -> None:
    epochs = EpochFolder(tmp_path)
    epochs.prepare()
    with contextlib.suppress(RuntimeError), epochs.write_epoch(0, token=1) as aside:
        aside.mkdir()
        (aside / "part-00000.parquet").write_bytes(b"half of it")
        raise RuntimeError
    assert (epochs.find(0), epochs.next_number()) == (None, 0)
    assert list(epochs.epochs.iterdir())
    epochs.prepare()
    assert not list(epochs.epochs.iterdir())


def test_a_file_that_cannot_be_read_back_makes_no_epoch(tmp_path: Path) -> None:
    epochs = EpochFolder(tmp_path)
    epochs.prepare()

    def write_nonsense() -> None:
        with epochs.write_epoch(0, token=1) as aside:
            aside.mkdir()
            (aside / "part-00000.parquet").write_bytes(b"PAR1 nonsense PAR1")

    with pytest.raises(pa.ArrowInvalid):
        write_nonsense()
    assert epochs.find(0) is None


def test_released_epochs_are_remembered_when_nothing_else_is_left(tmp_path: Path) -> None:
    """A batch that Spark repeats after its epoch was read and released must not become an epoch again."""
    for number in range(3):
        write(tmp_path, number, range(2))
    epochs = EpochFolder(tmp_path)
    assert epochs.release(2) == 2
    assert (epochs.released_below(), epochs.next_number()) == (2, 3)
    assert epochs.release(3) == 1
    assert (epochs.released_below(), epochs.next_number()) == (3, 3)
    assert epochs.release(1) == 0
    assert epochs.released_below() == 3


# ---------------------------------------------------------------- reading


def test_epochs_are_read_in_order_as_they_appear(tmp_path: Path) -> None:
    reading = Reading(source(tmp_path))
    assert ids(reading) == []
    write(tmp_path, 0, range(5))
    write(tmp_path, 1, range(0))
    write(tmp_path, 2, range(5, 200))
    assert ids(reading, 7) == list(range(200))
    write(tmp_path, 3, range(200, 201))
    assert ids(reading) == [200]
    assert not reading.exhausted()
    assert EpochFolder(tmp_path).read_below() == 4


def test_subtasks_share_each_epoch(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1_000))
    shares = [ids(Reading(source(tmp_path), index=index, parallelism=3)) for index in range(3)]
    assert [*itertools.chain(*shares)] == list(range(1_000))
    assert all(len(share) > 300 for share in shares)


def test_more_subtasks_than_lanes_stand_aside(tmp_path: Path) -> None:
    write(tmp_path, 0, range(500))
    readings = [Reading(source(tmp_path), index=index, parallelism=100) for index in range(100)]
    assert sorted(itertools.chain(*(ids(reading) for reading in readings))) == list(range(500))
    assert [reading.reader.idle for reading in readings] == [False] * LANE_COUNT + [True] * (100 - LANE_COUNT)


def test_an_epoch_that_is_missing_while_newer_ones_are_there_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, 1, range(5))
    with pytest.raises(EnvironmentFailure, match=r"epoch 0 of .* is missing, but newer epochs exist"):
        Reading(source(tmp_path)).poll()


def test_columns_other_than_those_of_the_version_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, range(5), pa.schema([("number", pa.int64())]))
    with pytest.raises(DataRejected, match=r"000000000000: it has no column 'id'; it has number"):
        Reading(source(tmp_path)).poll()


def test_watermark_and_idleness(tmp_path: Path) -> None:
    reading = Reading(source(tmp_path, event_time="id", max_disorder_ms=10, idle_after_ms=1_000))
    assert (reading.poll(), reading.reader.watermark(), reading.reader.idle) == (None, None, False)
    write(tmp_path, 0, range(100, 151))
    assert reading.poll() is not None
    assert reading.reader.watermark() == 150 - 10 - 1
    assert (reading.poll(), reading.reader.idle) == (None, False)
    reading.clock.advance(1_000)
    assert (reading.poll(), reading.reader.idle) == (None, True)
    write(tmp_path, 1, range(100, 101))
    assert reading.poll() is not None
    assert (reading.reader.idle, reading.reader.watermark()) == (False, 139)


def test_a_requested_look_ends_with_the_next_poll(tmp_path: Path) -> None:
    reading = Reading(source(tmp_path))
    reading.reader.look_for_splits()
    assert not reading.reader.has_looked
    assert (reading.poll(), reading.reader.has_looked, reading.reader.discoveries) == (None, True, 0)
    write(tmp_path, 0, range(LANE_COUNT))
    assert reading.poll() is not None
    assert reading.reader.discoveries == 1


# ---------------------------------------------------------------- what is unread


def test_what_is_unread_is_that_of_the_slowest_subtask_of_the_newest_attempt(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number, range(100))
    epochs = EpochFolder(tmp_path)
    assert epochs.read_below() == 0
    store = MemorySnapshotStore()
    first, second = (Reading(source(tmp_path), index=index, parallelism=2, store=store, token=4) for index in (0, 1))
    snapshots = [reading.snapshot("chk-1") for reading in (first, second)]
    ids(first)
    assert epochs.read_below() == 0
    ids(second)
    assert epochs.read_below() == 3
    assert len(list((tmp_path / "read").iterdir())) == 2, "a note replaces the one before"
    Reading(source(tmp_path), store=store, snapshots=snapshots, token=5)
    assert epochs.read_below() == 0, "the next attempt reads again from its checkpoint"


def test_epochs_that_were_released_are_not_unread(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number, range(100))
    epochs = EpochFolder(tmp_path)
    epochs.release(2)
    assert epochs.read_below() == 2
    assert (epochs.size(1), epochs.size(2) > 100) == (0, True)


def test_a_position_that_cannot_be_noted_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, range(5))
    (tmp_path / "read").touch()
    assert ids(Reading(source(tmp_path))) == [*range(5)]
    assert EpochFolder(tmp_path).read_below() == 0


# ---------------------------------------------------------------- what checkpoints need


def lists(reading: Reading, name: str) -> dict[str, Any]:
    return dict(reading.snapshot(name).lists)


def test_epochs_that_a_retained_checkpoint_needs_are_kept(tmp_path: Path) -> None:
    stage = tmp_path / "7" / "orders"
    for number in range(4):
        write(stage, number, range(10))
    reading, epoch_source = Reading(source(stage)), source(stage)
    savepoint = lists(reading, "savepoint-1")
    assert reading.poll(10) is not None
    assert reading.poll(5) is not None
    middle = lists(reading, "chk-2")
    ids(reading)
    newest = lists(reading, "chk-3")
    assert isinstance(epoch_source, ReleasesInput)
    assert epoch_source.release([savepoint, middle, newest]) == 0
    assert epoch_source.release([middle, newest]) == 1, "epoch 1 is read in part"
    assert epoch_source.release([newest]) == 3
    assert EpochFolder(stage).next_number() == 4
    assert epoch_source.release([]) == 0


def test_checkpoints_of_another_lineage_neither_keep_nor_release(tmp_path: Path) -> None:
    old, new = tmp_path / "5" / "orders", tmp_path / "7" / "orders"
    for stage in (old, new):
        write(stage, 0, range(10))
    reading = Reading(source(old, lineage="5"))
    ids(reading)
    assert source(new).release([lists(reading, "savepoint-1")]) == 0
    assert EpochFolder(old).find(0) is not None
    assert EpochFolder(new).find(0) is not None


def test_a_checkpoint_that_needs_released_epochs_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number, range(10))
    store = MemorySnapshotStore()
    early = Reading(source(tmp_path), store=store)
    snapshot = early.snapshot("chk-1")
    EpochFolder(tmp_path).release(2)
    with pytest.raises(JobRejected, match=r"epoch 0 of .* is needed, but epochs below \d+ are deleted") as error:
        Reading(source(tmp_path), store=store, snapshots=[snapshot])
    assert error.value.code == "epochs-released"


def test_a_checkpoint_of_other_epochs_is_refused(tmp_path: Path) -> None:
    store = MemorySnapshotStore()
    snapshot = Reading(source(tmp_path, lineage="5"), store=store).snapshot("chk-1")
    with pytest.raises(JobRejected, match=r"lineage 5 .*, but this run belongs to lineage 7") as error:
        Reading(source(tmp_path), store=store, snapshots=[snapshot])
    assert error.value.code == "other-epochs"


# ---------------------------------------------------------------- in a dataflow


def test_a_pipeline_gives_the_source_its_folder_and_its_columns(tmp_path: Path) -> None:
    columns, streams = tmp_path / "columns", tmp_path / "streams" / "7"
    columns.mkdir()
    schema_file(str(columns), "orders").write_bytes(COLUMNS.serialize().to_pybytes())
    token = STAGE_FOLDERS.set(StageFolders(str(columns), str(streams)))
    try:
        flow = Dataflow("orders")
        stream = flow.source("orders", EpochSource(make=print))
    finally:
        STAGE_FOLDERS.reset(token)
    bound = flow.sources[stream.uid]
    assert isinstance(bound, EpochSource)
    assert isinstance(bound, HasStandingStage)
    assert (bound.folder, bound.lineage, stream.columns) == (str(streams / "orders"), "7", COLUMNS)


def test_a_sink_within_a_stream_has_its_stage_too(tmp_path: Path) -> None:
    """The stage gets the folder of the run, and the graph for the console names the stage; BATCH has none."""
    token = STAGE_FOLDERS.set(StageFolders(str(tmp_path / "columns"), str(tmp_path / "streams" / "7")))
    try:
        flow = Dataflow("orders")
        numbers = flow.source("numbers", SequenceSource(rows=10))
        numbers.write_through("delivered", EpochStage(print)).sink("out", DiscardSink())
    finally:
        STAGE_FOLDERS.reset(token)
    bound = flow.sinks[OperatorId("delivered")]
    assert isinstance(bound, EpochStage)
    assert bound.folder == str(tmp_path / "streams" / "7" / "delivered")
    drawn = {operator["uid"]: operator for operator in graph_with_stages(flow, 2, has_stages=True)["operators"]}
    assert (drawn["delivered"]["stage"], drawn["delivered"]["commits"]) == ("deliver", True)
    assert "stage" not in drawn["out"]


def test_outside_of_a_pipeline_it_is_refused() -> None:
    with pytest.raises(JobRejected, match="offer the job as a Pipeline") as error:
        Dataflow("orders").source("orders", EpochSource(make=print))
    assert error.value.code == "no-stage"


def test_slots_are_not_sent_the_function(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    class Secret:
        def __reduce__(self) -> Any:
            raise AssertionError("it must not travel")

    epoch_source = source(tmp_path)
    object.__setattr__(epoch_source, "make", lambda spark, secret=Secret(): spark)  # noqa: B008
    copy = cloudpickle.loads(cloudpickle.dumps(epoch_source))  # type: ignore[no-untyped-call]
    assert (copy.make, copy.folder) == (None, epoch_source.folder)
