"""Checkpoints of live jobs in which a branch has ended: triggers, races with an end, flags, and commits that go on."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.events import ReportReceived
from runtime.core.checkpoint.effects import NotifyCompleted, ReportCheckpoint
from runtime.core.checkpoint.events import IdIssued
from runtime.core.job.messages import MAX_WATERMARK, Barrier, EndOfData, EndOfPartition, Watermark
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import SubtaskEnded, TriggerSubtask
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState, Manifest
from runtime.core.subtask.effects import Broadcast, CaptureState, Close, EndInput, Finish
from runtime.core.subtask.events import Triggered
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.ports import Collector, Operator
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run, with_operator
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.jobs.observed import Journal, Trace, observed, traced
from tests.shared import Shared

#: A request is always queued when a checkpoint completes, so that the next begins at once.
SHORT = CoordinatorSettings(interval_ms=10, min_pause_ms=0)
EARLY = ("early", "step", "side")
RACED = FailureReason.TASK_FINISHED_WHILE_TRIGGERED


class Lingers(Operator):
    """Passes rows on. Takes a while for each notification, so that its slot hears of the next trigger later."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        time.sleep(0.1)


@dataclass(frozen=True)
class Branches:
    """A branch of one subtask each ended early; a union of it and an endless source ran on, and was drained."""

    journal: Journal
    trace: Trace
    run: Run
    folder: Path
    source: Gated
    visible: tuple[int, int]  #: rows of the endless branch, before and after it went on alone

    def ended_with(self, uid: str, index: int = 0) -> int:
        """The checkpoint that let a subtask end."""
        (turn,) = [turn for turn in self.trace.of(uid, index) if any(isinstance(e, SubtaskEnded) for e in turn.effects)]
        return int(turn.event.permit.checkpoint)


def two_branches(source: Gated, folder: Path) -> Dataflow:
    flow = Dataflow("branches")
    early = flow.source("early", Numbers(total=20, splits=1), parallelism=1)
    step = early.map_batches("step", lambda batch: batch, parallelism=1)
    step.sink("side", ParquetSink(str(folder / "side")), parallelism=1)
    flow.source("late", source).union("both", step).sink("out", ParquetSink(str(folder / "out")))
    return flow


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Branches]:
    folder, source, trace = tmp_path_factory.mktemp("branches"), Gated(total=20), Trace()
    job = traced(with_operator(two_branches(source, folder).compile(2), "step", Lingers), trace)
    with observed() as journal:
        with jobs.running(job, folder / "state", settings=SHORT) as run:
            run.wait_for(lambda: "early" in trace.ended())
            run.wait_for(lambda: len(committed(folder / "out")) == 100)
            before = len(committed(folder / "out"))
            source.total += 30
            run.wait_for(lambda: len(committed(folder / "out")) == 100 + 4 * 30)
            visible = before, len(committed(folder / "out"))
            run.end("drain")
        yield Branches(journal, trace, run, folder, source, visible)


def test_sinks_commit_after_a_branch_has_ended(branches: Branches) -> None:
    """S0-13, S0-87: with the settings of a job that nobody has configured for it."""
    assert branches.visible == (100, 220)
    assert len(committed(branches.folder / "side")) == 20
    assert len(committed(branches.folder / "out")) == 220


def test_a_branch_ends_with_one_checkpoint_and_the_union_behind_it_with_a_later_one(branches: Branches) -> None:
    """S0-81, S0-82: the barrier follows the end on the channel; the union needs the end of both."""
    (first,) = {branches.ended_with(uid) for uid in EARLY}
    assert {branches.ended_with(uid, index) for uid in ("late", "both", "out") for index in (0, 1)} == {
        branches.run.manifests[-1].checkpoint
    }
    assert branches.run.manifests[-1].checkpoint > first


def test_no_operator_finishes_ahead_of_its_predecessor(branches: Branches) -> None:
    """S0-25: in no checkpoint of the job."""
    edges = [("early", "step"), ("step", "side"), ("step", "both"), ("late", "both"), ("both", "out")]
    for manifest in branches.run.manifests:
        finished = manifest.finished_operators()
        assert all(source in finished for source, target in edges if target in finished)
    assert any(set(EARLY) == set(manifest.finished_operators()) for manifest in branches.run.manifests)


def test_an_end_that_overtakes_a_trigger_aborts_the_checkpoint_and_the_next_is_planned_anew(branches: Branches) -> None:
    """S0-46, S0-47: aborted by name; the next leaves out what has ended, and completes."""
    aborted = [report for report in branches.run.records.reports if report.reason is RACED]
    assert aborted
    assert all(report.detail.endswith("ended before its snapshot") for report in aborted)
    number = aborted[-1].checkpoint
    following = [m.checkpoint for m in branches.run.manifests if m.checkpoint > number]
    assert following
    planned = branches.journal.turn_of(IdIssued, checkpoint=following[0])
    assert {e.subtask.operator for e in planned.effects if isinstance(e, TriggerSubtask)} == {"late"}
    (report,) = [e for e in planned.effects if isinstance(e, ReportCheckpoint)]
    assert report.subtasks == 6


def test_at_a_true_end_a_subtask_finishes_after_all_inputs_and_forwards_the_flag(branches: Branches) -> None:
    """S0-76, S0-78, S0-38: the end of the logic and the end of the subtask are two events, a checkpoint apart."""
    for index in (0, 1):
        turns = branches.trace.of("both", index)
        effects = [effect for turn in turns for effect in turn.effects]
        finished, ended = effects.index(Finish()), effects.index(Close())
        assert max(effects.index(EndInput(number)) for number in (0, 1)) < finished
        assert effects[finished + 1] == Broadcast(EndOfData(drain=True, job_drains=True))
        between = [type(effect) for effect in effects[finished:ended]]
        assert CaptureState in between
        assert effects[ended + 1] == Broadcast(EndOfPartition())
        last_inputs = [turn for turn in turns if isinstance(turn.message, EndOfData)]
        assert [Finish() in turn.effects for turn in last_inputs] == [False] * (len(last_inputs) - 1) + [True]


# ---------------------------------------------------------------- a step that outlives its source


class Answers(Shared):
    """Whether the service of a step answers, and how many requests it has had."""

    def __init__(self) -> None:
        self._up, self._count = False, 0

    def open(self) -> None:
        self._up = True

    def is_up(self) -> bool:
        return self._up

    def ask(self) -> None:
        self._count += 1

    def count(self) -> int:
        return self._count


class Service:
    """Called in the slots."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self._answers.ask()
        while not self._answers.is_up():  # noqa: ASYNC110  # opened in another process
            await asyncio.sleep(0.02)
        return [row]


def requests_beside(answers: Answers, folder: Path, endless: Gated) -> Dataflow:
    """A bounded source with requests behind it, and an endless branch."""
    flow = Dataflow("requests")
    numbers = flow.source("numbers", Numbers(total=5))
    asked = numbers.async_map("ask", Service(answers), SCHEMA, capacity=50, timeout_ms=60_000)
    asked.sink("out", ParquetSink(str(folder / "out")))
    flow.source("endless", endless).sink("beside", ParquetSink(str(folder / "beside")))
    return flow


@dataclass(frozen=True)
class Outlived:
    journal: Journal
    trace: Trace
    run: Run
    folder: Path
    partly: Manifest
    answers: Answers


@pytest.fixture(scope="module")
def outlived(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Outlived]:
    """The source ends while all of its rows wait in the step behind it; then they are answered."""
    folder, trace, answers = tmp_path_factory.mktemp("outlived"), Trace(), Answers()
    job = traced(requests_beside(answers, folder, Gated(total=5)).compile(2), trace)
    with observed() as journal:
        settings = CoordinatorSettings(interval_ms=150, min_pause_ms=0)
        with jobs.running(job, folder / "state", settings=settings) as run:
            run.wait_for(lambda: "numbers" in trace.ended())
            run.checkpoints(2)
            partly = run.manifests[-1]
            assert committed(folder / "out") == []
            answers.open()
            run.wait_for(lambda: "out" in trace.ended())
            run.checkpoints(1)
            run.end("drain")
        yield Outlived(journal, trace, run, folder, partly, answers)


def test_a_step_whose_predecessors_have_ended_is_triggered_itself(outlived: Outlived) -> None:
    """S0-19, S2-56: the subtasks to trigger, to wait for and to notify are three different sets."""
    number = outlived.partly.checkpoint
    planned = outlived.journal.turn_of(IdIssued, checkpoint=number)
    triggered = {(e.subtask.operator, e.subtask.index) for e in planned.effects if isinstance(e, TriggerSubtask)}
    assert triggered == {(uid, index) for uid in ("ask", "endless") for index in (0, 1)}
    answered = {
        turn.event.subtask.operator
        for turn in outlived.journal
        if isinstance(turn.event, ReportReceived) and getattr(turn.event.report, "checkpoint", None) == number
    }
    assert answered == {"ask", "out", "endless", "beside"}
    (notified,) = [e for e in outlived.journal.effects(NotifyCompleted) if e.permit.checkpoint == number]
    assert {subtask.operator for subtask in notified.subtasks} == answered
    for index in (0, 1):
        turns = outlived.trace.of("ask", index)
        assert number in [turn.event.barrier.checkpoint for turn in turns if isinstance(turn.event, Triggered)]
        sent = [getattr(effect, "message", None) for turn in turns for effect in turn.effects]
        # At once, or when the last predecessor's end arrives: the master may know of it first.
        assert number in [message.checkpoint for message in sent if isinstance(message, Barrier)]


def test_the_plan_leaves_out_what_the_master_knows_to_have_ended(outlived: Outlived) -> None:
    """S0-45: at each id, the subtasks are those without an end that was reported before it."""
    ended = set[tuple[str, int]]()
    for turn in outlived.journal:
        if isinstance(turn.event, ReportReceived) and isinstance(turn.event.report, SubtaskEnded):
            ended.add((turn.event.subtask.operator, turn.event.subtask.index))
        if isinstance(turn.event, IdIssued) and turn.pending:
            (report,) = [e for e in turn.effects if isinstance(e, ReportCheckpoint)]
            assert len(report.progress) == 10 - len(ended)
            assert not ended & {(p.subtask.operator, p.subtask.index) for p in report.progress}
    assert ended >= {("numbers", 0), ("numbers", 1), ("out", 0), ("out", 1)}


def test_the_end_waits_for_the_answers_and_each_is_given_out_once(outlived: Outlived) -> None:
    """S0-34: requests that are open when the input ends are answered ahead of the end."""
    assert outlived.partly.operators["numbers"].finished is FinishedState.FINISHED
    assert outlived.partly.operators["ask"].finished is FinishedState.RUNNING
    assert outlived.answers.count() == 20
    assert sorted(row["value"] for row in committed(outlived.folder / "out")) == sorted(list(range(5)) * 4)
    for index in (0, 1):
        effects = [effect for turn in outlived.trace.of("ask", index) for effect in turn.effects]
        assert effects.count(Finish()) == 1


# ---------------------------------------------------------------- after a restore


def test_a_finished_branch_is_skipped_on_restore_and_its_successors_still_end(tmp_path: Path, jobs: Jobs) -> None:
    """S0-50, S0-54: its code is not called; maximum watermark, barriers and ends pass through it."""
    source = Gated(total=10)
    with jobs.running(two_branches(source, tmp_path).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: any(set(EARLY) == set(m.finished_operators()) for m in run.manifests))
        folder = next(c.folder for c in run.records.completed if set(EARLY) == set(c.manifest.finished_operators()))
        run.end("cancel")
    trace, records = Trace(), MemoryRunStore(restore_from=folder)
    records.reserve_ids_above(1_000, 1)
    job = with_operator(two_branches(source, tmp_path).compile(2), "step", _refuse)
    source.total = 30
    with observed(), jobs.running(traced(job, trace), tmp_path / "state", records) as run:
        run.wait_for(lambda: len(committed(tmp_path / "out")) == 20 + 4 * 30)
        run.wait_for(lambda: trace.ended() >= set(EARLY))
        run.end("drain")
    assert len(committed(tmp_path / "side")) == 20
    for uid in EARLY:
        turns = trace.of(uid, 0)
        effects = [effect for turn in turns for effect in turn.effects]
        messages = [effect.message for effect in effects if isinstance(effect, Broadcast)]
        assert Watermark(MAX_WATERMARK) in messages
        assert [type(m) for m in messages if isinstance(m, EndOfData | EndOfPartition)] == [EndOfData, EndOfPartition]
        assert any(isinstance(message, Barrier) for message in messages)
        assert not [effect for effect in effects if isinstance(effect, CaptureState | Finish | Close)]


def _refuse() -> Operator:
    raise RuntimeError("the code of a finished operator is made")
