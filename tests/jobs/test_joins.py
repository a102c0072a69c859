"""Whole jobs that join two streams in event time: killed and rescaled, and equal to the answer record by record."""

from collections import Counter as Multiset
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.live import positions_in
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.jobs.test_windows import Clocked

LEFT = pa.schema([("key", pa.string()), ("time", pa.int64())])
RIGHT = pa.schema([("at", pa.timestamp("us")), ("name", pa.large_string())])
LATE = (weir.OutputTag("late_left", LEFT), weir.OutputTag("late_right", RIGHT))
LOWER_MS, UPPER_MS = -5, 3
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # Parquet returns times without a zone
BEHIND_MS = 60  #: so far every tenth row lies behind the others
Record = tuple[int, int]  #: key and time


def is_behind(value: Any) -> Any:
    return BEHIND_MS * (value % 10 == 0)


def left_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_numpy()
    return pa.record_batch([batch.column("key").cast(pa.string()), pa.array(values - is_behind(values))], schema=LEFT)


def right_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").to_numpy()
    times = pa.array((values - is_behind(values)) * 1_000).cast(pa.timestamp("us"))
    return pa.record_batch([times, batch.column("key").cast(pa.large_string())], schema=RIGHT)


class Dies:
    """Ends the process at a batch, if that is due."""

    def __init__(self, deaths: Deaths) -> None:
        self.mortal = Mortal(deaths, "rows")

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.mortal.at("batch")
        return batch


def job(left: Clocked, right: Clocked, deaths: Deaths, folder: Path, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("joins")
    left_stream = flow.source("numbers", left).map_batches("left", left_rows).map_batches("dies", Dies(deaths))
    other = flow.source("others", right).map_batches("right", right_rows)
    pairs = (
        left_stream.key_by("key")
        .interval_join(other.key_by("name"))
        .between(
            "pairs",
            timedelta(milliseconds=LOWER_MS),
            timedelta(milliseconds=UPPER_MS),
            time=("time", "at"),
            result_time="when",
            late_to=LATE,
        )
    )
    pairs.sink("out", weir.ParquetSink(str(folder / "out")))
    for tag in LATE:
        pairs.side_output(tag).sink(tag.name, weir.ParquetSink(str(folder / tag.name)))
    windows = pairs.key_by("key").window("windows", timedelta(milliseconds=20), "when", {"n": weir.Count()})
    windows.sink("windowed", weir.ParquetSink(str(folder / "windowed")))
    return flow.compile(parallelism)


def records(total: int) -> Multiset[Record]:
    records: Multiset[Record] = Multiset()
    for value in range(total):
        for split in range(4):
            records[(value * 31 + split) % 7, value - is_behind(value)] += 1
    return records


def late_records(folder: Path) -> Iterator[Multiset[Record]]:
    for tag, key, time in zip(LATE, ("key", "name"), ("time", "at"), strict=True):
        yield Multiset((int(row[key]), milliseconds(row[time])) for row in committed(folder / tag.name))


def milliseconds(time: Any) -> int:
    return time if isinstance(time, int) else round((time - EPOCH) / timedelta(milliseconds=1))


def pairs_of(left: Multiset[Record], right: Multiset[Record]) -> Multiset[tuple[int, int, int]]:
    return Multiset(
        {
            (key, time, at): n * m
            for (key, time), n in left.items()
            for at in range(time + LOWER_MS, time + UPPER_MS + 1)
            if (m := right[key, at])
        }
    )


def test_an_interval_join_is_exact(tmp_path: Path, jobs: Jobs) -> None:
    """S3-20: through a SIGKILL on Spark at each parallelism; 3 → 7 → 1 with state (on Spark 3 → 4 → 1)."""
    left, right, deaths, storage = Clocked(total=200), Clocked(total=120), Deaths(), tmp_path / "state"
    restart = weir.FixedDelay(attempts=9, delay_ms=20)
    savepoint: str | None = None
    for attempt, parallelism in enumerate((3, 7 if jobs.launcher is None else 4, 1)):
        store = MemoryRunStore(token=Token(10 * attempt + 1), restore_from=savepoint)
        with jobs.running(job(left, right, deaths, tmp_path, parallelism), storage, store, restart=restart) as run:
            before = store.token
            run.checkpoints(1)
            deaths.add("rows: batch")
            left.total += 50
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            right.total += 70
            for uid, source in (("numbers", left), ("others", right)):
                run.wait_for(
                    lambda uid=uid, source=source: (  # type: ignore[misc]
                        run.manifests and positions_in(run.manifests[-1], storage, 4, uid) == [source.total] * 4
                    )
                )
            savepoint = run.end("drain" if attempt == 2 else "stop")
    late = list(late_records(tmp_path))
    every = records(left.total), records(right.total)
    assert all(some.total() for some in late), "rows that lie so far behind are late"
    assert all(not some - all_of for some, all_of in zip(late, every, strict=True))
    assert all(time % 10 == 0 for some in late for _, time in some)
    expected = pairs_of(*(all_of - some for some, all_of in zip(late, every, strict=True)))
    rows = committed(tmp_path / "out")
    assert Multiset((int(row["key"]), row["time"], milliseconds(row["at"])) for row in rows) == expected
    assert all(milliseconds(row["when"]) == max(row["time"], milliseconds(row["at"])) for row in rows)
    assert sum(row["n"] for row in committed(tmp_path / "windowed")) == expected.total(), "no pair is late"


def test_joins_that_cannot_run_are_refused_when_the_job_is_built() -> None:
    flow = weir.Dataflow("wrong")
    rows = flow.source("rows", weir.SequenceSource(rows=10))
    numbers, texts = rows.map("numbers", dict, SCHEMA), rows.map("texts", dict, LEFT)
    join = numbers.key_by("key").interval_join(numbers.key_by("key"))
    zero, second = timedelta(0), timedelta(seconds=1)
    time = ("value", "value")

    def wrong(other: Any = None, *, upper: Any = second, **arguments: Any) -> None:
        streams = join if other is None else numbers.key_by("key").interval_join(other)
        streams.between("j", zero, upper, **{"time": time, **arguments})

    for arguments, message in (
        ({"upper": -second}, "no time lies between 0 ms and -1000 ms"),
        ({"upper": zero, "upper_exclusive": True}, "no time lies between"),
        ({"upper": 5}, "upper must be a timedelta, not int"),
        ({"time": "value"}, "tuple of two"),
        ({"time": ("value", "at")}, "at: there is no such column; there are key, value"),
        ({}, "two columns of the joined rows have this name: name them apart with suffixes"),
        ({"suffixes": "ab"}, "tuple of two texts"),
        ({"late_to": LATE[0]}, "None for each stream"),
        ({"late_to": LATE}, "late rows have the columns"),
        ({"other": texts.key_by("key")}, "first input is int64, key 'key' of its second input is string"),
        ({"other": texts}, "both streams need keys"),
    ):
        with pytest.raises(weir.JobRejected, match=message) as error:
            wrong(**arguments)
        assert error.value.field == "j"
    stream = join.between("j", zero, second, time=time, suffixes=("", "_2"), result_time="when")
    assert stream.columns is not None
    assert stream.columns.names == ["key", "value", "value_2", "when"]


def test_a_join_without_event_time_is_refused_before_the_start() -> None:
    flow = weir.Dataflow("silent")
    rows = flow.source("rows", Numbers(total=10, unbounded=True)).map("numbers", dict, SCHEMA).key_by("key")
    joined = rows.interval_join(rows).between(
        "j", timedelta(0), timedelta(seconds=1), time=("value", "value"), suffixes=("", "_2")
    )
    joined.sink("out", weir.DiscardSink())
    with pytest.raises(weir.JobRejected, match="kept for ever: the unbounded source 'rows'") as error:
        flow.compile(1)
    assert (error.value.code, error.value.field) == ("no-event-time", "j")
