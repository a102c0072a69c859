"""Whole jobs with row-wise functions: sessions counted without repeats over a stop and a rescale, and timers alone."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from runtime.core.attempt.events import OperationRequest
from runtime.launch.local import local_master
from runtime.master.job_master import JobMaster
from runtime.state.index.hashing import hash_columns
from tests.jobs.numbers import committed
from tests.waiting import until

FAST = weir.CoordinatorSettings(interval_ms=100, min_pause_ms=10)
SPLITS, USERS, BATCH = 5, 11, 40
BURST_ROWS, BURST_MS, STEP_MS = 60, 10_000, 10  #: rows of a split come in bursts, far apart in event time
CLICKS = pa.schema([("user", pa.string()), ("click", pa.string()), ("at", pa.int64())])


def time_of(row: int) -> int:
    return row // BURST_ROWS * BURST_MS + row % BURST_ROWS * STEP_MS


def click(split: int, row: int) -> dict[str, Any]:
    """Every click is there twice, in two rows that follow one another."""
    number = row // 2
    return {"user": f"user {(number * 7 + split) % USERS}", "click": f"{split}/{number}", "at": time_of(row)}


@dataclass(frozen=True)
class Clicks:
    """Rows 0..`upto` of every split; unbounded, it then falls silent."""

    upto: int
    bounded: bool = True
    guarantee = "exactly-once"

    def reader(self) -> "ClicksReader":
        return ClicksReader(self)

    def check(self) -> None:
        return None


class ClicksReader(weir.spi.SourceReader):
    def __init__(self, source: Clicks) -> None:
        self._source = source
        self._turn = 0

    def open(self, context: weir.spi.OperatorContext) -> None:
        splits = pa.array(range(SPLITS), pa.int64())
        groups = hash_columns([splits]) % context.max_parallelism
        self._mine = [split for split, group in enumerate(groups) if int(group) in context.key_groups]
        keys, values = pa.schema([("split", pa.int64())]), pa.schema([pa.field("next", pa.int64(), nullable=False)])
        self._table = context.state.keyed_table("positions", keys, values)
        self._slots = self._table.upsert([pa.array(self._mine, pa.int64())])

    def _position(self, turn: int) -> int:
        return int(self._table.column("next")[self._slots[turn]])

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        for _ in self._mine:
            self._turn = (self._turn + 1) % len(self._mine)
            start = self._position(self._turn)
            stop = min(start + BATCH, self._source.upto)
            if start < stop:
                self._table.column("next")[self._slots[self._turn]] = stop
                self._table.touch(self._slots[self._turn : self._turn + 1])
                rows = [click(self._mine[self._turn], row) for row in range(start, stop)]
                return pa.RecordBatch.from_pylist(rows, schema=CLICKS)
        return None

    @property
    def exhausted(self) -> bool:
        return self._source.bounded and all(self._position(i) >= self._source.upto for i in range(len(self._mine)))

    def watermark(self) -> int | None:
        """What comes next is no older than the next row of the split that is furthest behind."""
        return min((time_of(self._position(i)) - 1 for i in range(len(self._mine))), default=None)

    @property
    def idle(self) -> bool:
        return not self._mine


class Sessions(weir.KeyedProcessFunction):
    """How many different clicks a user made in each burst, told when the burst is over."""

    def open(self, context: weir.ProcessContext) -> None:
        self._clicks = context.map_state("clicks")
        self._first = context.reducing_state("first", min)

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        burst = row["at"] // BURST_MS
        self._clicks[f"{burst}/{row['click']}"] = burst
        self._first.add(row["at"])
        context.register_event_timer((burst + 1) * BURST_MS - 1)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        burst = timestamp_ms // BURST_MS
        over = [click for click, of in self._clicks.items() if of == burst]
        for name in over:
            del self._clicks[name]
        row = {"user": context.current_key, "burst": burst, "clicks": len(over), "first": self._first.get()}
        out.emit(row)


COUNTED = pa.schema([("user", pa.string()), ("burst", pa.int64()), ("clicks", pa.int64()), ("first", pa.int64())])


def sessions(source: Clicks, output: Path) -> weir.Dataflow:
    flow = weir.Dataflow("sessions")
    counted = flow.source("clicks", source).key_by("user").process("sessions", Sessions, COUNTED, time="at")
    counted.sink("out", weir.ParquetSink(str(output)))
    return flow


def expected(upto: int) -> list[tuple[str, int, int, int]]:
    triples = {(row["user"], row["at"] // BURST_MS, row["click"]) for row in every(upto)}
    first: dict[str, int] = {}
    for row in every(upto):
        first[row["user"]] = min(row["at"], first.get(row["user"], row["at"]))
    counted = Counter((user, burst) for user, burst, _ in triples)
    return sorted((user, burst, clicks, first[user]) for (user, burst), clicks in counted.items())


def every(upto: int) -> Iterator[dict[str, Any]]:
    return (click(split, row) for split in range(SPLITS) for row in range(upto))


def found(output: Path) -> list[tuple[Any, ...]]:
    return sorted((row["user"], row["burst"], row["clicks"], row["first"]) for row in committed(output))


@dataclass
class Run:
    master: JobMaster
    records: weir.MemoryRunStore
    thread: threading.Thread

    def end(self, kind: str) -> str:
        """Stops or cancels; the folder of the savepoint of a stop."""
        self.records.operations.append(OperationRequest(kind, kind))
        self.master.poke()
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.records.failure is None
        return self.records.final_savepoint() or ""


@contextmanager
def running(flow: weir.Dataflow, parallelism: int, storage: Path, records: weir.MemoryRunStore) -> Iterator[Run]:
    master = local_master(flow.compile(parallelism), str(storage), records, FAST, weir.FixedDelay(attempts=0))
    run = Run(master, records, threading.Thread(target=master.run))
    run.thread.start()
    try:
        yield run
    finally:
        if run.thread.is_alive():
            run.end("cancel")


def test_sessions_are_counted_exactly_over_a_stop_and_a_restore_at_another_parallelism(tmp_path: Path) -> None:
    """S1-15: objects and event timers move with their key groups, from 2 subtasks to 3."""
    output, storage, upto = tmp_path / "out", tmp_path / "state", 1_000
    with running(sessions(Clicks(450, bounded=False), output), 2, storage, weir.MemoryRunStore()) as run:
        until(lambda: _read(run.records) >= SPLITS * 450 and len(run.records.completed) > 2)
        savepoint = run.end("stop")
    halfway = found(output)
    assert halfway == [row for row in expected(upto) if row[1] < 7], "row 449 is in burst 7, which is still open"
    records = weir.MemoryRunStore(token=weir.spi.Token(2), restore_from=savepoint)
    weir.run_local(sessions(Clicks(upto), output), parallelism=3, storage=str(storage), settings=FAST, records=records)
    assert found(output) == expected(upto)


def _read(records: weir.MemoryRunStore) -> int:
    rows: int = records.live.get("operators", {}).get("clicks", {}).get("records_out", 0)
    return rows


class Quiet(weir.KeyedProcessFunction):
    """Tells of a user who has been quiet for a while, by the clock on the wall."""

    def open(self, context: weir.ProcessContext) -> None:
        self._rows = context.value_state("rows", ttl_ms=3_600_000)
        self._until = context.value_state("until")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._rows.update(self._rows.get(0) + 1)
        self._until.update(context.now_ms() + 30)
        context.register_processing_timer(self._until.get())

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        if timestamp_ms == self._until.get():
            out.emit({"user": context.current_key, "clicks": self._rows.get()})


def test_processing_timers_fire_although_no_row_comes_any_more(tmp_path: Path) -> None:
    """The source is silent after its last row; the timers wake the slot and their output is committed."""
    flow = weir.Dataflow("quiet")
    stream = flow.source("clicks", Clicks(200, bounded=False)).key_by("user").process("quiet", Quiet, COUNTED)
    stream.sink("out", weir.ParquetSink(str(tmp_path / "out")))
    rows = Counter(row["user"] for row in every(200))
    with running(flow, 2, tmp_path / "state", weir.MemoryRunStore()) as run:
        until(lambda: rows.items() <= {(row["user"], row["clicks"]) for row in committed(tmp_path / "out")})
        run.end("stop")
    last: dict[str, int] = {}
    for row in committed(tmp_path / "out"):
        last[row["user"]] = max(row["clicks"], last.get(row["user"], 0))
    assert last == rows
