"""A job master in the simulator: starts attempts of a run and restarts them.

The counterpart of the production job master. The next attempt first takes a new token and then reads the records.
Writes of an older attempt are therefore either already recorded or rejected. After a completed stop or drain there is
no restart: the master commits the pending committables of the final manifest and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from runtime.core.attempt.events import OperationRequest
from runtime.core.attempt.failover import Failover, GiveUp
from runtime.core.attempt.result import (
    AttemptFailed,
    AttemptResult,
    Canceled,
    Ended,
    SavepointCompleted,
    Superseded,
    master_failure,
)
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.mapping import check_restorable
from runtime.core.restore.state_assignment import SubtaskRestore, assign_state, restores_apart
from runtime.core.snapshot.commit import pending_committables, permit_for_manifest, retained_output
from runtime.core.snapshot.manifest import Manifest, folder_of
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.manifests import read_manifest
from runtime.master import retention
from runtime.simulation.cluster import Attempt
from runtime.simulation.driver import Driver, MasterProcess
from runtime.simulation.invariants import Violation, check_files, check_pending_committables, require
from runtime.simulation.jobs import Job
from runtime.simulation.world import World

OUTAGE_BACKOFF: Final = ExponentialDelay(initial_ms=20, max_ms=500)


class RunEnding(StrEnum):
    """The final state of a run."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELED = "canceled"
    FAILED = "failed"


class Master:
    """Runs the attempts of a run, sequentially."""

    def __init__(
        self,
        world: World,
        job: Job,
        graph: JobGraph,
        base: Manifest | None,
        settings: CoordinatorSettings,
        restart: RestartStrategy,
    ) -> None:
        self.world, self.job, self.graph, self.base, self.settings = world, job, graph, base, settings
        self.restart = restart
        self._failover = Failover(restart, OUTAGE_BACKOFF)
        self._failures_in_a_row = 0  #: without a completed checkpoint in between, and without outages
        self.driver: Driver | None = None
        self.last: Attempt | None = None  #: the last attempt, while slots of it are kept for the next one
        self._kept: Mapping[int, Token] = {}
        self.token: Token | None = None  #: of the newest attempt
        self.operations: dict[str, OperationRequest] = {}  #: requested and not completed
        self.process = MasterProcess()
        self.ending: RunEnding | None = None
        self.begin_at = world.now
        self.on_attempt: Callable[[Attempt], None] = lambda attempt: None

    @property
    def is_gone(self) -> bool:
        return self.process.is_gone

    @property
    def is_stopped(self) -> bool:
        return self.world.now < self.process.stopped_until

    def stop_for(self, ms: int) -> None:
        """Stops the process for `ms` milliseconds (SIGSTOP, then SIGCONT)."""
        self.process.stopped_until = self.world.now + ms

    def crash(self) -> None:
        self.process.is_gone = True

    def release_slots(self, lingers: int) -> None:
        """No attempt of this master continues its kept slots."""
        if self.last is not None:
            self.last.abandon(lingers)
        self.last, self._kept = None, {}

    def step(self) -> bool:
        """Starts or ends an attempt, or receives a message of a slot; False if there is no such work."""
        if self.is_gone or self.is_stopped or self.ending is not None:
            return False
        if self.driver is None:
            return self._begin() if self.world.now >= self.begin_at else False
        if self.driver.suspended:
            return self._end_attempt(self.driver)
        return self._take_message(self.driver)

    def _take_message(self, driver: Driver) -> bool:
        slots = [(index, slot) for index, slot in driver.attempt.slots.items() if slot.up.is_ready]
        if not slots:
            return False
        index, slot = self.world.rng.choice(slots)
        driver.receive(index, slot.up.pop())
        return True

    def tick(self) -> None:
        if self.driver is not None and not self.is_gone and not self.is_stopped:
            self.driver.tick()

    def next_wake(self) -> int | None:
        if self.is_gone or self.ending is not None:
            return None
        if self.is_stopped:
            return self.process.stopped_until
        return self.begin_at if self.driver is None else self.driver.next_wake()

    # ------------------------------------------------------------ attempts

    def _begin(self) -> bool:
        if self.token is not None and self.token != self.world.records.token:
            self.process.is_gone = True  # superseded
            self.release_slots(0)
            return True
        self.token = self.world.records.take_token()
        try:
            self._begin_with_token(self.token)
        except EnvironmentFailure as error:
            self._on_failure(replace(master_failure(error), kept=self._kept))
        return True

    def _begin_with_token(self, token: Token) -> None:
        done = self.world.records.final_manifest()
        if done is not None:
            self._commit(done, token)
            self._end_run(_ending(done))
            return
        if any(request.kind == "cancel" for request in self.operations.values()):
            self._end_run(RunEnding.CANCELED)
            return
        base = self.world.records.recovery_point() or self.base
        assigned = {}
        if base is not None:
            base = self._read(base)
            if not restores_apart(base, self.graph):
                self.release_slots(100)
            check_restorable(base, self.graph, base.job)
            self._commit(base, token)
            assigned = dict(assign_state(base, self.graph))
        self.world.bases[token] = base
        records, oldest = self.world.records, min([token, *self._kept.values()])
        retained, unreadable = records.retained_manifests(), records.unreadable_folders()
        for uid in (operator.uid for operator in self.graph.operators if operator.commits):
            if not unreadable:  # the committables of an unreadable checkpoint are unknown
                self.world.target.clean(uid, oldest, retained_output(retained, uid))
        retention.sweep_orphans(self.world.storage, oldest, records.readable_manifests(), unreadable)
        check_files(self.world.storage.paths, retained)
        check_pending_committables(self.world.target.names, retained)
        self._start(token, assigned)
        self.world.note(f"{token}:master", f"begins from {base.checkpoint if base else 'nothing'}")

    def _start(self, token: Token, assigned: Mapping[SubtaskId, SubtaskRestore]) -> None:
        try:
            attempt = Attempt(self.world, self.job, self.graph, token, assigned, self.settings, self.last)
        except CorruptState as missing:
            raise Violation("a-restore-finds-every-file", str(missing)) from missing
        self.release_slots(100)
        self.driver = Driver(self.world, self.process, attempt, self.settings, self.operations)
        self.on_attempt(attempt)

    def _read(self, recorded: Manifest) -> Manifest:
        folder = folder_of(recorded.kind, recorded.checkpoint, recorded.token)
        try:
            return read_manifest(self.world.storage, folder)
        except CorruptState as missing:
            raise Violation("a-restore-finds-every-file", str(missing)) from missing

    def _commit(self, manifest: Manifest, token: Token) -> None:
        permit = permit_for_manifest(manifest, token)
        for names in pending_committables(manifest).values():
            self.world.target.commit(permit, names, restoring=True)

    def _end_attempt(self, driver: Driver) -> bool:
        if not driver.close():
            return False
        assert driver.result is not None, "a completed shutdown ends the attempt"
        self.driver = None
        if isinstance(driver.result, AttemptFailed) and driver.result.kept:
            self.last, self._kept = driver.attempt, driver.result.kept
        self._on_result(driver.result)
        return True

    def _on_result(self, result: AttemptResult) -> None:
        match result:
            case Ended(savepoint):
                self._end_run(_ending(savepoint))
            case Canceled():
                self._end_run(RunEnding.CANCELED)
            case Superseded():
                self.process.is_gone = True
            case SavepointCompleted():
                self.begin_at = self.world.now
            case AttemptFailed():
                self._on_failure(result)
            case _:
                raise AssertionError(f"no master of the simulator is released, or lacks slots: {result}")

    def _on_failure(self, failed: AttemptFailed) -> None:
        assert self.token is not None, "an attempt has a token"
        decision = self._failover.decide(failed, self.world.now, self.world.rng.random())
        self.world.note("master", decision)
        has_progressed = self.world.ledger.completed_by_attempt[self.token] > 0
        if not failed.is_outage:
            self._failures_in_a_row = 1 if has_progressed else self._failures_in_a_row + 1
        if isinstance(decision, GiveUp):
            self._end_run(RunEnding.FAILED)
            return
        if isinstance(self.restart, FixedDelay) and not failed.is_outage:
            within = self._failures_in_a_row <= self.restart.attempts
            require(within, "restarts-within-the-limit-of-their-strategy", self._failures_in_a_row)
        self.begin_at = self.world.now + decision.delay_ms

    def _end_run(self, ending: RunEnding) -> None:
        self.world.note("master", f"the run is {ending}")
        self.release_slots(0)
        self.ending = ending

    # ------------------------------------------------------------ requests

    def request(self, kind: CheckpointKind, operation: str) -> None:
        self._request(OperationRequest(operation, str(kind)))

    def cancel(self) -> None:
        self._request(OperationRequest("cancel", "cancel"))

    def _request(self, request: OperationRequest) -> None:
        self.operations[request.id] = request
        if self.driver is not None:
            self.driver.is_poked = True


def _ending(savepoint: Manifest | None) -> RunEnding:
    is_stopped = savepoint is not None and savepoint.kind is CheckpointKind.STOP
    return RunEnding.STOPPED if is_stopped else RunEnding.FINISHED
