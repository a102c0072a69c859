"""Keyed operators beside the group-by kernels of Arrow (Acero) and DuckDB, on the same arrays: processor ns per row.

`python -m benchmarks.key_path [CASE ...] [--rounds=N] [--alone]` runs each case in rounds; `=CASE` stands for this case
only, any other word for all cases that begin with it. In each round every system has its turn, on one thread. A table
shows the median of each, and the median over rounds of Weir's time by that of the best peer. `--alone`: without peers.

- *window*: counts and sums per key and second of event time, in batches of 65,536 rows; a second has a million rows.
  Weir runs the pre-aggregation and the window operator, and emits each window in order. Peers group all rows by key
  and second at once. They get the number of the second as a column, and need no state between batches.
- *fold*: the same without time. Weir finds or inserts each key of a batch in its table and folds the row.
- *running*: as *fold*, and the new values of the keys are emitted after each batch. Peers emit the last values only.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from statistics import median
from typing import Final
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.kernels import DrivenSubtasks, write_line
from benchmarks.systems.weir import TOTALS
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.messages import MAX_WATERMARK
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.keyed_stream import KeyedStream
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.slot import process_tuning

ROWS_PER_MS: Final = 1_000
BATCH_ROWS: Final = 65_536
_ROUNDS: Final = 5
_SPREAD: Final = 0x9E3779B97F4A7C15

CASES: Final = {
    "dense-1000": (("dense",), 1_000),
    "dense-100003": (("dense",), 100_003),
    "int64-1000": (("int64",), 1_000),
    "int64-100003": (("int64",), 100_003),
    "int64-1000003": (("int64",), 1_000_003),
    "uuid-1000": (("uuid",), 1_000),
    "uuid-100003": (("uuid",), 100_003),
    "uuid-1000003": (("uuid",), 1_000_003),
    "two-1000": (("uuid", "int64"), 1_000),
    "two-100003": (("uuid", "int64"), 100_003),
}


def key_column(kind: str, numbers: np.ndarray) -> pa.Array:
    """The keys with the given numbers: `dense` integers, `int64` of any spread, or `uuid` as text."""
    if kind == "dense":
        return pa.array(numbers)
    spread = (numbers.astype(np.uint64) * np.uint64(_SPREAD)).view(np.int64)
    if kind == "int64":
        return pa.array(spread)
    distinct = pa.array([str(UUID(int=(n * _SPREAD**2 + n) % 2**128)) for n in range(int(numbers.max()) + 1)])
    return distinct.take(pa.array(numbers))


def table_of(kinds: Sequence[str], keys: int, rows: int) -> pa.Table:
    """Rows with random keys: `key0`, …, `time` (timestamp, in order), `second` (int64), `id`."""
    numbers = np.random.default_rng(keys).integers(0, keys, rows)
    times = np.arange(rows) // ROWS_PER_MS
    columns = {f"key{place}": key_column(kind, numbers) for place, kind in enumerate(kinds)}
    columns["time"] = pa.array(times).view(pa.timestamp("ms"))
    return pa.table({**columns, "second": pa.array(times // 1000), "id": pa.array(np.arange(rows))})


def _keyed_rows(flow: Dataflow, keys: Sequence[str]) -> KeyedStream:
    """A keyed stream of rows that a driver feeds, instead of those of its source."""
    return replace(flow.source("numbers", SequenceSource(rows=1, keys=1)), columns=None).key_by(*keys)


def window(table: pa.Table, keys: Sequence[str]) -> Callable[[], int]:
    """A run of the operators of a window job; returns the number of emitted windows."""
    batches = [(batch, int(batch["time"].view(pa.int64())[-1].as_py()) - 1) for batch in table.to_batches(BATCH_ROWS)]
    batches.append((batches[-1][0].slice(0, 0), MAX_WATERMARK))

    def run() -> int:
        flow = Dataflow("key-path")
        _keyed_rows(flow, keys).window("windows", timedelta(seconds=1), "time", TOTALS).sink("out", DiscardSink())
        driven = DrivenSubtasks(flow.compile(1), 0)
        driven.feed(batches)
        return driven.sink_totals()["rows_out"]

    return run


def running(table: pa.Table, keys: Sequence[str]) -> Callable[[], int]:
    """A run of a running aggregate, which emits the keys of each batch; returns the number of emitted rows."""
    batches = [(batch, 0) for batch in table.to_batches(BATCH_ROWS)]

    def run() -> int:
        flow = Dataflow("key-path")
        _keyed_rows(flow, keys).aggregate("totals", TOTALS).sink("out", DiscardSink())
        driven = DrivenSubtasks(flow.compile(1), 0)
        driven.feed(batches)
        return driven.sink_totals()["rows_out"]

    return run


def fold(table: pa.Table, keys: Sequence[str]) -> Callable[[], int]:
    """A run that finds or inserts each key and folds its row, without time; returns the number of keys."""
    batches = table.to_batches(BATCH_ROWS)

    def run() -> int:
        held = WindowPreAggregator(keys, "time", 1 << 40, TOTALS, max_keys=1 << 21)
        sent = [batch for rows in batches for batch in held.add(rows)]
        return sum(batch.num_rows for batch in [*sent, *held.flush()])

    return run


def acero(table: pa.Table, keys: Sequence[str]) -> Callable[[], int]:
    def run() -> int:
        grouped = pa.TableGroupBy(table, list(keys), use_threads=False)
        return len(grouped.aggregate([([], "count_all"), ("id", "sum")]))

    return run


def duck(table: pa.Table, keys: Sequence[str]) -> Callable[[], int]:
    columns = ", ".join(keys)

    def run() -> int:
        with duckdb.connect() as database:
            database.execute("SET threads = 1")
            database.register("input", table)
            found = database.sql(f"SELECT {columns}, count(*), sum(id)::BIGINT FROM input GROUP BY {columns}")
            return len(found.to_arrow_table())

    return run


MEASURED: Final = {"window": window, "fold": fold, "running": running}
PEERS: Final = {"acero": acero, "duckdb": duck}


def cpu_ns(run: Callable[[], int], rows: int) -> float:
    """Processor time of a run, in ns per row."""
    began = time.process_time_ns()
    run()
    return (time.process_time_ns() - began) / rows


def measure(kind: str, case: str, rounds: int, with_peers: bool) -> dict[str, list[float]]:
    """By system, the ns per row of each round."""
    kinds, count = CASES[case]
    rows = max(4_000_000, 4 * count)
    table = table_of(kinds, count, rows)
    keys = [f"key{place}" for place in range(len(kinds))]
    groups = [*keys, *(["second"] if kind == "window" else [])]
    runs = {"weir": MEASURED[kind](table, keys)}
    if with_peers:
        runs.update({name: make(table, groups) for name, make in PEERS.items()})
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(cpu_ns(run, rows))
    return found


def main() -> None:
    process_tuning.keep_freed_memory()  # as the processes of slots
    wanted = [name for name in sys.argv[1:] if not name.startswith("--")]
    rounds = next((int(name[9:]) for name in sys.argv if name.startswith("--rounds=")), _ROUNDS)
    with_peers = "--alone" not in sys.argv
    for kind in MEASURED:
        for case in CASES:
            name = f"{kind}-{case}"
            if wanted and not any(name == each[1:] or name.startswith(each) for each in wanted):
                continue
            found = measure(kind, case, rounds, with_peers)
            peers = [min(times) for times in zip(*(found[name] for name in found if name != "weir"), strict=True)]
            line = "  ".join(f"{name} {median(times):7.1f}" for name, times in found.items())
            ratios = [mine / best for mine, best in zip(found["weir"], peers, strict=False)]
            write_line(
                f"{kind}-{case:16} {line}  ratio {median(ratios):5.2f}" if ratios else f"{kind}-{case:16} {line}"
            )


if __name__ == "__main__":
    main()
