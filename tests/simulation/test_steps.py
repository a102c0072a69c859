"""A crash at each step of a checkpoint and of a commit: a small job's steps are enumerated, and each is hit once."""

import pytest

from runtime.core.job.messages import CheckpointKind
from runtime.simulation.simulation import Incident, Simulation, SimulationPlan
from tests.simulation.test_scenarios import NONE, PERIODIC, ask, counting, live, plan, running

SEED = 6
LANES = {0: 2, 1: 2}
Victim = str
#: The simulator's seeds crash any of them at any step; here the first two do so in each run of the tests.
VICTIMS = ["slot 0", "master", *(pytest.param(one, marks=pytest.mark.slow) for one in ("slot 1", "zombie master"))]
#: In each run of the tests, the two take turns at the steps of a checkpoint, and at half of those of other kinds.
#: In the slow suite each crashes after each step.
SHARES = {"slot 0": 0, "master": 1}


def share(kind: CheckpointKind, victim: Victim) -> slice:
    turns = 2 if kind is CheckpointKind.CHECKPOINT else 4
    return slice(SHARES[victim], None, turns) if victim in SHARES else slice(None)


def world_of(kind: CheckpointKind, *crash: Incident) -> SimulationPlan:
    """A job in which one checkpoint of `kind` is taken, and those that its end needs."""
    asked = [] if kind is CheckpointKind.CHECKPOINT else [Incident(running, ask(kind))]
    settings = PERIODIC if kind is CheckpointKind.CHECKPOINT else NONE
    bounded = kind is CheckpointKind.CHECKPOINT
    return plan(counting(bounded), settings, *crash, *asked, parallelism=dict(LANES), restores_again=False)


def steps_of(kind: CheckpointKind) -> list[int]:
    """The first step at which each kind of thing happens, between the first id and the end of the run."""
    simulation = live(world_of(kind), SEED)
    assert simulation.world.journal_lines == len(simulation.world.journal), "the journal holds all of it"
    first: dict[tuple[str, ...], int] = {}
    begun = False
    for entry in simulation.world.journal:
        begun = begun or type(entry.content).__name__ == "IdIssued"
        if begun:
            said = type(getattr(entry.content, "message", entry.content)).__name__
            first.setdefault((entry.origin.split(":")[-1], said), entry.step)
    return sorted(set(first.values()))


def crash(simulation: Simulation, victim: Victim) -> None:
    if victim.startswith("slot"):
        simulation.crash_slot(int(victim[-1]))
    else:
        simulation.crash_master(zombie=victim.startswith("zombie"))


def test_the_steps_of_a_checkpoint_are_enumerated() -> None:
    """Trigger, barriers, state files, answers, the record, the notice and the commit are among them."""
    simulation = live(world_of(CheckpointKind.CHECKPOINT), SEED)
    said = {type(getattr(entry.content, "message", entry.content)).__name__ for entry in simulation.world.journal}
    checkpoint = {"IdIssued", "Triggered", "Barrier", "ReportReceived", "ManifestRecorded"}
    assert checkpoint | {"CheckpointCompleted", "EndOfPartition"} <= said
    assert any(str(entry.content).startswith("Acknowledgement of") for entry in simulation.world.journal)
    assert len(steps_of(CheckpointKind.CHECKPOINT)) > 30


@pytest.mark.parametrize("after", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("kind", list(CheckpointKind))
def test_a_crash_at_each_step_of_a_checkpoint(kind: CheckpointKind, victim: Victim, after: int) -> None:
    """S0-32, S0-85: just before a step, or just after it; the output stays exact and the job ends."""
    for moment in steps_of(kind) if after else steps_of(kind)[share(kind, victim)]:
        at = Incident(lambda s, at=moment + after: s.world.steps == at, lambda s: crash(s, victim))  # type: ignore[misc]
        live(world_of(kind, at), SEED)


def test_a_crash_in_the_middle_of_each_commit() -> None:
    """S1-49: some files of a checkpoint are visible and some are not; whoever restores it commits the rest."""
    files = len(live(world_of(CheckpointKind.CHECKPOINT), SEED).world.target.committed)
    assert files > 3
    for done in range(files):
        reached = Incident(
            lambda s, done=done: len(s.world.target.committed) == done,  # type: ignore[misc]
            lambda s: s.world.faults.scripted_names.append("fail_commit"),
        )
        simulation = live(world_of(CheckpointKind.CHECKPOINT, reached), SEED)
        assert simulation.world.faults.occurrences["fail_commit"] == 1
