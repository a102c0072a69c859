"""Jobs with functions that read two streams: crashed and rescaled, and equal to the answer record by record."""

from collections import Counter as Multiset
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
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.jobs.test_windows import Clocked

BUCKET_MS = 10
OUT = pa.schema([(name, pa.int64()) for name in ("key", "bucket", "left", "right")])
TOTALS = weir.OutputTag("totals", OUT)


class Pairs(weir.KeyedCoProcessFunction):
    """All pairs of a bucket, once each; at the end of a bucket its number of rows on both sides, and it is freed."""

    def open(self, context: weir.ProcessContext) -> None:
        self.sides = context.map_state("left"), context.map_state("right")

    def process1(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        for other in self._add(0, row["value"], context):
            out.emit(self._row(context, row["value"], other))

    def process2(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        for other in self._add(1, row["at"], context):
            out.emit(self._row(context, other, row["at"]))

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        bucket = timestamp_ms // BUCKET_MS
        left, right = (len(side.get(bucket, [])) for side in self.sides)
        out.emit_to(TOTALS, {"key": int(context.current_key), "bucket": bucket, "left": left, "right": right})
        for side in self.sides:
            side.pop(bucket, None)

    def _add(self, side: int, value: int, context: weir.ProcessContext) -> list[int]:
        assert context.timestamp == value
        bucket = value // BUCKET_MS
        context.register_event_timer(bucket * BUCKET_MS + BUCKET_MS - 1)
        self.sides[side][bucket] = [*self.sides[side].get(bucket, []), value]
        values: list[int] = self.sides[1 - side].get(bucket, [])
        return values

    def _row(self, context: weir.ProcessContext, left: int, right: int) -> dict[str, int]:
        return {"key": int(context.current_key), "bucket": left // BUCKET_MS, "left": left, "right": right}


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"key": batch.column("key").cast(pa.string()), "value": batch.column("value")})


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"at": batch.column("value"), "name": batch.column("key").cast(pa.large_string())})


def job(left: Clocked, right: Clocked, bomb: Bomb, folder: Path, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("pairs")
    numbers = flow.source("numbers", left).map_batches("text", as_text).map_batches("bomb", bomb)
    other = flow.source("others", right).map_batches("renamed", renamed)
    pairs = numbers.key_by("key").connect(other.key_by("name"))
    results = pairs.process("pairs", Pairs, OUT, time=("value", "at"), side_outputs=[TOTALS])
    results.sink("out", weir.ParquetSink(str(folder / "out")))
    results.side_output(TOTALS).sink("totals", weir.ParquetSink(str(folder / "totals")))
    return flow.compile(parallelism)


def rows_by_bucket(total: int) -> dict[tuple[int, int], list[int]]:
    rows: dict[tuple[int, int], list[int]] = {}
    for value in range(total):
        for split in range(4):
            rows.setdefault(((value * 31 + split) % 7, value // BUCKET_MS), []).append(value)
    return rows


def test_two_streams_share_state_and_timers(tmp_path: Path, jobs: Jobs) -> None:
    """Keys of both sides meet in one subtask; a timer waits for the event time of the slower stream."""
    left, right, bomb, storage = Clocked(total=100), Clocked(total=40), Bomb(), tmp_path / "state"
    restart = weir.FixedDelay(attempts=9, delay_ms=20)
    savepoint: str | None = None
    for attempt, parallelism in enumerate((3, 7 if jobs.launcher is None else 4, 1)):
        records = MemoryRunStore(token=Token(10 * attempt + 1), restore_from=savepoint)
        with jobs.running(job(left, right, bomb, tmp_path, parallelism), storage, records, restart=restart) as run:
            before = records.token
            run.checkpoints(1)
            bomb.arm()
            left.total += 50
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            right.total += 60
            for uid, source in (("numbers", left), ("others", right)):
                run.wait_for(
                    lambda uid=uid, source=source: (  # type: ignore[misc]
                        run.manifests and positions_in(run.manifests[-1], storage, 4, uid) == [source.total] * 4
                    )
                )
            savepoint = run.end("drain" if attempt == 2 else "stop")
    left_rows, right_rows = rows_by_bucket(left.total), rows_by_bucket(right.total)
    pairs = Multiset(
        (key, left_value, right_value)
        for (key, bucket), rows in left_rows.items()
        for left_value in rows
        for right_value in right_rows.get((key, bucket), ())
    )
    assert Multiset((row["key"], row["left"], row["right"]) for row in committed(tmp_path / "out")) == pairs
    totals = sorted((row["key"], row["bucket"], row["left"], row["right"]) for row in committed(tmp_path / "totals"))
    assert totals == sorted(
        (*at, len(left_rows.get(at, ())), len(right_rows.get(at, ()))) for at in left_rows.keys() | right_rows.keys()
    )


class Counts(weir.CoProcessFunction):
    """The number of rows of each stream per subtask, at the end."""

    def open(self, context: weir.SubtaskContext) -> None:
        self.seen, self.ended = [0, 0], list[int]()

    def process1(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self.seen[0] += 1

    def process2(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self.seen[1] += 1

    def end_input(self, input: int, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self.ended.append(input)

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        assert sorted(self.ended) == [0, 1]
        out.emit({"left": self.seen[0], "right": self.seen[1]})


def test_a_function_without_keys_reads_two_streams(tmp_path: Path, jobs: Jobs) -> None:
    """S0-79: it finishes when both have ended."""
    flow = weir.Dataflow("counts")
    left_stream, right_stream = flow.source("one", Numbers(total=50)), flow.source("other", Numbers(total=700))
    counted = left_stream.connect(right_stream).process(
        "counts", Counts, pa.schema([("left", pa.int64()), ("right", pa.int64())])
    )
    counted.sink("out", weir.ParquetSink(str(tmp_path / "out")))
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    rows = committed(tmp_path / "out")
    assert len(rows) == 2
    assert [sum(row[side] for row in rows) for side in ("left", "right")] == [4 * 50, 4 * 700]


def test_what_cannot_be_connected_is_refused_when_the_job_is_built() -> None:
    flow = weir.Dataflow("wrong")
    rows = flow.source("rows", weir.SequenceSource(rows=10))
    numbers = rows.map("numbers", dict, SCHEMA)
    texts = rows.map("texts", dict, pa.schema([("name", pa.string()), ("small", pa.int8())]))
    by_key = numbers.key_by("key")
    for other, message in (
        (texts.key_by("name"), "key 'key' of its first input is int64, key 'name' of its second input is string"),
        (texts.key_by("small", "name"), "the same number of keys, not key and small, name"),
        (texts, "both streams need keys"),
    ):
        with pytest.raises(weir.JobRejected, match=message) as error:
            by_key.connect(other).process("pairs", Pairs, OUT)  # type: ignore[arg-type]
        assert error.value.field == "pairs"
    with pytest.raises(weir.JobRejected, match="Counts is not a subclass of KeyedCoProcessFunction"):
        by_key.connect(by_key).process("pairs", Counts, OUT)  # type: ignore[arg-type]
    with pytest.raises(weir.JobRejected, match="needs key_by"):
        numbers.connect(texts).process("pairs", Pairs, OUT)  # type: ignore[arg-type]
    with pytest.raises(weir.JobRejected, match="tuple of two"):
        by_key.connect(by_key).process("pairs", Pairs, OUT, time="value")  # type: ignore[arg-type]


class Ignores(weir.KeyedCoProcessFunction):
    def process1(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None: ...

    def process2(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None: ...


def test_keys_of_other_types_end_the_job(tmp_path: Path) -> None:
    """The columns are known from the data only."""
    flow = weir.Dataflow("wrong")
    rows = flow.source("numbers", Numbers(total=10))
    connected = rows.key_by("key").connect(rows.map_batches("renamed", renamed).key_by("name"))
    connected.process("pairs", Ignores, OUT).sink("out", weir.DiscardSink())
    with Jobs(None).running(flow.compile(1), tmp_path / "state") as run:
        run.join()
    assert "rows would never meet" in str(run.records.failure)
