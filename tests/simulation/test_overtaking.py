"""Barriers that overtake rows: exact over crashes and rescales, whatever is in flight."""

from collections.abc import Callable

import pytest

from runtime.simulation.jobs import Job
from runtime.simulation.simulation import Simulation, simulate
from tests.simulation.planted_bugs import asking, batching, disordered, overtaking, pooling

SEEDS = 6


def restored_rows(simulation: Simulation) -> int:
    """How often an attempt replayed rows in flight."""
    bases = [base for base in simulation.world.bases.values() if base is not None]
    snapshots = [[each for entry in base.operators.values() for each in entry.subtasks.values()] for base in bases]
    return sum(any(snapshot.in_flight for snapshot in each) for each in snapshots)


@pytest.mark.parametrize("job", [asking, batching, disordered, pooling])
def test_a_job_is_exact_while_barriers_overtake_rows(job: Callable[[], Job]) -> None:
    """S4-48: each failure ends a run, and the next one has another parallelism."""
    world = overtaking(job)
    assert sum(restored_rows(simulate(seed, world())) for seed in range(SEEDS)) >= SEEDS
