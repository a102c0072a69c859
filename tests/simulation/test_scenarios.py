"""Named incidents: a fixed job, one fault at the worst moment, many interleavings."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.core.attempt.failover import Failover
from runtime.core.job.graph import Partitioning
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import FixedDelay, NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.core.subtask import poll_policy
from runtime.operators.joins.interval import IntervalJoin
from runtime.simulation import simulation
from runtime.simulation.invariants import Violation
from runtime.simulation.jobs import STREAM_JOINS, Job
from runtime.simulation.master import RunEnding
from runtime.simulation.model import JoinOperator, Row, Split
from runtime.simulation.simulation import Incident, Simulation, SimulationPlan

SEEDS = range(12)
#: The simulator's own seeds have these incidents, too.
EACH_SEED = [*SEEDS[:3], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[3:9])]
EACH_MOMENT = [at if at % 36 == 4 else pytest.param(at, marks=pytest.mark.slow) for at in range(40, 400, 12)]
PERIODIC = CoordinatorSettings(interval_ms=20, timeout_ms=500, min_pause_ms=0)
NONE = CoordinatorSettings(interval_ms=None, timeout_ms=500, min_pause_ms=0)
FORWARD, HASH, REBALANCE = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE
When = Callable[[Simulation], bool]


def rows(count: int) -> tuple[Row, ...]:
    return tuple(("abc"[number % 3], number) for number in range(count))


def splits(source: str, *counts: int) -> list[Split]:
    return [Split(f"{source}.{number}", rows(count)) for number, count in enumerate(counts)]


def counting(bounded: bool, middle: str = "map") -> Job:
    """source, a step, a count, a sink."""
    job = Job()
    read = job.add_source(0, bounded, splits("s", 20, 12, 16))
    passed = job.add(middle, 0, [(read, FORWARD)])
    counted = job.add("count", 1, [(passed, HASH)])
    job.add("sink", 1, [(counted, FORWARD)])
    return job


def joining() -> Job:
    """An unbounded stream that is joined with a bounded table."""
    job = Job()
    stream = job.add_source(0, False, splits("s", 15, 15))
    table = job.add_source(1, True, splits("t", 12, 3, 9, 0))
    joined = job.add("join", 2, [(stream, REBALANCE), (table, Partitioning.BROADCAST)], build=1)
    counted = job.add("count", 3, [(joined, HASH)])
    job.add("sink", 3, [(counted, FORWARD)])
    return job


def live(plan: SimulationPlan, seed: int) -> Simulation:
    """Without faults but those of the plan's incidents."""
    plan.faults = plan.faults or {}
    simulation = Simulation(seed, plan)
    simulation.run()
    return simulation


def plan(job: Job, settings: CoordinatorSettings = PERIODIC, *incidents: Incident, **more: Any) -> SimulationPlan:
    more.setdefault("restart", FixedDelay(attempts=1_000, delay_ms=20))
    return SimulationPlan(job=job, settings=settings, incidents=list(incidents), pace_ms=10, **more)


def recorded(kind: CheckpointKind, count: int = 1) -> When:
    return lambda s: sum(m.kind is kind for m in s.world.ledger.recorded.values()) >= count


def ask(kind: CheckpointKind) -> Callable[[Simulation], None]:
    return lambda s: s.request(kind)


def running(s: Simulation) -> bool:
    driver = s.master.driver
    return driver is not None and len(driver.started) == len(driver.attempt.tasks)


def kinds(s: Simulation) -> list[CheckpointKind]:
    return [manifest.kind for _, manifest in sorted(s.world.ledger.recorded.items())]


# ---------------------------------------------------------------- several at once

CHECKPOINT, SAVEPOINT = CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT


@pytest.mark.parametrize("seed", EACH_SEED)
@pytest.mark.parametrize("pair", [(CHECKPOINT, SAVEPOINT), (SAVEPOINT, CHECKPOINT), (SAVEPOINT, SAVEPOINT)])
def test_two_overlapping_checkpoints_both_complete(seed: int, pair: tuple[CheckpointKind, CheckpointKind]) -> None:
    """S2-10, S3-49: barriers of both are on their way at once, and neither gives way to the other."""
    together: list[set[int]] = []

    def ask_for_both(s: Simulation) -> None:
        s.world.faults.scripted_names.append("slow_snapshot")
        for kind in pair:
            s.request(kind)

    def both_pending(s: Simulation) -> bool:
        return len(s.world.ledger.triggered) == 2 and not s.world.ledger.recorded

    def note(s: Simulation) -> None:
        together.append(set(s.world.ledger.triggered))

    two = CoordinatorSettings(interval_ms=None, timeout_ms=5_000, min_pause_ms=0, max_concurrent=2)
    chosen = plan(counting(bounded=False), two, Incident(running, ask_for_both), Incident(both_pending, note))
    chosen.pace_ms = 400  # the input lasts longer than the slow snapshot, or the drain at its end gives both up
    s = live(chosen, seed)
    assert together == [{1, 2}]
    assert kinds(s)[:2] == list(pair)


@pytest.mark.parametrize("seed", EACH_SEED)
def test_periodic_checkpoints_that_overlap_all_the_time_keep_the_output_exact(seed: int) -> None:
    """What a later one makes superfluous is given up; the job goes on and ends, and loses nothing."""
    often = CoordinatorSettings(interval_ms=5, timeout_ms=500, min_pause_ms=0, max_concurrent=4)
    seen: list[int] = []

    def three_pending(s: Simulation) -> bool:
        newest = max(s.world.ledger.recorded, default=0)
        return sum(checkpoint > newest for checkpoint in s.world.ledger.triggered) >= 3

    def note(s: Simulation) -> None:
        seen.append(s.world.now)

    s = live(plan(counting(bounded=True), often, Incident(three_pending, note), restores_again=False), seed)
    assert seen
    assert s.endings == [RunEnding.FINISHED]


# ---------------------------------------------------------------- at least once

LOOSE = CoordinatorSettings(interval_ms=20, timeout_ms=500, min_pause_ms=0, mode=CheckpointMode.AT_LEAST_ONCE)


def passing() -> Job:
    """Three splits of very different lengths, mixed by a step, and a sink."""
    job = Job()
    read = job.add_source(0, True, splits("s", 40, 25, 3))
    passed = job.add("map", 1, [(read, REBALANCE)])
    job.add("sink", 2, [(passed, REBALANCE)])
    return job


@pytest.mark.parametrize("seed", EACH_SEED)
def test_at_least_once_brings_nothing_again_while_nothing_fails(seed: int) -> None:
    """S4-24: stops and drains included; behind their barriers nothing comes that could be handled twice."""
    stop = Incident(lambda s: running(s) and not s.endings, ask(CheckpointKind.STOP))
    s = live(plan(counting(bounded=False), LOOSE, stop, restores_again=False), seed)
    assert s.endings == [RunEnding.STOPPED, RunEnding.FINISHED]
    assert not s.surplus


def test_at_least_once_loses_nothing_in_a_crash_but_brings_some_again() -> None:
    """S4-24: the price of not waiting, which alignment does not pay."""
    surplus = {}
    for mode in CheckpointMode:
        settings = CoordinatorSettings(interval_ms=20, timeout_ms=500, min_pause_ms=0, mode=mode)
        worlds = []
        for seed in SEEDS[:6]:
            crash = Incident(recorded(CheckpointKind.CHECKPOINT, 2), lambda s: s.crash_slot(0))
            worlds.append(live(plan(passing(), settings, crash, restores_again=False), seed))
        surplus[mode] = sum(s.surplus.total() for s in worlds)
    assert surplus[CheckpointMode.EXACTLY_ONCE] == 0
    assert surplus[CheckpointMode.AT_LEAST_ONCE] > 0


# ---------------------------------------------------------------- ends of jobs


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_bounded_job_ends_with_exactly_one_checkpoint_after_its_input(seed: int) -> None:
    """S0-14, S0-27, S0-36: without periodic checkpoints there is one in all."""
    s = live(plan(counting(bounded=True), NONE, restores_again=False), seed)
    assert kinds(s) == [CheckpointKind.CHECKPOINT]
    (manifest,) = s.world.ledger.recorded.values()
    assert len(manifest.finished_operators()) == 4


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_finished_job_that_is_restored_ends_at_once(seed: int) -> None:
    """S0-22: every operator is skipped, and one checkpoint lets the skipped ones end."""
    s = live(plan(counting(bounded=True), NONE), seed)
    assert kinds(s) == [CheckpointKind.CHECKPOINT] * 2


@pytest.mark.parametrize("seed", EACH_SEED)
def test_an_early_branch_ends_while_the_other_runs_on(seed: int) -> None:
    """S0-13, S0-80."""
    job = Job()
    for lane, bounded in ((0, True), (1, False)):
        read = job.add_source(lane, bounded, splits(f"s{lane}", 6 if bounded else 60))
        counted = job.add("count", 10 + lane, [(read, HASH)])
        job.add("sink", 10 + lane, [(counted, FORWARD)])
    seen: list[int] = []

    def branch_ended(s: Simulation) -> bool:
        driver = s.master.driver
        return driver is not None and sum(host.task.machine.ended for host in driver.attempt.order) == 3

    def note(s: Simulation) -> None:
        seen.append(len(s.world.ledger.recorded))

    live(plan(job, PERIODIC, Incident(branch_ended, note), parallelism={}), seed)
    assert seen, "three subtasks ended while the other three ran"


@pytest.mark.parametrize("seed", EACH_SEED)
@pytest.mark.parametrize("middle", ["map", "batching", "holding"])
def test_a_stop_keeps_what_a_step_had_in_hand(seed: int, middle: str) -> None:
    """S0-30, S0-33, S0-34: a batch is flushed before the barrier, open work rides in the savepoint."""
    s = live(plan(counting(bounded=False, middle=middle), NONE, Incident(running, ask(CheckpointKind.STOP))), seed)
    assert s.endings[:2] == [RunEnding.STOPPED, RunEnding.FINISHED]


@pytest.mark.parametrize("seed", EACH_SEED)
def test_three_stops_in_a_row_at_changing_parallelism(seed: int) -> None:
    """S0-28, S0-30, S3-19: the output of all runs together is exact."""
    stops = [
        Incident(lambda s, n=n: running(s) and len(s.endings) == n, ask(CheckpointKind.STOP))  # type: ignore[misc]
        for n in range(3)
    ]
    s = live(plan(counting(bounded=False, middle="holding"), PERIODIC, *stops, restores_again=False), seed)
    assert s.endings == [RunEnding.STOPPED] * 3 + [RunEnding.FINISHED]


def building(s: Simulation) -> bool:
    """Whether the table of `joining` is being read: some rows of it are there, not all."""
    if not running(s):
        return False
    driver = s.master.driver
    assert driver is not None, "it runs"
    models = [getattr(each.task.operator, "model", None) for each in driver.attempt.order]
    return any(0 < len(model.table) < 24 for model in models if isinstance(model, JoinOperator))


@pytest.mark.parametrize("seed", EACH_SEED)
@pytest.mark.parametrize("kind", [CheckpointKind.STOP, CheckpointKind.DRAIN])
def test_a_stop_and_a_drain_while_the_build_side_is_read(seed: int, kind: CheckpointKind) -> None:
    """S0-69: a stop keeps what has been read of the table; a drain reads it to its end first."""
    s = live(plan(joining(), NONE, Incident(building, ask(kind)), restores_again=False), seed)
    assert s.endings[0] is (RunEnding.STOPPED if kind is CheckpointKind.STOP else RunEnding.FINISHED)
    assert s.world.records.token <= 3, "no attempt failed"


@pytest.mark.parametrize("mode", CheckpointMode)
@pytest.mark.parametrize("act", [None, lambda s: s.crash_slot(0)])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_checkpoints_complete_while_the_build_side_is_read(
    seed: int, act: Callable[[Simulation], None] | None, mode: CheckpointMode
) -> None:
    """None is declined, and after a crash the table is read on from where a checkpoint had it."""
    found: list[list[int]] = []

    def half_read(s: Simulation) -> bool:
        return building(s) and len(kinds(s)) > 0 and any(rows_read(s, m) for m in s.world.ledger.recorded.values())

    first = Incident(half_read, lambda s: found.append(sorted(s.world.ledger.recorded)))
    then = [] if act is None else [Incident(half_read, act)]
    settings = replace(PERIODIC, interval_ms=5, mode=mode)
    live(
        SimulationPlan(job=joining(), settings=settings, incidents=[first, *then], pace_ms=40, restores_again=False),
        seed,
    )
    assert found, "no checkpoint while the table was read"
    assert found[0] == list(range(1, len(found[0]) + 1)), "none was declined"


def rows_read(s: Simulation, manifest: Manifest) -> int:
    """Rows of the table of `joining` that are in a checkpoint."""
    snapshots = [
        one for uid, op in manifest.operators.items() if uid.startswith("join") for one in op.subtasks.values()
    ]
    return max(sum(file.rows for files in one.broadcast.values() for file in files) for one in snapshots)


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_stop_that_races_with_ending_subtasks(seed: int) -> None:
    """S0-47, S0-69, S0-83: asked at the moment at which a checkpoint releases an early branch."""
    job = Job()
    for lane, bounded in ((0, True), (1, False)):
        read = job.add_source(lane, bounded, splits(f"s{lane}", 4 if bounded else 40))
        counted = job.add("count", 10 + lane, [(read, HASH)])
        job.add("sink", 10 + lane, [(counted, FORWARD)])

    def early_branch_recorded(s: Simulation) -> bool:
        return any(manifest.finished_operators() for manifest in s.world.ledger.recorded.values())

    s = live(plan(job, PERIODIC, Incident(early_branch_recorded, ask(CheckpointKind.STOP)), restores_again=False), seed)
    assert s.endings == [RunEnding.STOPPED, RunEnding.FINISHED]
    assert s.world.records.token <= 3, "no attempt failed"


# ---------------------------------------------------------------- crashes


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_crash_after_the_drain_was_recorded_and_before_any_commit(seed: int) -> None:
    """S0-21, S0-29: what finished operators had prepared is committed from the manifest; nothing is restarted."""
    drained = Incident(recorded(CheckpointKind.DRAIN), lambda s: s.crash_master())
    s = live(plan(counting(bounded=False), NONE, Incident(running, ask(CheckpointKind.DRAIN)), drained), seed)
    assert s.endings == [RunEnding.FINISHED]


@pytest.mark.parametrize("seed", EACH_SEED)
@pytest.mark.parametrize("zombie", [False, True])
def test_a_master_lost_after_the_stop_was_recorded_does_not_start_the_job_again(seed: int, zombie: bool) -> None:
    stopped = Incident(recorded(CheckpointKind.STOP), lambda s: s.crash_master(zombie))
    s = live(
        plan(
            counting(bounded=False),
            PERIODIC,
            Incident(running, ask(CheckpointKind.STOP)),
            stopped,
            restores_again=False,
        ),
        seed,
    )
    assert s.endings == [RunEnding.STOPPED, RunEnding.FINISHED]


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_slot_lost_after_the_stop_was_recorded(seed: int) -> None:
    """The savepoint is there but the stop fails: it is kept, its output committed, the run stopped."""
    lost = Incident(recorded(CheckpointKind.STOP), lambda s: s.crash_slot(0))
    s = live(
        plan(
            counting(bounded=False), PERIODIC, Incident(running, ask(CheckpointKind.STOP)), lost, restores_again=False
        ),
        seed,
    )
    assert s.endings == [RunEnding.STOPPED, RunEnding.FINISHED]


@pytest.mark.parametrize("moment", EACH_MOMENT)
def test_a_crash_at_any_moment_of_a_short_job(moment: int) -> None:
    """S0-32, S0-85, S4-01: before, at and after the last checkpoint."""
    crash = Incident(lambda s: s.world.steps == moment, lambda s: s.crash_slot(0))
    live(plan(counting(bounded=True, middle="batching"), PERIODIC, crash, parallelism={0: 2, 1: 2}), seed=3)


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_zombie_master_while_a_checkpoint_is_being_recorded(seed: int) -> None:
    """S1-11."""

    def is_storing(s: Simulation) -> bool:
        driver = s.master.driver
        return driver is not None and any(each.storing for each in driver.machine.coordinator.pending.values())

    storing = Incident(is_storing, lambda s: s.crash_master(zombie=True))
    s = live(plan(counting(bounded=True), PERIODIC, storing), seed)
    assert s.world.records.token > 1


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_commit_that_fails_half_way_is_made_good_on_restore(seed: int) -> None:
    """S1-49."""
    fail = Incident(recorded(CheckpointKind.CHECKPOINT), lambda s: s.world.faults.scripted_names.append("fail_commit"))
    s = live(plan(counting(bounded=True), PERIODIC, fail), seed)
    assert s.world.faults.occurrences == {"fail_commit": 1}


# ---------------------------------------------------------------- storage


@pytest.mark.parametrize("seed", EACH_SEED)
def test_storage_that_is_away_at_the_end_is_not_asked_without_pause(seed: int) -> None:
    job = counting(bounded=True)
    away = plan(job, NONE, faults={"fail_manifest": 1.0}, restores_again=False)
    s = Simulation(seed, away)
    while s.world.now < 4_000:
        s.step()
    assert not s.world.ledger.recorded
    assert 3 <= s.world.records.last_id <= 8, "about two in a second"
    s.world.faults.rates.clear()
    s.run()


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_record_of_unknown_outcome_is_read_back(seed: int) -> None:
    """S1-03: neither a failure nor a success until it is known."""
    live(plan(counting(bounded=True), PERIODIC, faults={"unknown_manifest": 1.0, "slow_manifest": 0.5}), seed)


def windowing(bounded: bool, *counts: int) -> Job:
    """source, windows, a sink."""
    job = Job()
    read = job.add_source(0, bounded, splits("s", *counts))
    windows = job.add("window", 1, [(read, HASH)])
    job.add("sink", 1, [(windows, FORWARD)])
    return job


def a_source_waits(s: Simulation) -> bool:
    driver = s.master.driver
    return running(s) and driver is not None and any(host.task.is_throttled for host in driver.attempt.order)


@pytest.mark.parametrize("act", [None, lambda s: s.crash_slot(0), ask(CheckpointKind.STOP), ask(CheckpointKind.DRAIN)])
@pytest.mark.parametrize("seed", EACH_SEED[::3])
def test_while_a_source_waits_for_slower_ones_all_else_goes_on(seed: int, act: Callable[[Simulation], None]) -> None:
    """Checkpoints above all. Nothing is lost, nothing late, and no two wait for each other."""
    waited: list[int] = []
    first = Incident(a_source_waits, lambda s: waited.append(len(kinds(s))))
    then = [] if act is None else [Incident(a_source_waits, act)]
    job = windowing(True, 100, 100, 100, 100, 100)
    s = live(plan(job, PERIODIC, first, *then, parallelism={0: 3, 1: 3}), seed)
    assert len(kinds(s)) > waited[0] + (act is None)


@pytest.mark.parametrize("seed", EACH_SEED[::3])
def test_one_that_has_no_more_and_does_not_say_so_is_not_waited_for_without_end(seed: int) -> None:
    """All input is read before the drain: a sibling that stands still holds no other back for more than a second."""
    waited: list[int] = []
    incident = Incident(a_source_waits, lambda s: waited.append(s.world.now))
    s = live(plan(windowing(False, 1, 60), PERIODIC, incident, parallelism={0: 2, 1: 2}), seed)
    assert waited
    assert CheckpointKind.DRAIN in kinds(s)


def test_a_wait_for_a_slower_source_without_a_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the input would never be read."""
    monkeypatch.setattr(poll_policy, "MAX_STALLED_SIBLING_MS", 10**9)
    monkeypatch.setattr(simulation, "STEP_LIMIT", 8_000)
    with pytest.raises(Violation, match="liveness"):
        live(plan(windowing(False, 1, 60), PERIODIC, parallelism={0: 2, 1: 2}), 0)


# ---------------------------------------------------------------- splits in list state


def windowed_lists() -> Job:
    """Splits at very different times, kept in list state, a step, a window that asserts that no row is late."""
    job, early, late = Job(), rows(30), tuple((key, time + 500) for key, time in rows(30))
    laid_out = [Split(f"s.{n}", late if n % 2 else early) for n in range(6)]
    read = job.add_source(0, False, laid_out, lists_splits=True)
    passed = job.add("map", 0, [(read, FORWARD)])
    fired = job.add("window", 1, [(passed, HASH)])
    job.add("sink", 1, [(fired, FORWARD)])
    return job


@pytest.mark.parametrize("parallelism", [{0: 2, 1: 2}, {0: 3, 1: 1}])
def test_no_row_of_a_split_in_list_state_is_late_after_a_crash(parallelism: dict[int, int]) -> None:
    """S0-56: at the same parallelism a split stays where it is."""
    for seed in SEEDS[:3]:
        crash = Incident(recorded(CheckpointKind.CHECKPOINT, 2), lambda s: s.crash_slot(0))
        live(plan(windowed_lists(), PERIODIC, crash, parallelism=parallelism), seed)


def test_no_row_of_a_split_in_list_state_is_late_after_a_rescale() -> None:
    """S0-55, S0-56: the source and all that it feeds begin at the event time of the split that is furthest behind."""
    for seed in SEEDS[:3]:
        stop = Incident(recorded(CheckpointKind.CHECKPOINT, 2), ask(CheckpointKind.STOP))
        live(plan(windowed_lists(), PERIODIC, stop, parallelism={0: 2, 1: 2}), seed)


# ---------------------------------------------------------------- two streams joined in event time


def pairing(kind: str = "pairs") -> Job:
    """Two streams that are joined by time, windows that assert that no pair is late, a sink."""
    job = Job()
    first = job.add_source(0, True, splits("s", 20, 15))
    second = job.add_source(1, False, splits("t", 12, 0, 25))
    paired = job.add(kind, 2, [(first, HASH), (second, HASH)])
    windows = job.add("window", 3, [(paired, HASH)])
    job.add("sink", 3, [(windows, FORWARD)])
    return job


def after_a_checkpoint(act: Callable[[Simulation], None], kind: str = "pairs") -> SimulationPlan:
    return plan(pairing(kind), PERIODIC, Incident(recorded(CHECKPOINT), act), parallelism={0: 2, 1: 2, 2: 3, 3: 2})


@pytest.mark.parametrize("kind", STREAM_JOINS)
@pytest.mark.parametrize("act", [lambda s: s.crash_slot(0), ask(CheckpointKind.STOP)])
def test_a_join_of_two_streams_is_exact(act: Callable[[Simulation], None], kind: str) -> None:
    """S0-32, S1-02: barriers meet at its two inputs; the rows that it keeps are restored, also after a rescale."""
    live(after_a_checkpoint(act, kind), 0)


def test_a_join_that_loses_its_kept_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntervalJoin, "snapshot", lambda join, checkpoint: None)
    with pytest.raises(Violation, match="rows, such as"):
        live(after_a_checkpoint(lambda s: s.crash_slot(0)), 0)


# ---------------------------------------------------------------- restart strategies


def crashes(count: int, when: When = running, behind: int = 0) -> Incident:
    """A slot of each of the next attempts, whose tokens are above `behind`, crashes as soon as `when` holds."""

    def crash(s: Simulation) -> None:
        token = s.master.token or 0
        s.crash_slot(0)
        if count > 1:
            s.incidents.append(crashes(count - 1, when, token))

    return Incident(lambda s: when(s) and (s.master.token or 0) > behind, crash)


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_run_without_restarts_fails_at_the_first_crash_and_loses_nothing(seed: int) -> None:
    s = live(plan(counting(bounded=True), PERIODIC, crashes(1), restart=NoRestart()), seed)
    assert s.endings == [RunEnding.FAILED, RunEnding.FINISHED]


@pytest.mark.parametrize("seed", EACH_SEED)
def test_a_run_fails_behind_its_last_restart(seed: int) -> None:
    job, strategy = counting(bounded=True), FixedDelay(attempts=2, delay_ms=20)
    s = live(plan(job, NONE, crashes(3), restart=strategy), seed)
    assert s.endings[0] is RunEnding.FAILED
    s = live(plan(job, NONE, crashes(2), restart=strategy), seed)
    assert RunEnding.FAILED not in s.endings


def test_a_checkpoint_gives_all_restarts_back() -> None:
    """Crashes behind a checkpoint of their attempt never end a run."""

    def has_completed(s: Simulation) -> bool:
        return s.master.token is not None and s.world.ledger.completed_by_attempt[s.master.token] > 0

    job, strategy = counting(bounded=True), FixedDelay(attempts=1, delay_ms=20)
    s = live(plan(job, PERIODIC, crashes(4, has_completed), restart=strategy), 0)
    assert RunEnding.FAILED not in s.endings


def test_restarts_without_a_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Failover.decide
    monkeypatch.setattr(
        Failover, "decide", lambda it, failed, *args: decide(it, replace(failed, has_progressed=True), *args)
    )
    strategy = FixedDelay(attempts=1, delay_ms=20)
    with pytest.raises(Violation, match="restarts-within-the-limit"):
        live(plan(counting(bounded=True), NONE, crashes(3), restart=strategy), 0)
