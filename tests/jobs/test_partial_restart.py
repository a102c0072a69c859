"""A failed slot restarts with the slots that it exchanges rows with, and with no other."""

import os
import signal
from collections import Counter as Multiset
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import TargetAway
from runtime.master import job_master
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import Run, running, with_operator
from tests.jobs.numbers import committed
from tests.shared import Notes

AGAIN = FixedDelay(attempts=100, delay_ms=30)
SLOTS = 3


def copies(source: Gated, bomb: Bomb, output: Path) -> CompiledJob:
    """A job whose slots exchange nothing."""
    flow = Dataflow("copies")
    copied = flow.source("numbers", source).map_batches("bomb", bomb).map_batches("pooled", lambda batch: batch)
    copied.sink("out", ParquetSink(str(output)))
    return flow.compile(SLOTS)


class Pooled(weir.spi.Operator):
    """Passes batches on, and counts them in a union list, which a restore hands to every subtask."""

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._state = context.state.union_list_state("batches")

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._state.replace([*self._state.get(), batch.num_rows])
        out.emit(batch)


def is_exact(source: Gated, output: Path) -> bool:
    """Whether each number is there, once for each split."""
    values = Multiset(row["value"] for row in committed(output))
    return values == dict.fromkeys(range(source.total), source.splits)


def pids(run: Run) -> dict[int, int]:
    return {int(row["index"]): int(row["pid"]) for row in run.records.live.get("slots", ())}


def fail(run: Run, bomb: Bomb, slot: int) -> None:
    """SIGKILL of a slot that is a process of its own; else an exception in any slot."""
    if pids(run)[slot] == os.getpid():
        bomb.arm()
    else:
        os.kill(pids(run)[slot], signal.SIGKILL)


def test_slots_that_exchange_nothing_with_a_failed_slot_run_on(tmp_path: Path, jobs: Jobs) -> None:
    """S4-44: they keep process and state, belong to the next checkpoints, and stop and drain with the rest."""
    source, bomb, output = Gated(total=100, splits=6), Bomb(), tmp_path / "out"
    with jobs.running(copies(source, bomb, output), tmp_path / "state", restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        before = pids(run)
        fail(run, bomb, slot=1)
        source.total = 200
        run.wait_for(lambda: is_exact(source, output) and run.manifests[-1].token == 2)
        run.checkpoints(2)
        run.wait_for(lambda: len(pids(run)) == SLOTS)
        after = pids(run)
        source.total = 300
        run.wait_for(lambda: is_exact(source, output))
        run.end("drain")
    assert is_exact(source, output)
    restarted = [opening.index for opening in source.opened if opening.token == 2]
    assert len(restarted) == 1, "the other slots run on"
    (failure,) = run.records.details
    assert failure["kept_slots"] == sorted(set(range(SLOTS)) - set(restarted))
    assert {slot: pid for slot, pid in after.items() if slot not in restarted} == {
        slot: pid for slot, pid in before.items() if slot not in restarted
    }


def test_slots_run_on_through_failure_after_failure(tmp_path: Path, jobs: Jobs) -> None:
    """S4-44: a second failure follows before the first checkpoint of the attempt that the first has begun."""
    source, bomb, output = Gated(total=100, splits=6), Bomb(), tmp_path / "out"
    with jobs.running(copies(source, bomb, output), tmp_path / "state", restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        for token, slot in ((2, 1), (3, 2), (4, 1)):
            fail(run, bomb, slot)
            source.total += 100
            run.wait_for(lambda: max(opening.token for opening in source.opened) == token)  # noqa: B023 (called at once)
            run.wait_for(lambda: len(pids(run)) == SLOTS)
        run.wait_for(lambda: is_exact(source, output))
        run.end("drain")
    assert is_exact(source, output)
    assert len(source.opened) == SLOTS + 3, "one slot at a time"


class AwayOnce(FileCommitter):
    """The folder is away in a clean-up, once it is due."""

    def __init__(self, folder: Path, outages: Notes) -> None:
        super().__init__(folder)
        self._outages = outages

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        if self._outages.values == ["due"]:
            self._outages.add("met")
            raise TargetAway("the folder is away")
        return super().clean(job, uid, token, keep)


class AwayOnceSink(ParquetSink):
    def __init__(self, path: str, outages: Notes) -> None:
        super().__init__(path)
        self._outages = outages

    def committer(self) -> FileCommitter:
        return AwayOnce(Path(self.path), self._outages)


def test_slots_run_on_while_an_outage_delays_the_restart(
    tmp_path: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tries that end before slots are deployed are no restarts in part: their number is not bounded."""
    for bound in ("MAX_PARTIAL_RESTARTS", "MAX_FUTILE_RESTARTS"):
        monkeypatch.setattr(job_master, bound, 1)
    source, bomb, output, outages = Gated(total=100, splits=6), Bomb(), tmp_path / "out", Notes()
    flow = Dataflow("copies")
    copied = flow.source("numbers", source).map_batches("bomb", bomb)
    copied.sink("out", AwayOnceSink(str(output), outages))
    with jobs.running(flow.compile(SLOTS), tmp_path / "state", restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        outages.add("due")
        fail(run, bomb, slot=1)
        source.total = 200
        run.wait_for(lambda: is_exact(source, output) and run.manifests[-1].token == 3)
        run.end("drain")
    assert outages.values == ["due", "met"]
    assert len(source.opened) == SLOTS + 1


def test_all_slots_restart_once_after_some_restarts_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then are leftovers of failed slots removed. The failure names no slot that ran on."""
    monkeypatch.setattr(job_master, "MAX_PARTIAL_RESTARTS", 1)
    source, bomb, output = Gated(total=100, splits=6), Bomb(), tmp_path / "out"
    with running(copies(source, bomb, output), tmp_path / "state", restart=AGAIN) as run:
        for token in (2, 3):
            run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
            bomb.arm()
            source.total += 100
            run.wait_for(lambda: run.manifests[-1].token == token)  # noqa: B023 (called at once)
        run.wait_for(lambda: is_exact(source, output))
        run.end("drain")
    assert ["kept_slots" in failure for failure in run.records.details] == [True, False]
    assert len(source.opened) == SLOTS + 1 + SLOTS


def test_a_union_list_restarts_all_slots(tmp_path: Path, jobs: Jobs) -> None:
    """Each subtask receives all entries, so a new one would have what a running one still holds."""
    source, bomb, output = Gated(total=100, splits=6), Bomb(), tmp_path / "out"
    job = copies(source, bomb, output)
    pooled = with_operator(job, "pooled", Pooled)
    with jobs.running(pooled, tmp_path / "state", restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        fail(run, bomb, slot=1)
        source.total = 200
        run.wait_for(lambda: is_exact(source, output) and run.manifests[-1].token == 2)
        run.end("drain")
    assert len(source.opened) == 2 * SLOTS


@pytest.mark.parametrize(
    ("sink", "joins"),
    [
        (weir.ParquetSink("/out"), False),
        (weir.KafkaSink("kafka:9092", "topic", weir.KafkaJson(), commit="immediate"), False),
        (weir.KafkaSink("kafka:9092", "topic", weir.KafkaJson()), True),
        (weir.PostgresSink("postgres://host/db", "rows"), False),
        (weir.PostgresSink("postgres://host/db", "rows", uncommitted="all_rows"), True),
        (weir.PostgresSink("postgres://host/db", "rows", commit="prepared"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sink_says_whether_its_writers_restart_together(sink: weir.spi.Sink, joins: bool) -> None:
    """A transaction or a session of a lost writer blocks others until a clean-up."""
    flow = Dataflow("copies")
    flow.source("numbers", Gated(total=1)).sink("out", sink)
    assert bool(flow.compile(2).failover_rules.joined) == joins
