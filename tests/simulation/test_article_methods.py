"""The micro-batches of seed 003 in the simulator: virtual keys and a buffer without a clock break, ours hold.

The third method, emptying in the snapshot, is `test_releases`.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from runtime.core.job.graph import Partitioning
from runtime.core.job.messages import CheckpointKind
from runtime.ports import OperatorContext
from runtime.simulation import jobs
from runtime.simulation.invariants import Violation
from runtime.simulation.jobs import Job
from runtime.simulation.master import RunEnding
from runtime.simulation.model import KeyedNumbers, ModelOperator, PoolingOperator, Rows, group_of
from runtime.simulation.simulation import Incident, Simulation
from runtime.state.object_table import ObjectTable
from tests.simulation.test_scenarios import FORWARD, HASH, PERIODIC, ask, plan, running, splits

SEEDS = range(12)
MAX_ROWS = 5


class Batches(ModelOperator):
    """Keeps rows under the group of their key, and forwards `MAX_ROWS` of them together, in the order of time."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.table: ObjectTable = context.state.object_table("rows")

    def process(self, input: int, rows: Rows) -> Rows:
        for key, time in rows:
            self._keep(key, time)
        return self._due()

    def end_input(self, input: int) -> Rows:
        super().end_input(input)
        return self._take(self.context.key_groups)

    def _keep(self, key: str, time: int) -> None:
        self._put(group_of(key), key, time)

    def _put(self, group: int, key: str, time: int) -> None:
        self.table.put((group, msgspec.msgpack.encode((key, time)), None), True)

    def _due(self) -> Rows:
        return self._take(self.context.key_groups) if len(self.table) >= MAX_ROWS else []

    def _take(self, groups: Sequence[int]) -> Rows:
        entries = [entry for entry, _ in self.table.items() if entry[0] in groups]
        for entry in entries:
            self.table.delete(entry)
        rows = [msgspec.msgpack.decode(name, type=tuple[str, int]) for _, name, _ in entries]
        return sorted(rows, key=lambda row: row[1])


class VirtualBatches(Batches):
    """Keeps rows under the group of a virtual key of its subtask. Each virtual key has a batch of its own."""

    def _keep(self, key: str, time: int) -> None:
        self._put(self.context.key_groups[0], key, time)

    def _due(self) -> Rows:
        mine = self.context.key_groups[0]
        waiting = sum(group == mine for (group, _, _), _ in self.table.items())
        return self._take([mine]) if waiting >= MAX_ROWS else []


class StuckBatches(PoolingOperator):
    """Each subtask picks its own rows from a union list.

    Rows leave only when a row comes: there is no clock, and no output at a restore.
    """

    def end_input(self, input: int) -> Rows:
        ModelOperator.end_input(self, input)
        return []

    def settle(self) -> Rows:
        return []


class Ordered(ModelOperator):
    """Asserts that the times of a key rise."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.next_times = KeyedNumbers(context.state.object_table("next_times"))

    def process(self, input: int, rows: Rows) -> Rows:
        for key, time in rows:
            assert time >= self.next_times.get(key), f"row {time} of key {key} was overtaken"
            self.next_times.put(key, time + 1)
        return rows


def ordered(kind: str, partitioning: Partitioning) -> Job:
    """A source of one split, micro-batches, a check of the order by key, a sink."""
    job = Job()
    read = job.add_source(0, False, splits("s", 60))
    batches = job.add(kind, 1, [(read, HASH)])
    if partitioning is not HASH:
        job.edges = [replace(e, partitioning=partitioning) if e.target == batches else e for e in job.edges]
    checked = job.add("ordered", 2, [(batches, HASH)])
    job.add("sink", 2, [(checked, FORWARD)])
    return job


def simulate_stops(kind: str, partitioning: Partitioning, seed: int) -> None:
    """Two stops, each followed by a restore at another parallelism."""
    stops = [
        Incident(lambda s, n=n: running(s) and len(s.endings) == n, ask(CheckpointKind.STOP))  # type: ignore[misc]
        for n in range(2)
    ]
    job = ordered(kind, partitioning)
    s = Simulation(seed, plan(job, PERIODIC, *stops, faults={}, restores_again=False, parallelism={1: 1 + seed % 3}))
    s.run()
    assert s.endings == [RunEnding.STOPPED] * 2 + [RunEnding.FINISHED]


@pytest.fixture(autouse=True)
def operators(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"batches": Batches, "virtual": VirtualBatches, "stuck": StuckBatches, "ordered": Ordered}
    for kind, operator in kinds.items():
        monkeypatch.setitem(jobs.PLAIN_OPERATORS, kind, operator)


def broken(kind: str, partitioning: Partitioning, match: str) -> int:
    """The number of seeds in which the law is violated."""
    errors = []
    for seed in SEEDS:
        try:
            simulate_stops(kind, partitioning, seed)
        except (Violation, AssertionError) as error:
            errors.append(str(error))
    assert [error for error in errors if match not in error] == []
    return len(errors)


def test_virtual_keys_break_the_order_of_a_key_at_a_rescale() -> None:
    """S3-18: buffered rows follow the virtual key, new rows of the same keys another."""
    assert broken("virtual", Partitioning.CUSTOM, "was overtaken") > 0


def test_a_buffer_without_a_clock_keeps_its_rows_for_ever() -> None:
    """S3-37: nothing comes behind them."""
    assert broken("stuck", HASH, "nothing-lost") > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_wait_under_their_own_key_keep_its_order(seed: int) -> None:
    """S3-25, S3-39."""
    simulate_stops("batches", HASH, seed)
