"""Checkpoints of live jobs in trouble: they expire, are answered late or declined, have no id, or cannot begin."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.effects import StartSubtasks
from runtime.core.attempt.events import HeartbeatReceived, ReportReceived, SlotDeployed
from runtime.core.checkpoint.effects import (
    CheckpointStatus,
    IssueId,
    LateAnswer,
    NotifyAborted,
    ReportCheckpoint,
)
from runtime.core.checkpoint.events import IdIssued, IdUnavailable, ManifestRecorded
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import Acknowledgement, Decline, TriggerSubtask
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.subtask.effects import ForgetCheckpoint
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.ports import Collector, Operator, OperatorContext
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import PATIENCE_S, Run, with_operator
from tests.jobs.observed import Journal, MasterTurn, Trace, observed, traced
from tests.shared import Shared
from tests.small_states import DEPLOYMENT_OF_SLOTS, small_deployment

INTERVAL_MS, TIMEOUT_MS = 200, 1_500
MIDDLE = SubtaskId(OperatorId("middle"), 1)


class Door(Shared):
    """Subtask 1 waits at it, for as long as it is shut."""

    def __init__(self, is_shut: bool = False) -> None:
        self._shut, self.arrivals = is_shut, 0

    def shut(self) -> None:
        self._shut = True

    def open(self) -> None:
        self._shut = False

    def is_shut(self) -> bool:
        return self._shut

    def on_arrival(self) -> None:
        self.arrivals += 1


class Blocked(Operator):
    """Passes rows on. Subtask 1 waits at one door in `open` and at another in `snapshot`."""

    def __init__(self, opening: Door, snapshots: Door) -> None:
        self._opening, self._snapshots = opening, snapshots

    def open(self, context: OperatorContext) -> None:
        self._waits = context.index == 1
        self._wait(self._opening)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def snapshot(self, checkpoint: int) -> None:
        self._wait(self._snapshots)

    def _wait(self, door: Door) -> None:
        if self._waits and door.is_shut():
            door.on_arrival()
            while door.is_shut():
                time.sleep(0.01)


def job(folder: Path, source: Gated, bomb: Any, opening: Door, snapshots: Door) -> CompiledJob:
    flow = Dataflow("troubled")
    rows = flow.source("numbers", source).map_batches("bomb", bomb).key_by("key")
    rows.batches("middle", lambda batch: batch, max_rows=1, max_wait_ms=0).sink("out", ParquetSink(str(folder / "out")))
    return with_operator(flow.compile(2), "middle", lambda: Blocked(opening, snapshots))


def begun(turn: MasterTurn) -> ReportCheckpoint:
    (report,) = [effect for effect in turn.effects if isinstance(effect, ReportCheckpoint)]
    return report


# ---------------------------------------------------------------- a snapshot that takes too long


@dataclass(frozen=True)
class Expired:
    journal: Journal
    trace: Trace
    run: Run
    report: ReportCheckpoint  #: of the checkpoint that expired
    most_waiting: int  #: queued requests while the first blocked snapshot was awaited


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Expired]:
    """A snapshot is late by some intervals, and then, with a savepoint queued behind it, by more than the timeout."""
    folder, source, trace, door = tmp_path_factory.mktemp("expired"), Gated(total=20), Trace(), Door()
    compiled = traced(job(folder, source, lambda batch: batch, Door(), door), trace)
    settings = CoordinatorSettings(interval_ms=INTERVAL_MS, timeout_ms=TIMEOUT_MS, min_pause_ms=0)
    with observed() as journal:
        with jobs.running(compiled, folder / "state", settings=settings) as run:
            run.checkpoints(1)
            door.shut()
            run.wait_for(lambda: door.arrivals == 1)
            at = len(journal)
            time.sleep(4 * INTERVAL_MS / 1000)
            most_waiting = max(turn.waiting for turn in journal[at:])
            door.open()
            run.checkpoints(1)
            door.shut()
            run.wait_for(lambda: door.arrivals == 2)
            run.ask("savepoint")
            run.wait_for(lambda: any(r.reason is FailureReason.EXPIRED for r in run.records.reports))
            door.open()
            run.wait_for(lambda: "savepoint" in run.records.settled and journal.effects(LateAnswer))
            run.checkpoints(1)
            run.end("stop")
        report = next(r for r in run.records.reports if r.reason is FailureReason.EXPIRED)
        yield Expired(journal, trace, run, report, most_waiting)


def test_an_expired_checkpoint_names_the_late_subtasks_and_is_dropped(expired: Expired) -> None:
    """S2-21, S2-24: after the timeout, not before; the subtasks forget it. The loop of the whole slot waits."""
    report = expired.report
    late = [entry.subtask for entry in report.progress if entry.at_ms is None]
    assert MIDDLE in late
    assert {subtask.index for subtask in late} == {1}, "those of the slot whose loop waits"
    first, behind = ("middle", "1 subtask") if len(late) == 2 else ("numbers", "3 subtasks")
    assert report.detail == f"no acknowledgement from subtask 1 of {first}, and {behind} behind it"
    assert 0 <= report.at - report.triggered_at - TIMEOUT_MS < 1_000
    (turn,) = [turn for turn in expired.journal if any(e == report for e in turn.effects)]
    assert report.checkpoint not in turn.pending
    (abort,) = [effect for effect in turn.effects if isinstance(effect, NotifyAborted)]
    assert (abort.checkpoint, len(abort.subtasks)) == (report.checkpoint, 8)
    forgotten = {
        (turn.uid, turn.index) for turn in expired.trace.turns if ForgetCheckpoint(report.checkpoint) in turn.effects
    }
    assert len(forgotten) == 8


def test_the_request_behind_an_expired_checkpoint_begins_at_once(expired: Expired) -> None:
    """S2-22: a savepoint, ahead of the periodic request that waits too."""
    number = next(n for n, turn in enumerate(expired.journal) if any(e == expired.report for e in turn.effects))
    assert IssueId() in expired.journal[number].effects
    following = next(turn for turn in expired.journal[number:] if isinstance(turn.event, IdIssued))
    assert begun(following).kind is CheckpointKind.SAVEPOINT
    result, error = expired.run.records.settled["savepoint"]
    assert error is None
    assert result == {"checkpoint": begun(following).checkpoint}


def test_a_late_acknowledgement_is_told_apart_and_changes_nothing(expired: Expired) -> None:
    """S2-43, S2-45: the checkpoint is remembered as expired, and never completes."""
    number = expired.report.checkpoint
    late = [effect for effect in expired.journal.effects(LateAnswer) if effect.checkpoint == number]
    assert LateAnswer(MIDDLE, number, False, CheckpointStatus.FAILED, FailureReason.EXPIRED) in late
    assert number not in [manifest.checkpoint for manifest in expired.run.manifests]
    for turn in expired.journal:
        if any(effect in late for effect in turn.effects):
            assert isinstance(turn.event, ReportReceived)
            assert len(turn.effects) == 1


def test_at_most_one_periodic_request_waits_and_it_starts_with_the_completion(expired: Expired) -> None:
    """S2-09, S2-10, S2-50: although the interval passes several times; the next checkpoint begins in the same turn."""
    assert expired.most_waiting == 1
    blocked = next(r for r in expired.run.records.reports if r.at - r.triggered_at > 3 * INTERVAL_MS)
    assert IssueId() in expired.journal.turn_of(ManifestRecorded, checkpoint=blocked.checkpoint).effects


def test_a_slot_that_takes_a_snapshot_goes_on_sending_heartbeats(expired: Expired) -> None:
    """S2-35: the trigger does not occupy the thread that hears the master and is heard by it."""
    beats = [e for e in expired.journal.events(HeartbeatReceived) if e.slot == 1]
    during = [e for e in beats if expired.report.triggered_at < e.at < expired.report.at]
    assert len(during) >= 2


# ---------------------------------------------------------------- a snapshot that cannot be stored


@dataclass(frozen=True)
class Declined:
    journal: Journal
    run: Run
    report: ReportCheckpoint
    unrecorded: ReportCheckpoint  #: every subtask had acknowledged


@pytest.fixture(scope="module")
def declined(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Declined]:
    """One subtask finds a file in the place of its folder; later the master finds a folder in the place of its file."""
    folder, source = tmp_path_factory.mktemp("declined"), Gated(total=20)
    settings = CoordinatorSettings(interval_ms=2_000, min_pause_ms=0)
    compiled = job(folder, source, lambda batch: batch, Door(), Door())
    with observed() as journal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(DEPLOYMENT_OF_SLOTS, small_deployment)  # all state goes into files
        with jobs.running(compiled, folder / "state", settings=settings) as run:
            run.checkpoints(1)
            number = run.manifests[-1].checkpoint + 1
            (folder / "state" / f"chk-{number}-1").mkdir()
            (folder / "state" / f"chk-{number}-1" / "numbers-1").touch()
            source.total = 40
            run.checkpoints(1)
            number = run.manifests[-1].checkpoint + 1
            (folder / "state" / f"chk-{number}-1" / "manifest.json").mkdir(parents=True)
            source.total = 20_000  # rows arrive all the time, also between the two
            run.checkpoints(1)
            run.end("cancel")
        reports = {r.reason: r for r in run.records.reports}
        yield Declined(journal, run, reports[FailureReason.ASYNC_FAILED], reports[FailureReason.FINALIZE_FAILED])


def test_a_decline_ends_the_checkpoint_and_another_begins_at_once(declined: Declined) -> None:
    """S2-37, S2-38: it is named and remembered; the next does not wait for the interval."""
    report = declined.report
    assert report.detail.startswith("numbers/1: EnvironmentFailure: ")
    answers = [turn for turn in declined.journal if isinstance(turn.event, ReportReceived)]
    (turn,) = [turn for turn in answers if isinstance(turn.event.report, Decline)]
    assert report in turn.effects
    assert turn.pending == ()
    assert IssueId() in turn.effects
    assert any(isinstance(effect, NotifyAborted) for effect in turn.effects)
    following = declined.journal.turn_of(IdIssued, checkpoint=report.checkpoint + 1)
    assert begun(following).triggered_at - report.at < 1_000
    late = declined.journal.effects(LateAnswer)
    assert all(answer.reason is FailureReason.ASYNC_FAILED for answer in late if answer.checkpoint == report.checkpoint)


def test_output_that_was_prepared_for_a_failed_checkpoint_is_committed_with_the_next(declined: Declined) -> None:
    """S1-40: the sources have not gone back, so it must not be dropped."""
    failed, manifest = declined.unrecorded.checkpoint, declined.run.manifests[-1]
    assert manifest.checkpoint == failed + 1
    finals = [c["final"] for s in manifest.operators["out"].subtasks.values() for c in s.committables]
    prepared = [name for name in finals if name.split("-")[5] == str(failed)]
    assert prepared, finals
    folder = Path(str(manifest.operators["out"].subtasks[0].committables[0]["folder"]))
    assert all((folder / name).exists() for name in prepared)


# ---------------------------------------------------------------- what a checkpoint needs before it begins


class Troubled(MemoryRunStore):
    """The first id cannot be had; the second takes as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.let_go = threading.Event()

    def next_checkpoint_id(self) -> int | None:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("something that nobody has thought of")
        if self.asked == 2:
            self.let_go.wait(PATIENCE_S)
        return super().next_checkpoint_id()


def beating(turns: Sequence[MasterTurn]) -> set[int]:
    """The slots whose heartbeats arrived."""
    return {turn.event.slot for turn in turns if isinstance(turn.event, HeartbeatReceived)}


@dataclass(frozen=True)
class Begun:
    journal: Journal
    records: Troubled
    undeployed: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Begun]:
    """A slot opens late, an id fails, another is late; while it is, the attempt fails, and the next has checkpoints."""
    folder, source, bomb, opening = tmp_path_factory.mktemp("troubled"), Gated(total=20), Bomb(), Door(is_shut=True)
    records, settings = Troubled(), CoordinatorSettings(interval_ms=INTERVAL_MS, min_pause_ms=0)
    restart = FixedDelay(attempts=3, delay_ms=10)
    with observed() as journal:
        state = Begun(journal, records)
        compiled = job(folder, source, bomb, opening, Door())
        with jobs.running(compiled, folder / "state", records, settings=settings, restart=restart) as run:
            run.wait_for(lambda: opening.arrivals == 1 and records.live.get("undeployed_slots") == [1])
            time.sleep(4 * INTERVAL_MS / 1000)
            state.undeployed.append((records.live["undeployed_slots"], records.asked))
            opening.open()
            run.wait_for(lambda: records.asked == 2)
            run.wait_for(lambda: records.live.get("counters"))
            state.counters.append(records.live["counters"])
            at = len(journal)
            run.wait_for(lambda: beating(journal[at:]) == {0, 1})
            bomb.arm()
            source.total = 40
            run.wait_for(lambda: any(turn.token == 1 and "bomb went off" in repr(turn.event) for turn in journal))
            records.let_go.set()
            run.wait_for(lambda: any(m.token == 2 for m in run.manifests))
            run.end("stop")
        yield state


def test_one_subtask_that_does_not_run_is_enough_to_have_no_checkpoint(troubled: Begun) -> None:
    """S2-12, S2-14, S2-15, S0-44: it is named; no id is taken and nobody triggered until the last one runs."""
    assert troubled.undeployed == [([1], 0)]
    deployed = next(n for n, turn in enumerate(troubled.journal) if StartSubtasks() in turn.effects)
    assert isinstance(troubled.journal[deployed].event, SlotDeployed)
    before = [effect for turn in troubled.journal[:deployed] for effect in turn.effects]
    assert not [effect for effect in before if isinstance(effect, IssueId | TriggerSubtask)]
    assert all(turn.next_trigger is None for turn in troubled.journal[:deployed])


def test_an_id_that_cannot_be_had_costs_that_checkpoint_only(troubled: Begun) -> None:
    """S2-03, S2-18: it is counted, and the next period asks again."""
    (failed,) = [turn for turn in troubled.journal if isinstance(turn.event, IdUnavailable)]
    assert "nobody has thought of" in failed.event.detail
    assert troubled.counters == [{"checkpoints_not_triggered": 1}]
    later = troubled.journal[troubled.journal.index(failed) + 1 :]
    again = next(turn for turn in later if IssueId() in turn.effects)
    assert again.token == 1
    assert 0 < again.event.at - failed.event.at <= INTERVAL_MS + 100


def test_the_master_goes_on_while_an_id_is_awaited(troubled: Begun) -> None:
    """S2-17: heartbeats of both slots are handled."""
    first = [turn for turn in troubled.journal if turn.token == 1]
    asked = max(n for n, turn in enumerate(first) if IssueId() in turn.effects)
    assert beating(first[asked:]) == {0, 1}


def test_an_id_that_comes_after_the_attempt_has_failed_begins_nothing(troubled: Begun) -> None:
    """S2-23, S2-27: the conditions are looked at again once it is there."""
    (issued,) = [turn for turn in troubled.journal if turn.token == 1 and isinstance(turn.event, IdIssued)]
    assert issued.effects == ()
    assert issued.pending == ()
    assert issued.next_trigger is None


def test_the_next_attempt_waits_for_all_its_slots_again(troubled: Begun) -> None:
    """S2-13: what must acknowledge is lost with the attempt."""
    second = [turn for turn in troubled.journal if turn.token == 2]
    deployed = next(n for n, turn in enumerate(second) if StartSubtasks() in turn.effects)
    assert {turn.event.slot for turn in second[: deployed + 1] if isinstance(turn.event, SlotDeployed)} == {0, 1}
    assert not [e for turn in second[:deployed] for e in turn.effects if isinstance(e, IssueId | TriggerSubtask)]
    assert any(isinstance(effect, TriggerSubtask) for turn in second[deployed:] for effect in turn.effects)
    answers = [t for t in second if isinstance(t.event, ReportReceived) and isinstance(t.event.report, Acknowledgement)]
    assert len(answers) >= 8
