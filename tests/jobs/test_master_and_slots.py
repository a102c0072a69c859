"""A real master before slots that are played by the test, and a real slot before a master that is: what they say."""

import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
import structlog
from structlog.testing import LogCapture

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.trigger_schedule import TriggerSchedule
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import (
    Acknowledgement,
    CheckpointAborted,
    Decline,
    LogicFinished,
    SubtaskEnded,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason as Why
from runtime.core.snapshot.manifest import Segment, SnapshotTimings, SubtaskSnapshot
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.endpoints import ControlClient, Hello
from runtime.io.control.messages import (
    ConfirmCheckpoint,
    Deploy,
    Deployed,
    Heartbeat,
    OperationTaken,
    Report,
    Shutdown,
    SlotFailed,
    Start,
    SubtaskMetrics,
    SubtaskStatus,
    ToMaster,
    ToSlot,
)
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.master import attempt, metadata_effects
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.launcher import SlotPhase, SlotStatus
from runtime.ports import OperatorContext, SourceReader
from runtime.slot import slot as worker
from tests.core.builders import segment
from tests.jobs.numbers import Numbers, counts
from tests.slot.test_slot import Failing, FailingReader, Master
from tests.waiting import until

PERIODIC = CoordinatorSettings(interval_ms=20, min_pause_ms=0)
PATIENCE_S: Final = 60.0


class PlayedSlot:
    """What a slot hears, and a way to answer."""

    def __init__(self, index: int, token: Token, secret: str, master: str) -> None:
        self.heard: list[Any] = []
        address, log = f"slot {index}", f"/{index}/stderr"
        hello = Hello(token=token, secret=secret, slot=index, pid=os.getpid(), host="here", address=address, log=log)
        self._client = ControlClient(master, hello, ToSlot, on_message=self.heard.append, on_lost=lambda reason: None)

    def say(self, message: Any) -> None:
        self._client.send(message)

    def close(self) -> None:
        self._client.close()

    def of(self, kind: type) -> list[Any]:
        return [message for message in list(self.heard) if isinstance(message, kind)]


class Played:
    """Implements `launcher.Launcher` with slots that do what the test says."""

    loss = ""
    spans_hosts = False
    ui_address = ""
    application = ""

    def __init__(self) -> None:
        self.attempts: list[list[PlayedSlot]] = []

    def prepare(self, job: CompiledJob, token: Token) -> None:
        """Slots that are played need nothing to run in."""

    def status(self) -> SlotStatus:
        return SlotStatus(phase=SlotPhase.READY)

    def launch(
        self, job: CompiledJob, token: Token, secret: str, master: str, ended: Callable[[int | None, str], None]
    ) -> None:
        slots = range(job.graph.parallelism)
        self.attempts.append([PlayedSlot(index, token, secret, master) for index in slots])

    def stop(self) -> None:
        for slot in self.attempts[-1]:
            slot.close()

    def rest(self, lost_slot: int | None, kept: Collection[int] = ()) -> None:
        self.stop()


@dataclass
class Stage:
    """A master in a thread."""

    master: JobMaster
    records: MemoryRunStore
    launcher: Played
    turns: list[float]
    thread: threading.Thread
    exit: list[MasterExitCode] = field(default_factory=list)

    @property
    def slots(self) -> list[PlayedSlot]:
        return self.launcher.attempts[-1]

    def let_pass(self, turns: int) -> None:
        """Lets the master's loop turn so many times."""
        count = len(self.turns)
        until(lambda: len(self.turns) >= count + turns, PATIENCE_S)

    def deploy(self, *indices: int) -> None:
        until(lambda: self.launcher.attempts and all(slot.of(Deploy) for slot in self.slots), PATIENCE_S)
        for index in indices or range(len(self.slots)):
            self.slots[index].say(Deployed())

    def acknowledge(self, checkpoint: int, snapshot: Callable[[SubtaskId], SubtaskSnapshot]) -> None:
        for index, slot in enumerate(self.slots):
            for uid in ("numbers", "counts", "out"):
                subtask = SubtaskId(OperatorId(uid), index)
                acknowledgement = Acknowledgement(
                    CheckpointId(checkpoint), snapshot(subtask), SnapshotTimings(written_bytes=5)
                )
                slot.say(Report(subtask, acknowledgement))


@contextmanager
def master(
    folder: Path,
    parallelism: int,
    records: MemoryRunStore,
    *,
    hook: Callable[[], None] = lambda: None,
    clock: SystemClock | None = None,
    **config: Any,
) -> Iterator[Stage]:
    """`hook` is called in each turn of the master's loop."""
    turns: list[float] = []

    def alive() -> None:
        turns.append(time.monotonic())
        hook()

    storage = str(folder / "state")
    options: dict[str, Any] = {"coordinator": PERIODIC, "restart": FixedDelay(attempts=0)} | config
    master_config = MasterConfig(
        job_id="1",
        token=records.token,
        job=counts(Numbers(total=1), folder / "out").compile(parallelism),
        storage=storage,
        **options,
    )
    launcher = Played()
    job_master = JobMaster(master_config, records, FileStore(storage), launcher, clock or SystemClock(), alive)
    stage = Stage(job_master, records, launcher, turns, threading.Thread(daemon=True))
    stage.thread = threading.Thread(target=lambda: stage.exit.append(job_master.run()), daemon=True)
    stage.thread.start()
    try:
        yield stage
    finally:
        job_master.release()
        stage.thread.join(PATIENCE_S)


# ---------------------------------------------------------------- who must be there


def test_one_slot_that_is_not_deployed_is_enough_to_have_no_checkpoint(tmp_path: Path) -> None:
    """S2-12, S2-14, S2-15, S2-26, S0-44: no id is taken, nobody is triggered; with the last slot it begins."""
    with master(tmp_path, 5, MemoryRunStore()) as stage:
        stage.deploy(0, 1, 2, 4)
        stage.let_pass(4)
        assert not stage.records.reports
        assert not [message for slot in stage.slots for message in slot.of(TriggerSubtask)]
        assert stage.records.next_checkpoint_id() == 1, "no id was taken"
        until(lambda: stage.records.live.get("undeployed_slots") == [3], PATIENCE_S)
        stage.deploy(3)
        until(lambda: all(slot.of(TriggerSubtask) for slot in stage.slots), PATIENCE_S)
        assert {message.subtask.operator for slot in stage.slots for message in slot.of(TriggerSubtask)} == {"numbers"}


def test_a_slot_that_is_lost_ends_the_checkpoint_and_is_named(tmp_path: Path) -> None:
    """S2-13, S2-27: whoever must acknowledge is not there any more, so there is no checkpoint until all are again."""
    with master(tmp_path, 3, MemoryRunStore(), restart=FixedDelay(attempts=1, delay_ms=10)) as stage:
        stage.deploy()
        until(lambda: all(slot.of(TriggerSubtask) for slot in stage.slots), PATIENCE_S)
        first = stage.slots
        first[2].say(Heartbeat([], memory_bytes=3_000 << 20))
        first[2].close()
        until(lambda: len(stage.launcher.attempts) == 2, PATIENCE_S)
        assert stage.records.attempts[0][2] == (
            "slot 2 was lost: the other side closed the connection. Its process reported no error, and used 3000 MB of "
            "memory at its last heartbeat: it was killed, as Linux does when memory runs out, or crashed"
        )
        assert stage.records.details[0]["slot_log"] == "/2/stderr on here", "the next attempt has other slots"
        assert [report.reason for report in stage.records.reports][-1] is Why.SUSPENDED
        begun = len(stage.records.reports)
        stage.deploy(0, 1)
        stage.let_pass(3)
        assert len(stage.records.reports) == begun
        assert not [message for slot in stage.slots for message in slot.of(TriggerSubtask)]


def test_a_drain_that_a_lost_slot_cut_off_is_asked_again_by_the_next_attempt(tmp_path: Path) -> None:
    """It was given up, and the run went on as if nobody had asked."""
    records = MemoryRunStore(operations=[OperationRequest("d", "drain")])
    with master(tmp_path, 2, records, restart=FixedDelay(attempts=1, delay_ms=10)) as stage:
        stage.deploy()
        until(lambda: _drains(stage.slots), PATIENCE_S)
        stage.slots[1].close()
        until(lambda: len(stage.launcher.attempts) == 2, PATIENCE_S)
        assert "d" not in records.settled
        stage.deploy()
        until(lambda: _drains(stage.slots), PATIENCE_S)
        assert records.state is RunState.DRAINING


def test_a_savepoint_that_a_worker_shutting_down_cut_off_stays_asked(tmp_path: Path) -> None:
    """Another worker goes on with the run, and its master takes what the one before left open."""
    records = MemoryRunStore(operations=[OperationRequest("s", "savepoint")])
    with master(tmp_path, 2, records) as stage:
        stage.deploy()
        until(lambda: _triggers(stage.slots, CheckpointKind.SAVEPOINT), PATIENCE_S)
        stage.master.release()
        until(lambda: stage.exit == [MasterExitCode.RELEASED], PATIENCE_S)
        assert "s" not in records.settled


def test_a_drain_in_which_code_of_the_job_raised_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain may be the cause: asked again, it would fail again and again. Log lines have the id of the request."""
    records, logged = MemoryRunStore(operations=[OperationRequest("d", "drain", "f00d")]), LogCapture()
    level = structlog.make_filtering_bound_logger("info")
    for module in (attempt, metadata_effects):
        monkeypatch.setattr(module, "log", structlog.wrap_logger(None, [logged], wrapper_class=level))
    with master(tmp_path, 1, records, restart=FixedDelay(attempts=1, delay_ms=10)) as stage:
        stage.deploy()
        until(lambda: _drains(stage.slots), PATIENCE_S)
        (record,) = stage.slots[0].of(OperationTaken)
        assert record.fields == {"operation": "d", "kind": "drain", "request_id": "f00d"}
        stage.slots[0].say(SlotFailed("ValueError: in finish", "counts", "", False, [], ""))
        until(lambda: "d" in records.settled, PATIENCE_S)
        assert records.settled["d"][1] is not None
    about = [entry for entry in logged.entries if entry.get("operation") == "d"]
    assert [(entry["event"], entry["kind"], entry["request_id"]) for entry in about] == [
        ("operation taken", "drain", "f00d"), ("operation failed", "drain", "f00d")
    ]  # fmt: skip


def _drains(slots: list[PlayedSlot]) -> bool:
    return _triggers(slots, CheckpointKind.DRAIN)


def _triggers(slots: list[PlayedSlot], kind: CheckpointKind) -> bool:
    return any(message.barrier.kind is kind for slot in slots for message in slot.of(TriggerSubtask))


def test_a_slot_that_is_deployed_when_the_attempt_is_over_starts_nothing(tmp_path: Path) -> None:
    """S2-04, S2-29: its message lies in the mailbox behind the end."""
    gate, arrival = threading.Event(), threading.Event()
    gate.set()

    def hook() -> None:
        if not gate.is_set():
            arrival.set()
            gate.wait(PATIENCE_S)

    with master(tmp_path, 1, MemoryRunStore(), hook=hook) as stage:
        until(lambda: stage.launcher.attempts and stage.slots[0].of(Deploy), PATIENCE_S)
        gate.clear()
        assert arrival.wait(PATIENCE_S)
        stage.master.release()
        stage.slots[0].say(Deployed())
        time.sleep(0.3)  # for the message to arrive; the loop stands still meanwhile
        gate.set()
        stage.thread.join(PATIENCE_S)
    assert stage.exit == [MasterExitCode.RELEASED]
    assert stage.records.state is RunState.STARTING
    assert not stage.slots[0].of(Start)


# ---------------------------------------------------------------- trouble with the clock and its ids


class Troubled(MemoryRunStore):
    """Gives the first id only when it is let go, or not at all."""

    let_go: threading.Event
    error: Exception | None = None

    def next_checkpoint_id(self) -> int | None:
        self.let_go.wait(PATIENCE_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().next_checkpoint_id()


@pytest.mark.parametrize("silent", [0, 1])
def test_a_silent_slot_is_noticed_while_an_id_is_waited_for(tmp_path: Path, silent: int) -> None:
    """S2-17: taking the id may block; heartbeats are read meanwhile, so only the silent slot is too old."""
    records = Troubled()
    records.let_go = threading.Event()
    with master(tmp_path, 2, records, heartbeat_timeout_ms=2_000) as stage:
        stage.deploy()
        until(lambda: _beat_until_over(stage, 1 - silent), PATIENCE_S)
        records.let_go.set()
        stage.thread.join(PATIENCE_S)
    assert f"slot {silent} has been silent" in records.attempts[0][2]


class Jumping(SystemClock):
    """The clock of a process that was stopped for a while."""

    ahead_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.ahead_ms


def test_a_master_that_was_itself_stopped_reads_its_mail_before_it_judges_silence(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: heartbeats sent meanwhile are still on their way when the loop turns again."""
    clock = Jumping()
    with master(tmp_path, 2, MemoryRunStore(), clock=clock, heartbeat_timeout_ms=10_000) as stage:
        stage.deploy()
        until(lambda: all(slot.of(TriggerSubtask) for slot in stage.slots), PATIENCE_S)
        clock.ahead_ms += 25_000
        stage.let_pass(3)
        assert not stage.records.attempts, "no slot was silent: nobody listened"
        assert len(stage.launcher.attempts) == 1


def _beat_until_over(stage: Stage, beating: int) -> bool:
    stage.slots[beating].say(Heartbeat([]))
    return bool(stage.slots[beating].of(Shutdown))


def test_an_exception_in_the_timer_costs_that_checkpoint_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2-03: it is counted and shown, and the next period has its checkpoint; the attempt is the same."""
    ask, raised = TriggerSchedule.due, list[int]()

    def unlucky(pacing: TriggerSchedule, at: int) -> int | None:
        following = ask(pacing, at)
        if following is not None and not raised:
            raised.append(at)
            raise RuntimeError("something that nobody has thought of")
        return following

    monkeypatch.setattr(TriggerSchedule, "due", unlucky)
    with master(tmp_path, 1, MemoryRunStore()) as stage:
        stage.deploy()
        went_on(stage)
    assert raised


def test_an_id_that_cannot_be_had_for_any_reason_costs_that_checkpoint_only(tmp_path: Path) -> None:
    """S2-03, S2-18: not only where the database is away."""
    records = Troubled()
    records.let_go = threading.Event()
    records.let_go.set()
    records.error = RuntimeError("something that nobody has thought of")
    with master(tmp_path, 1, records) as stage:
        stage.deploy()
        went_on(stage)
    assert records.error is None, "it was raised"


def went_on(stage: Stage) -> None:
    """The next trigger comes, in the same attempt, and one that failed is shown."""
    until(lambda: stage.slots[0].of(TriggerSubtask) or stage.exit, PATIENCE_S)
    assert not stage.exit
    assert not stage.records.attempts
    until(lambda: stage.records.live.get("counters") == {"checkpoints_not_triggered": 1}, PATIENCE_S)


# ---------------------------------------------------------------- what an acknowledgement brings


def test_the_sizes_of_all_acknowledgements_are_summed_up_for_the_page(tmp_path: Path) -> None:
    """S2-44, S2-47: per operator and as a whole, with the time that it took."""
    with master(tmp_path, 2, MemoryRunStore()) as stage:
        stage.deploy()
        until(lambda: all(slot.of(TriggerSubtask) for slot in stage.slots), PATIENCE_S)
        number = stage.slots[0].of(TriggerSubtask)[0].barrier.checkpoint

        def snapshot(subtask_id: SubtaskId) -> SubtaskSnapshot:
            segments: tuple[Segment, ...] = (segment(f"{subtask_id}"),) if subtask_id.operator != "out" else ()
            return SubtaskSnapshot(keyed={"s": segments} if segments else {})

        stage.acknowledge(number, snapshot)
        until(lambda: stage.records.completed, PATIENCE_S)
        (completed,) = stage.records.completed[:1]
    rows = {row["uid"]: row["state_bytes"] for row in completed.operators}
    assert rows == {"numbers": 20, "counts": 20, "out": 0}
    manifest = (tmp_path / "state" / completed.folder / "manifest.json").stat().st_size
    assert completed.size_bytes == 40 + manifest
    assert completed.written_bytes == 6 * 5 + manifest
    assert completed.at >= completed.manifest.triggered_at


# ---------------------------------------------------------------- the words themselves

ONE, OTHER = SubtaskId(OperatorId("a"), 0), SubtaskId(OperatorId("a"), 1)
BARRIER = Barrier(CheckpointId(7), CheckpointKind.SAVEPOINT, 123)
METRICS = SubtaskMetrics(ONE, SubtaskStatus.RUNNING, 1, 2, 3, 4.0, 5.0, {"late_records": 6})
SNAPSHOT = SubtaskSnapshot(finished=True, watermark=-5, keyed={"s": (segment("p"),)}, committables=({"n": 1},))
TO_SLOT = [
    (TriggerSubtask(ONE, BARRIER), TriggerSubtask(OTHER, BARRIER)),
    (ConfirmCheckpoint(CheckpointId(7)), ConfirmCheckpoint(CheckpointId(8))),
    (CheckpointAborted(CheckpointId(7)), CheckpointAborted(CheckpointId(8))),
    (
        Deploy("job", "/s", {0: "x"}, [SubtaskRestore(subtask=ONE)]),
        Deploy("job", "/s", {0: "x"}, [SubtaskRestore(subtask=OTHER)]),
    ),
]
TO_MASTER = [
    (
        Report(ONE, Acknowledgement(CheckpointId(7), SNAPSHOT, SnapshotTimings(sync_ms=1.5))),
        Report(ONE, Acknowledgement(CheckpointId(8), SNAPSHOT, SnapshotTimings(sync_ms=1.5))),
    ),
    (
        Report(ONE, Decline(CheckpointId(7), Why.EXPIRED, "late")),
        Report(ONE, Decline(CheckpointId(8), Why.EXPIRED, "late")),
    ),
    (Report(ONE, LogicFinished()), Report(OTHER, LogicFinished())),
    (Report(ONE, SubtaskEnded()), Report(OTHER, SubtaskEnded())),
    (Heartbeat([METRICS]), Heartbeat([])),
]


@pytest.mark.parametrize(
    ("message", "other", "union"),
    [(*pair, ToSlot) for pair in TO_SLOT] + [(*pair, ToMaster) for pair in TO_MASTER],
    ids=lambda value: type(value).__name__,
)
def test_a_message_is_a_value_and_survives_the_wire(message: Any, other: Any, union: Any) -> None:
    """S2-30: what is about a checkpoint names it, and its subtask; the attempt is that of the connection."""
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)
    assert copy == message
    assert copy is not message
    assert copy != other


# ---------------------------------------------------------------- a slot before a master


@dataclass
class Slow(Failing):
    """Reads nothing; its snapshot takes as long as the test wants."""

    entered: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def reader(self) -> SourceReader:
        return SlowReader(self)


class SlowReader(FailingReader):
    def __init__(self, source: Slow) -> None:
        super().__init__(source)
        self._slow = source

    def open(self, context: OperatorContext) -> None:
        context.state.list_state("nothing")

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        return None

    def snapshot(self, checkpoint: int) -> None:
        self._slow.entered.set()
        self._slow.go_on.wait(PATIENCE_S)


@contextmanager
def slot(source: Slow, storage: Path) -> Iterator[Master]:
    played = Master(source, storage)
    try:
        yield played
    finally:
        source.go_on.set()
        played.send(Shutdown())
        played.thread.join(PATIENCE_S)
        played.close()


def heard(played: Master, kind: type) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = played.heard.get(timeout=PATIENCE_S)
        assert not isinstance(message, SlotFailed), message
        if isinstance(message, kind):
            return message
    raise AssertionError(f"no {kind.__name__}")


def trigger(played: Master, uid: str, checkpoint: int) -> TriggerSubtask:
    barrier = Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, 0)
    return TriggerSubtask(SubtaskId(OperatorId(uid), 0), barrier)


def test_heartbeats_go_on_while_a_task_takes_its_snapshot(tmp_path: Path) -> None:
    """S2-35: the trigger is handled off the thread that hears and beats."""
    source = Slow(ValueError())
    with slot(source, tmp_path) as played:
        played.send(trigger(played, "fails", 1))
        assert source.entered.wait(PATIENCE_S)
        while True:
            try:
                played.heard.get_nowait()
            except queue.Empty:
                break
        for _ in range(2):
            heard(played, Heartbeat)
        assert not source.go_on.is_set()
        source.go_on.set()
        assert heard(played, Report).report.checkpoint == 1


def test_what_concerns_a_task_that_is_not_here_is_logged_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2-32, S2-55: a trigger for an unknown subtask, notices for unknown checkpoints; the slot goes on."""
    source, logged = Slow(ValueError()), LogCapture()
    source.go_on.set()
    # The module's own logger keeps the level that was set when it was first used in this process.
    level = structlog.make_filtering_bound_logger("debug")
    monkeypatch.setattr(worker, "log", structlog.wrap_logger(None, [logged], wrapper_class=level))
    with slot(source, tmp_path) as played:
        played.send(
            trigger(played, "unknown", 1),
            ConfirmCheckpoint(CheckpointId(7)),
            CheckpointAborted(CheckpointId(8)),
            trigger(played, "fails", 2),
        )
        acknowledged = heard(played, Report)
    assert (acknowledged.report.checkpoint, acknowledged.subtask.operator) == (2, "fails")
    assert [entry["subtask"] for entry in logged.entries if "trigger" in entry["event"]] == ["unknown/0"]
    assert not [entry for entry in logged.entries if entry["log_level"] == "error"]
