"""Whole jobs that read a history and then a live source: slots killed around the switch, rescales, event time."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.connectors.sinks.collect import CollectSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs import live as threads
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated, GatedReader
from tests.jobs.live import Run
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.numbers import SCHEMA, committed
from tests.shared import Shared

HALF, WHOLE = 40, 80  #: rows of each of 4 splits
LIVE_FIRST = 1_000  #: the first value of the live part
AGAIN = FixedDelay(attempts=10, delay_ms=10)


@dataclass(eq=False)
class Part(Gated):
    """Reads `total` rows of each split, the subtask `held` only `HALF`. Bounded: it ends with `WHOLE` rows."""

    total: int = HALF
    name: str = "history"
    first: int = 0
    held: int | None = None
    bounded: bool = True
    deaths: Deaths = field(default_factory=Deaths)

    def output_columns(self) -> pa.Schema:
        return SCHEMA

    def reader(self) -> "PartReader":
        return PartReader(self)


class PartReader(GatedReader):
    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._part, self._mortal = part, Mortal(part.deaths, part.name)
        self._first, self._bounded = part.first, part.bounded

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._context = context
        super().open(context)
        self._mortal.at(f"open {context.index}")

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._mortal.at(f"poll {self._context.index}")
        if self._part.held == self._context.index and self._least_position >= HALF:
            return None
        batch = super().poll(max_rows)
        if batch is None:
            return None
        values = pa.array([value + self._first for value in batch.column("value").to_pylist()], pa.int64())
        return pa.RecordBatch.from_arrays([batch.column("key"), values], schema=SCHEMA)

    @property
    def exhausted(self) -> bool:
        return self._bounded and all(int(self._table.column("next")[slot]) >= WHOLE for slot in self._slots)

    def snapshot(self, checkpoint: int) -> None:
        self._mortal.at(f"snapshot {self._context.index}")


def parts() -> tuple[Part, Part]:
    return Part(), Part(total=0, name="live", first=LIVE_FIRST, bounded=False)


def job(history: Part, live: Part, output: Path, parallelism: int = 2) -> CompiledJob:
    flow = Dataflow("kappa")
    flow.source("rows", weir.then(history, live)).sink("out", ParquetSink(str(output)))
    return flow.compile(parallelism)


def expected(history: int, live: int) -> Counter[tuple[int, int]]:
    """The rows of both parts, with so many of each split."""
    rows = [(number, first) for total, first in ((history, 0), (live, LIVE_FIRST)) for number in range(total)]
    return Counter(((number * 31 + split) % 7, first + number) for split in range(4) for number, first in rows)


def output_of(folder: Path) -> Counter[tuple[int, int]]:
    return Counter((row["key"], row["value"]) for row in committed(folder))


def fails(run: Run, part: Part, step: str) -> None:
    """The next process that comes to `step` ends; waits for the first checkpoint of the attempt behind it."""
    token = run.records.token
    part.deaths.add(f"{part.name}: {step}")
    run.wait_for(lambda: any(manifest.token > token for manifest in run.manifests))


def test_a_slot_that_is_killed_before_at_and_behind_the_switch_costs_no_row(jobs: Jobs, tmp_path: Path) -> None:
    """S0-08, S0-12: one position for both parts. The live part waits for the history of every subtask."""
    history, live = parts()
    output, storage = tmp_path / "out", tmp_path / "state"
    with jobs.running(job(history, live, output), storage, restart=AGAIN) as run:
        run.wait_for(lambda: output_of(output) == expected(HALF, 0))
        fails(run, history, "poll 0")  # before: half of the history is read

        live.total, history.held, history.total = HALF, 1, WHOLE
        run.wait_for(lambda: output_of(output).total() > expected(HALF, 0).total())
        run.checkpoints(2)
        assert live.opened == [], "a subtask has history left"
        fails(run, history, "snapshot 0")  # before: subtask 0 awaits the live part
        run.checkpoints(2)
        assert live.opened == [], "a subtask has history left"
        assert output_of(output).keys() < expected(WHOLE, 0).keys()

        token = run.records.token
        live.deaths.add("live: open 0")  # at the switch: the sibling may have live rows
        history.held = None
        run.wait_for(lambda: output_of(output) == expected(WHOLE, HALF))
        begun = [opening for opening in live.opened if opening.token == token + 1]
        assert [opening.restored for opening in begun] == [False, False]
        assert sorted(n for opening in begun for n in opening.positions.values()) == [0, 0, 0, 0]

        run.checkpoints(1)
        fails(run, live, "snapshot 1")  # behind: the live part is read
        token = run.records.token
        assert not [opening for opening in history.opened if opening.token == token], "it is over"
        begun = [opening for opening in live.opened if opening.token == token]
        assert [opening.restored for opening in begun] == [True, True]
        assert sorted(n for opening in begun for n in opening.positions.values()) == [HALF] * 4

        live.total = WHOLE
        run.wait_for(lambda: output_of(output) == expected(WHOLE, WHOLE))
        assert not history.deaths.waiting
        assert not live.deaths.waiting
        run.end("drain")
    assert output_of(output) == expected(WHOLE, WHOLE)


def test_a_job_is_rescaled_in_the_history_at_its_end_and_in_the_live_part(tmp_path: Path) -> None:
    """S0-08: 2 subtasks, then 3 with one that still reads the history, then 1 behind the switch, then 4."""
    history, live = parts()
    output, storage, savepoint = tmp_path / "out", tmp_path / "state", ""
    for number, (parallelism, totals) in enumerate([(2, (HALF, 0)), (3, (WHOLE, 0)), (1, (WHOLE, HALF))]):
        history.total, live.total = totals
        history.held = 0 if number == 1 else None
        records = MemoryRunStore(token=Token(10 * number + 1), restore_from=savepoint or None)
        with threads.running(job(history, live, output, parallelism), storage, records) as run:
            if number == 1:
                run.wait_for(lambda: output_of(output).total() > expected(HALF, 0).total())
            else:
                run.wait_for(lambda totals=totals: output_of(output) == expected(*totals))  # type: ignore[misc]
            run.checkpoints(2)
            assert bool(live.opened) == (number == 2)
            savepoint = run.end("stop")
    live.total = WHOLE
    records = MemoryRunStore(token=Token(100), restore_from=savepoint)
    with threads.running(job(history, live, output, 4), storage, records) as run:
        run.wait_for(lambda: output_of(output) == expected(WHOLE, WHOLE))
        run.end("drain")
    assert output_of(output) == expected(WHOLE, WHOLE)


# ---------------------------------------------------------------- event time

TIMED = pa.schema([("key", pa.int64()), ("at", pa.int64())])
KEYS = 10


def write_seconds(folder: Path, seconds: range) -> None:
    """A file with a row of each key in each second."""
    rows = "".join(f'{{"key": {key}, "at": {second * 1_000 + key}}}\n' for second in seconds for key in range(KEYS))
    hidden = folder / f".{seconds.start:04}"
    hidden.write_text(rows)
    hidden.rename(folder / f"{seconds.start:04}.jsonl")


@pytest.mark.parametrize("disorder_ms", [0, 500])
def test_event_time_goes_on_over_the_switch_and_no_row_is_late(disorder_ms: int, tmp_path: Path) -> None:
    """S0-08: a subtask whose history ends early neither holds back its siblings nor is passed in the live part."""
    for name in ("history", "live"):
        (tmp_path / name).mkdir()
    write_seconds(tmp_path / "history", range(10))
    write_seconds(tmp_path / "history", range(10, 100))
    history, live = (
        weir.DirectorySource(
            str(tmp_path / name),
            weir.JsonLinesFormat(TIMED),
            bounded=name == "history",
            event_time="at",
            max_disorder_ms=disorder_ms if name == "live" else 0,
            discovery_interval_ms=1,
        )
        for name in ("history", "live")
    )
    sink, flow = CollectSink(), Dataflow("times")
    rows = flow.source("rows", weir.then(history, live))
    rows.key_by("key").window("windows", timedelta(seconds=1), "at", {"n": weir.Count()}).sink("out", sink)
    with threads.running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: len(sink.rows()) >= 99 * KEYS - (KEYS if disorder_ms else 0))
        for second in range(100, 120):
            write_seconds(tmp_path / "live", range(second, second + 1))
        run.wait_for(lambda: run.operator("rows").get("records_out") == 120 * KEYS)
        run.end("drain")
    assert not run.records.live["counters"].get("late_records")
    assert Counter((row["key"], row["n"]) for row in sink.rows()) == Counter({(key, 1): 120 for key in range(KEYS)})


@dataclass(eq=False)
class Stretch(Shared):
    """Rows of each millisecond in order: subtask n reads from `first` to `ends[n]`. Held: no subtask passes 90."""

    first: int
    ends: tuple[int, int]
    bounded: bool
    held: bool = False
    guarantee = "exactly-once"
    has_event_time = True

    def output_columns(self) -> pa.Schema:
        return TIMED

    def reader(self) -> "StretchReader":
        return StretchReader(self)

    def check(self) -> None:
        return None


class StretchReader(weir.spi.SourceReader):
    def __init__(self, stretch: Stretch) -> None:
        self._stretch, self._next = stretch, stretch.first

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._end = self._stretch.ends[context.index]

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        start, self._next = self._next, min(self._next + 10, 90 if self._stretch.held else self._end, self._end)
        if start == self._next:
            return None
        return pa.RecordBatch.from_pydict({"key": [0] * (self._next - start), "at": range(start, self._next)}, TIMED)

    @property
    def exhausted(self) -> bool:
        return self._stretch.bounded and self._next == self._end

    def watermark(self) -> int:
        return self._next - 1


def test_a_subtask_that_awaits_the_live_part_follows_the_event_time_of_the_history(tmp_path: Path) -> None:
    """S0-08: windows of the history fire, although the history of a subtask ended long before in event time."""
    history, live = Stretch(0, (10, 100), bounded=True, held=True), Stretch(100, (130, 120), bounded=False)
    sink, flow = CollectSink(), Dataflow("times")
    rows = flow.source("rows", weir.then(history, live))
    rows.key_by("key").window("windows", timedelta(milliseconds=10), "at", {"n": weir.Count()}).sink("out", sink)
    with threads.running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: len(sink.rows()) == 9)
        history.held = False
        run.wait_for(lambda: run.operator("rows").get("records_out") == 160)
        run.end("drain")
    assert not run.records.live["counters"].get("late_records")
    assert [row["n"] for row in sink.rows()] == [20, *[10] * 9, 20, 20, 10]
