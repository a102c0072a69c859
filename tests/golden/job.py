"""The job of the golden savepoints: every kind of state in few rows.

Nothing in it may change its state: it stands for jobs that were written when the format was new.
"""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import weir

HALF, WHOLE, SPLITS, KEYS, RULES = 20, 50, 4, 5, 3
AT_THE_END = 10**15
ROWS = pa.schema([("key", pa.int64()), ("name", pa.string()), ("even", pa.bool_()), ("value", pa.int64())])
KEPT = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("seen", pa.int64()), ("newest", pa.string())])
POSITIONS = pa.schema([pa.field("next", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class Steps:
    """Rows 0..total-1 of each split."""

    total: int
    splits: int
    bounded: bool = True
    guarantee = "exactly-once"

    def reader(self) -> "StepsReader":
        return StepsReader(self)

    def check(self) -> None:
        return None


class StepsReader(weir.spi.SourceReader):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._table = context.state.keyed_table("positions", pa.schema([("split", pa.string())]), POSITIONS)
        names = pa.array([f"split {number}" for number in range(self._steps.splits)])
        groups = weir.spi.key_groups(pa.record_batch({"split": names}), ["split"], context.max_parallelism)
        self._mine = [n for n, group in enumerate(groups) if int(group) in context.key_groups]
        self._slots = self._table.upsert([names.take(self._mine)]) if self._mine else []

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        column = self._table.column("next")
        for split, slot in zip(self._mine, self._slots, strict=True):
            start = int(column[slot])
            if start < self._steps.total:
                column[slot] = start + 1
                self._table.touch(self._slots[self._mine.index(split)][None])
                return pa.RecordBatch.from_pylist([row(split, start)], ROWS)
        return None

    @property
    def exhausted(self) -> bool:
        column = self._table.column("next")
        return self._steps.bounded and all(int(column[slot]) >= self._steps.total for slot in self._slots)


def row(split: int, value: int) -> dict[str, Any]:
    key = (value * 3 + split) % KEYS
    return {"key": key, "name": f"key {key}", "even": value % 2 == 0, "value": value}


@dataclass
class Tally:
    """Makes functions that keep lists and rules, and notes with what each was opened."""

    opened: list[tuple[list[int], list[str], dict[str, int]]] = field(default_factory=list)

    def __call__(self) -> "TallyFunction":
        return TallyFunction(self)


class TallyFunction(weir.BroadcastProcessFunction):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def open(self, context: weir.SubtaskContext) -> None:
        self._index, self._rules = context.index, context.broadcast_map("rules")
        self._seen, self._parts = context.list_state("seen"), context.union_list_state("parts")
        self._rows = sum(self._seen.get())
        self._tally.opened.append((self._seen.get(), self._parts.get(), dict(self._rules.items())))

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._rows += 1
        out.emit(row)

    def process_broadcast(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._rules[row["name"]] = row["value"]

    def snapshot(self, checkpoint: int) -> None:
        self._seen.replace([self._rows])
        self._parts.replace([f"part {self._index}"])


class Kept(weir.KeyedProcessFunction):
    """Tells at the end of time what it has kept of a key."""

    def open(self, context: weir.ProcessContext) -> None:
        self._n = context.value_state("n")
        self._seen = context.map_state("seen")
        self._names = context.list_state("names")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._n.update(self._n.get(0) + 1)
        self._seen[row["value"]] = row["even"]
        self._names.add(row["name"])
        context.register_event_timer(AT_THE_END)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        names = list(self._names.get())
        out.emit({"key": context.current_key, "n": self._n.get(), "seen": len(self._seen), "newest": names[-1]})


def job(numbers: Steps, tally: Tally, counted: weir.spi.Sink, process_sink: weir.spi.Sink) -> weir.Dataflow:
    flow = weir.Dataflow("golden")
    rules = flow.source("rules", Steps(RULES, 1), parallelism=1)
    rows = flow.source("numbers", numbers).connect_broadcast("tally", rules, tally, ROWS)
    summed = {
        "n": weir.Count(),
        "even": weir.CountIf("even"),
        "total": weir.Sum("value"),
        "least": weir.Min("value"),
        "most": weir.Max("value"),
        "mean": weir.Mean("value"),
    }
    rows.key_by("key", "name").aggregate("counts", summed).sink("counted", counted)
    rows.key_by("key").process("kept", Kept, KEPT).sink("out", process_sink)
    return flow
