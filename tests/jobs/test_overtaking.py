"""Barriers that overtake rows: a savepoint completes while a step takes no row, and its restore is exact."""

import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.latest import Latest
from runtime.ports import Collector, Operator
from tests.jobs.conftest import Jobs
from tests.jobs.live import with_operator
from tests.jobs.numbers import SCHEMA, Numbers, committed

SOURCE = Numbers(total=150, batch=10)
ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)
OVERTAKING = replace(ASKED, alignment_timeout_ms=100)


class Forward(weir.KeyedProcessFunction):
    def process(self, row: dict[str, int], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit(row)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Gate(Operator):
    """Passes rows on once the file `gate` exists, and takes none before."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def ready(self, finishing: bool) -> bool:
        return finishing or self._gate.exists()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)


def gated_job(gate: Path, output: Path, parallelism: int, source: str = "numbers") -> CompiledJob:
    flow = weir.Dataflow("gated")
    keyed = flow.source(source, SOURCE).key_by("key").process("gated", Forward, SCHEMA)
    keyed.sink("out", weir.ParquetSink(str(output)))
    return with_operator(flow.compile(parallelism), "gated", lambda: Gate(gate))


def rows_in_flight(manifest: Manifest) -> int:
    snapshots = manifest.operators["gated"].subtasks.values()
    return sum(segment.rows for each in snapshots for part in each.in_flight for segment in part.segments)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_savepoint_completes_while_a_step_takes_no_row_and_restores_exactly(
    tmp_path: Path, jobs: Jobs, parallelism: int
) -> None:
    """S4-48: the rows before the step are part of it. Its owner by key group replays each, at another parallelism."""
    gate, output, storage = tmp_path / "gate", tmp_path / "out", tmp_path / "state"
    with jobs.running(gated_job(gate, output, 2), storage, settings=OVERTAKING) as run:
        run.wait_for(lambda: run.operator("gated").get("in_flight_bytes", 0))
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        run.end("cancel")
    (savepoint,) = run.records.completed
    assert rows_in_flight(savepoint.manifest) > 0
    assert committed(output) == []
    gate.touch()
    records = MemoryRunStore(token=Token(9), restore_from=savepoint.folder)
    with jobs.running(gated_job(gate, output, parallelism), storage, records) as run:
        assert run.join() is MasterExitCode.DONE, run.records.failure
    counted = Counter(row["value"] for row in committed(output))
    assert counted == Counter(dict.fromkeys(range(SOURCE.total), SOURCE.splits))


class DescribedNumbers(Numbers):
    def output_columns(self) -> pa.Schema:
        return SCHEMA


class GatedLatest(Latest):
    """As `Gate`."""

    def __init__(self, gate: Path) -> None:
        super().__init__(("key",), "value")
        self._gate = gate

    def ready(self, finishing: bool) -> bool:
        return finishing or self._gate.exists()


def test_an_unchanged_job_restores_rows_that_lack_the_columns_of_later_steps(tmp_path: Path) -> None:
    """The columns used of an edge may name columns that a later step adds."""
    gate, output, storage = tmp_path / "gate", tmp_path / "out", tmp_path / "state"
    flow = weir.Dataflow("latest")
    source = DescribedNumbers(SOURCE.total, batch=SOURCE.batch)
    latest = flow.source("numbers", source).key_by("key").latest("gated", "value")
    chosen = latest.with_columns("double", double=pc.field("value") * 2).select("chosen", "key", "double")
    chosen.sink("out", weir.ParquetSink(str(output)))
    job = with_operator(flow.compile(2), "gated", lambda: GatedLatest(gate))
    assert "double" in (job.edges[0].used_columns or ())
    with Jobs(None).running(job, storage, settings=OVERTAKING) as run:
        run.wait_for(lambda: run.operator("gated").get("in_flight_bytes", 0))
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        run.end("cancel")
    (savepoint,) = run.records.completed
    assert rows_in_flight(savepoint.manifest) > 0
    gate.touch()
    records = MemoryRunStore(token=Token(9), restore_from=savepoint.folder)
    with Jobs(None).running(job, storage, records) as run:
        assert run.join() is MasterExitCode.DONE, run.records.failure
    assert {row["key"] for row in committed(output)} == set(range(SOURCE.keys))
    assert max(row["double"] for row in committed(output)) == 2 * (SOURCE.total - 1)


class Slow(weir.KeyedProcessFunction):
    """Needs `pace_s` for a row until the file `fast` exists. Adds a line to the file `handled` for each row."""

    def __init__(self, pace_s: float, fast: Path, handled: Path) -> None:
        self._pace_s, self._fast, self._handled = pace_s, fast, handled

    def process(self, row: dict[str, int], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        if not self._fast.exists():
            time.sleep(self._pace_s)
        with self._handled.open("a") as lines:
            lines.write(f"{row['value']}\n")
        out.emit(row)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_savepoint_waits_for_two_rows_of_a_slow_step_at_most(tmp_path: Path, jobs: Jobs, parallelism: int) -> None:
    """S4-48: on Spark at 0.4 rows a second, after a SIGKILL from whose checkpoint rows in flight were replayed."""
    fast, handled, output, storage = (tmp_path / name for name in ("fast", "handled", "out", "state"))
    pace_s = 2.5 if jobs.launcher else 0.5  # longer than a savepoint takes beside other tests

    def job(parallelism: int) -> CompiledJob:
        flow = weir.Dataflow("slow")
        rows = flow.source("numbers", replace(SOURCE, batch=1))  # a barrier waits for the batch in process
        for number in range(4):  # a barrier passes all of them in a turn of the slot
            rows = rows.map_batches(f"same{number}", same)
        rows.key_by("key").process("gated", lambda: Slow(pace_s, fast, handled), SCHEMA).sink(
            "out", weir.ParquetSink(str(output))
        )
        return flow.compile(parallelism)

    def handled_rows() -> int:
        return len(handled.read_text().splitlines()) if handled.exists() else 0

    with jobs.running(job(2), storage, settings=OVERTAKING, restart=FixedDelay(attempts=3, delay_ms=100)) as run:
        run.wait_for(lambda: handled_rows() > 4)
        run.ask("checkpoint")
        run.wait_for(lambda: "checkpoint" in run.records.settled)
        assert rows_in_flight(run.manifests[-1]) > 0
        if jobs.launcher:
            os.kill(run.records.live["slots"][0]["pid"], signal.SIGKILL)
            run.wait_for(lambda: run.records.token > run.manifests[-1].token)
        before = handled_rows()
        run.wait_for(lambda: handled_rows() > before + 4)
        before, began = handled_rows(), time.monotonic()
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        took_s, meanwhile = time.monotonic() - began, handled_rows() - before
        run.end("cancel")
    assert meanwhile <= 2 * 2, f"each slot handled more than two rows in {took_s:.1f} s"
    savepoint = run.records.completed[-1]
    assert rows_in_flight(savepoint.manifest) > 0
    fast.touch()
    records = MemoryRunStore(token=Token(99), restore_from=savepoint.folder)
    with jobs.running(job(parallelism), storage, records) as run:
        assert run.join() is MasterExitCode.DONE, run.records.failure
    counted = Counter(row["value"] for row in committed(output))
    assert counted == Counter(dict.fromkeys(range(SOURCE.total), SOURCE.splits))


def test_without_the_setting_a_savepoint_waits_for_the_rows(tmp_path: Path, jobs: Jobs) -> None:
    gate, storage = tmp_path / "gate", tmp_path / "state"
    with jobs.running(gated_job(gate, tmp_path / "out", 2), storage, settings=ASKED) as run:
        run.wait_for(lambda: run.operator("gated").get("in_flight_bytes", 0))
        run.ask("savepoint")
        time.sleep(5 * OVERTAKING.alignment_timeout_ms / 1_000)
        assert "savepoint" not in run.records.settled
        gate.touch()
        run.wait_for(lambda: "savepoint" in run.records.settled)
        assert rows_in_flight(run.manifests[0]) == 0
        run.join()


def test_rows_in_flight_on_a_changed_edge_are_refused_before_anything_starts(tmp_path: Path) -> None:
    gate, output, storage = tmp_path / "gate", tmp_path / "out", tmp_path / "state"
    with Jobs(None).running(gated_job(gate, output, 2), storage, settings=OVERTAKING) as run:
        run.wait_for(lambda: run.operator("gated").get("in_flight_bytes", 0))
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        run.end("cancel")
    records = MemoryRunStore(token=Token(9), restore_from=run.records.completed[0].folder)
    with Jobs(None).running(gated_job(gate, output, 2, source="others"), storage, records) as again:
        assert again.join() is MasterExitCode.DONE
    message = str((records.failure or {}).get("message"))
    assert message.startswith("gated: the checkpoint holds rows in flight to it from 'numbers'")
    assert committed(output) == []


def test_a_job_in_which_no_row_has_a_key_group_is_refused_by_name(tmp_path: Path) -> None:
    flow = weir.Dataflow("plain")
    flow.source("numbers", SOURCE).map_batches("same", same).sink("out", weir.DiscardSink())
    with Jobs(None).running(flow.compile(1), tmp_path, settings=OVERTAKING) as run:
        assert run.join() is MasterExitCode.DONE
    message = str((run.records.failure or {}).get("message"))
    assert "alignment_timeout_ms" in message
    assert "'same' reads 'numbers' over a forward edge" in message
