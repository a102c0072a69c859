"""When checkpoints may start, and that the coordinator is one critical section: late starts, races, any schedule."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.checkpoint.effects import (
    CompleteOperation,
    CoordinatorEffect,
    IssueId,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    StoreManifest,
    WakeAt,
)
from runtime.core.checkpoint.events import (
    CheckpointRequested,
    CoordinatorEvent,
    IdIssued,
    IdUnavailable,
    JobStarted,
    ManifestFailed,
    ManifestRecorded,
    SubtaskReported,
    Ticked,
)
from runtime.core.checkpoint.pending import PendingCheckpoint
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.messages import CheckpointKind as Kind
from runtime.core.job.settings import CoordinatorSettings, JobSettings
from runtime.core.snapshot.control import Acknowledgement, Decline, LogicFinished, SubtaskEnded, TriggerSubtask
from runtime.core.snapshot.failure_reason import FailureReason as Why
from tests.core.builders import DONE, SNAPSHOT, TIMINGS, edge, sink, source
from tests.core.checkpoint.test_coordinator import ALL, GRAPH, A, B, C, Job, of

# ---------------------------------------------------------------- switched by the job's state


def test_a_start_after_the_end_starts_nothing() -> None:
    """S2-04, S2-29: the last slot may report itself when the attempt has been given up already."""
    job = Job(start=False, interval_ms=50)
    job.suspend()
    assert job.machine.handle(JobStarted(100)) == []
    assert job.tick(1_000) == []
    assert job.ask()[0].reason is Why.NOT_ALL_REQUIRED_TASKS_RUNNING  # type: ignore[union-attr]


def test_subtasks_to_trigger_to_wait_for_and_to_notify_are_three_lists() -> None:
    """S2-56: an ended source's successor is triggered; all that run acknowledge; a savepoint notifies none of them."""
    job = Job()
    job.ask()
    job.issue(1)
    job.ack(1, A, snapshot=DONE)
    job.ack(1, B, C)
    job.record(1)
    job.end(A)
    job.ask()
    assert [effect.subtask for effect in of(TriggerSubtask, job.issue(2))] == [B]
    assert not of(StoreManifest, job.ack(2, B)), "C is waited for, though it was not triggered"
    assert of(StoreManifest, job.ack(2, C)), "A is not waited for"
    (notice,) = of(NotifyCompleted, job.record(2))
    assert notice.subtasks == {B, C}
    job.ask(Kind.SAVEPOINT)
    job.issue(3)
    assert of(StoreManifest, job.ack(3, B, C))
    assert not of(NotifyCompleted, job.record(3)), "waited for, and not notified"


def others(at: int, checkpoint: int) -> list[CoordinatorEvent]:
    """Every kind of event that is neither the start nor the end of the job, nor the clock."""
    checkpoint_id = CheckpointId(checkpoint)
    return [
        CheckpointRequested(at, Kind.SAVEPOINT, "op"),
        IdUnavailable(at, "away"),
        SubtaskReported(at, A, Acknowledgement(checkpoint_id, SNAPSHOT, TIMINGS)),
        SubtaskReported(at, B, Decline(checkpoint_id, Why.ASYNC_FAILED, "disk full")),
        SubtaskReported(at, A, LogicFinished()),
        SubtaskReported(at, A, SubtaskEnded()),
    ]


@pytest.mark.parametrize("number", range(6))
def test_no_other_message_starts_or_stops_the_clock(number: int) -> None:
    """S2-28."""
    waiting, running = Job(start=False, interval_ms=50), Job(interval_ms=50)
    waiting.machine.handle(others(100, 9)[number])
    assert waiting.tick(1_000) == []
    effects = running.machine.handle(others(120, 9)[number])
    if of(IssueId, effects):
        running.complete(9)
    assert of(WakeAt, running.tick(150))[:1] == [WakeAt(200)], "the period is what it was"


# ---------------------------------------------------------------- the defaults


def test_checkpoints_go_on_with_ended_subtasks_in_a_job_that_nobody_has_configured() -> None:
    """S0-87: there is no switch for it."""
    settings = JobSettings().coordinator
    assert settings == CoordinatorSettings()
    machine = Coordinator("job", Token(1), GRAPH, settings)
    machine.handle(JobStarted(0))
    snapshots = {A: DONE}
    assert settings.interval_ms is not None
    machine.handle(Ticked(settings.interval_ms))
    machine.handle(IdIssued(settings.interval_ms, CheckpointId(1)))
    for subtask in GRAPH.subtasks:
        machine.handle(
            SubtaskReported(5_100, subtask, Acknowledgement(CheckpointId(1), snapshots.get(subtask, SNAPSHOT), TIMINGS))
        )
    machine.handle(ManifestRecorded(5_200, CheckpointId(1)))
    machine.handle(SubtaskReported(5_300, A, SubtaskEnded()))
    assert of(IssueId, machine.handle(Ticked(2 * settings.interval_ms)))
    issued = machine.handle(IdIssued(2 * settings.interval_ms, CheckpointId(2)))
    assert [effect.subtask for effect in of(TriggerSubtask, issued)] == [B]


# ---------------------------------------------------------------- between request and trigger


def three_sources() -> JobGraph:
    """Sources of different parallelism, a step that reads them all, a sink."""
    return JobGraph(
        (source("r", 2), source("s"), source("t"), sink("u", 2)),
        (edge("r", "u"), edge("s", "u", input=1), edge("t", "u", input=2)),
        max_parallelism=8,
    )


def test_every_source_gets_the_barrier_in_each_interval_and_nobody_else_is_triggered() -> None:
    """S3-44, S3-47, S3-52, S4-22: one barrier, the same in all, cuts each of the streams."""
    job = Job(three_sources(), interval_ms=50)
    for checkpoint, at in ((1, 150), (2, 200), (3, 250)):
        job.tick(at)
        triggers = of(TriggerSubtask, job.issue(checkpoint))
        assert [str(effect.subtask) for effect in triggers] == ["r/0", "r/1", "s/0", "t/0"]
        assert {effect.barrier for effect in triggers} == {triggers[0].barrier}
        assert (triggers[0].barrier.checkpoint, triggers[0].barrier.triggered_at) == (checkpoint, at)
        job.ack(checkpoint)
        job.record(checkpoint)


def test_a_subtask_that_ends_while_the_id_is_under_way_is_left_out_of_the_plan() -> None:
    """S2-23, S0-45: the plan is made when the id is there, from what is true then."""
    job = Job()
    job.ask(operation="first")
    job.issue(1)
    job.ack(1, A, snapshot=DONE)
    job.ack(1, B, C)
    job.record(1)
    job.ask()
    job.end(A)
    issued = job.issue(2)
    assert [effect.subtask for effect in of(TriggerSubtask, issued)] == [B]
    assert of(StoreManifest, job.ack(2, B, C))


def test_the_timeout_of_a_checkpoint_begins_with_its_trigger() -> None:
    """S2-24: not with the wish, however long the id took."""
    job = Job(timeout_ms=1_000)
    job.ask()
    assert job.tick(5_000) == []
    pending = [job.machine.progress]
    assert of(WakeAt, job.issue(1)) == [WakeAt(6_000)]
    pending.append(job.machine.progress)
    assert pending == [None, (1, Kind.CHECKPOINT, 0, 3)]
    assert job.tick(5_999) == []
    assert of(ReportCheckpoint, job.tick(6_000))[0].reason is Why.EXPIRED


def test_a_pending_checkpoint_knows_its_id_its_time_and_whom_it_waits_for() -> None:
    """S2-20: and the manifest that it becomes knows the job."""
    job = Job()
    job.ask()
    (report,) = of(ReportCheckpoint, job.issue(7))
    assert (report.checkpoint, report.triggered_at, report.subtasks) == (7, job.at, len(ALL))
    (pending,) = job.machine.pending.values()
    assert isinstance(pending, PendingCheckpoint)
    assert (pending.barrier.checkpoint, pending.barrier.triggered_at) == (7, job.at)
    assert pending.plan.wait_for == ALL
    (store,) = of(StoreManifest, job.ack(7))
    assert (store.manifest.job, store.manifest.checkpoint, store.manifest.triggered_at) == ("job", 7, job.at)


def test_a_declined_checkpoint_is_reported_with_the_time_of_its_trigger() -> None:
    """S2-34: the coordinator holds the barrier, so a decline brings the id and the report adds the time."""
    job = Job()
    job.ask()
    job.issue(1)
    job.at = 900
    (report,) = of(ReportCheckpoint, job.decline(1))
    assert (report.triggered_at, report.at) == (100, 900)


# ---------------------------------------------------------------- one at a time


@dataclass
class Schedule:
    """A coordinator under random events, and what it has wished for."""

    most: int
    journal: list[CoordinatorEvent] = field(default_factory=list)
    effects: list[list[CoordinatorEffect]] = field(default_factory=list)
    at: int = 0
    last_id: int = 0
    operations: int = 0
    issuing: int = 0

    def __post_init__(self) -> None:
        self.machine = self.fresh()
        self.tell(JobStarted(0))

    def fresh(self) -> Coordinator:
        settings = CoordinatorSettings(interval_ms=40, timeout_ms=60, min_pause_ms=5, max_concurrent=self.most)
        return Coordinator("job", Token(1), GRAPH, settings)

    def tell(self, event: CoordinatorEvent) -> None:
        self.journal.append(event)
        wished = self.machine.handle(event)
        self.effects.append(wished)
        self.issuing += len(of(IssueId, wished))
        assert self.issuing <= 1, "one id is asked for at a time"
        assert len(self.machine.pending) <= self.most

    def all(self, kind: type) -> list[CoordinatorEffect]:
        return [effect for wished in self.effects for effect in of(kind, wished)]

    def act(self, number: int, which: int) -> None:
        self.at += number % 7
        checkpoint = CheckpointId(1 + which % max(1, self.last_id + 1))
        storing = {e.manifest.checkpoint for e in self.all(StoreManifest)} & self.machine.pending.keys()  # type: ignore[union-attr]
        match number:
            case 0 | 1:
                self.operations += 1
                kind = (Kind.CHECKPOINT, Kind.SAVEPOINT)[number]
                self.tell(CheckpointRequested(self.at, kind, f"op{self.operations}"))
            case 2 | 3 if self.issuing:
                self.issuing, self.last_id = 0, self.last_id + 1
                self.tell(IdIssued(self.at, CheckpointId(self.last_id)))
            case 4 if self.issuing:
                self.issuing = 0
                self.tell(IdUnavailable(self.at, "away"))
            case 5 | 6 | 7 | 8:
                subtask = GRAPH.subtasks[which % 3]
                self.tell(SubtaskReported(self.at, subtask, Acknowledgement(checkpoint, SNAPSHOT, TIMINGS)))
            case 9:
                self.tell(SubtaskReported(self.at, B, Decline(checkpoint, Why.ASYNC_FAILED, "disk full")))
            case 10 | 11 if storing:
                self.tell(ManifestRecorded(self.at, CheckpointId(min(storing))))
            case 12 if storing:
                self.tell(ManifestFailed(self.at, CheckpointId(min(storing)), "disk full"))
            case _:
                self.tell(Ticked(self.at))


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 14), st.integers(0, 11)), max_size=120))
def test_under_any_schedule_a_checkpoint_ends_once_and_the_journal_replays(
    most: int, acts: list[tuple[int, int]]
) -> None:
    """S2-11, S2-41, S2-57: one that was discarded is not there to be declined again; one message at a time decides."""
    schedule = Schedule(most)
    for number, which in acts:
        schedule.act(number, which)
    failed = [e.checkpoint for e in schedule.all(ReportCheckpoint) if e.reason is not None]  # type: ignore[union-attr]
    completions = [e.permit.checkpoint for e in schedule.all(NotifyCompleted)]  # type: ignore[union-attr]
    assert max(Counter(failed + completions).values(), default=0) <= 1
    assert [e.checkpoint for e in schedule.all(NotifyAborted)] == failed  # type: ignore[union-attr]
    stored = [e.manifest.checkpoint for e in schedule.all(StoreManifest)]  # type: ignore[union-attr]
    settled = [e.operation for e in schedule.all(CompleteOperation)]  # type: ignore[union-attr]
    assert len(set(stored)) == len(stored)
    assert len(set(settled)) == len(settled)
    replay = schedule.fresh()
    assert [replay.handle(event) for event in schedule.journal] == schedule.effects
