"""The sink's step: what is prepared for a checkpoint is committed by it or by a later one, once."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure
from runtime.operators.sink import SinkOperator
from runtime.ports import OperatorContext, SinkWriter
from runtime.state.own_memory import memory_kept_alive
from tests.operators.harness import Harness
from tests.received import wide


def rows(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


def permit(checkpoint: int) -> CommitPermit:
    return CommitPermit("job", Token(7), CheckpointId(checkpoint), Token(7))


def visible(folder: Path) -> list[int]:
    return sorted(ds.dataset(folder, format="parquet").to_table()["n"].to_pylist()) if any(folder.iterdir()) else []


def test_rows_become_visible_with_their_checkpoint(tmp_path: Path) -> None:
    """S0-31, S1-38, S1-40, S1-46, S1-47, S2-52."""
    sink = SinkOperator(ParquetSink(str(tmp_path)))
    harness = Harness(sink)
    for checkpoint in (1, 2, 3):
        harness.process(rows(checkpoint))
        sink.prepare_snapshot_pre_barrier(checkpoint, harness.out)
    assert len(sink.committables()) == 3
    sink.checkpoint_completed(permit(2))  # checkpoint 1 failed: what it prepared rides with the next one
    assert visible(tmp_path) == [1, 2]
    assert len(sink.committables()) == 1
    sink.checkpoint_completed(permit(3))
    assert visible(tmp_path) == [1, 2, 3]
    assert sink.committables() == ()


def test_rows_are_open_until_their_checkpoint_completes(tmp_path: Path) -> None:
    sink = SinkOperator(ParquetSink(str(tmp_path)))
    harness = Harness(sink)
    counts = []
    for checkpoint in (1, 2, 3):
        harness.process(rows(checkpoint))
        sink.prepare_snapshot_pre_barrier(checkpoint, harness.out)
        counts.append(sink.open_results()["rows"])
    for checkpoint in (2, 3):
        sink.checkpoint_completed(permit(checkpoint))
        counts.append(sink.open_results()["rows"])
    assert counts == [1, 2, 3, 1, 0]


def test_a_checkpoint_without_rows_prepares_nothing(tmp_path: Path) -> None:
    """S1-36."""
    sink = SinkOperator(ParquetSink(str(tmp_path)))
    harness = Harness(sink)
    sink.prepare_snapshot_pre_barrier(1, harness.out)
    assert sink.committables() == ()
    sink.checkpoint_completed(permit(1))
    assert visible(tmp_path) == []


def test_slots_leave_the_commit_to_a_master_that_commits_all_output(tmp_path: Path) -> None:
    """The master has committed before it notifies. A repetition would cost each slot a connection."""

    class Committer(FileCommitter):
        commits_in_master = True

    class MasterSink(ParquetSink):
        def committer(self) -> FileCommitter:
            return Committer(tmp_path)

    sink = SinkOperator(MasterSink(str(tmp_path)))
    harness = Harness(sink)
    for checkpoint in (1, 2):
        harness.process(rows(checkpoint))
        sink.prepare_snapshot_pre_barrier(checkpoint, harness.out)
    sink.checkpoint_completed(permit(1))
    assert len(sink.committables()) == 1
    assert list(tmp_path.glob("part-*")) == []


def test_a_commit_that_fails_is_still_owed(tmp_path: Path) -> None:
    sink = SinkOperator(ParquetSink(str(tmp_path)))
    harness = Harness(sink)
    harness.process(rows(1))
    sink.prepare_snapshot_pre_barrier(1, harness.out)
    owed = sink.committables()
    (pending,) = tmp_path.iterdir()
    pending.rename(tmp_path / "_elsewhere")
    with pytest.raises(EnvironmentFailure, match=re.escape(pending.name)):
        sink.checkpoint_completed(permit(1))
    assert sink.committables() == owed
    (tmp_path / "_elsewhere").rename(pending)
    sink.checkpoint_completed(permit(1))
    assert visible(tmp_path) == [1]


class HoldingWriter(SinkWriter):
    """Holds all rows until the barrier."""

    def __init__(self) -> None:
        self.held: list[pa.RecordBatch] = []

    def open(self, context: OperatorContext) -> None:
        return

    def write(self, batch: pa.RecordBatch) -> None:
        self.held.append(batch)

    def prepare(self, checkpoint: int) -> tuple[str, ...]:
        return ()


class HoldingSink(ParquetSink):
    def writer(self) -> SinkWriter:
        return HoldingWriter()


def test_rows_that_a_writer_holds_do_not_keep_the_rest_of_their_batches_alive(tmp_path: Path) -> None:
    """A step before the sink has selected a column of received batches."""
    sink = SinkOperator(HoldingSink(str(tmp_path)))
    harness = Harness(sink)
    for _ in range(3):
        harness.process(wide().select(["k"]))
    assert isinstance(sink._writer, HoldingWriter)
    batches = sink._writer.held
    assert sum(map(memory_kept_alive, batches)) < 1.1 * sum(batch.nbytes for batch in batches)
    assert batches[0] == wide().select(["k"])
