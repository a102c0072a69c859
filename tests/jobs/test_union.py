"""Jobs with a union of a bounded source, which ends by itself, and of a live source."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.settings import ExecutionMode
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from spark_jobs.stages.compile import resolve_mode
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb
from tests.jobs.live import positions_in
from tests.jobs.numbers import Numbers, committed
from tests.jobs.test_windows import Clocked

SHORT, SIZE_MS = 100, 50
ENDS = pa.schema([("index", pa.int64()), ("rows", pa.int64())])


class Ends(weir.spi.Operator):
    """A row per subtask when all its inputs have ended."""

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._index = context.index
        self._seen = context.state.list_state("seen")

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._seen.replace([sum(self._seen.get()) + batch.num_rows])

    def finish(self, out: weir.spi.Collector) -> None:
        out.emit(pa.record_batch({"index": [self._index], "rows": [sum(self._seen.get())]}))


def timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("time", batch.column("value"))


def job(live: Clocked, bomb: Bomb, folder: Path, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("union")
    short = flow.source("short", Numbers(total=SHORT)).map_batches("short_timed", timed)
    rows = flow.source("numbers", live).map_batches("timed", timed).map_batches("bomb", bomb)
    union = rows.union("both", short)
    size = timedelta(milliseconds=SIZE_MS)
    union.key_by("key").window("windows", size, "time", {"n": weir.Count()}).sink(
        "out", weir.ParquetSink(str(folder / "out"))
    )
    union.transform("ends", Ends, ENDS).sink("ended", weir.ParquetSink(str(folder / "ended")))
    return flow.compile(parallelism)


def windows_of(live: int) -> dict[tuple[int, int], int]:
    """The count of each window, by key and start, of the first `live` rows of each split and all short rows."""
    windows: dict[tuple[int, int], int] = {}
    for total in (SHORT, live):
        for value in range(total):
            for split in range(4):
                window = (value * 31 + split) % 7, value // SIZE_MS * SIZE_MS
                windows[window] = windows.get(window, 0) + 1
    return windows


def fired(folder: Path) -> dict[tuple[int, int], int]:
    rows = committed(folder / "out")
    windows = {(row["key"], round(row["window_start"].timestamp() * 1000)): row["n"] for row in rows}
    assert len(windows) == len(rows), "a window fired twice"
    return windows


def test_a_stop_after_the_end_of_one_input_leaves_windows_open(tmp_path: Path, jobs: Jobs) -> None:
    """S0-77, S0-79: windows stay in the savepoint; the union and its steps finish when the live source has ended."""
    live, bomb, storage = Clocked(total=80), Bomb(), tmp_path / "state"
    restart = weir.FixedDelay(attempts=9, delay_ms=20)
    with jobs.running(job(live, bomb, tmp_path, 2), storage, restart=restart) as run:
        run.wait_for(lambda: run.manifests and "short" in run.manifests[-1].finished_operators())
        bomb.arm()
        live.total = 120
        run.wait_for(lambda: run.records.token > 1 and run.manifests[-1].token > 1)
        run.wait_for(lambda: positions_in(run.manifests[-1], storage, 4) == [120] * 4)
        run.wait_for(lambda: len(fired(tmp_path)) == 7 * 2)
        savepoint = run.end("stop")
        assert "short" in run.manifests[-1].finished_operators()
        assert not {"both", "windows", "ends"} & set(run.manifests[-1].finished_operators())
    closed = {window: n for window, n in windows_of(120).items() if window[1] < 100}
    assert fired(tmp_path) == closed, "windows from 100 on are open: the live source has read up to 120"
    assert not committed(tmp_path / "ended")
    live.total = 310
    records = MemoryRunStore(token=Token(10), restore_from=savepoint)
    with jobs.running(job(live, bomb, tmp_path, 3), storage, records) as run:
        run.wait_for(lambda: run.manifests and positions_in(run.manifests[-1], storage, 4) == [310] * 4)
        assert not committed(tmp_path / "ended")
        run.end("drain")
    assert fired(tmp_path) == windows_of(310)
    ends = committed(tmp_path / "ended")
    assert sorted(row["index"] for row in ends) == [0, 1, 2]
    assert sum(row["rows"] for row in ends) == 4 * (SHORT + 310)


def test_a_union_finishes_with_its_longest_input(tmp_path: Path, jobs: Jobs) -> None:
    """S0-79: three inputs, one of them twice; the job ends by itself with every row."""
    flow = weir.Dataflow("union")
    short, long = flow.source("short", Numbers(total=10)), flow.source("long", Numbers(total=3_000), parallelism=1)
    union = short.union("both", long, short)
    union.transform("ends", Ends, ENDS).sink("ended", weir.ParquetSink(str(tmp_path / "ended")))
    union.sink("out", weir.ParquetSink(str(tmp_path / "out")))
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    ends = committed(tmp_path / "ended")
    assert sorted(row["index"] for row in ends) == [0, 1]
    assert sum(row["rows"] for row in ends) == 4 * (10 + 3_000 + 10)
    values = sorted(row["value"] for row in committed(tmp_path / "out"))
    assert values == sorted([*range(10), *range(3_000), *range(10)] * 4)


SEQUENCE = weir.SequenceSource(rows=10)


def shaped(rows: weir.Stream, uid: str, schema: pa.Schema) -> weir.Stream:
    return rows.map(uid, dict, schema)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ([("key", pa.int64()), ("worth", pa.int64())], "'value' is missing; 'worth' is new"),
        ([("key", pa.int64()), ("value", pa.string())], "'value' was int64 and is string"),
        ([("value", pa.int64()), ("key", pa.int64())], "their order was key, value and is value, key"),
    ],
)
def test_streams_with_different_columns_are_refused_when_the_job_is_built(
    other: list[tuple[str, pa.DataType]], reason: str
) -> None:
    flow = weir.Dataflow("wrong")
    rows = flow.source("numbers", SEQUENCE)
    first_stream = shaped(rows, "one", pa.schema([("key", pa.int64()), ("value", pa.int64())]))
    second_stream = shaped(rows, "two", pa.schema(other))
    unknown = rows.map_batches("same", timed)
    with pytest.raises(weir.JobRejected, match=reason) as error:
        unknown.union("both", first_stream, second_stream)
    assert (error.value.code, error.value.field) == ("wrong-columns", "both")
    assert "the columns of 'two' differ from the columns of 'one'" in error.value.detail


def test_what_is_no_stream_of_the_job_is_refused() -> None:
    rows = weir.Dataflow("one").source("numbers", SEQUENCE)
    with pytest.raises(weir.JobRejected, match="at least one other stream"):
        rows.union("both")
    with pytest.raises(weir.JobRejected, match="leave out the key_by"):
        rows.union("keyed", rows.key_by("key"))  # type: ignore[arg-type]
    with pytest.raises(weir.JobRejected, match="belongs to another dataflow"):
        rows.union("foreign", weir.Dataflow("two").source("numbers", SEQUENCE))


def test_unknown_columns_that_differ_end_the_job(tmp_path: Path) -> None:
    """The declared columns of one input hold for all."""
    flow = weir.Dataflow("wrong")
    rows = flow.source("numbers", Numbers(total=10))
    declared = shaped(rows, "declared", pa.schema([("key", pa.int64()), ("value", pa.int64())]))
    rows.map_batches("timed", timed).union("both", declared).sink("out", weir.DiscardSink())
    with Jobs(None).running(flow.compile(1), tmp_path / "state") as run:
        run.join()
    assert "'time' is new" in str(run.records.failure)


def test_automatic_chooses_batch_for_a_bounded_job_with_a_union() -> None:
    """S0-10."""
    flow = weir.Dataflow("union")
    rows = flow.source("numbers", SEQUENCE)
    rows.union("both", rows).sink("out", weir.DiscardSink())
    assert resolve_mode(flow, ExecutionMode.AUTOMATIC, 2) is ExecutionMode.BATCH
