"""Whole jobs with windows whose rows are folded before the shuffle: crashed, stopped, rescaled, drained; exact."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.keyed_stream import KeyedStream
from runtime.dataflow.stream import Stream
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Max, Sum
from runtime.ports import OperatorContext
from tests.jobs.gated import Bomb, Gated, GatedReader
from tests.jobs.live import positions_in, running

SPREAD_MS = 70  #: so far rows of one time lie apart

ANSWER = """
    with rows as (select key, value, value * 7919 % {spread} + value as time from numbers),
    firsts as (select *, (floor((time - {size}) / {slide}) + 1)::bigint * {slide} as first from rows),
    windows as (select *, unnest(range(first, time + 1, {slide})) as start from firsts)
    select key, make_timestamp(start * 1000) as window_start, make_timestamp((start + {size}) * 1000) as window_end,
        count(*) as n, sum(value)::bigint as total, max(value) as high
    from windows group by all
"""
SESSIONS = """
    with rows as (select key, value, value * 7919 % {spread} + value as time from numbers),
    marked as (select *, time - lag(time) over (partition by key order by time) <= {gap} as goes_on from rows),
    numbered as (
        select *, count(*) filter (goes_on is not true) over (partition by key order by time) as session from marked)
    select key, make_timestamp(min(time) * 1000) as window_start,
        make_timestamp((max(time) + {gap}) * 1000) as window_end,
        count(*) as n, sum(value)::bigint as total, max(value) as high
    from numbered group by key, session
"""
NUMBERS = """
    select (value * 31 + split) % 7 as key, value from range({total}) as v(value), range(4) as s(split)
"""


class Clocked(Gated):
    """Its event time is the number that comes next in the split that lags most."""

    def reader(self) -> "ClockedReader":
        return ClockedReader(self)


class ClockedReader(GatedReader):
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.idle_now = not self._mine

    @property
    def idle(self) -> bool:
        return self.idle_now

    def watermark(self) -> int | None:
        column = self._table.column("next")
        return min((int(column[slot]) - 1 for slot in self._slots), default=None)


def spread(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_numpy()
    return batch.append_column("time", pa.array(values * 7919 % SPREAD_MS + values))


Windows = Callable[[KeyedStream], Stream]
AGGREGATES = {"n": Count(), "total": Sum("value"), "high": Max("value")}


def windows(size_ms: int, slide_ms: int) -> tuple[Windows, str]:
    """Windows, and the query for their rows."""
    size, slide = timedelta(milliseconds=size_ms), timedelta(milliseconds=slide_ms)
    answer = ANSWER.format(spread=SPREAD_MS, size=size_ms, slide=slide_ms)
    return lambda rows: rows.window("windows", size, "time", AGGREGATES, slide=slide), answer


def sessions(gap_ms: int) -> tuple[Windows, str]:
    gap = timedelta(milliseconds=gap_ms)
    answer = SESSIONS.format(spread=SPREAD_MS, gap=gap_ms)
    return lambda rows: rows.session_window("windows", gap, "time", AGGREGATES), answer


@pytest.mark.parametrize(
    ("window", "answer"),
    [windows(50, 50), windows(100, 20), windows(90, 40), sessions(4)],
    ids=["tumbling", "sliding", "uneven", "session"],
)
def test_every_window_comes_once_and_is_right(tmp_path: Path, window: Windows, answer: str) -> None:
    """S3-20: over a crash, and a rescale from two slots to three; nothing is added to the graph."""
    output, source, bomb = tmp_path / "out", Clocked(total=400), Bomb()
    job = Dataflow("windows")
    rows = job.source("numbers", source).map_batches("spread", spread).map_batches("bomb", bomb)
    window(rows.key_by("key")).sink("out", ParquetSink(str(output)))
    with running(job.compile(2), tmp_path / "state", restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: run.operator("windows").get("records_in", 0) == 1_600)
        run.checkpoints(2)
        bomb.arm()
        source.total = 800
        run.wait_for(lambda: run.records.attempts and run.operator("windows").get("records_out", 0) > 0)
        run.checkpoints(2)
        assert set(run.manifests[-1].operators) == {"numbers", "spread", "bomb", "windows", "out"}
        savepoint = run.end("stop")
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    source.total = 1_500
    with running(job.compile(3), tmp_path / "state", records=records) as run:
        run.wait_for(lambda: run.operator("windows").get("records_in", 0) > 0)
        run.checkpoints(2)
        storage, everything = tmp_path / "state", [source.total] * source.splits
        run.wait_for(lambda: positions_in(run.manifests[-1], storage, source.splits) == everything)
        run.end("drain")
        assert not run.operator("windows").get("counters", {}).get("late_records")
    assert different(output, source.total, answer) == 0


class Resting(Clocked):
    """Event time is 500 times as fast in the first subtask; each becomes idle when the test says so."""

    def __init__(self, total: int) -> None:
        super().__init__(total=total)
        self.resting: set[int] = set()

    def reader(self) -> "RestingReader":
        return RestingReader(self)


class RestingReader(ClockedReader):
    def __init__(self, source: Resting) -> None:
        super().__init__(source)
        self._resting = source.resting

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._index = context.index

    @property
    def idle(self) -> bool:
        return self._index in self._resting

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        batch = super().poll(max_rows)
        return batch if batch is None else batch.append_column("time", pc.multiply(batch.column("value"), self._speed))

    def watermark(self) -> int | None:
        least = super().watermark()
        return None if least is None else least * self._speed

    @property
    def _speed(self) -> int:
        return 500 if self._index == 0 else 1


def test_windows_between_two_idle_inputs_fire_though_the_faster_was_idle_first(tmp_path: Path) -> None:
    """The slower input sets the time until it is idle too; then no window below the faster one waits."""
    source, output, flow = Resting(total=10), tmp_path / "out", Dataflow("resting")
    size, aggregates = timedelta(milliseconds=100), {"n": Count()}
    rows = flow.source("numbers", source)
    rows.key_by("key").window("windows", size, "time", aggregates).sink("out", ParquetSink(str(output)))

    def latest() -> int:
        paths = [*output.glob("part-*.parquet")]
        starts = [row["window_start"] for path in paths for row in pq.read_table(path).to_pylist()]
        return max((int(start.timestamp() * 1000) for start in starts), default=-1)

    with running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("windows").get("records_in", 0) > 0)
        source.resting.add(0)
        run.checkpoints(2)
        assert latest() < 100, "the slower one has not come so far"
        source.resting.add(1)
        run.wait_for(lambda: latest() >= 4_000)
        run.end("stop")


def different(output: Path, total: int, answer: str) -> int:
    """How many rows differ between what was committed and what DuckDB finds, both ways and with repeats."""
    with duckdb.connect() as database:
        database.execute(f"create view found as from read_parquet('{output}/part-*.parquet')")
        database.execute(f"create view numbers as {NUMBERS.format(total=total)}")
        database.execute(f"create table answer as {answer}")
        counted = database.execute(
            "select count(*), (select count(*) from answer) from"
            " ((from found except all from answer) union all (from answer except all from found))"
        ).fetchone()
    assert counted is not None
    assert counted[1] > 0
    return int(counted[0])
