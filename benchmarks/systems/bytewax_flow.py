"""The flow that `systems.bytewax` runs. Bytewax requires keys that are strings."""

import os
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from benchmarks.protocol import Task

ITEMS_PER_BATCH = 1_000
MULTIPLIER = 2_654_435_761


class Numbers(StatefulSourcePartition[Any, int]):
    """A partition of the sequence: every `step`-th number from `first` on."""

    def __init__(self, first: int, step: int, rows: int, keys: int) -> None:
        self._next, self._step, self._rows, self._keys = first, step, rows, keys

    def next_batch(self) -> list[tuple[str, int]]:
        if self._next >= self._rows:
            raise StopIteration
        ids = range(self._next, self._rows, self._step)[:ITEMS_PER_BATCH]
        self._next = ids[-1] + self._step
        return [(str(number * MULTIPLIER % self._keys), number) for number in ids]

    def snapshot(self) -> int:
        return self._next


class NumberSource(FixedPartitionedSource[Any, int]):
    def __init__(self, task: Task, rows: int, began: str) -> None:
        self._task, self._rows, self._began = task, rows, began

    def list_parts(self) -> list[str]:
        return [str(part) for part in range(self._task.parallelism)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Numbers:
        Path(f"{self._began}-{for_part}").write_text(str(time.time()))
        first = int(for_part) if resume_state is None else resume_state
        return Numbers(first, self._task.parallelism, self._rows, self._task.keys)


class Discard(StatelessSinkPartition[Any]):
    def write_batch(self, items: list[Any]) -> None:
        """Drops the items."""


class Lines(StatelessSinkPartition[Any]):
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    def write_batch(self, items: list[Any]) -> None:
        self._file.writelines(f"{key},{total}\n" for key, total in items)

    def close(self) -> None:
        self._file.close()


class Output(DynamicSink[Any]):
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return Discard() if self._folder is None else Lines(self._folder / f"{worker_index}.csv")


def running_total(before: int | None, number: int) -> tuple[int, int]:
    total = (before or 0) + number
    return total, total


def make(task: Task, rows: int, phase: str, began: str) -> Dataflow:
    flow = Dataflow("totals")
    numbers = op.input("numbers", flow, NumberSource(task, rows, began))
    totals = op.stateful_map("total", numbers, running_total)
    op.output("out", totals, Output(task.output if phase == "check" else None))
    return flow


if "BENCH_TASK" in os.environ:
    import json

    flow = make(
        Task(**json.loads(os.environ["BENCH_TASK"])),
        int(os.environ["BENCH_ROWS"]),
        os.environ["BENCH_PHASE"],
        os.environ["BENCH_BEGAN"],
    )
