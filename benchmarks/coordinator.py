"""The cost of the checkpoint coordinator per subtask: `python -m benchmarks.coordinator`.

It drives the real state machine of `runtime.core` through whole checkpoints; acknowledgements arrive in shuffled order.
No connection and no storage is involved. README.md explains the figures.
"""

import argparse
import gc
import json
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, NoReturn

from tqdm import tqdm

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.checkpoint.effects import StoreManifest
from runtime.core.checkpoint.events import CheckpointRequested, IdIssued, JobStarted, ManifestRecorded, SubtaskReported
from runtime.core.job.graph import EdgeSpec, JobGraph, OperatorSpec, Partitioning, Role
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.control import Acknowledgement
from runtime.core.snapshot.manifest import Segment, SnapshotTimings, SubtaskSnapshot

RESULT: Final = Path("var/bench/coordinator.json")
SUBTASK_COUNTS: Final = (100, 1_000, 10_000)
ROLES: Final = {"source": Role.SOURCE, "map": Role.OPERATOR, "count": Role.OPERATOR, "sink": Role.SINK}
ACKS_PER_SIZE: Final = 200_000  #: acknowledgements in total, per size
MIN_CHECKPOINTS: Final = 5  #: minimum number of checkpoints per size
SETTINGS: Final = CoordinatorSettings(interval_ms=None, timeout_ms=600_000, min_pause_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCost:
    """Medians over checkpoints. Times are processor time in microseconds, so that other load does not count."""

    subtasks: int
    checkpoints: int
    ack_us: float  #: per acknowledgement; the last one builds the manifest, which counts for all
    checkpoint_us_per_subtask: float  #: a whole checkpoint: request, id, triggers, acknowledgements, record, notices
    bytes_per_subtask: float  #: held before the last acknowledgement of a checkpoint, snapshots included

    @property
    def acks_per_second(self) -> float:
        return 1e6 / self.ack_us


def graph_of(subtasks: int) -> JobGraph:
    """A chain of four operators with forward edges."""
    parallelism = subtasks // len(ROLES)
    operators = [
        OperatorSpec(uid=OperatorId(uid), name=uid, role=role, parallelism=parallelism) for uid, role in ROLES.items()
    ]
    edges = [
        EdgeSpec(source=one.uid, target=other.uid, input=0, partitioning=Partitioning.FORWARD)
        for one, other in pairwise(operators)
    ]
    return JobGraph(tuple(operators), tuple(edges), max(128, parallelism))


def snapshot_of(checkpoint: int, subtask: SubtaskId) -> SubtaskSnapshot:
    """A snapshot of a single keyed state: a base file and two deltas."""
    path = f"chk-{checkpoint}-1/{subtask.operator}-{subtask.index}/state-%06d.arrow"
    segments = tuple(
        Segment(path=path % number, rows=10, nbytes=900, checksum="blake2b:00", first_group=0, last_group=9)
        for number in range(3)
    )
    return SubtaskSnapshot(watermark=checkpoint, keyed={"state": segments})


class DrivenCoordinator:
    """A coordinator, and the acknowledgements of its subtasks."""

    def __init__(self, subtasks: int) -> None:
        self.graph = graph_of(subtasks)
        self.coordinator = Coordinator("job", Token(1), self.graph, SETTINGS)
        self.coordinator.handle(JobStarted(0))
        self.order = list(self.graph.subtasks)
        Random(subtasks).shuffle(self.order)  # noqa: S311  (not used for secrets)
        self.checkpoint = 0

    def trigger(self) -> None:
        self.checkpoint += 1
        at = 1_000 * self.checkpoint
        self.coordinator.handle(CheckpointRequested(at, CheckpointKind.CHECKPOINT, f"operation-{self.checkpoint}"))
        self.coordinator.handle(IdIssued(at, CheckpointId(self.checkpoint)))

    def answers(self) -> list[SubtaskReported]:
        number, at, timings = CheckpointId(self.checkpoint), 1_000 * self.checkpoint, SnapshotTimings()
        return [SubtaskReported(at, s, Acknowledgement(number, snapshot_of(number, s), timings)) for s in self.order]

    def record(self) -> None:
        self.coordinator.handle(ManifestRecorded(1_000 * self.checkpoint + 1, CheckpointId(self.checkpoint)))


def time_checkpoint(driven: DrivenCoordinator) -> tuple[float, float]:
    """Processor seconds for all acknowledgements of a checkpoint, and for the whole checkpoint."""
    began = time.process_time()
    driven.trigger()
    triggered = time.process_time() - began
    answers = driven.answers()
    gc.collect()
    began = time.process_time()
    for answer in answers:
        effects = driven.coordinator.handle(answer)
    acknowledged = time.process_time() - began
    assert isinstance(effects[-1], StoreManifest), "the last acknowledgement completes it"
    began = time.process_time()
    driven.record()
    return acknowledged, triggered + acknowledged + time.process_time() - began


def held_bytes(subtasks: int) -> int:
    """Bytes that the coordinator holds before the last acknowledgement of a checkpoint."""
    gc.collect()
    tracemalloc.start()
    driven = DrivenCoordinator(subtasks)
    driven.trigger()
    for answer in driven.answers()[:-1]:
        driven.coordinator.handle(answer)
    del answer
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held


def measure(subtasks: int, acks: int, bar: "tqdm[NoReturn]") -> CoordinatorCost:
    driven = DrivenCoordinator(subtasks)
    time_checkpoint(driven)  # warm-up: caches are not part of the cost of an acknowledgement
    checkpoints = max(MIN_CHECKPOINTS, acks // subtasks)
    times = []
    for _ in range(checkpoints):
        times.append(time_checkpoint(driven))
        bar.update(subtasks)
    return CoordinatorCost(
        subtasks=subtasks,
        checkpoints=checkpoints,
        ack_us=1e6 * statistics.median(acknowledged for acknowledged, _ in times) / subtasks,
        checkpoint_us_per_subtask=1e6 * statistics.median(whole for _, whole in times) / subtasks,
        bytes_per_subtask=held_bytes(subtasks) / subtasks,
    )


def measure_all(acks: int) -> list[CoordinatorCost]:
    total = sum(subtasks * max(MIN_CHECKPOINTS, acks // subtasks) for subtasks in SUBTASK_COUNTS)
    with tqdm(total=total, unit="ack", unit_scale=True, disable=None) as bar:
        return [measure(subtasks, acks, bar) for subtasks in SUBTASK_COUNTS]


def growth(costs: list[CoordinatorCost]) -> float:
    """The cost of an acknowledgement with the most subtasks, relative to the fewest."""
    return costs[-1].ack_us / costs[0].ack_us


def report(costs: list[CoordinatorCost]) -> str:
    lines = [f"{'subtasks':>9} {'acks/s':>12} {'µs per ack':>11} {'µs per subtask':>15} {'bytes per subtask':>18}"]
    lines += [
        f"{cost.subtasks:9,} {cost.acks_per_second:12,.0f} {cost.ack_us:11.2f} {cost.checkpoint_us_per_subtask:15.2f}"
        f" {cost.bytes_per_subtask:18,.0f}"
        for cost in costs
    ]
    few, many = costs[0].subtasks, costs[-1].subtasks
    return "\n".join([*lines, f"cost per ack, {many:,} subtasks to {few:,}: {growth(costs):.2f}"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coordinator", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--acks", type=int, default=ACKS_PER_SIZE, help="acknowledgements to handle, per number of subtasks"
    )
    parser.add_argument("--result", type=Path, default=RESULT, help="JSON file for the results")
    chosen = parser.parse_args(arguments)
    costs = measure_all(chosen.acks)
    sys.stdout.write(f"{report(costs)}\n")
    rows = [asdict(cost) | {"acks_per_second": cost.acks_per_second} for cost in costs]
    chosen.result.parent.mkdir(parents=True, exist_ok=True)
    chosen.result.write_text(json.dumps({"sizes": rows, "growth": growth(costs)}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
