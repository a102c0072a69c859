"""Side outputs of whole jobs: rows that a function sorts out, and late rows of windows; crashed and rescaled; exact."""

from collections import Counter as Multiset
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb
from tests.jobs.live import positions_in
from tests.jobs.numbers import SCHEMA, committed
from tests.jobs.test_windows import Clocked

TIMED = pa.schema([*SCHEMA, ("time", pa.int64())])
LATE = weir.OutputTag("late", TIMED)
ODD = weir.OutputTag("odd", TIMED)
OFTEN = weir.OutputTag("often", pa.schema([("key", pa.int64()), ("seen", pa.int64())]))
BEHIND_MS = 200  #: so far every tenth row lies behind the others
AGAIN = weir.FixedDelay(attempts=9, delay_ms=20)


def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_numpy()
    return batch.append_column("time", pa.array(values - BEHIND_MS * (values % 10 == 0)))


class SortsOut(weir.ProcessFunction):
    """Odd values go to a side output."""

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        if row["value"] % 2:
            out.emit_to(ODD, row)
        else:
            out.emit(row)


class Counts(weir.KeyedProcessFunction):
    """Every fiftieth row of a key is announced in a side output."""

    def open(self, context: weir.ProcessContext) -> None:
        self.seen = context.value_state("seen")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        count = (self.seen.get() or 0) + 1
        self.seen.update(count)
        if count % 50 == 0:
            out.emit_to(OFTEN, {"key": context.current_key, "seen": count})
        out.emit(row)


def job(source: Clocked, bomb: Bomb, folder: Path, slide_ms: int, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("sides")
    rows = flow.source("numbers", source).map_batches("timed", timed).map_batches("bomb", bomb)
    counted = rows.key_by("key").process("counted", Counts, TIMED, side_outputs=[OFTEN])
    counted.side_output(OFTEN).sink("often", weir.ParquetSink(str(folder / "often")))
    sorted_out = counted.process("sorted", SortsOut, TIMED, side_outputs=[ODD])
    sorted_out.side_output(ODD).sink("odd", weir.ParquetSink(str(folder / "odd")))
    windows = sorted_out.key_by("key").window(
        "windows",
        timedelta(milliseconds=50),
        "time",
        {"n": weir.Count(), "total": weir.Sum("value")},
        slide=timedelta(milliseconds=slide_ms),
        late_to=LATE,
    )
    windows.sink("out", weir.ParquetSink(str(folder / "out")))
    windows.side_output(LATE).sink("late", weir.ParquetSink(str(folder / "late")))
    return flow.compile(parallelism)


@pytest.mark.parametrize(
    ("slide_ms", "parallelisms"), [pytest.param(50, (3, 7, 1), marks=pytest.mark.slow), (10, (2, 3, 1))]
)
def test_each_row_comes_once_in_its_output(
    slide_ms: int, parallelisms: tuple[int, ...], tmp_path: Path, jobs: Jobs
) -> None:
    """S3-20: through a crash at each parallelism, and rescales. Spark has four cores here, so 4 stands for 7."""
    most = 7 if jobs.launcher is None else 4
    source, bomb, storage = Clocked(total=400), Bomb(), tmp_path / "state"
    savepoint: str | None = None
    for attempt, parallelism in enumerate(min(number, most) for number in parallelisms):
        records = MemoryRunStore(token=Token(10 * attempt + 1), restore_from=savepoint)
        with jobs.running(job(source, bomb, tmp_path, slide_ms, parallelism), storage, records, restart=AGAIN) as run:
            before = records.token
            run.checkpoints(1)
            bomb.arm()
            source.total += 300
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            run.wait_for(lambda: run.manifests and positions_in(run.manifests[-1], storage, 4) == [source.total] * 4)
            savepoint = run.end("drain" if attempt == 2 else "stop")
    assert source.total == 1_300
    numbers = range(source.total)
    odd = sorted(row["value"] for row in committed(tmp_path / "odd"))
    assert odd == sorted(value for value in numbers if value % 2 for _ in range(4))
    late = [row["value"] for row in committed(tmp_path / "late")]
    assert late, "rows that lie so far behind are late"
    assert all(value % 10 == 0 for value in late)
    assert all(row["time"] == row["value"] - BEHIND_MS for row in committed(tmp_path / "late")), "rows as they came in"
    assert max(Multiset(late).values()) <= 4
    check_windows(committed(tmp_path / "out"), late, slide_ms, source.total)
    often = sorted((row["key"], row["seen"]) for row in committed(tmp_path / "often"))
    counts = Multiset((value * 31 + split) % 7 for value in numbers for split in range(4))
    assert often == sorted((key, number) for key, count in counts.items() for number in range(50, count + 1, 50))


def check_windows(rows: Any, late: list[int], slide_ms: int, total: int) -> None:
    """Tumbling: every even row is in a window or late. Sliding: rows in time are in all their windows."""
    even = Multiset(dict.fromkeys(range(0, total, 2), 4))
    in_time = even - Multiset(late)
    assert len({(row["key"], row["window_start"]) for row in rows}) == len(rows)
    count = sum(row["n"] for row in rows)
    if slide_ms == 50:
        assert count == in_time.total()
        assert sum(row["total"] for row in rows) == sum(value * n for value, n in in_time.items())
    else:
        never_behind = sum(n for value, n in in_time.items() if value % 10)
        assert 5 * never_behind <= count <= 5 * in_time.total()
