"""Simulates the production core under a seed: a random job with random interleavings and faults, until the job ends.

A single thread and random streams derived from the seed make a world deterministic. The job, each kind of fault and the
interleaving have separate streams, so that a cut in the job does not change the faults, for example.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Final, TypeVar

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import OperatorId
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder
from runtime.errors import EnvironmentFailure
from runtime.master import retention
from runtime.simulation.cluster import Attempt, SimulatedTask
from runtime.simulation.cuts import Cuts
from runtime.simulation.driver import HEARTBEAT_TIMEOUT_MS
from runtime.simulation.faults import Faults
from runtime.simulation.invariants import Violation, check_files, check_output, require
from runtime.simulation.jobs import Job, Positions, count_late_rows
from runtime.simulation.master import Master, RunEnding
from runtime.simulation.random_jobs import (
    apart_job,
    numbered_job,
    random_job,
    random_parallelism,
    with_bursts,
    with_disorder,
    with_drifts,
    with_histories,
    with_holding,
    with_list_state,
    with_pairs,
    with_pooling,
    with_requests,
    with_sessions,
    with_tees,
)
from runtime.simulation.state import source_positions
from runtime.simulation.world import World
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy

APART: Final = 0.1  #: share of the jobs with subtasks that exchange nothing
NUMBERED: Final = 0.15  #: share of the other jobs with subtasks that keep their state behind a shuffle
OVERTAKING: Final = 0.4  #: share of the worlds in which barriers may overtake rows
FAULTY_STEPS: Final = 3_000  #: faults happen only in the first steps
STEP_LIMIT: Final = 40_000  #: every job must end within this number of steps
RESTART_STRATEGIES: Final = (
    FixedDelay(attempts=100, delay_ms=20),
    FixedDelay(attempts=2, delay_ms=20),
    ExponentialDelay(initial_ms=10, max_ms=1_000),
    NoRestart(),
)
T = TypeVar("T")
MAX_RUNS: Final = 4  #: number of runs that may be stopped or canceled
REQUEST_KINDS: Final = ("checkpoint", "savepoint", "stop", "drain")


@dataclass(slots=True)
class Incident:
    """An action `then` of a scenario, performed once when the condition `when` holds."""

    when: Callable[["Simulation"], bool]
    then: Callable[["Simulation"], None]


@dataclass(slots=True, kw_only=True)
class SimulationPlan:
    """The given properties of a world; a property that is None is drawn from the seed."""

    job: Job | None = None
    parallelism: dict[int, int] | None = None
    settings: CoordinatorSettings | None = None
    restart: RestartStrategy | None = None
    faults: dict[str, float] | None = None
    pace_ms: int | None = None
    retained_checkpoints: int | None = None
    incidents: list[Incident] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    restores_again: bool = True  #: whether the last manifest is restored again at the end


class Simulation:
    """A simulated world, from the first run of a job to the last."""

    def __init__(self, seed: int, plan: SimulationPlan | None = None) -> None:
        plan = plan or SimulationPlan()
        self.seed, self.plan, self.cuts = seed, plan, plan.cuts
        self.rng = Random(f"{seed} schedule {self.cuts.schedule}")
        self.lanes = Random(f"{seed} parallelism")
        shape = Random(f"{seed} job")
        only = self.cuts.only
        faults = (
            Faults.random_mixture(str(seed), only)
            if plan.faults is None
            else Faults(str(seed), dict(plan.faults), only)
        )
        self.world = World(self.rng, faults)
        self.world.pace_ms = shape.choice((0, 10, 40, 100)) if plan.pace_ms is None else plan.pace_ms
        self.world.compaction = random_policy(Random(f"{seed} policy"))
        self.world.retained_checkpoints = plan.retained_checkpoints or shape.choice((1, 2, 5))
        settings = plan.settings or _settings(shape, seed)
        self.job = self.cuts.apply(plan.job or _job(shape, seed))
        self.settings = plan.settings or _with_loop_timeout(settings, self.job)
        self.restart = plan.restart or Random(f"{seed} restart").choice(RESTART_STRATEGIES)
        self.attempts: list[Attempt] = []
        self.old_masters: list[Master] = []
        self.operations = 0
        self.incidents = list(plan.incidents)
        self.storage_back_at = 0
        self.endings: list[RunEnding] = []
        self.surplus: Counter[tuple[str, str, int]] = Counter()  #: committed rows that the oracle does not expect
        self.master = self._new_run(None)

    # ------------------------------------------------------------ the loop

    def run(self, journal_max: float = inf) -> None:
        """Simulates the world to its end, or until its journal has more than `journal_max` lines.

        Raises:
            Violation: an invariant does not hold.
        """
        while not self._is_finished():
            self.step()
            if self.world.journal_lines > journal_max:
                return
        self._check_end()
        if self.plan.restores_again:
            self._run_again()

    def step(self) -> None:
        world = self.world
        world.steps += 1
        world.faults.active = world.steps < FAULTY_STEPS
        if world.steps >= STEP_LIMIT:
            self._fail_liveness()
        self._apply_faults()
        if not self._perform_action():
            self._pass_time()
        if self.rng.random() < 0.3:
            world.now += 1
        for master in (self.master, *self.old_masters):
            master.tick()
        self._drop_abandoned_attempts()

    def _fail_liveness(self) -> None:
        """Raises Violation: the job has not ended, although faults stopped long ago."""
        driver = self.master.driver
        tasks = driver.attempt.order if driver else []
        waiting = [each.subtask for each in tasks if not each.task.outputs.credits.runnable]
        require(not waiting, "no-deadlock-by-credits", f"{waiting} wait for credit after {self.world.steps} steps")
        require(False, "liveness", f"not ended after {self.world.steps} steps")

    def _perform_action(self) -> bool:
        """Performs an action of a random kind, or else of the next kind. Returns False if no kind has an action."""
        acts: list[Callable[[], bool]] = [
            self._step_attempt,
            self._step_attempt,
            self._deliver_down,
            self._step_master,
            lambda: self.world.background.run_one(self.world.now),
        ]
        first = self.rng.randrange(len(acts))
        return any(act() for act in acts[first:] + acts[:first])

    def _step_attempt(self) -> bool:
        return any(attempt.step() for attempt in self._shuffle(self.attempts))

    def _deliver_down(self) -> bool:
        return any(attempt.deliver_down() for attempt in self._shuffle(self.attempts))

    def _step_master(self) -> bool:
        return any(master.step() for master in self._shuffle([self.master, *self.old_masters]))

    def _shuffle(self, some: list[T]) -> list[T]:
        return self.rng.sample(some, len(some)) if len(some) > 1 else some

    def _pass_time(self) -> None:
        """Advances the clock to the next due time, at most 5 ms: no action is possible now."""
        moments = [self.world.background.next_due(), self.master.next_wake()]
        due = min((at for at in moments if at is not None), default=self.world.now + 1)
        self.world.now = max(self.world.now + 1, min(due, self.world.now + 5))

    def _drop_abandoned_attempts(self) -> None:
        """Removes abandoned attempts without remaining steps, and their masters."""
        for attempt in self.attempts:
            attempt.pass_step()
        if any(attempt.remaining_steps <= 0 for attempt in self.attempts):
            self.attempts[:] = [attempt for attempt in self.attempts if attempt.remaining_steps > 0]
            self.old_masters = [master for master in self.old_masters if self._is_acting(master)]

    def _is_acting(self, master: Master) -> bool:
        return not master.is_gone and master.driver is not None and master.driver.attempt in self.attempts

    # ------------------------------------------------------------ faults and requests

    def _apply_faults(self) -> None:
        for incident in [i for i in self.incidents if i.when(self)]:
            self.incidents.remove(incident)
            incident.then(self)
        faults = self.world.faults
        if faults.occurs("take_output"):
            self.world.target.move_output()
        self._apply_storage_faults()
        if self.master.ending is not None:
            self._next_run()
        elif self.master.is_gone or faults.occurs("crash_master"):
            self.crash_master()
        elif faults.occurs("zombie_master"):
            self.crash_master(zombie=True)
        elif faults.occurs("clock_jump"):
            self.world.now += self.rng.choice((100, 1_000, 10_000))
        elif faults.occurs("stop_master"):
            self.stop_master()
        elif self.master.driver is not None:
            self._apply_attempt_faults(self.master.driver.attempt)

    def _apply_attempt_faults(self, attempt: Attempt) -> None:
        faults = self.world.faults
        if faults.occurs("crash_slot"):
            self.crash_slot(self.rng.choice(list(attempt.slots)))
        if faults.occurs("fail_operator"):
            self.fail_operator(self.rng.choice(attempt.order))
        if len(attempt.slots) > 1 and faults.occurs("partition"):
            self.part_slots(attempt)
        may_end = sum(ending is not RunEnding.FAILED for ending in self.endings) < MAX_RUNS
        for kind in REQUEST_KINDS:
            if faults.occurs(kind) and (may_end or kind != "stop"):
                self.request(CheckpointKind(kind))
        if may_end and not self.master.is_stopped and faults.occurs("cancel"):
            self.master.cancel()
        if self.world.steps % 150 == 0 and self._has_read_all():
            self.request(CheckpointKind.DRAIN)

    def _apply_storage_faults(self) -> None:
        world = self.world
        world.storage.away = world.now < self.storage_back_at
        if not world.storage.away and world.faults.occurs("storage_outage"):
            self.storage_back_at = world.now + self.rng.choice((50, 500, 2_000))
            world.storage.away = True
            world.note("fault", f"storage is away until {self.storage_back_at}")
        if world.faults.occurs("slow_storage"):
            world.storage_is_slow_until = world.now + self.rng.choice((500, 2_000, 5_000))
            world.note("fault", f"storage is slow until {world.storage_is_slow_until}")
        if world.faults.occurs("damage_manifest"):
            self.damage_manifest()
        if world.faults.occurs("discard_savepoint"):
            self.discard_savepoint()
        if world.faults.occurs("change_retention"):
            world.retained_checkpoints = self.rng.choice((1, 2, 5))

    def damage_manifest(self) -> None:
        """Damages the manifest of an old checkpoint, from which no attempt or run will be restored."""
        records = self.world.records
        kept = (records.recovery_point(), self.master.base)
        old = [m for m in records.readable_manifests()[:-1] if m not in kept and not m.kind.ends_job]
        if old:
            damaged = self.rng.choice(old)
            records.damaged.add(damaged.checkpoint)
            self.world.storage.damage(f"{manifest_folder(damaged)}/{MANIFEST_FILE}")
            self.world.note("fault", f"the manifest of {damaged.checkpoint} is damaged")

    def discard_savepoint(self) -> None:
        """A user discards a savepoint, and a service deletes its files.

        The console refuses a savepoint whose files others need; the deletion spares these files by itself.
        """
        records, storage = self.world.records, self.world.storage
        retained = records.retained_manifests()
        bases = {base.checkpoint for base in (self.master.base, records.newest()) if base is not None}
        free = [each for each in retained if each.kind.is_savepoint and each.checkpoint not in bases]
        if not free or records.unreadable_folders():
            return
        discarded = self.rng.choice(free)
        records.discarded.add(discarded.checkpoint)
        self.world.note("user", f"discards savepoint {discarded.checkpoint}")

        def delete() -> None:
            try:
                readable, unreadable = records.readable_manifests(), records.unreadable_folders()
                retention.discard_checkpoints(storage, [manifest_folder(discarded)], readable, unreadable)
            except EnvironmentFailure:
                self.world.background.add(self.world.now + 1_000, delete)
            check_files(storage.paths, records.retained_manifests())

        self.world.schedule(delete, "slow_compaction")

    def stop_master(self) -> None:
        self.world.note("fault", "the master is stopped")
        self.master.stop_for(self.rng.choice((500, 3 * HEARTBEAT_TIMEOUT_MS)))

    def crash_slot(self, index: int) -> None:
        if self.master.driver is not None and self.master.driver.attempt.slots[index].alive:
            self.world.note("fault", f"slot {index} crashes")
            self.master.driver.attempt.crash(index)

    def fail_operator(self, task: SimulatedTask) -> None:
        if task.slot.alive:
            self.world.note("fault", f"{task.subtask} raises")
            task.fail("an operator raised")

    def part_slots(self, attempt: Attempt) -> None:
        slots = frozenset(self.rng.sample(list(attempt.slots), 2))
        self.world.note("fault", f"nothing passes between slots {sorted(slots)}")
        attempt.part(slots, self.rng.choice((100, 1_000, 4_000)), breaks=self.rng.random() < 0.3)

    def crash_master(self, zombie: bool = False) -> None:
        """Replaces the master of the run. A zombie continues to run and does not know that it is replaced."""
        old = self.master
        if old.driver is not None and old.driver.attempt in self.attempts:
            old.driver.attempt.abandon(self.rng.choice((100, 1_000)) if zombie else self.rng.choice((0, 300)))
        old.release_slots(100)
        self.world.note("fault", "the master is replaced" if zombie else "the master crashes")
        if zombie:
            self.old_masters.append(old)
        else:
            old.crash()
        self.master = self._master(old.base, old)
        self.master.begin_at = self.world.now + self.rng.randint(0, 30)

    def request(self, kind: CheckpointKind) -> None:
        self.operations += 1
        self.master.request(kind, f"operation-{self.operations}")

    def _has_read_all(self) -> bool:
        """Whether unbounded sources have emitted all input, so that only a drain can end the job."""
        driver = self.master.driver
        if self.job.is_bounded or driver is None or driver.suspended:
            return False
        return all(reader.has_emitted_all for reader in driver.attempt.readers.values())

    # ------------------------------------------------------------ runs

    def _master(self, base: Manifest | None, old: Master | None = None) -> Master:
        if old is not None:
            graph = old.graph
        else:
            lanes = self.plan.parallelism if not self.endings and self.plan.parallelism else None
            graph = self.job.graph(self.cuts.limit_parallelism(lanes or random_parallelism(self.lanes, self.job)))
        master = Master(self.world, self.job, graph, base, self.settings, self.restart)
        master.on_attempt = self.attempts.append
        return master

    def _new_run(self, base: Manifest | None) -> Master:
        self.world.records.run += 1
        return self._master(base)

    def _next_run(self) -> None:
        """Restores the job at another parallelism after a stop, a cancel or a failure."""
        assert self.master.ending is not None, "the run goes on"
        self.endings.append(self.master.ending)
        # A checkpoint may be in the middle of being recorded. Taking the token first decides whether it is recorded.
        self.world.records.take_token()
        self.master = self._new_run(self.world.records.newest())
        self.master.begin_at = self.world.now + self.rng.randint(0, 300)  # a user, or a service, starts it

    def _is_finished(self) -> bool:
        return self.master.ending is RunEnding.FINISHED

    def _check_end(self) -> None:
        manifest = self.world.records.newest()
        require(manifest is not None, "an-ended-job-has-a-last-checkpoint", self.seed)
        assert manifest is not None
        positions = self._positions(manifest)
        if not self._has_drain(manifest):
            self._check_all_read(positions)
        self._check_output(self.job.expected_output(positions))
        self.endings.append(RunEnding.FINISHED)

    def _check_output(self, expected: Counter[tuple[str, str, int]]) -> None:
        """Checks the output: at-least-once mode may add duplicates, but must not lose a row."""
        output = count_late_rows(self.world.target.output())
        self.surplus = output - expected
        check_output(output if self.settings.mode is CheckpointMode.EXACTLY_ONCE else output & expected, expected)

    def _has_drain(self, manifest: Manifest | None) -> bool:
        """Whether `manifest` or a manifest that it descends from is a drain, so that sources may have ended early."""
        if manifest is None:
            return False
        return manifest.kind is CheckpointKind.DRAIN or self._has_drain(self.world.bases[manifest.token])

    def _check_all_read(self, positions: Positions) -> None:
        for source in self.job.sources:
            for split in source.splits:
                at = positions[source.uid].get(split.name, 0)
                require(at == len(split.rows), "an-ended-source-was-read-to-its-end", f"{split.name}: {at}")

    def _positions(self, manifest: Manifest) -> Positions:
        """Positions of the sources in `manifest`. Sources that its attempt skipped keep their restored positions."""
        base = self.world.bases[manifest.token]
        before = {} if base is None else self._positions(base)
        found: dict[OperatorId, Mapping[str, int]] = {}
        for source in self.job.sources:
            snapshots = manifest.operators[source.uid].subtasks.values()
            found[source.uid] = {
                **before.get(source.uid, {}),
                **source_positions(self.world.storage.archive, snapshots),
            }
        return found

    def _run_again(self) -> None:
        """Checks that a restore of the last checkpoint of an ended job ends at once and commits no output again."""
        before = self.world.target.output()
        self.world.faults.active = False
        self.world.steps = max(self.world.steps, FAULTY_STEPS)
        limit = self.world.steps + 5_000
        self.master = self._new_run(self.world.records.newest())
        while not self._is_finished():
            require(self.world.steps < limit, "a-finished-job-ends-at-once", f"not after {self.world.steps} steps")
            require(self.world.steps < STEP_LIMIT - 1, "liveness", "the second run came too late")
            self.step()
        require(self.world.target.output() == before, "a-finished-job-commits-nothing-more", self.seed)


def _job(shape: Random, seed: int) -> Job:
    """A random job. Each extension has its own random stream, so that jobs without the extension do not change."""
    apart, job = Random(f"{seed} apart"), random_job(shape, Random(f"{seed} loops"))
    numbered = Random(f"{seed} numbered")
    if apart.random() < APART:
        job = apart_job(apart)
    elif numbered.random() < NUMBERED:
        job = numbered_job(numbered)
    job = with_bursts(job, Random(f"{seed} bursts"))
    job = with_pairs(job, Random(f"{seed} pairs"))
    job = with_pooling(with_sessions(job, Random(f"{seed} sessions")), Random(f"{seed} unions"))
    job = with_requests(with_holding(job, Random(f"{seed} holding")), Random(f"{seed} requests"))
    job = with_list_state(with_tees(job, Random(f"{seed} tees")), Random(f"{seed} splits"))
    job = with_disorder(with_drifts(job, Random(f"{seed} drifts")), Random(f"{seed} disorder"))
    return with_histories(job, Random(f"{seed} histories"))


def random_policy(rng: Random) -> CompactionPolicy:
    """When files of state are merged. With the default sizes, states as small as here would hardly be."""
    return CompactionPolicy(
        max_deltas=rng.randint(2, 8),
        copied_bytes=rng.choice((0, 0, DEFAULT_POLICY.copied_bytes)),
        base_bytes=rng.choice((0, 0, DEFAULT_POLICY.base_bytes)),
        inline_bytes=rng.choice((0, 0, 0, DEFAULT_POLICY.inline_bytes)),
    )


def _settings(rng: Random, seed: int) -> CoordinatorSettings:
    """Random settings. Long intervals have their own stream; a resumed job starts its first checkpoint earlier."""
    interval_ms = rng.choice((None, 20, 50, 100, 200))
    long_ms = Random(f"{seed} intervals").choice((None, None, None, 1_000))
    settings = CoordinatorSettings(
        interval_ms=long_ms if interval_ms and long_ms else interval_ms,
        timeout_ms=rng.choice((1_000, 3_000)),  # enough for the largest job, which otherwise might never end
        min_pause_ms=rng.choice((0, 10, 50)),
        max_concurrent=rng.choice((1, 1, 2, 3)),
        tolerable_failures=rng.choice((None, 0, 3)),
    )
    overtaking = Random(f"{seed} overtaking")
    if overtaking.random() >= OVERTAKING:
        return settings
    return replace(settings, max_concurrent=1, alignment_timeout_ms=overtaking.choice((1, 3, 20)))


def _with_loop_timeout(settings: CoordinatorSettings, job: Job) -> CoordinatorSettings:
    """The settings with a longer timeout for jobs with loops: a drain waits for the circulating records."""
    return replace(settings, timeout_ms=settings.timeout_ms + 3_000) if job.has_loops else settings


# ---------------------------------------------------------------- one seed


class SeedViolation(Exception):
    """The world at the moment of a violation. `error` is the type name of the core's exception, if it raised one."""

    def __init__(self, simulation: Simulation, law: str, detail: str, error: str = "") -> None:
        super().__init__(f"seed {simulation.seed}: {law}: {detail}")
        self.simulation, self.invariant, self.detail, self.error = simulation, law, detail, error

    @property
    def journal_lines(self) -> int:
        return self.simulation.world.journal_lines


def simulate(seed: int, plan: SimulationPlan | None = None, journal_max: float = inf) -> Simulation:
    """Simulates a seed, up to `journal_max` journal lines.

    Raises:
        SeedViolation: an invariant does not hold, or the core raised an exception.
    """
    simulation = Simulation(seed, plan)
    try:
        simulation.run(journal_max)
    except Violation as violation:
        raise SeedViolation(simulation, violation.invariant, violation.detail) from violation
    except Exception as error:
        kind = type(error).__name__
        raise SeedViolation(simulation, "the-core-raises-no-exception", f"{kind}: {error}", kind) from error
    return simulation
