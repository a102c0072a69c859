"""One incarnation of a run's job master: it begins attempts, performs the coordinator's effects, and restarts.

It does what a production driver does, and leaves every decision about checkpoints to the coordinator. An attempt ends
by `CoordinatorSuspended`; the next one takes a new token first and reads the records after that, so that whatever an
older attempt still had on its way is either recorded by then or never will be. A completed stop or drain is never
restarted: what its manifest owes is committed, and the run is over.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from runtime.core.checkpoint import Manifest
from runtime.core.commit import owed, permit_for_recorded
from runtime.core.coordinator import Coordinator, CoordinatorSettings
from runtime.core.effects import (
    Acknowledge,
    CoordinatorEffect,
    Decline,
    EndJob,
    FailAttempt,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    ReportEnded,
    ReportFinished,
    ResumeJob,
    SettleOperation,
    StoreManifest,
    TriggerSubtask,
    WakeAt,
)
from runtime.core.events import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointRequested,
    CoordinatorEvent,
    CoordinatorSuspended,
    IdIssued,
    IdUnavailable,
    JobStarted,
    LogicFinished,
    ManifestFailed,
    ManifestRecorded,
    SubtaskEnded,
    SubtaskEvent,
    Ticked,
    Triggered,
)
from runtime.core.graph import JobGraph
from runtime.core.ids import CheckpointId, SubtaskId, Token
from runtime.core.mapping import check_restorable
from runtime.core.messages import CheckpointKind
from runtime.core.recovery import assign
from runtime.core.restart import Failure, FixedDelay
from runtime.testing.cluster import Attempt, Broken, Report, SlotLost, Started
from runtime.testing.invariants import check_notified, require
from runtime.testing.jobs import Job
from runtime.testing.world import JOB, EnvironmentTrouble, World

STRATEGY: Final = FixedDelay(attempts=1_000, delay_ms=20)


class Ending(StrEnum):
    """How a run came to its end."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELED = "canceled"


class Driver:
    """The coordinator of one attempt, and what performs its effects."""

    def __init__(self, master: Master, attempt: Attempt) -> None:
        self.master, self.attempt, self.world = master, attempt, master.world
        self.coordinator = Coordinator(JOB, attempt.token, attempt.graph, master.settings)
        self.suspended = False
        self.ended = False
        self.failure: str | None = None
        self.started: set[SubtaskId] = set()
        self.wakes: list[int] = []
        self.asked: set[str] = set()  #: operations not yet settled
        self.storing = 0  #: manifests on their way
        self.stopping = False  #: what the run's state would say

    def feed(self, event: CoordinatorEvent) -> None:
        self.world.note(f"{self.attempt.token}:coordinator", event)
        for effect in self.coordinator.handle(event):
            self._perform(effect)
        if self.failure is not None and not self.suspended:
            self.suspend()

    def suspend(self) -> None:
        self.suspended = True
        self.feed(CoordinatorSuspended(self.world.now))

    def tick(self) -> None:
        """Wakes the coordinator once for all wishes that are due."""
        due = [at for at in self.wakes if at <= self.world.now]
        if due and not self.suspended and not self.ended:
            self.wakes = [at for at in self.wakes if at > self.world.now]
            self.feed(Ticked(self.world.now))

    # ------------------------------------------------------------ what slots say

    def receive(self, said: tuple[SubtaskId, Report] | SlotLost) -> None:
        now = self.world.now
        if isinstance(said, SlotLost):
            self.fail("a slot was lost")
            return
        match said:
            case subtask, Started():
                self._subtask_started(subtask)
            case subtask, Broken(detail):
                self.fail(f"{subtask}: {detail}")
            case subtask, Acknowledge(checkpoint, snapshot, timings):
                self.feed(Acknowledged(now, subtask, checkpoint, snapshot, timings))
            case subtask, Decline(checkpoint, reason, detail):
                self.feed(CheckpointDeclined(now, subtask, checkpoint, reason, detail))
            case subtask, ReportFinished():
                self.feed(LogicFinished(now, subtask))
            case subtask, ReportEnded():
                self.feed(SubtaskEnded(now, subtask))

    def _subtask_started(self, subtask: SubtaskId) -> None:
        self.started.add(subtask)
        if len(self.started) == len(self.attempt.graph.subtasks):
            self.feed(JobStarted(self.world.now))

    def fail(self, detail: str) -> None:
        if not self.suspended and not self.ended:
            self.world.note(f"{self.attempt.token}:master", f"the attempt failed: {detail}")
            self.failure = detail
            self.suspend()

    # ------------------------------------------------------------ effects

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case IssueId():
                self._issue()
            case WakeAt(at):
                self.wakes.append(at)
            case TriggerSubtask(subtask, barrier):
                self._send(subtask, Triggered(barrier))
            case StoreManifest(manifest):
                self.storing += 1
                self.world.later(lambda: self._store(manifest), "slow_manifest")
            case NotifyCompleted(permit, subtasks):
                check_notified(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointCompleted(permit))
            case NotifyAborted(checkpoint, subtasks):
                check_notified(self.attempt.graph, subtasks)
                for subtask in sorted(subtasks):
                    self._send(subtask, CheckpointAborted(checkpoint))
            case ReportCheckpoint():
                self._report(effect)
            case LateAnswer():
                self.world.note("late", effect)
            case SettleOperation(operation):
                self.world.note("operation", effect)
                self.world.ledger.settle(operation)
                self.asked.discard(operation)
            case FailAttempt(detail):
                self.failure = self.failure or detail
            case EndJob():
                self._end_job()
            case ResumeJob():
                self.stopping = False

    def _end_job(self) -> None:
        self.ended = True
        saved = self.coordinator.savepoint is not None
        require(saved == self.stopping, "a-stop-ends-with-its-savepoint", f"stopping {self.stopping}, saved {saved}")

    def _send(self, subtask: SubtaskId, event: SubtaskEvent) -> None:
        slot = self.attempt.slots[subtask.index]
        if slot.alive:
            slot.down.append((subtask, event))

    def _report(self, report: ReportCheckpoint) -> None:
        begun = report.reason is None and report.acknowledged == 0 and report.at == report.triggered_at
        if begun and report.checkpoint not in self.world.ledger.triggered:
            self.world.ledger.began(report.checkpoint, self.attempt.token, report.kind)
        self.world.note("report", report)

    def _issue(self) -> None:
        def answer() -> None:
            if self.master.gone:
                return
            if self.world.faults.strikes("id_unavailable"):
                self.feed(IdUnavailable(self.world.now, "the database is away"))
                return
            checkpoint = self.world.records.next_id(self.attempt.token)
            if checkpoint is None:
                self._superseded()
            else:
                self.feed(IdIssued(self.world.now, checkpoint))

        self.world.later(answer, "slow_id")

    def _store(self, manifest: Manifest) -> None:
        """Write and record; when the outcome is not known, it is read back before anything is answered."""
        faults, records = self.world.faults, self.world.records
        if faults.strikes("fail_manifest"):
            self._answer(ManifestFailed(self.world.now, CheckpointId(manifest.checkpoint), "storage failed"))
        elif faults.strikes("unknown_manifest"):
            if self.world.rng.random() < 0.5:
                records.record(manifest, self.attempt.graph)
            self.world.later(lambda: self._read_back(manifest), "slow_manifest")
        else:
            self._stored(manifest, records.record(manifest, self.attempt.graph))

    def _read_back(self, manifest: Manifest) -> None:
        recorded = manifest.checkpoint in self.world.ledger.recorded
        self._stored(manifest, recorded or self.world.records.record(manifest, self.attempt.graph))

    def _stored(self, manifest: Manifest, recorded: bool) -> None:
        checkpoint = CheckpointId(manifest.checkpoint)
        if recorded:
            self._answer(ManifestRecorded(self.world.now, checkpoint))
        else:
            self._answer(ManifestFailed(self.world.now, checkpoint, "this attempt has been superseded"))
            self._superseded()

    def _answer(self, event: ManifestRecorded | ManifestFailed) -> None:
        self.storing -= 1
        if not self.master.gone:
            self.feed(event)

    def _superseded(self) -> None:
        """A newer attempt holds the job: nothing of this one counts any more."""
        self.fail("superseded")
        if self.master.driver is self:
            self.master.gone = True


class Master:
    """The attempts of one run, one after another."""

    def __init__(
        self, world: World, job: Job, graph: JobGraph, base: Manifest | None, settings: CoordinatorSettings
    ) -> None:
        self.world, self.job, self.graph, self.base, self.settings = world, job, graph, base, settings
        self.driver: Driver | None = None
        self.gone = False  #: crashed, or superseded
        self.ending: Ending | None = None
        self.failures = 0
        self.begin_at = world.now
        self.on_attempt: Callable[[Attempt], None] = lambda attempt: None

    def step(self) -> bool:
        """Begins an attempt, ends one, or takes one message of a slot."""
        if self.gone or self.ending is not None:
            return False
        if self.driver is None:
            return self._begin() if self.world.now >= self.begin_at else False
        if self.driver.ended or self.driver.suspended:
            return self._conclude(self.driver)
        return self._take_message(self.driver)

    def _take_message(self, driver: Driver) -> bool:
        slots = [slot for slot in driver.attempt.slots.values() if slot.up]
        if not slots:
            return False
        driver.receive(self.world.rng.choice(slots).up.popleft())
        return True

    def tick(self) -> None:
        if self.driver is not None and not self.gone:
            self.driver.tick()

    def next_wake(self) -> int | None:
        if self.gone or self.ending is not None:
            return None
        return self.begin_at if self.driver is None else min(self.driver.wakes, default=None)

    # ------------------------------------------------------------ attempts

    def _begin(self) -> bool:
        token = self.world.records.take_token()
        try:
            self._begin_under(token)
        except EnvironmentTrouble:
            self.begin_at = self.world.now + STRATEGY.delay_ms
        return True

    def _begin_under(self, token: Token) -> None:
        done = self.world.records.ending()
        if done is not None:
            self._commit(done, token)
            self._over(Ending.STOPPED if done.kind is CheckpointKind.STOP else Ending.FINISHED)
            return
        base = self.world.records.recovery_point() or self.base
        dealt = {}
        if base is not None:
            check_restorable(base, self.graph)
            self._commit(base, token)
            dealt = dict(assign(base, self.graph))
        self.world.bases[token] = base
        self.world.target.clean(token)
        attempt = Attempt(self.world, self.job, self.graph, token, dealt, self.settings.mode)
        self.driver = Driver(self, attempt)
        self.world.note(f"{token}:master", f"begins from {base.checkpoint if base else 'nothing'}")
        self.on_attempt(attempt)

    def _commit(self, manifest: Manifest, token: Token) -> None:
        permit = permit_for_recorded(manifest, token)
        for names in owed(manifest).values():
            self.world.target.commit(permit, names, restoring=True)

    def _conclude(self, driver: Driver) -> bool:
        if driver.ended:
            if driver.storing:
                return False  # what is being recorded comes to its end first
            require(not driver.asked, "every-operation-is-settled", driver.asked)
            saved = driver.coordinator.savepoint
            stopped = saved is not None and saved.kind is CheckpointKind.STOP
            self._over(Ending.STOPPED if stopped else Ending.FINISHED)
        else:
            verdict = STRATEGY.after(Failure(ran_ms=0, progressed=False, draw=0.5), self.failures)
            self.failures = verdict.failures
            require(verdict.delay_ms is not None, "the-strategy-allows-another-attempt", self.failures)
            self.begin_at = self.world.now + (verdict.delay_ms or 0)
            driver.attempt.abandon(self.world.rng.choice((0, 100, 600)))
            self.driver = None
        return True

    def _over(self, ending: Ending) -> None:
        self.world.note("master", f"the run is {ending}")
        self.ending = ending
        if self.driver is not None:
            self.driver.attempt.abandon(0)

    # ------------------------------------------------------------ people

    def request(self, kind: CheckpointKind, operation: str) -> None:
        if self.driver is not None and not self.driver.suspended and not self.driver.ended:
            self.driver.asked.add(operation)
            self.driver.stopping = self.driver.stopping or kind.ends_job
            self.driver.feed(CheckpointRequested(self.world.now, kind, operation))

    def cancel(self) -> None:
        """Ends the run where it stands."""
        if self.driver is not None and not self.driver.ended:
            if not self.driver.suspended:
                self.driver.suspend()
            self.driver.attempt.abandon(self.world.rng.choice((0, 100, 600)))
        self.driver = None
        self._over(Ending.CANCELED)
