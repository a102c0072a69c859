"""Small real jobs for the tests of hosts: a numbered source that can be held open, keyed counts, Parquet out."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import weir
from runtime.ports import NumberedRows

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])


@dataclass(frozen=True)
class Numbers:
    """Records 0..total-1 in each of `splits` splits; splits move with their key groups. Ends when `until` exists.

    Args:
        unbounded: it waits for more at its end.
        slow_until: a file; until it exists each subtask gives about a hundred batches a second. "" means full speed.
        hurry: so many times as large is a batch while it is not slow.
        polls_per_row: if set, each subtask gives a single row in so many polls until `slow_until` exists.
        fast_rows: rows of each split before `polls_per_row` applies.
    """

    total: int
    splits: int = 4
    batch: int = 100
    keys: int = 7
    unbounded: bool = False
    slow_until: str = ""
    hurry: int = 1
    polls_per_row: int = 0
    fast_rows: int = 0
    guarantee = "exactly-once"

    @property
    def bounded(self) -> bool:
        return not self.unbounded

    def reader(self) -> "NumbersReader":
        return NumbersReader(self)

    def check(self) -> None:
        return None


class NumbersReader(weir.spi.SourceReader):
    def __init__(self, source: Numbers) -> None:
        self._source = source

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._table = context.state.keyed_table(
            "positions",
            pa.schema([("split", pa.int64())]),
            pa.schema([pa.field("next", pa.int64(), nullable=False)]),
        )
        splits = pa.array(range(self._source.splits), pa.int64())
        groups = weir.spi.key_groups(pa.record_batch({"split": splits}), ["split"], context.max_parallelism)
        numbers = [s for s, group in enumerate(groups) if int(group) in context.key_groups]
        self._mine = numbers
        self._turn = self._polls = 0
        self._numbered = NumberedRows("", np.empty(0, np.int64))
        self._slots = self._table.upsert([pa.array(numbers, pa.int64())]) if numbers else []

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._polls += 1
        slow = bool(self._source.slow_until) and not Path(self._source.slow_until).exists()
        single = slow and self._source.polls_per_row and self._least_position >= self._source.fast_rows
        if slow and self._polls % (self._source.polls_per_row if single else 2):
            return None
        count = 1 if single else self._source.batch * (1 if slow else self._source.hurry)
        for _ in self._mine:
            self._turn = (self._turn + 1) % len(self._mine)
            slot = self._slots[self._turn : self._turn + 1]
            column = self._table.column("next")
            start = int(column[slot][0])
            if start < self._source.total:
                stop = min(start + count, self._source.total)
                column[slot] = stop
                self._table.touch(slot)
                values = range(start, stop)
                self._numbered = NumberedRows(str(self._mine[self._turn]), np.arange(start, stop) + 1)
                keys = [(v * 31 + self._mine[self._turn]) % self._source.keys for v in values]
                return pa.RecordBatch.from_arrays(
                    [pa.array(keys, pa.int64()), pa.array(values, pa.int64())], schema=SCHEMA
                )
        return None

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        return [self._numbered]

    @property
    def exhausted(self) -> bool:
        return not self._source.unbounded and self._least_position >= self._source.total

    @property
    def _least_position(self) -> int:
        column = self._table.column("next")
        return min((int(column[slot]) for slot in self._slots), default=self._source.total)


def counts(
    source: Any, output: Path, trouble: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> weir.Dataflow:
    """Running count and sum by key, every update written; before that `trouble`, a step that may fail."""
    flow = weir.Dataflow("counts")
    numbers = flow.source("numbers", source)
    if trouble is not None:
        numbers = numbers.map_batches("trouble", trouble)
    counted = numbers.key_by("key").aggregate("counts", {"n": weir.Count(), "total": weir.Sum("value")})
    counted.sink("out", weir.ParquetSink(str(output)))
    return flow


def final_counts(output: Path) -> dict[int, tuple[int, int]]:
    """The last update of each key in the committed output; counts only rise, so no update may stand there twice."""
    counts: dict[int, tuple[int, int]] = {}
    rows = committed(output)
    assert len({(row["key"], row["n"]) for row in rows}) == len(rows), "an update was written twice"
    for row in rows:
        if row["key"] not in counts or row["n"] > counts[row["key"]][0]:
            counts[row["key"]] = (row["n"], row["total"])
    return counts


def committed(output: Path) -> Sequence[dict[str, Any]]:
    """The rows of each subtask in the order in which it wrote them, attempts one after another."""
    files = [path for path in sorted(output.glob("*.parquet"), key=_by_number) if path.name[0] not in "._"]
    return [row for path in files for row in _rows_of(path, path.stat().st_mtime_ns)]


@functools.lru_cache(maxsize=10_000)
def _rows_of(path: Path, _changed_ns: int) -> Sequence[dict[str, Any]]:
    """Read once, as a test that waits for output asks for all of it many times a second."""
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
    return rows


def _by_number(path: Path) -> list[str | int]:
    """Checkpoint 9 comes before checkpoint 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


@functools.cache
def expected_counts(source: Numbers) -> dict[int, tuple[int, int]]:
    counts: dict[int, tuple[int, int]] = {}
    for split in range(source.splits):
        for value in range(source.total):
            key = (value * 31 + split) % source.keys
            n, total = counts.get(key, (0, 0))
            counts[key] = (n + 1, total + value)
    return counts
