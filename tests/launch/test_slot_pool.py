"""Places for slots that outlive an attempt: handed from token to token, given up when one is lost or does not empty."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay, NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.io.clock import SystemClock
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher
from runtime.launch.slot_pool import SlotPool, StartSlot, serve_slots
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.ports import Exchange, ExchangeListener
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.waiting import until

PATIENCE_S = 60.0
FIRST, SECOND = StartSlot(7, "one", "here"), StartSlot(8, "two", "there")


# ---------------------------------------------------------------- the places


@dataclass
class Place:
    """A thread that stands ready, and runs a slot until it is let go."""

    stage: SlotPool
    index: int
    requests: list[StartSlot] = field(default_factory=list)
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        self.thread = threading.Thread(
            target=serve_slots, args=(self.stage.address, self.index, self._run), daemon=True
        )
        self.thread.start()

    def _run(self, request: StartSlot) -> None:
        self.requests.append(request)
        self.go.acquire(timeout=PATIENCE_S)

    def is_running(self, request: StartSlot) -> bool:
        return self.requests[-1:] == [request]


@pytest.fixture
def stage() -> Iterator[SlotPool]:
    pool = SlotPool(Token(7), 2, "127.0.0.1")
    yield pool
    pool.dismiss_members()


def test_places_run_one_slot_after_the_other_and_leave_when_dismissed(stage: SlotPool) -> None:
    """S4-42: the next attempt runs where the one before ran, also if a place comes late."""
    early = Place(stage, 0)
    stage.start_slots(FIRST, lambda error: None)
    late = Place(stage, 1)
    until(lambda: early.is_running(FIRST) and late.is_running(FIRST))
    assert not stage.wait_until_empty(0), "both are occupied"
    early.go.release()
    assert not stage.wait_until_empty(0.1), "one is occupied still"
    late.go.release()
    assert stage.wait_until_empty(PATIENCE_S)
    stage.start_slots(SECOND, lambda error: None)
    until(lambda: early.is_running(SECOND) and late.is_running(SECOND))
    assert not stage.wait_until_empty(0), "what was said of the slots before does not count"
    stage.dismiss_members()
    for place in (early, late):
        place.go.release()
        place.thread.join(PATIENCE_S)
        assert not place.thread.is_alive()
        assert place.requests == [FIRST, SECOND]


def test_a_lost_place_is_known_at_once(stage: SlotPool) -> None:
    class Death(Exception):
        pass

    def die(request: StartSlot) -> None:
        raise Death

    def stand_and_die() -> None:
        with suppress(Death):
            serve_slots(stage.address, 1, die)

    reports: list[str | None] = []
    Place(stage, 0)
    threading.Thread(target=stand_and_die, daemon=True).start()
    stage.start_slots(FIRST, reports.append)
    started = time.monotonic()
    assert not stage.wait_until_empty(PATIENCE_S)
    assert time.monotonic() - started < PATIENCE_S, "nobody waits for the other one"
    assert not stage.is_intact
    until(lambda: reports != [], 10)
    assert reports[0] == "the process of slot 1 is lost: Death()", "it says why, and not only that it is gone"


def test_an_attempt_is_told_of_a_place_that_was_lost_before_it_began(stage: SlotPool) -> None:
    """Places are started ahead; who is given them must not wait for the one that is missing."""
    reports: list[str | None] = []
    stage.on_lost(1, "it never spoke")
    stage.start_slots(FIRST, reports.append)
    assert reports == ["a pool member was lost before it was needed"]


@pytest.mark.parametrize("wrong", [{"token": Token(6)}, {"secret": "guess"}])
def test_a_place_of_another_stage_is_turned_away(stage: SlotPool, wrong: dict[str, object]) -> None:
    """S1-11, S1-12: it gets no assignment, and nobody counts it."""
    ran: list[StartSlot] = []
    stage.start_slots(FIRST, lambda error: None)
    serve_slots(replace(stage.address, **wrong), 0, ran.append)  # type: ignore[arg-type]
    assert ran == []
    assert stage.is_intact


def test_a_slot_that_ends_while_its_attempt_goes_on_is_told_of(stage: SlotPool) -> None:
    """S1-04: one that could not even begin has no connection that could be lost; nobody waits for its hello."""
    reports: list[str | None] = []
    place = Place(stage, 1)
    stage.start_slots(FIRST, reports.append)
    until(lambda: place.is_running(FIRST))
    assert reports == []
    place.go.release()
    until(lambda: reports != [], 10)
    assert reports == ["slot 1 has exited or could not start: see its log"]


def test_whoever_is_given_a_stage_that_has_ended_is_told(stage: SlotPool) -> None:
    reports: list[str | None] = []
    stage.start_slots(FIRST, reports.append)
    stage.on_end("no more slots")
    stage.start_slots(SECOND, reports.append)
    assert reports == ["no more slots", "no more slots"]
    assert not stage.is_intact


# ---------------------------------------------------------------- whole jobs


class CountingLauncher(LocalLauncher):
    """Knows how often threads were started."""

    def __init__(self, **timeouts: float) -> None:
        super().__init__(**timeouts)
        self.starts = 0

    def start_members(self, stage: SlotPool, job: CompiledJob) -> None:
        self.starts += 1
        super().start_members(stage, job)


@dataclass
class Trouble:
    """What the user code of a job does once, when it is told to."""

    raises: threading.Event = field(default_factory=threading.Event)
    hangs: threading.Event = field(default_factory=threading.Event)
    hung: threading.Event = field(default_factory=threading.Event)
    awake: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.hangs.is_set():
            self.hangs.clear()
            self.hung.set()
            self.awake.wait(PATIENCE_S)
            self.over.set()
        elif self.raises.is_set():
            self.raises.clear()
            raise ValueError("once")
        return batch


class Running:
    """A job with trouble on the local host, and its master in a thread."""

    def __init__(self, folder: Path, trouble: Trouble, **timeouts: float) -> None:
        self.hurry = folder / "hurry"
        self.source = Numbers(total=5_000, batch=10, unbounded=True, slow_until=str(self.hurry), hurry=20)
        self.launcher, self.records, self.output = CountingLauncher(**timeouts), MemoryRunStore(), folder / "out"
        config = MasterConfig(
            job_id="1",
            token=self.records.token,
            job=counts(self.source, self.output, trouble).compile(2),
            storage=str(folder / "state"),
            coordinator=CoordinatorSettings(interval_ms=100, min_pause_ms=10),
            restart=FixedDelay(attempts=3, delay_ms=10),
        )
        store = FileStore(str(folder / "state"))
        self.master = JobMaster(config, self.records, store, self.launcher, SystemClock())
        self.exit: MasterExitCode | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.exit = self.master.run()

    def wait_for(self, what: Callable[[], bool]) -> None:
        until(what, PATIENCE_S, or_else=lambda: f"but {self.records.state}, {self.records.attempts}")

    def checkpoints(self, token: int) -> int:
        return sum(completed.manifest.token == token for completed in self.records.completed)

    def drain(self) -> None:
        self.hurry.touch()
        self.wait_for(lambda: final_counts(self.output) == expected_counts(self.source))
        self.records.operations.append(OperationRequest("d", "drain"))
        self.master.poke()
        self.thread.join(PATIENCE_S)
        assert self.exit is MasterExitCode.DONE
        assert self.records.state is RunState.FINISHED
        assert final_counts(self.output) == expected_counts(self.source)


class NoExchange(LocalLauncher):
    """Slot 1 raises before it has spoken to its master."""

    def open_exchange(self, slot: int, token: Token, secret: str, listener: ExchangeListener) -> Exchange:
        if slot == 1:
            raise RuntimeError("no exchange for slot 1")
        return super().open_exchange(slot, token, secret, listener)


def test_a_place_that_raises_before_its_hello_is_not_waited_for(tmp_path: Path) -> None:
    """S1-04: the other one stands, so nothing but its own word tells of it."""
    records, storage = MemoryRunStore(), str(tmp_path / "state")
    job = counts(Numbers(total=100), tmp_path / "out").compile(2)
    config = MasterConfig(job_id="1", token=records.token, job=job, storage=storage, restart=NoRestart())
    master = JobMaster(config, records, FileStore(storage), NoExchange(), SystemClock())
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for a hello"
    assert records.failure is not None
    assert "no exchange for slot 1" in str(records.failure["message"])


def test_what_was_prepared_is_what_the_attempt_runs_in(tmp_path: Path) -> None:
    launcher, records, storage = CountingLauncher(), MemoryRunStore(), str(tmp_path / "state")
    job = counts(Numbers(total=100), tmp_path / "out").compile(2)
    launcher.prepare(job, records.token)
    config = MasterConfig(job_id="1", token=records.token, job=job, storage=storage, restart=NoRestart())
    assert JobMaster(config, records, FileStore(storage), launcher, SystemClock()).run() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert launcher.starts == 1


def test_an_exception_restarts_all_subtasks_where_they_ran(tmp_path: Path) -> None:
    """S0-11, S4-42: from the last completed checkpoint, without new threads, and the output is exact."""
    trouble = Trouble()
    job = Running(tmp_path, trouble)
    for token in (1, 2):
        job.wait_for(lambda token=token: job.checkpoints(token) >= 1)  # type: ignore[misc]
        trouble.raises.set()
        job.wait_for(lambda token=token: job.records.token == token + 1)  # type: ignore[misc]
    job.drain()
    failed = [reason for _, outcome, reason in job.records.attempts if outcome == "failed"]
    assert len(failed) == 2
    assert all("in process: ValueError: once" in reason for reason in failed)
    assert job.launcher.starts == 1


@pytest.mark.slow
def test_a_slot_that_hangs_while_another_fails_is_left_behind_and_changes_nothing(tmp_path: Path) -> None:
    """S1-11, S1-12: it wakes up as a zombie, in the middle of its batch, while the next attempt runs."""
    trouble = Trouble()
    job = Running(tmp_path, trouble, exit_timeout_s=0.3, stop_timeout_s=0.1)
    job.wait_for(lambda: job.checkpoints(1) >= 1)
    zombies = [thread for thread in threading.enumerate() if thread.name in ("slot-0", "slot-1")]
    trouble.hangs.set()
    assert trouble.hung.wait(PATIENCE_S)
    trouble.raises.set()
    job.wait_for(lambda: job.checkpoints(2) >= 1)
    assert job.launcher.starts == 2
    trouble.awake.set()
    assert trouble.over.wait(PATIENCE_S)
    for zombie in zombies:
        zombie.join(PATIENCE_S)
        assert not zombie.is_alive()
    job.drain()
    assert job.records.token == 2, "nobody noticed it"
