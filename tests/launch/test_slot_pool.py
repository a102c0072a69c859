"""The slot pool: members run a slot of each attempt, keep their slots, and are replaced when they are lost."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay, NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher
from runtime.launch.member import PoolMemberFailed, StartSlot, serve_slots
from runtime.launch.slot_pool import SlotPool
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.launcher import SlotPhase
from runtime.ports import Exchange, ExchangeListener
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.waiting import until

PATIENCE_S = 60.0
FIRST, SECOND = StartSlot(0, 7, "one", "here"), StartSlot(0, 8, "two", "there")
Reports = list[tuple[int | None, str]]


def of_slot(attempt: StartSlot, slot: int) -> StartSlot:
    return msgspec.structs.replace(attempt, slot=slot)


# ---------------------------------------------------------------- members


class Death(Exception):
    pass


@dataclass
class Member:
    """A thread that stands by, and runs a slot until it may go on. `fails`: the slot raises then.

    `starts`: of slots, and of the attempts that a slot continues in.
    """

    pool: SlotPool
    number: int
    fails: bool = False
    starts: list[StartSlot] = field(default_factory=list)
    goes_on: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    ends: list[str] = field(default_factory=list)  #: why the slot is to end

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        error = ""
        try:
            serve_slots(self.pool.address, self.number, self._open)
        except Death as death:
            error = repr(death)
        self.pool.on_end(self.number, error)

    def _open(self, start: StartSlot) -> "Member":
        self.starts.append(start)
        return self

    def resume(self, token: Token, secret: str, master: str) -> bool:
        self.starts.append(StartSlot(self.slot, token, secret, master))
        return True

    def end(self, reason: str) -> None:
        self.ends.append(reason)

    def run(self) -> None:
        self.goes_on.acquire(timeout=PATIENCE_S)
        if self.fails:
            raise Death

    def runs(self, attempt: StartSlot) -> bool:
        return bool(self.starts) and msgspec.structs.replace(self.starts[-1], slot=attempt.slot) == attempt

    @property
    def slot(self) -> int:
        return self.starts[-1].slot


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    pool = SlotPool(Token(7), 2, "127.0.0.1", itertools.count())
    yield pool
    pool.dismiss_members()


@pytest.fixture
def spared() -> Iterator[SlotPool]:
    """With a spare."""
    pool = SlotPool(Token(7), 2, "127.0.0.1", itertools.count(), 1)
    yield pool
    pool.dismiss_members()


def started(pool: SlotPool) -> list[int]:
    """The numbers of the members that are to be started."""
    return pool.replace_members(0)[1]


def members_of(pool: SlotPool) -> list[Member]:
    """The members that are missing, connected."""
    members = [Member(pool, number) for number in started(pool)]
    until(lambda: pool.status.phase is SlotPhase.READY)
    return members


def run_attempt(pool: SlotPool, members: list[Member], attempt: StartSlot = FIRST) -> Reports:
    """Starts an attempt on all members. Returns its reports."""
    reports: Reports = []
    pool.start_slots(attempt, lambda slot, error: reports.append((slot, error)))
    until(lambda: all(member.runs(attempt) for member in members))
    return reports


def test_members_run_one_slot_after_the_other_and_leave_when_dismissed(pool: SlotPool) -> None:
    """S4-42: the slots of the next attempt run in the same processes, also if a member connects late."""
    numbers = started(pool)
    assert len(numbers) == 2
    early = Member(pool, numbers[0])
    pool.start_slots(FIRST, lambda slot, error: None)
    late = Member(pool, numbers[1])
    until(lambda: early.runs(FIRST) and late.runs(FIRST))
    assert {early.slot, late.slot} == {0, 1}
    slots = early.slot, late.slot
    early.goes_on.release()
    late.goes_on.release()
    pool.release_slots(None, PATIENCE_S)
    assert pool.replace_members(0) == ([], [])
    pool.start_slots(SECOND, lambda slot, error: None)
    until(lambda: early.runs(SECOND) and late.runs(SECOND))
    assert (early.slot, late.slot) == slots
    pool.dismiss_members()
    for member in (early, late):
        member.goes_on.release()
        member.thread.join(PATIENCE_S)
        assert not member.thread.is_alive()
    assert started(pool) == [], "a dismissed pool needs no members"


def test_a_lost_member_is_replaced_and_the_other_keeps_its_slot(pool: SlotPool) -> None:
    members = members_of(pool)
    reports = run_attempt(pool, members)
    lost, other = members
    lost.fails = True
    lost.goes_on.release()
    until(lambda: reports != [])
    assert reports == [(lost.slot, f"the process of slot {lost.slot} is lost: Death()")], "with the cause"
    killed, (number,) = pool.replace_members(0)
    assert killed == [lost.number]
    replacement = Member(pool, number)
    until(lambda: pool.status.phase is SlotPhase.READY)
    assert replacement.starts == [], "the attempt is over"
    other.goes_on.release()
    pool.release_slots(None, PATIENCE_S)
    assert pool.replace_members(0) == ([], [])
    run_attempt(pool, [other, replacement], SECOND)
    assert replacement.slot == lost.slot
    assert other.slot == other.starts[0].slot


def test_a_spare_takes_over_a_lost_slot(spared: SlotPool) -> None:
    """Without a start of a process: its replacement stands by next."""
    members = [Member(spared, number) for number in started(spared)]
    until(lambda: spared.status.connected == 3)
    reports: Reports = []
    spared.start_slots(FIRST, lambda slot, error: reports.append((slot, error)))
    until(lambda: sum(member.runs(FIRST) for member in members) == 2)
    (spare,) = [member for member in members if not member.starts]
    lost, other = [member for member in members if member.starts]
    lost.fails = True
    for member in (lost, other):
        member.goes_on.release()
    until(lambda: reports != [])
    spared.release_slots(None, PATIENCE_S)
    spared.start_slots(SECOND, lambda slot, error: None)
    until(lambda: spare.runs(SECOND) and other.runs(SECOND))
    assert (spare.slot, other.slot) == (lost.slot, other.starts[0].slot)
    killed, (number,) = spared.replace_members(0)
    assert killed == [lost.number]
    next_spare = Member(spared, number)
    until(lambda: spared.status.connected == 3)
    assert next_spare.starts == []


@pytest.mark.parametrize("spares", [1, 3])
def test_a_spare_that_cannot_start_costs_no_attempt(spares: int) -> None:
    pool = SlotPool(Token(7), 2, "127.0.0.1", itertools.count(), spares)
    first, second, *others = started(pool)
    members = [Member(pool, number) for number in (first, second)]
    until(lambda: pool.status.phase is SlotPhase.READY)
    reports = run_attempt(pool, members)
    for number in others:
        pool.on_end(number, "no core is free")
        assert started(pool) == [], "the job runs with a spare less"
    assert (reports, pool.status.phase) == ([], SlotPhase.READY)
    pool.dismiss_members()


def test_a_spare_that_fails_is_not_replaced(spared: SlotPool) -> None:
    members = [Member(spared, number) for number in started(spared)]
    until(lambda: spared.status.connected == 3)
    spared.start_slots(FIRST, lambda slot, error: None)
    until(lambda: sum(member.runs(FIRST) for member in members) == 2)
    (spare,) = [member for member in members if not member.starts]
    spared._on_message(spare.number, PoolMemberFailed("out of memory"))
    assert spared.replace_members(0) == ([spare.number], [])


def test_a_member_that_does_not_exit_is_given_up(pool: SlotPool) -> None:
    """Its connection ends, so that it exits by itself once it goes on, and it never runs another slot."""
    members = members_of(pool)
    run_attempt(pool, members)
    hung, other = members
    other.goes_on.release()
    pool.release_slots(None, 0.1)
    killed, (number,) = pool.replace_members(0)
    assert killed == [hung.number]
    replacement = Member(pool, number)
    run_attempt(pool, [other, replacement], SECOND)
    hung.goes_on.release()
    hung.thread.join(PATIENCE_S)
    assert not hung.thread.is_alive()
    assert len(hung.starts) == 1


def test_the_member_of_a_lost_slot_is_given_up_at_once(pool: SlotPool) -> None:
    """A slot that was silent hangs, and one that exceeded its memory runs no more: neither is waited for."""
    members = members_of(pool)
    run_attempt(pool, members)
    silent, other = members
    other.goes_on.release()
    pool.release_slots(silent.slot, PATIENCE_S)
    assert pool.replace_members(0)[0] == [silent.number]
    silent.goes_on.release()


def test_a_member_that_is_lost_before_an_attempt_costs_no_attempt(pool: SlotPool) -> None:
    """The cluster may take an executor away while slots are waited for."""
    (first, _) = started(pool)
    pool.on_end(first, "the executor is gone", is_retried=True)
    assert len(started(pool)) == 1
    reports: Reports = []
    pool.start_slots(FIRST, lambda slot, error: reports.append((slot, error)))
    assert reports == []


def test_an_attempt_reports_a_member_that_cannot_start_and_its_siblings_stay(pool: SlotPool) -> None:
    (first, second) = started(pool)
    sibling = Member(pool, second)
    pool.on_end(first, "no module named weir")
    assert pool.status.phase is SlotPhase.READY, "a wait for slots ends"
    assert started(pool) == [], "no member starts before the error is reported"
    reports: Reports = []
    pool.start_slots(FIRST, lambda slot, error: reports.append((slot, error)))
    assert reports == [(None, "no module named weir")]
    (replacement,) = members_of(pool)
    run_attempt(pool, [sibling, replacement], SECOND)


def test_a_member_that_does_not_connect_is_replaced_after_the_attempt(pool: SlotPool) -> None:
    (early, late) = started(pool)
    member = Member(pool, early)
    pool.start_slots(FIRST, lambda slot, error: None)
    until(lambda: member.runs(FIRST))
    member.goes_on.release()
    pool.release_slots(None, PATIENCE_S)
    killed, numbers = pool.replace_members(0)
    assert killed == [late]
    assert len(numbers) == 1
    given_up: list[StartSlot] = []
    serve_slots(pool.address, late, given_up.append)
    assert given_up == [], "it connects too late, and leaves"


def test_a_kept_slot_runs_on_and_continues_in_the_next_attempt(pool: SlotPool) -> None:
    """It is not waited for; its sibling exits and begins anew."""
    members = members_of(pool)
    run_attempt(pool, members)
    kept, other = members
    other.goes_on.release()
    pool.release_slots(other.slot, PATIENCE_S, kept={kept.slot})
    (number,) = pool.replace_members(0)[1]
    reports = run_attempt(pool, [kept, Member(pool, number)], SECOND)
    assert (len(kept.starts), kept.ends, reports) == (2, [], [])
    kept.goes_on.release()
    until(lambda: reports != [])
    assert reports[0][0] == kept.slot, "the second attempt hears of its end"


def test_the_exit_of_a_kept_slot_does_not_end_the_next_attempt(pool: SlotPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over before it can continue: its member runs the slot of the next attempt instead."""
    members = members_of(pool)
    run_attempt(pool, members)
    kept, other = members
    other.goes_on.release()
    pool.release_slots(None, PATIENCE_S, kept={kept.slot})
    monkeypatch.setattr(kept, "resume", lambda token, secret, master: False)
    reports: Reports = []
    pool.start_slots(SECOND, lambda slot, error: reports.append((slot, error)))
    until(lambda: other.runs(SECOND))
    kept.goes_on.release()
    until(lambda: kept.runs(SECOND))
    assert reports == []


def test_a_kept_slot_that_no_attempt_continues_is_ended(pool: SlotPool) -> None:
    """It has no other connection to the master: also when the pool is dismissed."""
    members = members_of(pool)
    run_attempt(pool, members)
    kept, other = members
    other.goes_on.release()
    pool.release_slots(None, PATIENCE_S, kept={kept.slot})
    assert kept.ends == []
    threading.Timer(0.2, kept.goes_on.release).start()
    pool.release_slots(None, PATIENCE_S)
    assert kept.ends == ["no attempt continues it"]
    run_attempt(pool, members, SECOND)
    pool.release_slots(None, 0.0, kept={0, 1})
    pool.dismiss_members()
    until(lambda: all("the master is gone" in member.ends[-1] for member in members))
    for member in members:
        member.goes_on.release()


@pytest.mark.parametrize("wrong", [{"token": Token(6)}, {"secret": "guess"}])
def test_a_member_of_another_pool_is_refused(pool: SlotPool, wrong: dict[str, object]) -> None:
    """S1-11, S1-12: it gets no slot and is not counted."""
    starts: list[StartSlot] = []
    (number, _) = started(pool)
    pool.start_slots(FIRST, lambda slot, error: None)
    serve_slots(replace(pool.address, **wrong), number, starts.append)  # type: ignore[arg-type]
    assert starts == []
    assert pool.status.connected == 0


def test_a_repeated_task_is_refused(pool: SlotPool) -> None:
    """A cluster that repeats a task runs a second member with the number of the first one."""
    members = members_of(pool)
    run_attempt(pool, members)
    starts: list[StartSlot] = []
    serve_slots(pool.address, members[0].number, starts.append)
    assert starts == []
    assert pool.status.connected == 2


def test_a_slot_that_exits_while_its_attempt_runs_is_reported(pool: SlotPool) -> None:
    """A slot that cannot begin has no connection that could be lost."""
    members = members_of(pool)
    reports = run_attempt(pool, members)
    assert reports == []
    members[0].goes_on.release()
    until(lambda: reports != [])
    assert reports == [(members[0].slot, f"slot {members[0].slot} has exited or could not start: see its log")]


# ---------------------------------------------------------------- whole jobs


class CountingLauncher(LocalLauncher):
    """Knows how often threads were started."""

    def __init__(self, **timeouts: float) -> None:
        super().__init__(**timeouts)
        self.starts = 0

    def run_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
        self.starts += 1
        super().run_member(pool, number, job)


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
    """Slot 1 raises before it connects to its master."""

    def open_exchange(self, slot: int, token: Token, secret: str, listener: ExchangeListener) -> Exchange:
        if slot == 1:
            raise RuntimeError("no exchange for slot 1")
        return super().open_exchange(slot, token, secret, listener)


def test_a_slot_that_raises_before_it_connects_is_not_waited_for(tmp_path: Path) -> None:
    """No connection of it can be lost, so its member reports the error."""
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


def test_an_attempt_runs_in_the_prepared_members(tmp_path: Path) -> None:
    launcher, records, storage = CountingLauncher(), MemoryRunStore(), str(tmp_path / "state")
    job = counts(Numbers(total=100), tmp_path / "out").compile(2)
    launcher.prepare(job, records.token)
    config = MasterConfig(job_id="1", token=records.token, job=job, storage=storage, restart=NoRestart())
    assert JobMaster(config, records, FileStore(storage), launcher, SystemClock()).run() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert launcher.starts == 2


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
    assert job.launcher.starts == 2


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
    assert job.launcher.starts == 3, "the sibling of the hung slot has exited, and its thread stays"
    trouble.awake.set()
    assert trouble.over.wait(PATIENCE_S)
    until(lambda: sum(zombie.is_alive() for zombie in zombies) == 1)
    job.drain()
    assert job.records.token == 2, "nobody noticed it"
