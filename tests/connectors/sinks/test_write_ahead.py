"""The write-ahead sink: rows are held until their checkpoint, delivered in order, and again after a failure."""

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.ports import (
    BindsUid,
    DeliversEpochs,
    OperatorContext,
    OutputEpoch,
    SinkCommitter,
    SinkWriter,
    StageFolders,
)
from runtime.state.backend import SubtaskState
from tests.jobs.numbers import Numbers
from tests.webhook_server import running_webhook


@dataclass
class Table:
    """A target with transactions: rows and the identity of their epoch appear together."""

    guarantee = "exactly-once"
    epochs: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=list)
    trouble: Callable[[str], None] = lambda step: None

    def check(self) -> None:
        return None

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        self.calls.append(epoch.number)
        self.trouble("before")
        rows = [value for batch in batches for value in batch.column(0).to_pylist()]
        assert len(rows) == epoch.rows
        assert self.epochs.setdefault((epoch.source, epoch.number), rows) == rows, "an epoch has changed"
        self.trouble("after")

    @property
    def rows(self) -> list[int]:
        return [value for rows in self.epochs.values() for value in rows]


@pytest.fixture
def target() -> Table:
    return Table()


def writer(of: WriteAheadSink, *, token: int = 1, index: int = 0, uid: str = "out") -> SinkWriter:
    writer = of.writer()
    writer.open(
        OperatorContext(
            job="job", uid=uid, index=index, parallelism=4, max_parallelism=16, token=Token(token),
            state=SubtaskState(range(4), 16, None), now_ms=lambda: 0,
        )
    )  # fmt: skip
    return writer


def prepared(sink_writer: SinkWriter, checkpoint: int, *numbers: int) -> list[Any]:
    sink_writer.write(pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())}))
    committables: list[Any] = json.loads(json.dumps(sink_writer.prepare(checkpoint)))
    return committables


def commit_epoch(committer: SinkCommitter, checkpoint: int, *committables: Any, token: int = 1) -> None:
    committer.commit_epoch(permit_from_master("job", Token(token), CheckpointId(checkpoint)), committables)


def held(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.parquet")]


def test_rows_reach_the_target_with_their_checkpoint_and_once(tmp_path: Path, target: Table) -> None:
    """S1-55: the same identity at each repetition, by slots, masters and restores."""
    sink = WriteAheadSink(target, str(tmp_path))
    first_writer, second_writer = writer(sink), writer(sink, index=1)
    committables = prepared(first_writer, 1, 1, 2) + prepared(second_writer, 1, 3)
    assert target.rows == []
    commit_epoch(sink.committer(), 1, *committables)
    assert target.rows == [1, 2, 3]
    permit = permit_from_master("job", Token(1), CheckpointId(1))
    for committer in (sink.committer(), sink.committer()):
        assert committer.commit(permit, committables) == 0
        commit_epoch(committer, 1, *committables, token=2)
    later = prepared(first_writer, 2, 4)
    commit_epoch(sink.committer(), 2, *committables, *later)
    assert target.calls == [1, 2]
    assert target.rows == [1, 2, 3, 4]
    assert held(tmp_path) == []
    assert sink.committer().clean("job", "out", Token(2), later) == 0


@pytest.mark.parametrize("step", ["before", "after"])
def test_an_epoch_that_failed_is_written_again_before_later_epochs(tmp_path: Path, target: Table, step: str) -> None:
    """S1-05: a failure of the target drops no row and changes no order."""

    def fail(name: str) -> None:
        if name == step:
            raise EnvironmentFailure("away")

    sink = WriteAheadSink(target, str(tmp_path))
    sink_writer = writer(sink)
    first, second = prepared(sink_writer, 1, 1), prepared(sink_writer, 2, 2)
    target.trouble = fail
    with pytest.raises(EnvironmentFailure, match="away"):
        commit_epoch(sink.committer(), 1, *first)
    assert held(tmp_path) == [first[0]["final"]]
    with pytest.raises(EnvironmentFailure, match="away"):
        commit_epoch(sink.committer(), 2, *first, *second)
    target.trouble = lambda _: None
    commit_epoch(sink.committer(), 2, *first, *second, token=2)
    assert list(target.epochs) == sorted(target.epochs)
    assert target.rows == [1, 2]
    assert held(tmp_path) == []


def test_a_zombie_that_finds_the_files_of_a_delivered_epoch_deleted_goes_on(tmp_path: Path, target: Table) -> None:
    """S1-11: its successor has delivered the epoch meanwhile."""
    sink = WriteAheadSink(target, str(tmp_path))
    committables = prepared(writer(sink), 1, 1)

    def overtaken(step: str) -> None:
        target.trouble = lambda _: None
        commit_epoch(sink.committer(), 1, *committables, token=2)

    target.trouble = overtaken
    commit_epoch(sink.committer(), 1, *committables)
    assert target.rows == [1]
    assert target.calls == [1, 1]


def test_a_lost_file_of_an_epoch_is_named(tmp_path: Path, target: Table) -> None:
    sink = WriteAheadSink(target, str(tmp_path))
    committables = prepared(writer(sink), 1, 1)

    def lose(step: str) -> None:
        (tmp_path / committables[0]["final"]).unlink()

    target.trouble = lose
    with pytest.raises(EnvironmentFailure, match=r"part-.*: rows of epoch 1, which is not delivered, are missing"):
        commit_epoch(sink.committer(), 1, *committables)
    assert target.rows == []


def test_two_sinks_that_share_a_folder_keep_to_their_targets(tmp_path: Path, target: Table) -> None:
    other = Table()
    for uid, number, table in (("one", 1, target), ("two", 2, other)):
        sink = WriteAheadSink(table, str(tmp_path))
        commit_epoch(sink.committer(), 1, *prepared(writer(sink, uid=uid), 1, number))
    assert (target.rows, other.rows) == ([1], [2])


def test_a_sink_in_a_run_of_the_console_uses_a_folder_of_the_run(tmp_path: Path, target: Table) -> None:
    sink = WriteAheadSink(target)
    assert isinstance(sink, BindsUid)
    assert not isinstance(sink, DeliversEpochs), "no stage delivers its epochs"
    bound = sink.bind("out", StageFolders(columns="", streams=str(tmp_path / "streams")))
    assert bound.folder == str(tmp_path / "streams" / "out")
    assert bound.folders() == {}
    bound.check()
    commit_epoch(bound.committer(), 1, *prepared(writer(bound), 1, 1))
    assert target.rows == [1]
    sink.bind("out", StageFolders(columns="")).check()  # at compile time the folder is not known
    bound_sink = WriteAheadSink(target, str(tmp_path)).bind("out", StageFolders(columns="", streams="/elsewhere"))
    assert bound_sink.folders() == {"folder": str(tmp_path)}


def test_bad_settings_are_refused(target: Table) -> None:
    with pytest.raises(JobRejected, match="folder: must name a folder"):
        WriteAheadSink(target).check()
    with pytest.raises(JobRejected, match="target: must be an EpochTarget"):
        WriteAheadSink(lambda rows: None, "/t").check()  # type: ignore[arg-type]
    with pytest.raises(JobRejected, match="url: must be"):
        WriteAheadSink(weir.Webhook("x"), "/t").check()


def test_a_job_posts_each_row_once_to_a_server_that_is_away_at_times(tmp_path: Path) -> None:
    """S1-06: statuses 503 and lost connections in mid-epoch."""
    with running_webhook() as server:
        received = server.at("/in")
        received.answer = lambda count: {2: 503, 5: 0, 6: 503}.get(count, 200)
        hook = weir.Webhook(f"{server.url}/in", batch_rows=64, guarantee="exactly-once")
        flow = weir.Dataflow("hooked")
        flow.source("numbers", Numbers(total=300)).sink("out", WriteAheadSink(hook, str(tmp_path / "held")))
        restart = weir.FixedDelay(attempts=9, delay_ms=20)
        weir.run_local(flow, parallelism=2, storage=str(tmp_path / "state"), restart=restart)
        assert sorted(row["value"] for row in received.rows) == sorted([*range(300)] * 4)
        assert len(received.requests) > 7, "batches were sent again"
    assert held(tmp_path / "held") == []


@pytest.mark.parametrize("is_delivered", [False, True])
def test_rows_that_a_former_folder_has_committed_are_written_once(
    tmp_path: Path, target: Table, is_delivered: bool
) -> None:
    """S1-06: a checkpoint is restored into another folder; the former master ended before or after the delivery."""

    def fail(step: str) -> None:
        if not is_delivered and step == "before":
            raise EnvironmentFailure("away")

    former, sink = WriteAheadSink(target, str(tmp_path / "former")), WriteAheadSink(target, str(tmp_path / "here"))
    committables = prepared(writer(former), 1, 1, 2)
    target.trouble = fail
    with contextlib.suppress(EnvironmentFailure):
        commit_epoch(former.committer(), 1, *committables)
    target.trouble = lambda _: None
    for committer in (sink.committer(), sink.committer()):
        committer.commit(permit_from_master("job", Token(2), CheckpointId(1)), committables)
        commit_epoch(committer, 1, *committables, token=2)
    commit_epoch(former.committer(), 1, *committables)
    assert target.rows == [1, 2]
    assert held(tmp_path) == []


def test_rows_that_are_pending_in_a_former_folder_are_written_once(tmp_path: Path, target: Table) -> None:
    """S1-51."""
    former, sink = WriteAheadSink(target, str(tmp_path / "former")), WriteAheadSink(target, str(tmp_path / "here"))
    committables = prepared(writer(former), 1, 1, 2)
    for committer in (sink.committer(), sink.committer()):
        committer.commit(permit_from_master("job", Token(2), CheckpointId(1)), committables)
        commit_epoch(committer, 1, *committables, token=2)
    assert target.rows == [1, 2]
