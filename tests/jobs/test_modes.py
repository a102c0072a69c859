"""Exactly once and at least once on the local host: what flows past a barrier that is still awaited elsewhere.

Two source subtasks feed one counter. The first gives a record behind its barrier while the second is held in a poll and
so cannot take part yet; then the job fails once, and goes on from that checkpoint.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count
from runtime.ports import OperatorContext, SourceReader
from tests.jobs.numbers import committed

PATIENCE_S = 60.0
SCHEMA = pa.schema([("word", pa.string())])
GIVEN = (("before", "behind", "poison"), ("slow",))  #: by each source subtask, in this order


@dataclass
class Play:
    """What the two source subtasks and the observer tell each other, over both attempts."""

    held_for_s: float
    held: threading.Event = field(default_factory=threading.Event)  #: the second subtask is in its poll
    seen: threading.Event = field(default_factory=threading.Event)  #: the record behind the barrier came through
    passed: bool = False  #: it did so while the other barrier was awaited
    marked: int | None = None  #: the checkpoint that the first subtask took while the second was held
    completed: bool = False
    failed: bool = False

    bounded = True
    guarantee = "exactly-once"

    def reader(self) -> SourceReader:
        return Reader(self)

    def check(self) -> None:
        return None

    def hold(self) -> None:
        if not self.held.is_set():
            self.held.set()
            self.passed = self.seen.wait(self.held_for_s)

    def watch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        words = batch.column("word").to_pylist()
        if "behind" in words:
            self.seen.set()
        if "poison" in words and not self.failed:
            self.failed = True
            raise RuntimeError("the one failure of this play")
        return batch


class Reader(SourceReader):
    def __init__(self, play: Play) -> None:
        self._play = play

    def open(self, context: OperatorContext) -> None:
        self._state = context.state.list_state("left")
        self._left = self._state.get() if context.restored else list(GIVEN[context.index])
        self._first = context.index == 0

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if not self._first:
            self._play.hold()
        if self.exhausted or not self._may_give(self._left[0]):
            return None
        return pa.RecordBatch.from_pydict({"word": [self._left.pop(0)]}, schema=SCHEMA)

    def _may_give(self, word: str) -> bool:
        return {"behind": self._play.marked is not None, "poison": self._play.completed}.get(word, True)

    @property
    def exhausted(self) -> bool:
        return not self._left

    def snapshot(self, checkpoint: int) -> None:
        self._state.replace(self._left)
        if self._play.marked is None and self._left[:1] == ["behind"] and self._play.held.is_set():
            self._play.marked = checkpoint

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._play.completed = self._play.completed or permit.checkpoint == self._play.marked


def played(play: Play, mode: CheckpointMode, folder: Path) -> dict[str, int]:
    """Runs the job in `mode`. How often each word was counted in the end."""
    flow = Dataflow("play")
    counted = flow.source("words", play).key_by("word").aggregate("counts", {"n": Count()}, parallelism=1)
    watched = counted.map_batches("watch", play.watch, parallelism=1)
    watched.sink("out", ParquetSink(str(folder / "out")), parallelism=1)
    watched.sink("shown", PrintSink(), parallelism=1)
    settings = CoordinatorSettings(interval_ms=300, min_pause_ms=10_000, mode=mode)
    restart = FixedDelay(attempts=1, delay_ms=0)
    run_local(flow, parallelism=2, storage=str(folder / "state"), settings=settings, restart=restart)
    assert play.failed
    counts: dict[str, int] = {}
    for row in committed(folder / "out"):
        counts[row["word"]] = max(row["n"], counts.get(row["word"], 0))
    return counts


def test_at_least_once_no_channel_waits_and_after_a_restart_none_is_lost(tmp_path: Path) -> None:
    """S3-01: what flowed past the barrier is in the snapshot, and comes again."""
    play = Play(held_for_s=PATIENCE_S)
    assert played(play, CheckpointMode.AT_LEAST_ONCE, tmp_path) == {"before": 1, "behind": 2, "slow": 1, "poison": 1}
    assert play.passed


def test_exactly_once_the_channel_waits_and_nothing_comes_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1-02: the same play. State and files are exact; what was shown before its checkpoint is shown again."""
    play = Play(held_for_s=0.3)
    assert set(played(play, CheckpointMode.EXACTLY_ONCE, tmp_path).values()) == {1}
    assert not play.passed
    assert capsys.readouterr().out.count('{"word":"behind","n":1}') == 2
