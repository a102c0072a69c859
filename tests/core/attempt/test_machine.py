"""The machine of an attempt, event by event: what it has the master do, and what it ends with."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.core.attempt import effects, events
from runtime.core.attempt.failover_regions import FailoverRules
from runtime.core.attempt.machine import AttemptMachine, AttemptSettings
from runtime.core.attempt.result import (
    AttemptFailed,
    AttemptResult,
    Canceled,
    Ended,
    Released,
    SavepointCompleted,
    Superseded,
)
from runtime.core.checkpoint.effects import CompleteOperation, IssueId, NotifyCompleted, ReportCheckpoint, StoreManifest
from runtime.core.checkpoint.events import IdIssued, IdUnavailable, ManifestRecorded, Ticked, TriggerFailed
from runtime.core.job.graph import JobGraph, Role
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import (
    Acknowledgement,
    BuildSideRead,
    HistoryRead,
    LiveOpened,
    LogicFinished,
    ProbeSideOpened,
    SubtaskEnded,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason
from tests.core.builders import DONE, SNAPSHOT, TIMINGS, chain, edge, operator, sink, source

GRAPH = chain(parallelism=2)
SETTINGS = AttemptSettings(
    job="job",
    token=Token(5),
    graph=GRAPH,
    coordinator=CoordinatorSettings(interval_ms=None),
    began_at=0,
    is_resumed=False,
    start_timeout_ms=5_000,
    heartbeat_timeout_ms=2_000,
    metadata_timeout_ms=9_000,
    rules=FailoverRules(),
)
Effects = list[effects.AttemptEffect]


class Run:
    """An attempt and short words for what happens to it."""

    def __init__(self, start: bool = True, **settings: Any) -> None:
        self.machine = AttemptMachine(replace(SETTINGS, **settings))
        self.graph = self.machine.coordinator._graph
        self.at = 0
        if start:
            self.connect(0, 1)
            self.deploy(0, 1)
            self.take()

    def handle(self, event: events.AttemptEvent) -> Effects:
        return self.machine.handle(event)

    def connect(self, *slots: int) -> Effects:
        return [
            e for slot in slots for e in self.handle(events.SlotConnected(self.at, slot, f"host:{slot}", f"log-{slot}"))
        ]

    def deploy(self, *slots: int) -> Effects:
        return [e for slot in slots for e in self.handle(events.SlotDeployed(self.at, slot))]

    def take(self, *requests: tuple[str, str]) -> Effects:
        operations = tuple(events.OperationRequest(*request) for request in requests)
        return self.handle(events.OperationsTaken(self.at, operations))

    def tick(self, at: int) -> Effects:
        self.at = at
        return self.handle(Ticked(at))

    def store(self, checkpoint: int, finished: bool = False) -> Effects:
        """From the id to the last acknowledgement."""
        self.handle(IdIssued(self.at, CheckpointId(checkpoint)))
        snapshot = DONE if finished else SNAPSHOT
        acknowledged = Acknowledgement(CheckpointId(checkpoint), snapshot, TIMINGS)
        return [
            e
            for subtask in self.graph.subtasks
            for e in self.handle(events.ReportReceived(self.at, subtask, acknowledged))
        ]

    def record(self, checkpoint: int) -> Effects:
        return self.handle(ManifestRecorded(self.at, CheckpointId(checkpoint)))

    def report(self, report: Any) -> Effects:
        return [
            e for subtask in self.graph.subtasks for e in self.handle(events.ReportReceived(self.at, subtask, report))
        ]

    def fail(self, detail: str = "broken", **fields: Any) -> Effects:
        return self.handle(events.WorkFailed(self.at, AttemptFailed(detail, **fields)))

    def result(self) -> AttemptResult:
        (end,) = self.handle(events.ShutDownCompleted(self.at))
        assert isinstance(end, effects.End)
        return end.result


def of(kind: type, performed: Effects) -> list[Any]:
    return [effect for effect in performed if isinstance(effect, kind)]


# ---------------------------------------------------------------- deployment


def test_slots_are_deployed_once_all_are_connected_and_start_once_all_are_deployed() -> None:
    run = Run(start=False)
    assert run.connect(0) == []
    assert run.connect(1) == [effects.DeploySlots({0: "host:0", 1: "host:1"})]
    assert run.deploy(1) == []
    assert run.deploy(0) == [
        effects.StartSubtasks(),
        effects.ChangeState(RunEvent.DEPLOYED),
        effects.TakeOperations(only_cancel=False),
    ]


def test_a_slot_that_is_deployed_after_the_end_starts_nothing() -> None:
    run = Run(start=False)
    run.connect(0, 1)
    run.deploy(0)
    run.fail()
    assert run.deploy(1) == []


def test_slots_that_do_not_connect_in_time_fail_the_attempt() -> None:
    run = Run(start=False)
    run.connect(1)
    for at in range(0, 5_001, 500):
        run.handle(events.HeartbeatReceived(at, 1))
        assert run.tick(at) == []
    assert run.tick(5_500) == [effects.ShutDown(AttemptFailed("slots [0] did not connect within 5000 ms"))]


def test_a_silent_slot_is_named_with_its_log() -> None:
    run = Run()
    for at in range(0, 2_001, 500):
        run.handle(events.HeartbeatReceived(at, 0))
        assert run.tick(at) == []
    run.handle(events.HeartbeatReceived(2_500, 0))
    (shut,) = run.tick(2_500)
    assert shut == effects.ShutDown(
        AttemptFailed("slot 1 has been silent for 2000 ms", slot=1, slot_log="log-1", lost_slot=1)
    )


def test_time_in_which_the_master_was_suspended_is_no_silence() -> None:
    run = Run()
    run.tick(500)
    assert run.tick(60_000) == []


def test_the_probe_side_opens_when_every_subtask_has_read_its_build_side() -> None:
    graph = JobGraph(
        (source("a"), source("b", bounded=True), operator("j", 2), sink("c")),
        (edge("a", "j"), edge("b", "j", input=1, build=True), edge("j", "c")),
        max_parallelism=8,
    )
    run = Run(graph=graph)
    first, second = (SubtaskId(OperatorId("j"), index) for index in (0, 1))
    assert run.handle(events.ReportReceived(1, first, BuildSideRead())) == []
    assert run.handle(events.ReportReceived(1, second, BuildSideRead())) == [ProbeSideOpened(OperatorId("j"))]


def test_the_live_part_opens_when_every_subtask_has_read_the_history() -> None:
    run = Run()
    name = next(operator.uid for operator in GRAPH.operators if operator.role is Role.SOURCE)
    first, second = (SubtaskId(name, index) for index in (0, 1))
    assert run.handle(events.ReportReceived(1, first, HistoryRead())) == []
    assert run.handle(events.ReportReceived(1, second, HistoryRead())) == [LiveOpened(name)]


# ---------------------------------------------------------------- the first result


def test_the_first_failure_stands() -> None:
    run = Run()
    run.handle(events.SlotLost(1, 0, "closed"))
    assert run.handle(events.SlotLost(2, 1, "closed too")) == []
    assert run.handle(events.AttemptSuperseded(2)) == []
    run.at = 700
    assert run.result() == AttemptFailed("slot 0 was lost: closed", slot=0, slot_log="log-0", lost_slot=0, ran_ms=700)


def test_a_failure_aborts_pending_checkpoints_before_the_slots_are_shut_down() -> None:
    run = Run(coordinator=CoordinatorSettings(interval_ms=100))
    run.tick(100)
    triggered = run.handle(IdIssued(100, CheckpointId(1)))
    assert len(of(TriggerSubtask, triggered)) == 2
    ended = run.fail()
    (report,) = of(ReportCheckpoint, ended)
    assert report.reason is FailureReason.SUSPENDED
    assert ended[-1] == effects.ShutDown(AttemptFailed("broken"))


def test_a_failed_attempt_has_progressed_if_a_manifest_in_flight_was_recorded() -> None:
    run = Run(coordinator=CoordinatorSettings(interval_ms=100))
    run.tick(100)
    run.store(1)
    run.fail()
    run.record(1)
    assert run.result() == AttemptFailed("broken", has_progressed=True, ran_ms=100)


def test_an_attempt_ends_when_every_subtask_has_ended() -> None:
    run = Run()
    assert run.report(LogicFinished()) == [IssueId()]
    assert len(of(StoreManifest, run.store(1, finished=True))) == 1
    assert len(of(NotifyCompleted, run.record(1))) == 1
    assert run.report(SubtaskEnded()) == [effects.ShutDown(Ended())]
    assert run.result() == Ended()


def test_a_write_that_hangs_names_the_checkpoint_that_it_holds_up() -> None:
    run = Run(coordinator=CoordinatorSettings(interval_ms=100))
    run.tick(100)
    run.store(1)
    run.handle(events.MetadataHung(200))
    hung = "checkpoint 1 is not stored and committed after 9000 ms: storage, database or a sink does not answer"
    assert run.machine.result == AttemptFailed(hung, is_outage=True)


def test_an_error_at_a_trigger_fails_that_checkpoint_and_the_timer_goes_on() -> None:
    run = Run()
    assert run.handle(TriggerFailed(100, "odd")) == []
    assert run.machine.next_wake == 1_100


# ---------------------------------------------------------------- operations


def test_a_poke_during_a_query_leads_to_another_query() -> None:
    run = Run()
    assert run.handle(events.OperationsWaiting(1)) == [effects.TakeOperations(only_cancel=False)]
    assert run.handle(events.OperationsWaiting(1)) == []
    assert run.take() == [effects.TakeOperations(only_cancel=False)]
    assert run.take() == []


def test_an_operation_that_is_taken_twice_begins_once() -> None:
    run = Run()
    assert run.take(("s", "savepoint")) == [
        effects.AnnounceOperation(events.OperationRequest("s", "savepoint")), IssueId()
    ]  # fmt: skip
    assert run.take(("s", "savepoint")) == []


def test_operations_that_are_taken_after_the_end_are_left_to_the_next_attempt() -> None:
    """A stop would change the state of a run whose subtasks have all ended: it would count as stopped."""
    run = Run()
    run.fail()
    assert run.take(("s", "stop"), ("c", "cancel")) == []
    assert run.machine.cancel_operations == []


def test_before_the_deployment_only_a_cancel_is_taken() -> None:
    run = Run(start=False)
    assert run.handle(events.OperationsWaiting(1)) == [effects.TakeOperations(only_cancel=True)]
    canceled = run.take(("c", "cancel"))
    assert canceled[1:] == [effects.ChangeState(RunEvent.CANCEL_REQUESTED), effects.ShutDown(Canceled())]
    assert run.machine.cancel_operations == ["c"]
    assert run.result() == Canceled()


def test_a_savepoint_answers_its_operation_and_the_run_goes_on() -> None:
    run = Run()
    run.take(("s", "savepoint"))
    run.store(1)
    assert CompleteOperation("s", CheckpointId(1)) in run.record(1)
    assert run.machine.result is None


def test_the_end_of_the_run_answers_a_stop() -> None:
    """Its savepoint ends the run even if a slot is lost before every subtask has ended."""
    run = Run()
    assert effects.ChangeState(RunEvent.STOP_REQUESTED) in run.take(("s", "stop"))
    (store,) = of(StoreManifest, run.store(1))
    assert effects.DeferOperation("s", CheckpointId(1)) in run.record(1)
    run.handle(events.SlotLost(1, 0, "closed"))
    assert run.result() == SavepointCompleted(store.manifest)


def test_a_stop_without_an_id_fails_and_the_job_goes_on() -> None:
    run = Run()
    run.take(("s", "stop"))
    failed = run.handle(IdUnavailable(1, "no database"))
    assert failed == [
        CompleteOperation("s", None, FailureReason.ID_UNAVAILABLE, "no database"),
        effects.ChangeState(RunEvent.SHUTDOWN_ABANDONED),
    ]


@pytest.mark.parametrize(
    ("kind", "end", "is_left_open"),
    [
        ("drain", AttemptFailed("slot 1 was lost"), True),
        ("stop", AttemptFailed("disk full", operator="a", is_outage=True), True),
        ("stop", AttemptFailed("ValueError", operator="a"), False),  # the stop may be the cause
        ("stop", AttemptFailed("bad job", is_final=True), False),
        ("savepoint", AttemptFailed("slot 1 was lost"), False),
        ("savepoint", Released(), True),
        ("stop", Canceled(), False),
        ("stop", Superseded(), False),
    ],
)
def test_the_next_attempt_takes_what_the_end_has_interrupted(kind: str, end: AttemptResult, is_left_open: bool) -> None:
    run = Run()
    run.take(("x", kind))
    run.handle(IdIssued(run.at, CheckpointId(1)))
    match end:
        case AttemptFailed():
            ended = run.handle(events.WorkFailed(1, end))
        case Released():
            ended = run.handle(events.ReleaseRequested(1))
        case Canceled():
            ended = run.take(("c", "cancel"))
        case _:
            ended = run.handle(events.AttemptSuperseded(1))
    answers = of(CompleteOperation, ended) + of(effects.DeferOperation, ended)
    failed = CompleteOperation("x", None, FailureReason.SUSPENDED, "the attempt ended")
    assert answers == [effects.DeferOperation("x") if is_left_open else failed]


# ---------------------------------------------------------------- the backlog


def test_the_backlog_is_measured_once_a_second_and_one_measurement_at_a_time() -> None:
    run = Run(start=False, has_backlog=True, heartbeat_timeout_ms=10**6)
    run.connect(0, 1)
    assert run.tick(10) == []
    run.deploy(0, 1)
    measure = effects.MeasureBacklog()
    assert [run.tick(at) for at in (20, 2_000)] == [[measure], []]
    run.handle(events.BacklogMeasured(2_010, False))
    assert [run.tick(at) for at in (2_020, 2_900)] == [[measure], []]
    run.handle(events.BacklogMeasured(2_910, False))
    assert [run.tick(at) for at in (3_000, 3_020)] == [[], [measure]]


def test_sources_pause_while_the_backlog_is_too_large() -> None:
    run = Run(has_backlog=True)
    answers = [run.handle(events.BacklogMeasured(1, is_too_large)) for is_too_large in (False, True, True, False)]
    assert answers == [[], [effects.PauseSources(True)], [], [effects.PauseSources(False)]]
