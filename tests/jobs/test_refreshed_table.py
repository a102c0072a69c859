"""Whole jobs with a broadcast join whose table is read again: slots killed in the midst of a version, and behind it."""

import os
import signal
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.sinks.collect import CollectSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count
from runtime.ports import OperatorContext, SourceReader
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import Run, running
from tests.jobs.numbers import committed
from tests.shared import Shared

COLUMNS = pa.schema([("value", pa.int64()), ("label", pa.int64())])
TABLE_ROWS, HALF = 1_000, 500
SPLITS = 4


@dataclass(eq=False)
class Table(Shared):
    """Bounded: a row of each value, with the label that it has when a reader opens. Held: it stops in the middle."""

    label: int = 1
    held: bool = False
    bounded = True
    guarantee = "exactly-once"

    def output_columns(self) -> pa.Schema:
        return COLUMNS

    def reader(self) -> "TableReader":
        return TableReader(self)

    def check(self) -> None:
        return None


class TableReader(SourceReader):
    def __init__(self, table: Table) -> None:
        self._table, self._next, self._label = table, 0, 0

    def open(self, context: OperatorContext) -> None:
        context.state.list_state("nothing")
        self._label, self._next = self._table.label, TABLE_ROWS if context.index else 0

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if self.exhausted or (self._next >= HALF and self._table.held):
            return None
        values = pa.array(range(self._next, self._next + 100), pa.int64())
        self._next += 100
        return pa.RecordBatch.from_arrays([values, pa.array([self._label] * 100, pa.int64())], schema=COLUMNS)

    @property
    def exhausted(self) -> bool:
        return self._next >= TABLE_ROWS


def job(table: Table, probes: Gated, bomb: Bomb, output: Path, parallelism: int = 2) -> CompiledJob:
    flow = Dataflow("refreshed")
    build = flow.source("table", table)
    rows = flow.source("probes", probes).map_batches("bomb", bomb)
    joined = rows.join_broadcast("join", build, on=["value"], take=["label"], refresh=timedelta(seconds=1))
    joined.sink("out", ParquetSink(str(output)))
    return flow.compile(parallelism)


def labels(output: Path) -> dict[int, list[int]]:
    """The labels of each split, in the order of its rows. A row of the probes has its label once."""
    by_split: dict[int, dict[int, int]] = defaultdict(dict)
    for row in committed(output):
        split = (row["key"] - row["value"] * 31) % 7
        assert row["value"] not in by_split[split], "a row was joined twice"
        by_split[split][row["value"]] = row["label"]
    return {split: [rows[value] for value in sorted(rows)] for split, rows in by_split.items()}


def reads_half(run: Run) -> bool:
    """Whether the last attempt has the first half of a version, and waits for the rest."""
    step: Any = run.operator("join.refresh")
    return bool(step) and step["records_out"] % (TABLE_ROWS + 1) == HALF and not step["rate_out"]


def probe(run: Run, probes: Gated, output: Path, count: int = 20) -> None:
    probes.total += count
    run.wait_for(lambda: sum(map(len, labels(output).values())) == SPLITS * probes.total)


def use(run: Run, table: Table, probes: Gated, output: Path) -> None:
    """Probes until each split finds the newest label."""
    table.held = False

    def is_used() -> bool:
        probe(run, probes, output, 2)
        return all(each[-1] == table.label for each in labels(output).values())

    run.wait_for(is_used)


def kill(run: Run, jobs: Jobs, slot: int, probes: Gated, bomb: Bomb) -> None:
    """On threads an attempt fails as a whole. Waits for the next attempt, and its first checkpoint."""
    token = run.records.token
    if jobs.launcher is None:
        bomb.arm()
        probes.total += 1
    else:
        run.wait_for(lambda: len(run.records.live.get("slots", [])) == 2)
        pid = next(row["pid"] for row in run.records.live["slots"] if int(row["index"]) == slot)
        os.kill(int(pid), signal.SIGKILL)
    run.wait_for(lambda: any(manifest.token > token for manifest in run.manifests))


def test_every_subtask_uses_a_version_as_a_whole_whatever_slot_is_killed(jobs: Jobs, tmp_path: Path) -> None:
    """S0-09: half a version is never used; a restore uses the version of its checkpoint, and then the next."""
    table, probes, bomb, output = Table(), Gated(total=0), Bomb(), tmp_path / "out"
    restart = FixedDelay(attempts=10, delay_ms=10)
    with jobs.running(job(table, probes, bomb, output), tmp_path / "state", restart=restart) as run:
        probe(run, probes, output)
        for label, slot in ((2, 1), (3, 0)):  # slot 0 reads the versions
            table.held, table.label = True, label
            run.wait_for(lambda: reads_half(run))
            run.checkpoints(2)  # the half is state
            probe(run, probes, output)
            kill(run, jobs, slot, probes, bomb)
            probe(run, probes, output)
            run.wait_for(lambda: reads_half(run))
            probe(run, probes, output)
            assert {each[-1] for each in labels(output).values()} == {label - 1}, "half a version is not used"
            use(run, table, probes, output)
            run.checkpoints(1)
            table.held = True
            kill(run, jobs, slot, probes, bomb)  # behind the switch
            probe(run, probes, output)
            assert {each[-1] for each in labels(output).values()} == {label}, "a restore keeps the version in use"
        table.held = False
        run.end("drain")
    assert {tuple(sorted(set(each))) for each in labels(output).values()} == {(1, 2, 3)}
    assert all(each == sorted(each) for each in labels(output).values()), "a version came back"
    assert {split: len(each) for split, each in labels(output).items()} == dict.fromkeys(range(SPLITS), probes.total)


def test_windows_behind_the_join_fire_between_two_versions(tmp_path: Path) -> None:
    """The step that reads the versions has no event time, and would hold back every window if it were not idle."""
    table, sink, flow = Table(), CollectSink(), Dataflow("windows")
    probes = SequenceSource(keys=TABLE_ROWS, rows_per_second=500, microseconds_per_row=10_000)
    rows = flow.source("probes", probes).with_columns("values", value=pc.field("key"))
    joined = rows.join_broadcast(
        "join", flow.source("table", table), on=["value"], take=["label"], refresh=timedelta(seconds=1)
    )
    windows = joined.key_by("label").window("windows", timedelta(seconds=1), "time", {"n": Count()})
    windows.sink("out", sink)
    with running(flow.compile(2), tmp_path / "state") as run:
        for label in (1, 2, 3):
            table.label = label
            run.wait_for(lambda label=label: any(row["label"] == label for row in sink.rows()))  # type: ignore[misc]
        run.end("drain")
    assert not run.records.live["counters"].get("late_records")
    assert sum(row["n"] for row in sink.rows()) == run.operator("probes")["records_out"]


def test_a_rescale_keeps_the_version_in_use(jobs: Jobs, tmp_path: Path) -> None:
    """S0-09: the table may be gone by then: no subtask reads it again before the next version."""
    table, probes, bomb, output = Table(), Gated(total=0), Bomb(), tmp_path / "out"
    with jobs.running(job(table, probes, bomb, output), tmp_path / "state") as run:
        table.label = 2
        use(run, table, probes, output)
        table.held = True
        savepoint = run.end("stop")
    table.label = 3
    records = MemoryRunStore(token=Token(10), restore_from=savepoint)
    with jobs.running(job(table, probes, bomb, output, 1), tmp_path / "state", records) as run:
        probe(run, probes, output)
        assert {each[-1] for each in labels(output).values()} == {2}
        use(run, table, probes, output)
        run.end("drain")
    assert all(each == sorted(each) for each in labels(output).values()), "a version came back"
