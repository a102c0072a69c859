"""The coordinator: tables of events and the whole list of effects that follows."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.checkpoint.coordinator import MIN_FINAL_RETRY_MS, Coordinator
from runtime.core.checkpoint.effects import (
    CheckpointStatus,
    CompleteOperation,
    CoordinatorEffect,
    EndJob,
    FailAttempt,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    ResumeJob,
    StoreManifest,
    WakeAt,
)
from runtime.core.checkpoint.events import (
    CheckpointRequested,
    CoordinatorSuspended,
    IdIssued,
    IdUnavailable,
    JobStarted,
    ManifestFailed,
    ManifestRecorded,
    SubtaskReported,
    Ticked,
    TriggerFailed,
)
from runtime.core.checkpoint.request_queue import QUEUE_CAPACITY
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId, Token
from runtime.core.job.messages import Barrier
from runtime.core.job.messages import CheckpointKind as Kind
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import Acknowledgement, Decline, LogicFinished, SubtaskEnded, TriggerSubtask
from runtime.core.snapshot.failure_reason import FailureReason as Why
from runtime.core.snapshot.manifest import FinishedState, Manifest, SnapshotTimings, SubtaskSnapshot
from tests.core.builders import DONE, SNAPSHOT, TIMINGS, chain, segment

GRAPH = chain()
A, B, C = GRAPH.subtasks
ALL = frozenset(GRAPH.subtasks)
Effects = list[CoordinatorEffect]


class Job:
    """A coordinator and short words for what happens to it."""

    def __init__(self, graph: JobGraph = GRAPH, start: bool = True, **settings: Any) -> None:
        values = {"interval_ms": None, "timeout_ms": 1_000, "min_pause_ms": 0} | settings
        self.machine = Coordinator("job", Token(5), graph, CoordinatorSettings(**values))
        self.graph = graph
        self.at = 100
        if start:
            self.machine.handle(JobStarted(self.at))

    def ask(self, kind: Kind = Kind.CHECKPOINT, operation: str = "op") -> Effects:
        return self.machine.handle(CheckpointRequested(self.at, kind, operation))

    def issue(self, checkpoint: int) -> Effects:
        return self.machine.handle(IdIssued(self.at, CheckpointId(checkpoint)))

    def ack(self, checkpoint: int, *subtasks: SubtaskId, snapshot: SubtaskSnapshot = SNAPSHOT) -> Effects:
        effects: Effects = []
        for subtask in subtasks or self.graph.subtasks:
            effects += self.machine.handle(
                SubtaskReported(self.at, subtask, Acknowledgement(CheckpointId(checkpoint), snapshot, TIMINGS))
            )
        return effects

    def record(self, checkpoint: int) -> Effects:
        return self.machine.handle(ManifestRecorded(self.at, CheckpointId(checkpoint)))

    def complete(self, checkpoint: int, snapshot: SubtaskSnapshot = SNAPSHOT) -> Effects:
        """From the id to the record."""
        self.issue(checkpoint)
        self.ack(checkpoint, snapshot=snapshot)
        return self.record(checkpoint)

    def decline(self, checkpoint: int, why: Why = Why.ASYNC_FAILED) -> Effects:
        return self.machine.handle(SubtaskReported(self.at, B, Decline(CheckpointId(checkpoint), why, "disk full")))

    def tick(self, at: int) -> Effects:
        self.at = at
        return self.machine.handle(Ticked(at))

    def finish_logic(self) -> Effects:
        """Of every subtask."""
        return [
            e
            for subtask in self.graph.subtasks
            for e in self.machine.handle(SubtaskReported(self.at, subtask, LogicFinished()))
        ]

    def end(self, *subtasks: SubtaskId) -> Effects:
        return [
            e for subtask in subtasks for e in self.machine.handle(SubtaskReported(self.at, subtask, SubtaskEnded()))
        ]

    def suspend(self) -> Effects:
        return self.machine.handle(CoordinatorSuspended(self.at))


def of(kind: type, effects: Effects) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def manifest_in(effects: Effects) -> Manifest:
    (store,) = of(StoreManifest, effects)
    manifest: Manifest = store.manifest
    return manifest


# ---------------------------------------------------------------- the life of one checkpoint


def test_from_request_to_completion() -> None:
    """S0-31, S2-16, S2-25, S2-46, S2-51, S2-24: id, trigger, acknowledgements, record, notice; S4-22."""
    job = Job()
    assert job.ask() == [IssueId()]
    barrier = Barrier(CheckpointId(7), Kind.CHECKPOINT, 100)
    nothing = tuple(SubtaskProgress(each) for each in (A, B, C))
    assert job.issue(7) == [
        ReportCheckpoint(CheckpointId(7), Kind.CHECKPOINT, 100, 100, 0, 3, progress=nothing),
        WakeAt(1_100),
        TriggerSubtask(A, barrier),
    ]
    assert job.machine.progress == (7, Kind.CHECKPOINT, 0, 3)
    assert job.ack(7, A, B) == []
    stored = job.ack(7, C)
    assert not of(NotifyCompleted, stored), "before the manifest is recorded"
    manifest = manifest_in(stored)
    assert (manifest.checkpoint, manifest.token, sorted(manifest.operators)) == (7, 5, ["a", "b", "c"])
    completed = job.record(7)
    everything = tuple(SubtaskProgress(each, 0, TIMINGS) for each in (A, B, C))
    assert completed[0] == ReportCheckpoint(CheckpointId(7), Kind.CHECKPOINT, 100, 100, 3, 3, progress=everything)
    (notice,) = of(NotifyCompleted, completed)
    assert (notice.permit.checkpoint, notice.permit.token, notice.subtasks) == (7, 5, ALL)
    assert completed[-1] == CompleteOperation("op", CheckpointId(7))
    assert job.machine.progress is None


def test_a_plain_savepoint_notifies_nobody() -> None:
    job = Job()
    job.ask(Kind.SAVEPOINT)
    completed = job.complete(1)
    assert not of(NotifyCompleted, completed)
    assert of(CompleteOperation, completed) == [CompleteOperation("op", CheckpointId(1))]
    assert job.machine.savepoint is None


def test_repeated_late_and_unknown_acknowledgements_change_nothing() -> None:
    """S2-42, S2-45, S2-46, S2-48: but it is said what they were late for."""
    job = Job()
    job.ask()
    job.issue(1)
    assert job.ack(9, A) == [LateAnswer(A, CheckpointId(9), False, CheckpointStatus.UNKNOWN)]
    assert job.ack(1, A, A) == []
    assert len(of(StoreManifest, job.ack(1, B, C))) == 1
    job.record(1)
    assert job.ack(1, A) == [LateAnswer(A, CheckpointId(1), False, CheckpointStatus.COMPLETED)]


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("declined", Why.ASYNC_FAILED),
        ("expired", Why.EXPIRED),
        ("subtask ended", Why.TASK_FINISHED_WHILE_TRIGGERED),
        ("subsumed", Why.SUBSUMED),
    ],
)
def test_a_late_answer_is_told_what_became_of_its_checkpoint(end: str, why: Why) -> None:
    """S2-42, S2-43."""
    job = Job(max_concurrent=2)
    job.ask()
    job.issue(1)
    if end == "subsumed":
        job.ask(operation="newer")
        job.complete(2)
    else:
        _fail(job, end)
    assert job.ack(1, C) == [LateAnswer(C, CheckpointId(1), False, CheckpointStatus.FAILED, why)]
    assert job.decline(1, Why.DECLINED_SUBSUMED) == [LateAnswer(B, CheckpointId(1), True, CheckpointStatus.FAILED, why)]


# ---------------------------------------------------------------- when one starts


def test_periodic_checkpoints_begin_one_interval_after_the_start() -> None:
    """S2-02, S2-07, S2-26."""
    job = Job(start=False, interval_ms=50)
    assert job.tick(99) == []
    job.at = 100
    assert job.machine.handle(JobStarted(100)) == [WakeAt(150)]
    assert job.tick(149) == []
    assert job.tick(150) == [WakeAt(200), IssueId()]


def test_people_need_not_wait_for_the_pause() -> None:
    job = Job(interval_ms=50, min_pause_ms=80)
    job.tick(150)
    job.complete(1)
    assert job.ask() == [IssueId()]


def test_at_most_as_many_as_allowed_are_pending_and_the_next_follows() -> None:
    """S2-10, S2-50."""
    job = Job()
    job.ask(operation="one")
    job.issue(1)
    assert job.ask(operation="two") == []
    job.ack(1)
    assert job.record(1)[-1] == IssueId()


def test_two_overlapping_checkpoints_both_complete() -> None:
    """S3-49."""
    job = Job(max_concurrent=2)
    assert job.ask(operation="one") == [IssueId()]
    assert job.ask(operation="two") == [], "one id is asked for at a time"
    assert job.issue(1)[-1] == IssueId()
    job.issue(2)
    job.ack(1)
    assert of(NotifyCompleted, job.record(1))
    job.ack(2)
    assert of(NotifyCompleted, job.record(2))


def test_an_older_pending_one_is_subsumed_but_savepoints_and_stored_ones_are_not() -> None:
    """S2-49."""
    job = Job(max_concurrent=4)
    for operation, kind in (("old", Kind.CHECKPOINT), ("kept", Kind.SAVEPOINT), ("stored", Kind.CHECKPOINT)):
        job.ask(kind, operation)
    for checkpoint in (1, 2, 3):
        job.issue(checkpoint)
    job.ask(operation="new")
    job.issue(4)
    job.ack(3)
    job.ack(4)
    effects = job.record(4)
    settled = {e.operation: e.reason for e in of(CompleteOperation, effects)}
    assert settled == {"old": Why.SUBSUMED, "new": None}
    assert job.machine.progress == (2, Kind.SAVEPOINT, 0, 3)
    assert of(NotifyCompleted, job.record(3))


def test_nothing_starts_before_every_subtask_runs() -> None:
    """S0-44, S2-12, S2-15: refused with a reason, and no id is taken."""
    job = Job(start=False)
    assert job.ask() == [
        CompleteOperation("op", None, Why.NOT_ALL_REQUIRED_TASKS_RUNNING, "the job is not running yet, or no longer")
    ]


def test_too_many_requests_turn_the_last_one_away() -> None:
    job = Job()
    job.ask(operation="first")
    for number in range(QUEUE_CAPACITY):
        job.at += 1
        assert job.ask(operation=f"{number}") == []
    assert of(CompleteOperation, job.ask(Kind.SAVEPOINT, "urgent")) == [
        CompleteOperation(f"{QUEUE_CAPACITY - 1}", None, Why.TOO_MANY_REQUESTS, "too many requests are waiting")
    ]


def test_a_periodic_request_that_gives_way_is_nobodys_operation() -> None:
    job = Job(interval_ms=50)
    job.ask(operation="first")
    job.tick(150)
    for number in range(QUEUE_CAPACITY - 1):
        assert job.ask(operation=f"{number}") == []
    assert job.ask(operation="last") == []


def test_an_id_that_cannot_be_had_costs_that_checkpoint_only() -> None:
    """S2-18."""
    job = Job(interval_ms=50)
    job.tick(150)
    assert job.machine.handle(IdUnavailable(150, "database away")) == []
    assert job.tick(200) == [WakeAt(250), IssueId()]
    job.machine.handle(IdUnavailable(200, "database away"))
    job.ask()
    assert job.machine.handle(IdUnavailable(210, "database away")) == [
        CompleteOperation("op", None, Why.ID_UNAVAILABLE, "database away")
    ]


# ---------------------------------------------------------------- how one fails


def test_a_decline_gives_it_up_and_the_next_waiting_one_starts() -> None:
    """S2-39."""
    job = Job()
    job.ask(operation="one")
    job.issue(1)
    job.ask(operation="two")
    assert job.decline(1) == [
        ReportCheckpoint(
            CheckpointId(1),
            Kind.CHECKPOINT,
            100,
            100,
            0,
            3,
            Why.ASYNC_FAILED,
            "b/0: disk full",
            tuple(SubtaskProgress(each) for each in (A, B, C)),
        ),
        NotifyAborted(CheckpointId(1), ALL),
        CompleteOperation("one", None, Why.ASYNC_FAILED, "b/0: disk full"),
        IssueId(),
    ]
    late = LateAnswer(B, CheckpointId(1), True, CheckpointStatus.FAILED, Why.ASYNC_FAILED)
    assert job.decline(1) == [late], "the rest of the declines come too late"


def test_a_declined_checkpoint_is_removed_with_its_snapshots_and_remembered_by_its_id() -> None:
    """S2-37: the next manifest names no file of an early acknowledgement; a repeated decline finds the reason."""
    early, later = (SubtaskSnapshot(keyed={"k": (segment(path),)}) for path in ("chk-1/early", "chk-2/later"))
    job = Job()
    job.ask(operation="one")
    job.issue(1)
    job.ack(1, A, snapshot=early)
    (report,) = of(ReportCheckpoint, job.decline(1))
    assert (report.acknowledged, report.reason, report.detail) == (1, Why.ASYNC_FAILED, "b/0: disk full")
    assert job.machine.progress is None, "it is not pending any more"
    job.ask(operation="two")
    job.issue(2)
    manifest = manifest_in(job.ack(2, snapshot=later))
    assert {file.path for file in manifest.segments()} == {"chk-2/later"}
    assert job.ack(1, C) == [LateAnswer(C, CheckpointId(1), False, CheckpointStatus.FAILED, Why.ASYNC_FAILED)]


def test_a_decline_of_what_is_being_stored_comes_too_late() -> None:
    job = Job()
    job.ask()
    job.issue(1)
    job.ack(1)
    assert job.decline(1) == [LateAnswer(B, CheckpointId(1), True, CheckpointStatus.STORING)]
    assert job.tick(5_000) == [], "and so does its timeout"
    assert of(NotifyCompleted, job.record(1))


def periodic(*, at: int = 150, **settings: Any) -> Job:
    """The clock has asked for checkpoint 1, which is pending."""
    job = Job(**{"interval_ms": 50, **settings})
    job.tick(at)
    job.issue(1)
    return job


@pytest.mark.parametrize("end", ["declined", "expired", "not stored", "not stored for a subtask that ended"])
def test_a_periodic_checkpoint_that_fails_is_replaced_at_once(end: str) -> None:
    """S2-21, S2-38: the job is not left without one for a whole period."""
    job = periodic(interval_ms=5_000, at=5_100)
    assert of(IssueId, _fail(job, end)) == [IssueId()]
    assert [e.barrier.checkpoint for e in of(TriggerSubtask, job.issue(2))] == [2]


def _fail(job: Job, end: str) -> Effects:
    """Ends checkpoint 1 in the way that `end` names."""
    match end:
        case "declined":
            return job.decline(1)
        case "expired":
            return job.tick(job.at + 1_000)
        case "not stored":
            job.ack(1)
            return job.machine.handle(ManifestFailed(job.at, CheckpointId(1), "disk full"))
        case _:
            return job.end(A)


def test_a_failed_checkpoint_is_not_tried_in_a_loop() -> None:
    """S2-38: while a slot declines every one; after one more try the next period decides."""
    job = periodic()
    assert of(IssueId, job.decline(1, Why.DECLINED_TASK_NOT_READY))
    job.issue(2)
    assert not of(IssueId, job.decline(2, Why.DECLINED_TASK_NOT_READY))
    assert of(IssueId, job.tick(200))
    job.issue(3)
    assert of(IssueId, job.decline(3)), "a new period, a new try"


def test_the_replacement_keeps_the_pause_after_a_completion() -> None:
    """S2-38: at once, but within the least pause."""
    job = periodic(max_concurrent=2, min_pause_ms=400, interval_ms=1_000, at=1_100)
    job.ask(Kind.SAVEPOINT)
    job.at = 1_200
    job.complete(2)
    job.at = 1_300
    effects = job.decline(1)
    assert effects[-1] == WakeAt(1_600)
    assert not of(IssueId, effects)
    assert not of(IssueId, job.tick(1_599))
    assert of(IssueId, job.tick(1_600))


def test_one_that_fails_while_a_more_recent_one_is_on_its_way_is_not_replaced() -> None:
    """S2-40: pending, or being given its id."""
    job = periodic(max_concurrent=3)
    job.ask(operation="newer")
    assert not of(IssueId, job.decline(1)), "one id is asked for at a time"
    job.issue(2)
    job.tick(200)
    job.issue(3)
    job.ask(operation="newest")
    job.issue(4)
    assert not of(IssueId, job.decline(3))


def test_one_that_fails_while_another_waits_gives_its_turn_to_that() -> None:
    """S2-39: and nothing besides."""
    job = periodic()
    job.ask(Kind.SAVEPOINT)
    assert of(IssueId, job.decline(1)) == [IssueId()]
    barriers = of(TriggerSubtask, job.issue(2))
    assert [e.barrier.kind for e in barriers] == [Kind.SAVEPOINT]
    job.ack(2)
    assert not of(IssueId, job.record(2))


def test_what_a_person_asked_for_is_not_repeated_unasked() -> None:
    job = Job(interval_ms=5_000)
    job.ask()
    job.issue(1)
    assert not of(IssueId, job.decline(1))


def test_one_that_a_later_one_made_superfluous_is_not_replaced() -> None:
    job = periodic(max_concurrent=2)
    job.ask()
    effects = job.complete(2)
    assert [(e.checkpoint, e.reason) for e in of(ReportCheckpoint, effects)] == [(2, None), (1, Why.SUBSUMED)]
    assert not of(IssueId, effects)


@pytest.mark.parametrize("end", ["completed", "declined", "expired", "not stored", "subtask ended", "subsumed"])
def test_every_end_of_a_pending_checkpoint_wakes_the_queue(end: str) -> None:
    """S2-22, S2-39, S2-50."""
    job = Job(max_concurrent=2 if end == "subsumed" else 1)
    job.ask(operation="one")
    job.issue(1)
    if end == "subsumed":
        job.ask(operation="newer")
        job.issue(2)
        job.ack(2)
    job.ask(operation="waits")
    if end == "completed":
        job.ack(1)
    effects = {"completed": lambda: job.record(1), "subsumed": lambda: job.record(2)}.get(
        end, lambda: _fail(job, end)
    )()
    assert of(IssueId, effects) == [IssueId()]


KEPT, SLOW = SubtaskSnapshot(keyed={"counts": (segment("one"),)}), SnapshotTimings(start_delay_ms=30, async_ms=9)


def test_one_that_takes_too_long_expires_and_names_who_is_late() -> None:
    """S2-21, S2-22: the acknowledgements that came are reported with their phases."""
    job = Job()
    job.ask()
    job.issue(1)
    job.machine.handle(SubtaskReported(140, A, Acknowledgement(CheckpointId(1), KEPT, SLOW)))
    assert job.tick(1_099) == []
    (report,) = of(ReportCheckpoint, job.tick(1_100))
    late = "no acknowledgement from subtask 0 of b, and 1 subtask behind it"
    assert (report.reason, report.detail) == (Why.EXPIRED, late)
    assert report.progress == (
        SubtaskProgress(A, 40, SLOW, KEPT.segments()[0].nbytes),
        SubtaskProgress(B),
        SubtaskProgress(C),
    )


def test_details_name_operators_as_the_console_does() -> None:
    """They had the uids. Operators with the same name are told apart by them."""
    names = {"a": "orders", "b": "count", "c": "count"}
    graph = replace(GRAPH, operators=tuple(replace(each, name=names[each.uid]) for each in GRAPH.operators))
    job = Job(graph)
    job.ask()
    job.issue(1)
    job.ack(1, A)
    (expired,) = of(ReportCheckpoint, job.tick(1_100))
    assert expired.detail == "no acknowledgement from subtask 0 of count (b), and 1 subtask behind it"
    job = Job(graph)
    job.ask()
    job.issue(1)
    (declined,) = of(ReportCheckpoint, job.decline(1))
    assert declined.detail.startswith("count (b)/0: ")


def test_a_manifest_that_cannot_be_stored_fails_only_its_checkpoint() -> None:
    job = Job()
    job.ask()
    job.issue(1)
    job.ack(1)
    effects = job.machine.handle(ManifestFailed(100, CheckpointId(1), "disk full"))
    assert of(CompleteOperation, effects) == [CompleteOperation("op", None, Why.FINALIZE_FAILED, "disk full")]
    assert not of(FailAttempt, effects)
    assert job.ask() == [IssueId()]


def test_more_failures_in_a_row_than_tolerated_fail_the_attempt() -> None:
    job = Job(tolerable_failures=1)
    failed = []
    for checkpoint, why in ((1, Why.ASYNC_FAILED), (2, Why.DECLINED_SUBSUMED), (3, Why.ASYNC_FAILED)):
        job.ask()
        job.issue(checkpoint)
        failed.append(len(of(FailAttempt, job.decline(checkpoint, why))))
    assert failed == [0, 0, 1], "what does not count neither adds nor resets"


@pytest.mark.parametrize("why", list(Why))
def test_failures_count_as_in_flink(why: Why) -> None:
    """Its `CheckpointFailureManager`: declines (not ready, overtaken, cancelled upstream) do not count."""
    counted = {"async_failed", "expired", "finalize_failed", "id_unavailable", "trigger_failed"}
    assert why.is_counted is (why in counted)


def _finalize_fails(job: Job, checkpoint: int) -> Effects:
    job.ask()
    job.issue(checkpoint)
    job.ack(checkpoint)
    return job.machine.handle(ManifestFailed(100, CheckpointId(checkpoint), "no space left"))


def test_manifests_that_cannot_be_written_ids_and_triggers_that_fail_count() -> None:
    """49 of 49 finalize failures left the job running."""
    job = Job(tolerable_failures=3)
    assert not of(FailAttempt, _finalize_fails(job, 1))
    job.ask()
    assert not of(FailAttempt, job.machine.handle(IdUnavailable(100, "the database is away")))
    assert not of(FailAttempt, job.machine.handle(TriggerFailed(100, "RuntimeError: odd")))
    (failed,) = of(FailAttempt, _finalize_fails(job, 2))
    assert failed.detail == ("more than 3 checkpoints in a row failed, the last one: finalize_failed: no space left")


def test_of_savepoints_only_snapshots_that_cannot_be_stored_count() -> None:
    """A person asked for it and is answered; a restart would not help."""
    job = Job(tolerable_failures=0)
    job.ask(Kind.SAVEPOINT, "saved")
    job.issue(1)
    job.ack(1)
    assert not of(FailAttempt, job.machine.handle(ManifestFailed(100, CheckpointId(1), "no space left")))
    job.ask(Kind.SAVEPOINT, "again")
    job.issue(2)
    assert of(FailAttempt, job.decline(2, Why.ASYNC_FAILED))


def test_a_failure_older_than_the_last_success_does_not_count() -> None:
    job = Job(tolerable_failures=0, max_concurrent=2)
    job.ask(Kind.SAVEPOINT, "slow")
    job.issue(1)
    job.ask()
    job.complete(2)
    assert not of(FailAttempt, job.decline(1, Why.ASYNC_FAILED))


def test_a_completion_starts_the_count_of_failures_anew() -> None:
    job = Job(tolerable_failures=1)
    for checkpoint in (1, 3):
        job.ask()
        job.issue(checkpoint)
        assert not of(FailAttempt, job.decline(checkpoint))
        job.ask()
        job.complete(checkpoint + 1)


def test_a_subtask_that_ends_while_it_is_awaited_aborts_the_checkpoint_and_the_next_plans_anew() -> None:
    """S0-46, S0-47."""
    job = _with_finished_source()
    job.ask()
    job.issue(2)
    (report,) = of(ReportCheckpoint, job.end(A))
    assert (report.reason, report.detail) == (Why.TASK_FINISHED_WHILE_TRIGGERED, "a/0 ended before its snapshot")
    job.ask()
    assert [e.subtask for e in of(TriggerSubtask, job.issue(3))] == [B]
    assert manifest_in(job.ack(3, B, C)).operators["a"].subtasks[0].finished


def test_a_savepoint_is_planned_anew_when_a_subtask_ends_before_its_snapshot() -> None:
    """The user asked at the moment at which a bounded source ended: nothing was wrong with the job."""
    job = _with_finished_source()
    job.ask(Kind.SAVEPOINT, "move")
    job.issue(2)
    effects = job.end(A)
    assert [report.reason for report in of(ReportCheckpoint, effects)] == [Why.TASK_FINISHED_WHILE_TRIGGERED]
    assert of(IssueId, effects)
    assert not of(CompleteOperation, effects)
    outcome = job.machine.handle(IdUnavailable(100, "the database is away"))
    assert [completion.operation for completion in of(CompleteOperation, outcome)] == ["move"]
    assert not of(FailAttempt, outcome), "a stop has begun to end the job, a savepoint has not"


def test_a_request_that_a_savepoint_planned_anew_displaces_is_answered() -> None:
    """The queue was full: the last request left it without an answer, and its operation never ended."""
    job = _with_finished_source()
    job.ask(Kind.SAVEPOINT, "move")
    job.issue(2)
    for number in range(QUEUE_CAPACITY):
        job.at += 1
        assert job.ask(operation=f"{number}") == []
    displaced = of(CompleteOperation, job.end(A))
    assert [completion.operation for completion in displaced] == [f"{QUEUE_CAPACITY - 1}"]


def test_a_savepoint_that_is_planned_anew_completes_its_operation() -> None:
    job = _with_finished_source()
    job.ask(Kind.SAVEPOINT, "move")
    job.issue(2)
    job.end(A)
    assert [e.subtask for e in of(TriggerSubtask, job.issue(3))] == [B]
    job.ack(3, B, C)
    assert [(completion.operation, completion.checkpoint) for completion in of(CompleteOperation, job.record(3))] == [
        ("move", 3)
    ]


def _with_finished_source(**settings: Any) -> Job:
    """Checkpoint 1 is complete; in it the source was done with its logic."""
    job = Job(**settings)
    job.ask(operation="first")
    job.issue(1)
    job.ack(1, A, snapshot=SubtaskSnapshot(finished=True, committables=("x",)))
    job.ack(1, B, C)
    job.record(1)
    return job


def test_a_subtask_that_ends_after_its_snapshot_harms_nothing() -> None:
    """S0-74: the checkpoint in flight completes."""
    job = _with_finished_source()
    job.ask()
    job.issue(2)
    job.ack(2, A, snapshot=DONE)
    assert job.end(A) == []
    assert of(StoreManifest, job.ack(2, B, C))


def test_the_newest_snapshot_of_a_finished_subtask_rides_on_whichever_record_is_heard_of_first() -> None:
    """Retention goes by the newest checkpoint: files that only an older one names are gone."""
    job = Job(max_concurrent=2)
    for number in (1, 2):
        job.ask()
        job.issue(number)
    for number, watermark in ((1, 10), (2, 20)):
        job.ack(number, A, snapshot=SubtaskSnapshot(finished=True, watermark=watermark))
        job.ack(number, B, C)
    job.record(2)
    job.record(1)
    job.end(A)
    job.ask()
    job.issue(3)
    assert manifest_in(job.ack(3, B, C)).operators["a"].subtasks[0].watermark == 20


def test_what_an_ended_subtask_had_committed_is_not_owed_for_ever() -> None:
    job = _with_finished_source()
    job.end(A)
    job.ask()
    job.issue(2)
    last = manifest_in(job.ack(2, B, C)).operators["a"].subtasks[0]
    assert (last.finished, last.committables) == (True, ())


# ---------------------------------------------------------------- the last checkpoint


def test_when_all_logic_is_done_exactly_one_checkpoint_is_taken_at_once() -> None:
    """S0-14, S0-36, S0-38."""
    job = Job()
    assert job.finish_logic() == [IssueId()]
    effects = job.complete(1, snapshot=DONE)
    assert of(NotifyCompleted, effects)
    assert not of(IssueId, effects)
    assert of(EndJob, job.end(A, B, C)) == [EndJob()]


def test_one_that_was_under_way_when_the_logic_was_done_is_followed_by_the_last() -> None:
    """S0-74: what began earlier releases nobody who was not done then."""
    job = Job()
    job.ask()
    job.issue(1)
    job.ack(1, A, B)
    assert job.finish_logic() == []
    job.ack(1, C)
    assert job.record(1)[-1] == IssueId()


def test_one_that_was_under_way_is_the_last_if_every_snapshot_came_after_the_end() -> None:
    """S0-36: not a second one, which would only meet subtasks that are ending."""
    job = Job(interval_ms=50)
    job.ask()
    job.issue(1)
    job.finish_logic()
    job.ack(1, snapshot=DONE)
    assert not of(IssueId, job.record(1))
    assert job.tick(200) == [], "and the clock asks for no other"


def test_logic_that_is_done_before_the_last_subtask_started_is_not_forgotten() -> None:
    """S0-22: as at the restore of a finished job; without this it would wait for ever."""
    job = Job(start=False)
    assert job.finish_logic() == []
    assert job.machine.handle(JobStarted(100)) == [IssueId()]


def test_the_last_checkpoint_is_tried_again_but_not_in_a_loop() -> None:
    """Storage that is away must not be asked without pause."""
    job = Job()
    job.finish_logic()
    job.issue(1)
    effects = job.decline(1)
    assert not of(IssueId, effects)
    assert effects[-1] == WakeAt(100 + MIN_FINAL_RETRY_MS)
    assert job.tick(100 + MIN_FINAL_RETRY_MS) == [IssueId()]
    assert job.machine.handle(IdUnavailable(700, "away")) == [WakeAt(700 + MIN_FINAL_RETRY_MS)]
    assert job.tick(700 + MIN_FINAL_RETRY_MS) == [IssueId()]


def test_a_savepoint_does_not_take_the_place_of_the_last_checkpoint() -> None:
    job = Job()
    job.ask(Kind.SAVEPOINT)
    job.issue(1)
    job.finish_logic()
    job.ack(1, snapshot=DONE)
    assert job.record(1)[-1] == IssueId()


def test_a_periodic_request_that_waited_for_the_last_checkpoint_is_dropped() -> None:
    job = Job(interval_ms=50)
    job.finish_logic()
    job.issue(1)
    job.tick(150)
    job.ack(1, snapshot=DONE)
    assert not of(IssueId, job.record(1))


def test_an_id_for_a_periodic_one_is_burnt_when_the_last_has_completed_meanwhile() -> None:
    job = Job(interval_ms=50, max_concurrent=2)
    job.finish_logic()
    job.issue(1)
    assert of(IssueId, job.tick(150))
    job.ack(1, snapshot=DONE)
    job.record(1)
    assert job.issue(2) == []


def test_who_asks_while_the_job_is_ending_is_told_so_and_the_run_goes_on_ending() -> None:
    job = Job()
    job.finish_logic()
    job.complete(1, snapshot=DONE)
    detail = "all input has been read and the job is ending"
    failed = CompleteOperation("op", None, Why.NOT_ALL_REQUIRED_TASKS_RUNNING, detail)
    assert job.ask(Kind.SAVEPOINT) == [failed]
    assert job.ask(Kind.STOP) == [failed, ResumeJob()]


def test_requests_that_nobody_can_serve_any_more_are_settled_when_the_job_ends() -> None:
    job = Job()
    job.finish_logic()
    job.issue(1)
    job.ask(operation="waiting")
    job.ack(1, snapshot=DONE)
    assert job.record(1)[-1] == IssueId()
    ended = job.end(A, B, C)
    assert ended == [CompleteOperation("waiting", None, Why.SUSPENDED, "the job has ended"), EndJob()]
    assert job.issue(2) == [], "the id is burnt"


# ---------------------------------------------------------------- stop and drain


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.DRAIN])
def test_a_stop_is_one_savepoint_that_all_are_told_of(kind: Kind) -> None:
    """S0-28, S0-37, S0-70: the job ends only by its completion."""
    job = Job()
    assert job.ask(kind) == [IssueId()]
    issued = job.issue(1)
    assert of(TriggerSubtask, issued) == [TriggerSubtask(A, Barrier(CheckpointId(1), kind, 100))]
    manifest = manifest_in(job.ack(1))
    saved = [job.machine.savepoint]
    completed = job.record(1)
    saved.append(job.machine.savepoint)
    assert saved == [None, manifest], "it is there when it is recorded, not before"
    assert of(NotifyCompleted, completed)[0].subtasks == ALL
    assert job.end(A, B, C) == [EndJob()]


def test_what_is_pending_or_waits_gives_way_to_a_stop() -> None:
    job = Job(interval_ms=50)
    job.ask(operation="pending")
    job.issue(1)
    job.ask(operation="waiting")
    job.tick(150)
    effects = job.ask(Kind.STOP, "stop")
    settled = {e.operation: e.reason for e in of(CompleteOperation, effects)}
    assert settled == {"pending": Why.SUSPENDED, "waiting": Why.SUSPENDED}
    assert effects[-1] == IssueId()
    assert job.tick(200) == [], "no periodic ones from now on"


def test_an_id_that_was_under_way_for_a_periodic_one_is_burnt_by_a_stop() -> None:
    """S2-23: what was decided before the id came is looked at again."""
    job = Job(interval_ms=50)
    job.tick(150)
    assert job.ask(Kind.STOP) == []
    assert job.issue(1) == [IssueId()]
    assert of(TriggerSubtask, job.issue(2))[0].barrier.kind is Kind.STOP


def test_a_checkpoint_that_is_being_stored_completes_during_a_stop() -> None:
    """S0-83."""
    job = Job()
    job.ask()
    job.issue(1)
    job.ack(1)
    assert job.ask(Kind.STOP) == [], "one at a time"
    effects = job.record(1)
    assert of(NotifyCompleted, effects)
    assert effects[-1] == IssueId()


def test_one_stop_at_a_time() -> None:
    job = Job()
    job.ask(Kind.STOP, "first")
    assert job.ask(Kind.DRAIN, "second") == [CompleteOperation("second", None, Why.SUSPENDED, "a stop is under way")]


def test_a_stop_that_nobody_heard_of_is_taken_back() -> None:
    job = Job(interval_ms=50)
    job.ask(Kind.STOP)
    assert job.machine.handle(IdUnavailable(120, "away")) == [
        CompleteOperation("op", None, Why.ID_UNAVAILABLE, "away"),
        ResumeJob(),
        WakeAt(170),
    ]
    assert of(IssueId, job.tick(170))


def test_a_stop_whose_savepoint_fails_restarts_the_attempt() -> None:
    """S0-70: subtasks may have finished their logic, so only the last checkpoint is a state to go on from."""
    job = Job()
    job.ask(Kind.DRAIN)
    job.issue(1)
    effects = job.decline(1)
    assert of(CompleteOperation, effects) == [CompleteOperation("op", None, Why.ASYNC_FAILED, "b/0: disk full")]
    assert effects[-1] == FailAttempt("the savepoint of the drain failed: async_failed: b/0: disk full")


def test_a_stop_that_meets_an_ending_subtask_is_planned_anew() -> None:
    """S0-47, S0-84: a branch that was ending by itself is no reason to restart."""
    job = _with_finished_source()
    job.ask(Kind.STOP)
    job.issue(2)
    effects = job.end(A)
    assert of(NotifyAborted, effects)
    assert not of(FailAttempt, effects)
    assert not of(CompleteOperation, effects)
    assert effects[-1] == IssueId()
    assert of(TriggerSubtask, job.issue(3)) == [TriggerSubtask(B, Barrier(CheckpointId(3), Kind.STOP, 100))]
    job.ack(3, B, C)
    assert of(CompleteOperation, job.record(3)) == [CompleteOperation("op", CheckpointId(3))]


def test_a_stop_that_cannot_be_planned_anew_restarts_the_attempt() -> None:
    """Unlike a stop that nobody heard of: sources may stand still already."""
    job = _with_finished_source()
    job.ask(Kind.STOP)
    job.issue(2)
    job.end(A)
    effects = job.machine.handle(IdUnavailable(100, "away"))
    assert effects == [
        CompleteOperation("op", None, Why.ID_UNAVAILABLE, "away"),
        FailAttempt("the stop could not be planned anew: away"),
    ]


def test_a_stop_that_is_overtaken_by_the_end_of_the_job_is_taken_back() -> None:
    job = Job()
    job.finish_logic()
    job.issue(1)
    job.ack(1, snapshot=DONE)
    job.ask(Kind.STOP)
    job.record(1)
    assert job.end(A, B, C)[-3:] == [
        CompleteOperation("op", None, Why.SUSPENDED, "the job has ended"),
        ResumeJob(),
        EndJob(),
    ]
    assert job.machine.savepoint is None


def test_no_last_checkpoint_beside_a_stop() -> None:
    """S0-84: at a stop all branches end together, by its savepoint."""
    job = Job()
    job.ask(Kind.STOP)
    job.issue(1)
    assert job.finish_logic() == []
    job.ack(1)
    assert not of(IssueId, job.record(1))


# ---------------------------------------------------------------- union lists

UNION = SubtaskSnapshot(unions={"parts": ("a",)})
UNION_DONE = SubtaskSnapshot(finished=True, unions={"parts": ("a",)})
WIDE = chain(parallelism=2)
FIRST, SECOND = SubtaskId(OperatorId("b"), 0), SubtaskId(OperatorId("b"), 1)
OTHERS = [subtask_id for subtask_id in WIDE.subtasks if subtask_id.operator != "b"]


def acknowledge(job: Job, checkpoint: int, first: SubtaskSnapshot, second: SubtaskSnapshot) -> Effects:
    """All take part; `first` and `second` are the subtasks of the operator with a union list."""
    effects = job.ack(checkpoint, *OTHERS) + job.ack(checkpoint, FIRST, snapshot=first)
    return effects + job.ack(checkpoint, SECOND, snapshot=second)


def test_union_lists_hold_checkpoints_back_until_all_subtasks_have_finished() -> None:
    """S0-59, S0-60, S3-29: two are given up with that reason while one subtask lives, then they complete again."""
    job = Job(WIDE, interval_ms=50, tolerable_failures=0)
    for checkpoint in (1, 2):
        job.tick(job.at + 50)
        job.issue(checkpoint)
        effects = acknowledge(job, checkpoint, UNION_DONE, UNION)
        (report,) = of(ReportCheckpoint, effects)
        assert report.reason is Why.UNION_STATE_PARTLY_FINISHED
        assert report.detail == "b has union lists (parts), and 1 of its 2 subtasks have finished"
        assert of(NotifyAborted, effects) == [NotifyAborted(CheckpointId(checkpoint), frozenset(WIDE.subtasks))]
        assert not of(StoreManifest, effects)
        assert not of(FailAttempt, effects)
    job.tick(job.at + 50)
    job.issue(3)
    assert manifest_in(acknowledge(job, 3, UNION_DONE, UNION_DONE)).operators["b"].finished is FinishedState.FINISHED


def test_the_last_checkpoint_follows_at_once_when_union_lists_held_back_the_one_before() -> None:
    """S3-29."""
    job = Job(WIDE)
    job.ask()
    job.issue(1)
    job.finish_logic()
    assert of(IssueId, acknowledge(job, 1, UNION_DONE, UNION)) == [IssueId()]


def test_a_savepoint_that_meets_a_partly_finished_union_fails_its_operation() -> None:
    job = Job(WIDE)
    job.ask(Kind.SAVEPOINT)
    job.issue(1)
    (settled,) = of(CompleteOperation, acknowledge(job, 1, UNION, UNION_DONE))
    assert (settled.checkpoint, settled.reason) == (None, Why.UNION_STATE_PARTLY_FINISHED)


@pytest.mark.parametrize("kind", [Kind.STOP, Kind.DRAIN])
def test_a_stop_that_meets_a_partly_finished_union_fails_and_the_job_goes_on_from_its_last_checkpoint(
    kind: Kind,
) -> None:
    """It is asked for once and settled once, so it does not go round: the next attempt is not stopping."""
    job = Job(WIDE)
    job.ask(kind)
    job.issue(1)
    effects = acknowledge(job, 1, UNION, UNION_DONE)
    (settled,) = of(CompleteOperation, effects)
    assert settled.reason is Why.UNION_STATE_PARTLY_FINISHED
    assert len(of(FailAttempt, effects)) == 1
    assert not of(IssueId, effects)


# ---------------------------------------------------------------- suspension


def test_suspension_gives_everything_up_with_a_reason() -> None:
    """S2-08."""
    job = Job(max_concurrent=2, interval_ms=50)
    job.ask(operation="pending")
    job.issue(1)
    job.ask(operation="issuing")
    job.ask(operation="waiting")
    job.tick(150)
    settled = {e.operation: e.reason for e in of(CompleteOperation, job.suspend())}
    assert settled == dict.fromkeys(("pending", "issuing", "waiting"), Why.SUSPENDED)
    assert job.tick(900) == []
    assert job.issue(2) == []
    assert job.machine.handle(IdUnavailable(900, "away")) == []
    assert job.ask()[0].reason is Why.NOT_ALL_REQUIRED_TASKS_RUNNING  # type: ignore[union-attr]


def test_a_savepoint_recorded_after_suspension_still_counts() -> None:
    """The savepoint is there but the stop failed: it is kept and named."""
    job = Job()
    job.ask(Kind.STOP)
    job.issue(1)
    job.ack(1)
    assert job.suspend() == []
    effects = job.record(1)
    assert of(CompleteOperation, effects) == [CompleteOperation("op", CheckpointId(1))]
    assert job.machine.savepoint is not None
    assert job.suspend() == []


def test_a_coordinator_checks_at_its_end_that_each_operation_has_an_answer() -> None:
    """A pending checkpoint that is lost with its operation does not stay silent."""
    job = Job()
    job.ask(operation="lost")
    job.issue(1)
    job.machine.pending.clear()
    with pytest.raises(AssertionError, match="an operation has no answer"):
        job.suspend()
