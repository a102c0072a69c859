"""Counts the hops and files of a job of two slots: `python -m benchmarks.trace [--verbose]`.

The source and the first half of an operator by key run in slot 0, the other half and its exactly-once Parquet sink in
slot 1. The trace follows a row from the source's poll to the committed file, a barrier from its trigger to the
completed checkpoint, and a savepoint from the HTTP request to the answer that shows it. A second job, whose operator
forwards batches, gives the turns. `benchmarks.trace.paths` defines hop, handover and turn.

Real: the job master, its records in Postgres with LISTEN, the control connections (TCP), the channels (Unix sockets),
state, files, and the API behind Django's test client. Unlike in production, slots and master are threads of this
process, without Spark, Celery and the supervisor: a trace needs a total order of calls. A savepoint of a running job
wakes neither Celery nor the supervisor; its master listens to Postgres itself.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path as FilePath
from statistics import median_low
from typing import Any, Final

import structlog

from benchmarks.trace.budget import BARRIER, FORWARDING, MAX_CALLS, MAX_HANDOVERS, MAX_HOPS, ROW, SAVEPOINT
from benchmarks.trace.job import ROUNDS, forward, steer
from benchmarks.trace.paths import Path, Turn, find, steps, turns
from benchmarks.trace.recorder import CHECKPOINTS, VALUES, Event, Function, Kind, Mark, Trace
from benchmarks.trace.table import list_hops, middle, table
from runtime.connectors.sinks.parquet import ParquetWriter
from runtime.connectors.sources.directory import DirectoryReader
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.durable import rename_without_replacing
from runtime.io.postgres.store import PostgresRunStore
from runtime.operators.functions.batch import MapBatches
from runtime.task.task import Task

SLOTS: Final = frozenset({"slot-0", "slot-1"})
NOTES: Final = (
    "Medians of several. Slots and master are threads of one process here, without Spark, Celery",
    "and the supervisor; a savepoint of a running job wakes neither of the last two. Channels, control connections,",
    "Postgres and files are real. `benchmarks/trace/paths.py` says what a hop, a handover and a turn are.",
)


def name_of(function: Callable[..., Any]) -> Function:
    return function.__module__, function.__qualname__


def find_calls(trace: Trace, function: Callable[..., Any], kind: Kind, mark: Mark) -> list[int]:
    """The events of kind `kind` of calls of `function` that carry the mark."""
    name, events = name_of(function), trace.events
    marked = trace.by_mark.get(mark, [])
    return [i for i in marked if events[i].kind is kind and trace.calls[events[i].call].function == name]


def barriers(trace: Trace) -> list[Path]:
    """Paths of checkpoints without output to commit, if the last acknowledgement came from slot 1, past the channel."""
    paths = []
    for checkpoint in CHECKPOINTS[1:]:
        recorded = find_calls(trace, PostgresRunStore.record_checkpoint, Kind.CALL, checkpoint)
        if not recorded:
            break
        decided = find_calls(trace, Coordinator.handle, Kind.CALL, checkpoint)
        completed = next((i for i in decided if i > recorded[0]), None)
        if completed is not None and not find_calls(trace, rename_without_replacing, Kind.CALL, checkpoint):
            paths.append(find(trace, completed, {checkpoint}, trace.events[decided[0]].call))
    return [path for path in paths if path is not None and path.threads >= SLOTS]


def row(trace: Trace) -> Path:
    """The path of a row: through the channel to the sink's writer, and with the next checkpoint into a visible file.

    The second part is taken from any row whose subtask acknowledged last: it is the same on both slots.
    """
    to_writer, to_file = [], []
    for value in VALUES[:ROUNDS]:
        polled = find_calls(trace, DirectoryReader.poll, Kind.RETURN, value)[0]
        written = find_calls(trace, ParquetWriter.write, Kind.CALL, value)[0]
        prepared = next(e for e in islice(trace.events, written, None) if _prepares(trace, e))
        checkpoint = max(mark for mark in prepared.marks if isinstance(mark, int))
        shown = find_calls(trace, rename_without_replacing, Kind.CALL, checkpoint)[0]
        to_writer.append(find(trace, written, {value}, trace.events[polled].call))
        to_file.append(find(trace, shown, {checkpoint}, prepared.call))
    crossed = [path for path in to_writer if path is not None and path.threads >= SLOTS]
    return middle(crossed) + middle([path for path in to_file if path is not None])


def _prepares(trace: Trace, event: Event) -> bool:
    """Whether `event` is a return of the sink's `prepare` with a file: such a result names the checkpoint."""
    is_return = event.kind is Kind.RETURN and bool(event.marks)
    return is_return and trace.calls[event.call].function == name_of(ParquetWriter.prepare)


def savepoints(trace: Trace, made: Sequence[tuple[str, str, int]]) -> list[Path]:
    """Paths of savepoints: from the request to the record of its end, and the request that shows it.

    The database lies between both parts. Only savepoints whose path has both slots. `made`: reason, operation and
    checkpoint of each savepoint.
    """
    paths = []
    for reason, operation, checkpoint in made:
        asked = trace.events[trace.by_mark[reason][0]]
        request = asked.call
        while trace.calls[request].parent >= 0:
            request = trace.calls[request].parent
        settled = find_calls(trace, PostgresRunStore.complete_operation, Kind.CALL, operation)[0]
        acted = find(trace, settled, {operation, checkpoint, reason}, since=trace.calls[request].event)
        own = [i for i in trace.by_mark[operation] if trace.events[i].thread == asked.thread]
        shown = [i for i in own if i > settled]
        answered = find(trace, shown[-1], {operation}, trace.events[shown[0]].call)
        if acted is not None and answered is not None and acted.threads >= SLOTS:
            paths.append(acted + answered)
    return paths


def measure() -> tuple[dict[str, Path], dict[str, list[Turn]]]:
    """The median paths and all turns with a forwarded batch, by name."""
    home = FilePath(tempfile.mkdtemp(prefix="weir-trace-"))
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        trace, made = steer(home)
        forwarded = forward(home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    paths = {
        ROW: row(trace),
        BARRIER: middle(barriers(trace)),
        SAVEPOINT: min(savepoints(trace, made), key=lambda path: path.hops),
    }
    step, forwards = name_of(Task.step), name_of(MapBatches.process)
    of_slots = turns(forwarded, step, forwards)
    return paths, {
        "slot 0: source, forwarding operator, sink": of_slots["slot-0"],
        "slot 1: forwarding operator, sink": of_slots["slot-1"],
        "both slots": [turn for each in of_slots.values() for turn in each],
        FORWARDING: steps(forwarded, step, forwards),
    }


def overruns(paths: Mapping[str, Path], turned: Mapping[str, Sequence[Turn]]) -> list[str]:
    """The figures above their limit."""
    figures = [
        *((name, "hops", paths[name].hops, budget) for name, budget in MAX_HOPS.items()),
        *((name, "handovers", paths[name].handovers, budget) for name, budget in MAX_HANDOVERS.items()),
        *(
            (name, "calls", median_low(turn.calls for turn in turned[name]), budget)
            for name, budget in MAX_CALLS.items()
        ),
    ]
    return [
        f"{name}: {figure} {unit}, at most {budget.limit} (goal: {budget.goal})"
        for name, unit, figure, budget in figures
        if figure > budget.limit
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.trace", description="Hops and files of a job of two slots.")
    parser.add_argument("--verbose", action="store_true", help="list the hops in order")
    verbose = parser.parse_args().verbose
    paths, turned = measure()
    above = overruns(paths, turned)
    lines = [table(paths, turned), "", *NOTES, *above]
    lines += [list_hops(name, path) for name, path in paths.items() if verbose]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
