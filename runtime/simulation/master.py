"""A job master in the simulator: starts attempts of a run and restarts them.

The counterpart of the production driver: all decisions about checkpoints are the coordinator's. An attempt ends by
`CoordinatorSuspended`. The next attempt first takes a new token and then reads the records. Writes of an older attempt
are therefore either already recorded or rejected. After a completed stop or drain there is no restart: the master
commits the pending committables of its manifest and ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from runtime.core.events import (
    CheckpointRequested,
)
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.mapping import check_restorable
from runtime.core.restore.state_assignment import Restored, assign
from runtime.core.snapshot.commit import owed, permit_for_recorded, retained_committables
from runtime.core.snapshot.manifest import Manifest, folder_of
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.manifests import read_manifest
from runtime.master import retention
from runtime.simulation.cluster import Attempt
from runtime.simulation.driver import Driver, Process
from runtime.simulation.invariants import Violation, check_files, check_owed, require
from runtime.simulation.jobs import Job
from runtime.simulation.world import World

RESTART_DELAY_MS: Final = 20


class Ending(StrEnum):
    """The final state of a run."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELED = "canceled"


class Master:
    """Runs the attempts of a run, sequentially."""

    def __init__(
        self, world: World, job: Job, graph: JobGraph, base: Manifest | None, settings: CoordinatorSettings
    ) -> None:
        self.world, self.job, self.graph, self.base, self.settings = world, job, graph, base, settings
        self.driver: Driver | None = None
        self.process = Process()
        self.ending: Ending | None = None
        self.begin_at = world.now
        self.on_attempt: Callable[[Attempt], None] = lambda attempt: None

    @property
    def gone(self) -> bool:
        return self.process.gone

    @property
    def stopped(self) -> bool:
        return self.world.now < self.process.stopped_until

    def stop_for(self, ms: int) -> None:
        """Stops the process for `ms` milliseconds (SIGSTOP, then SIGCONT)."""
        self.process.stopped_until = self.world.now + ms

    def crash(self) -> None:
        self.process.gone = True

    def step(self) -> bool:
        """Starts or ends an attempt, or receives a message of a slot; False if there is no such work."""
        if self.gone or self.stopped or self.ending is not None:
            return False
        if self.driver is None:
            return self._begin() if self.world.now >= self.begin_at else False
        if self.driver.ended or self.driver.suspended:
            return self._conclude(self.driver)
        return self._take_message(self.driver)

    def _take_message(self, driver: Driver) -> bool:
        slots = [slot for slot in driver.attempt.slots.values() if slot.up.ready]
        if not slots:
            return False
        driver.receive(self.world.rng.choice(slots).up.pop())
        return True

    def tick(self) -> None:
        if self.driver is not None and not self.gone and not self.stopped:
            self.driver.tick()

    def next_wake(self) -> int | None:
        if self.gone or self.ending is not None:
            return None
        if self.stopped:
            return self.process.stopped_until
        return self.begin_at if self.driver is None else self.driver.next_wake()

    # ------------------------------------------------------------ attempts

    def _begin(self) -> bool:
        token = self.world.records.take_token()
        try:
            self._begin_under(token)
        except EnvironmentFailure:
            self.begin_at = self.world.now + RESTART_DELAY_MS
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
            base = self._read(base)
            check_restorable(base, self.graph, base.job)
            self._commit(base, token)
            dealt = dict(assign(base, self.graph))
        self.world.bases[token] = base
        records = self.world.records
        retained, unreadable = records.retained(), records.unreadable()
        for uid in (operator.uid for operator in self.graph.operators if operator.commits):
            if not unreadable:  # the committables of an unreadable checkpoint are unknown
                self.world.target.clean(uid, token, retained_committables(retained, uid))
        retention.sweep(self.world.storage, token, records.readable(), unreadable)
        check_files(self.world.storage, retained)
        check_owed(self.world.target.names, retained)
        self._start(token, dealt)
        self.world.note(f"{token}:master", f"begins from {base.checkpoint if base else 'nothing'}")

    def _start(self, token: Token, dealt: Mapping[SubtaskId, Restored]) -> None:
        try:
            attempt = Attempt(self.world, self.job, self.graph, token, dealt, self.settings.mode)
        except CorruptState as missing:
            raise Violation("a-restore-finds-every-file", str(missing)) from missing
        self.driver = Driver(self.world, self.process, attempt, self.settings)
        self.on_attempt(attempt)

    def _read(self, recorded: Manifest) -> Manifest:
        folder = folder_of(recorded.kind, recorded.checkpoint, recorded.token)
        try:
            return read_manifest(self.world.storage, folder)
        except CorruptState as missing:
            raise Violation("a-restore-finds-every-file", str(missing)) from missing

    def _commit(self, manifest: Manifest, token: Token) -> None:
        permit = permit_for_recorded(manifest, token)
        for names in owed(manifest).values():
            self.world.target.commit(permit, names, restoring=True)

    def _conclude(self, driver: Driver) -> bool:
        if driver.ended:
            if driver.storing:
                return False  # a manifest is still being recorded
            require(not driver.asked, "every-operation-is-settled", driver.asked)
            saved = driver.coordinator.savepoint
            stopped = saved is not None and saved.kind is CheckpointKind.STOP
            self._over(Ending.STOPPED if stopped else Ending.FINISHED)
        else:
            self.begin_at = self.world.now + RESTART_DELAY_MS
            driver.attempt.abandon(self.world.rng.choice((0, 100, 600)))
            driver.concluded = True
            self.driver = None
        return True

    def _over(self, ending: Ending) -> None:
        self.world.note("master", f"the run is {ending}")
        self.ending = ending
        if self.driver is not None:
            self.driver.attempt.abandon(0)

    # ------------------------------------------------------------ requests

    def request(self, kind: CheckpointKind, operation: str) -> None:
        if self.driver is not None and not (self.stopped or self.driver.suspended or self.driver.ended):
            self.driver.asked.add(operation)
            self.driver.stopping = self.driver.stopping or kind.ends_job
            self.driver.feed(CheckpointRequested(self.world.now, kind, operation))

    def cancel(self) -> None:
        if self.driver is not None and not self.driver.ended:
            if not self.driver.suspended:
                self.driver.suspend()
            self.driver.attempt.abandon(self.world.rng.choice((0, 100, 600)))
            self.driver.concluded = True
        self.driver = None
        self._over(Ending.CANCELED)
