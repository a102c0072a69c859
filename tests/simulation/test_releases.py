"""Who is released by which checkpoint, what each channel carries of it, and a loss that luck would hide."""

from collections import defaultdict

import pytest

from runtime.core.job.ids import ChannelId, CheckpointId, SubtaskId
from runtime.core.job.messages import Barrier, EndOfPartition, Message
from runtime.core.snapshot.manifest import FinishedState
from runtime.core.subtask.events import CheckpointCompleted
from runtime.simulation.invariants import ChannelChecker, Violation
from runtime.simulation.jobs import Job
from runtime.simulation.model import BatchingOperator, Rows
from runtime.simulation.simulation import Incident, Simulation
from tests.simulation.test_planted import emit_behind_the_barrier
from tests.simulation.test_scenarios import FORWARD, HASH, PERIODIC, REBALANCE, counting, plan, splits

SEEDS = range(3)


def figure_six() -> tuple[Job, list[str], str]:
    """Source C ends early, source A late; D reads C alone, E reads both. Names of C and D, of E."""
    job = Job()
    late = job.add_source(0, True, splits("a", 60, 50))
    early = job.add_source(1, True, splits("c", 3, 2))
    alone = job.add("count", 1, [(early, FORWARD)])
    both = job.add("union", 2, [(late, REBALANCE), (early, HASH)])
    counted = job.add("count", 2, [(both, HASH)])
    job.add("sink", 1, [(alone, FORWARD)])
    job.add("sink", 2, [(counted, FORWARD)])
    return job, [early, alone], both


class Observed(Simulation):
    """Notes with which checkpoint each subtask ended."""

    released: dict[SubtaskId, CheckpointId]

    def step(self) -> None:
        super().step()
        self.released = getattr(self, "released", {})
        driver = self.master.driver
        for host in driver.attempt.order if driver is not None else ():
            if host.task.machine.ended and host.subtask not in self.released:
                told = [e.permit.checkpoint for e in host.task.machine.event_log if isinstance(e, CheckpointCompleted)]
                self.released[host.subtask] = told[-1]

    def of(self, uid: str) -> set[CheckpointId]:
        return {checkpoint for subtask, checkpoint in self.released.items() if subtask.operator == uid}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_branch_ends_with_one_checkpoint_and_what_reads_two_branches_with_a_later_one(seed: int) -> None:
    """S0-81, S0-82: the barrier follows EndOfData on the channel, so C and D are done in the same checkpoint."""
    job, branch, both = figure_six()
    chosen = plan(job, PERIODIC, faults={}, restores_again=False, parallelism={0: 2, 1: 1, 2: 2})
    s = Observed(seed, chosen)
    s.run()
    early = {checkpoint for uid in branch for checkpoint in s.of(uid)}
    assert len(early) == 1, "source and reader, released by the same checkpoint"
    assert min(s.of(both)) > max(early)
    manifest = s.world.ledger.recorded[min(early)]
    assert [manifest.operators[uid].finished for uid in branch] == [FinishedState.FINISHED] * 2
    assert manifest.operators[both].finished is FinishedState.RUNNING


# ---------------------------------------------------------------- barriers on channels


@pytest.mark.parametrize("seed", SEEDS)
def test_every_channel_carries_the_barrier_of_every_completed_checkpoint_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3-47: each barrier carries the id of its snapshot, and it is the same on all channels."""
    carried: dict[ChannelId, list[int]] = defaultdict(list)
    ended: dict[ChannelId, int] = {}
    sent = ChannelChecker.check_message

    def noting(watch: ChannelChecker, message: Message) -> None:
        sent(watch, message)
        if isinstance(message, Barrier):
            carried[watch.channel].append(message.checkpoint)
        if isinstance(message, EndOfPartition):
            ended[watch.channel] = max(carried[watch.channel], default=0)

    monkeypatch.setattr(ChannelChecker, "check_message", noting)
    s = Simulation(
        seed, plan(counting(bounded=True), PERIODIC, faults={}, restores_again=False, parallelism={0: 2, 1: 3})
    )
    s.run()
    completed = sorted(s.world.ledger.recorded)
    assert len(completed) >= 2
    assert set(carried) == set(s.master.graph.channels())
    for channel, numbers in carried.items():
        due = [checkpoint for checkpoint in completed if checkpoint <= ended.get(channel, checkpoint)]
        assert [number for number in numbers if number in completed] == due
        assert len(set(numbers)) == len(numbers)


# ---------------------------------------------------------------- a loss that is rare


def planted(seed: int, patch: pytest.MonkeyPatch, crash: bool) -> Simulation:
    """Where a step sends behind a barrier what belongs before it, and may crash once that checkpoint is complete."""
    behind: set[int] = set()  # checkpoints behind whose barrier rows were sent
    emit_behind_the_barrier(patch)
    prepare = BatchingOperator.prepare

    def noting(operator: BatchingOperator, checkpoint: int) -> Rows:
        rows = prepare(operator, checkpoint)
        behind.update([checkpoint] if rows else [])
        return rows

    patch.setattr(BatchingOperator, "prepare", noting)
    window = Incident(lambda s: max(s.world.ledger.recorded, default=0) in behind, lambda s: s.crash_master())
    job = Job()
    passed = job.add("batching", 0, [(job.add_source(0, True, splits("s", 60, 40, 50)), FORWARD)])
    job.add("sink", 1, [(job.add("count", 1, [(passed, HASH)]), FORWARD)])
    chosen = plan(job, PERIODIC, *([window] if crash else []), faults={}, restores_again=False)
    s = Simulation(seed, chosen)
    s.run()
    assert not crash, "there was no such window"
    return s


@pytest.mark.parametrize("seed", range(1, 4))
def test_what_is_sent_behind_the_barrier_is_lost_by_a_crash_in_that_window_and_only_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3-59, S3-62: without the crash nobody would notice; with it every seed does."""
    with monkeypatch.context() as patch:
        planted(seed, patch, crash=False)
    with monkeypatch.context() as patch, pytest.raises(Violation, match="nothing-lost"):
        planted(seed, patch, crash=True)
