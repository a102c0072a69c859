"""The pipelines for real, on the runtime in one process: exact over a stop, a rescale and a drain; nothing lost unseen.

The expected output is worked out with plain Python, not with the operators of the job.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples import nycflights
from examples.feeder import FeedPlan, feed
from examples.pipelines import flights, wordcount
from examples.schemas import DAILY
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import local_master
from runtime.master.job_master import JobMaster
from tests.examples.inputs import airlines, weather, write_flight_inputs

ROWS = 9_000  #: the first eleven days
PATIENCE_S = 60.0


@dataclass
class LocalRun:
    """A job in this process, and what it has recorded."""

    master: JobMaster
    records: MemoryRunStore
    thread: threading.Thread

    def until(self, what: str, check: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not check():
            assert self.thread.is_alive(), f"the job ended before {what}: {self.records.failure}"
            assert time.monotonic() < deadline, f"{what} did not come; live: {self.records.live}"
            time.sleep(0.02)

    def read(self, rows: int) -> None:
        """Waits until the source has given out `rows` since this run began."""
        self.until(f"{rows} rows", lambda: operators(self.records).get("flights", {}).get("records_out") == rows)

    def end(self, kind: str) -> str:
        """Stops or drains; the folder of the savepoint."""
        self.records.operations.append(OperationRequest(kind, kind))
        self.master.poke()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        assert self.records.failure is None
        savepoint = self.records.final_savepoint()
        assert savepoint is not None
        return savepoint


def operators(records: MemoryRunStore) -> dict[str, Any]:
    operators: dict[str, Any] = records.live.get("operators", {})
    return operators


@contextmanager
def running(flow: Dataflow, parallelism: int, storage: Path, records: MemoryRunStore) -> Iterator[LocalRun]:
    settings = CoordinatorSettings(interval_ms=200, min_pause_ms=0)
    job = flow.compile(parallelism)
    master = local_master(job, str(storage), records, settings, FixedDelay(attempts=0))
    thread = threading.Thread(target=master.run)
    thread.start()
    run = LocalRun(master, records, thread)
    try:
        yield run
    finally:
        if thread.is_alive():
            records.operations.append(OperationRequest("cleanup", "cancel"))
            master.poke()
            thread.join(PATIENCE_S)


@dataclass
class Folders:
    """Where one test's job reads and writes."""

    root: Path

    @property
    def flights(self) -> Path:
        return self.root / "in"

    @property
    def output(self) -> Path:
        return self.root / "out"

    def flow(self, **params: Any) -> Dataflow:
        arguments = {"flights_dir": str(self.flights), "output_dir": str(self.output), **params}
        return flights.PIPELINE.dataflow(arguments, PipelineContext(str(self.root / "inputs")))

    def committed(self) -> list[dict[str, Any]]:
        parts = [pq.read_table(path) for path in sorted(self.output.glob("part-*.parquet"))]
        rows = pa.concat_tables(parts).select(DAILY.names).cast(DAILY).to_pylist()
        return sorted(rows, key=lambda row: (row["carrier"], row["origin"], row["window_start"]))


@pytest.fixture
def folders(tmp_path: Path, some: pa.Table) -> Folders:
    """Empty folders, with the inputs from Spark already written."""
    folders = Folders(tmp_path)
    for folder in (folders.flights, folders.output):
        folder.mkdir(parents=True)
    write_flight_inputs(tmp_path / "inputs", some)
    return folders


@pytest.fixture(scope="module")
def some() -> pa.Table:
    return nycflights.read_flights().slice(0, ROWS)


def by_hand(table: pa.Table) -> list[dict[str, Any]]:
    names = {row["carrier"]: row["name"] for row in airlines().to_pylist()}
    outside = {tuple(row[name] for name in _HOUR): row for row in weather().to_pylist()}

    def key(row: dict[str, Any]) -> tuple[str, str, str]:
        return row["carrier"], row["origin"], f"{row['year']}-{row['month']:02}-{row['day']:02}T00:00:00"

    results = []
    for (carrier, origin, day), rows in itertools.groupby(sorted(table.to_pylist(), key=key), key=key):
        group = list(rows)
        delays = [row["dep_delay"] for row in group if row["dep_delay"] is not None]
        cancelled = sum(row["dep_time"] is None for row in group)
        hours = [outside.get(tuple(row[name] for name in _HOUR), {}) for row in group]
        wet = sum((hour.get("precip") or 0) > 0 for hour in hours)
        wind = [hour["wind_speed"] for hour in hours if hour.get("wind_speed") is not None]
        arrivals = [row["arr_delay"] for row in group if row["arr_delay"] is not None] if carrier in names else []
        sums = (len(group), _mean(delays), max(delays, default=None), cancelled, wet, max(wind, default=None))
        results.append((carrier, names.get(carrier), origin, day, *sums, _mean(arrivals)))
    return [dict(zip([*DAILY.names[:4], *DAILY.names[5:]], row, strict=True)) for row in results]


_HOUR = ("origin", "year", "month", "day", "hour")


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the end of the window, which follows from its start."""
    records = [{name: value for name, value in row.items() if name != "window_end"} for row in rows]
    return [row | {"window_start": row["window_start"].isoformat()} for row in records]


def test_flights_are_exact_over_a_stop_and_a_rescale(folders: Folders, some: pa.Table, tmp_path: Path) -> None:
    """S0-08, S0-30, S0-71, S3-19: at parallelism 2 to the middle, at 3 to the end; no row late, lost or repeated."""
    feeding, tight = feed(some, folders.flights, FeedPlan(files=11), 0), FeedPlan().disorder_hours
    first_half = sum(next(feeding) for _ in range(5))
    with running(folders.flow(max_disorder_hours=int(tight)), 2, tmp_path / "state", MemoryRunStore()) as run:
        run.read(first_half)
        savepoint = run.end("stop")
    committed_before = len(folders.committed())
    records = MemoryRunStore(token=Token(7), restore_from=savepoint)
    with running(folders.flow(max_disorder_hours=int(tight)), 3, tmp_path / "state", records) as run:
        run.read(sum(feeding))
        run.end("drain")
    assert 0 < committed_before < len(by_hand(some))
    assert comparable(folders.committed()) == by_hand(some)
    assert records.live.get("counters", {}).get("late_records", 0) == 0
    assert not list(folders.output.glob(".weir-*"))


def test_airlines_finish_and_stay_finished_after_a_restore(folders: Folders, some: pa.Table, tmp_path: Path) -> None:
    """S0-09: the bounded table ends, and the stream that is joined with it goes on."""
    list(feed(some.slice(0, 1_000), folders.flights, FeedPlan(files=2), 0))
    with running(folders.flow(), 2, tmp_path / "state", MemoryRunStore()) as run:
        run.until("airlines to finish", lambda: operators(run.records).get("airlines", {}).get("state") == "finished")
        run.until("a checkpoint", lambda: run.records.completed)
        savepoint = run.end("stop")
    records = MemoryRunStore(token=Token(7), restore_from=savepoint)
    with running(folders.flow(), 2, tmp_path / "state", records) as run:
        run.until("the job to run", lambda: operators(records).get("flights", {}).get("state") == "running")
        assert operators(records)["airlines"]["state"] == "finished"
        assert operators(records)["airlines"]["records_out"] in (0, 16)
        run.end("drain")
    assert sum(row["flights"] for row in folders.committed()) == 1_000


def test_a_carrier_without_a_name_is_kept(folders: Folders, some: pa.Table, tmp_path: Path) -> None:
    unknown = some.slice(0, 10).set_column(9, "carrier", pa.array(["??"] * 10))
    list(feed(unknown, folders.flights, FeedPlan(files=1), 0))
    with running(folders.flow(), 2, tmp_path / "state", MemoryRunStore()) as run:
        run.read(10)
        run.end("drain")
    assert comparable(folders.committed()) == by_hand(unknown)
    assert {row["name"] for row in folders.committed()} == {None}


def test_late_rows_are_counted(folders: Folders, some: pa.Table, tmp_path: Path) -> None:
    """A bound smaller than the disorder loses rows, and says how many."""
    mixed = FeedPlan(files=11, disorder_hours=72)
    list(feed(some, folders.flights, mixed, 0))
    with running(folders.flow(max_disorder_hours=0), 1, tmp_path / "state", MemoryRunStore()) as run:
        run.read(ROWS)
        run.end("drain")
    late = run.records.live["counters"]["late_records"]
    assert late > 0
    assert sum(row["flights"] for row in folders.committed()) + late == ROWS


def spoil(folder: Path) -> Path:
    """Row 3 of the first file gets a delay that is no number."""
    victim = min(folder.glob("flights-*.csv"))
    lines = victim.read_text().splitlines()
    fields = lines[3].split(",")
    fields[lines[0].split(",").index("dep_delay")] = "soon"
    victim.write_text("\n".join([*lines[:3], ",".join(fields), *lines[4:]]) + "\n")
    return victim


def test_a_malformed_row_fails_the_run_and_is_named(folders: Folders, some: pa.Table, tmp_path: Path) -> None:
    list(feed(some.slice(0, 100), folders.flights, FeedPlan(files=2), 0))
    victim = spoil(folders.flights)
    with running(folders.flow(), 2, tmp_path / "state", MemoryRunStore()) as run:
        run.thread.join(PATIENCE_S)
    message = str(run.records.failure)
    assert victim.name in message
    assert "dep_delay" in message
    assert "3" in message


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_malformed_row_can_be_set_aside(folders: Folders, some: pa.Table, tmp_path: Path, policy: str) -> None:
    list(feed(some.slice(0, 100), folders.flights, FeedPlan(files=2), 0))
    spoil(folders.flights)
    dead = tmp_path / "dead"
    flow = folders.flow(on_malformed=policy, dead_letter_dir=str(dead))
    with running(flow, 2, tmp_path / "state", MemoryRunStore()) as run:
        run.read(99)
        run.end("drain")
    assert sum(row["flights"] for row in folders.committed()) == 99
    letters = "".join(path.read_text() for path in dead.rglob("*") if path.is_file()) if dead.exists() else ""
    assert ("soon" in letters) is (policy == "dead_letter")


def test_words_are_counted_over_a_stop(tmp_path: Path) -> None:
    """S4-12."""
    lines, output = tmp_path / "lines", tmp_path / "out"
    lines.mkdir()
    output.mkdir()
    texts = ["to be or not to be", "that is the question", "To be is to do"]
    params = wordcount.WordCountParams(lines_dir=str(lines), output_dir=str(output))
    flow = wordcount.build(params, PipelineContext(""))
    savepoint: str | None = None
    for token, text in enumerate(texts, 1):
        (lines / f"{token}.txt").write_text(text + "\n")
        records = MemoryRunStore(token=Token(token), restore_from=savepoint)
        with running(flow, 2, tmp_path / "state", records) as run:
            run.until("the line", lambda r=records: operators(r).get("lines", {}).get("records_out") == 1)  # type: ignore[misc]
            savepoint = run.end("stop")
    newest: dict[str, int] = {}
    for path in output.glob("part-*.parquet"):
        for row in pq.read_table(path).to_pylist():
            newest[row["word"]] = max(newest.get(row["word"], 0), row["count"])
    assert newest == Counter(" ".join(texts).lower().split())
