"""Barriers that overtake rows: a savepoint completes while a step takes no row, and its restore is exact."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
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


class Gate(Operator):
    """Passes rows on once the file `gate` exists, and takes none before."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def ready(self, finishing: bool) -> bool:
        return finishing or self._gate.exists()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)


def gated_job(gate: Path, output: Path, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("gated")
    keyed = flow.source("numbers", SOURCE).key_by("key").process("gated", Forward, SCHEMA)
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


def test_a_job_in_which_no_row_has_a_key_group_is_refused_by_name(tmp_path: Path) -> None:
    flow = weir.Dataflow("plain")
    flow.source("numbers", SOURCE).map_batches("same", lambda batch: batch).sink("out", weir.DiscardSink())
    with Jobs(None).running(flow.compile(1), tmp_path, settings=OVERTAKING) as run:
        assert run.join() is MasterExitCode.DONE
    message = str((run.records.failure or {}).get("message"))
    assert "alignment_timeout_ms" in message
    assert "'same' reads 'numbers' over a forward edge" in message
