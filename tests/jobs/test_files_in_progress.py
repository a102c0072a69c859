"""Jobs whose files stay in progress over checkpoints, failures, savepoints and rescales: 2, 3 and 1 subtasks."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import Run, running

NO_LIMITS: dict[str, Any] = {"max_bytes": None, "roll_after_ms": 3_600_000, "roll_after_idle_ms": None}


def compiled(sink: Any, source: Gated, bomb: Bomb, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("files", max_parallelism=16)
    flow.source("numbers", source).map_batches("trouble", bomb).sink("out", sink)
    return flow.compile(parallelism)


def values_in(path: Path) -> list[int]:
    if path.suffix == ".parquet":
        values: list[int] = pq.read_table(path)["value"].to_pylist()
        return values
    return [json.loads(line)["value"] for line in path.read_bytes().splitlines()]


def fail_once(run: Run, source: Gated, bomb: Bomb) -> None:
    """An attempt that fails after two checkpoints, and two checkpoints of the next, with new rows."""
    run.checkpoints(2)
    before = run.records.token
    bomb.arm()
    source.total += 20
    run.wait_for(lambda: run.records.token > before)
    run.checkpoints(2)


@pytest.mark.parametrize("kind", ["json", "compacted"])
def test_files_in_progress_survive_failures_stops_and_rescales(tmp_path: Path, jobs: Jobs, kind: str) -> None:
    """S1-52, S1-53: nothing is visible before the end, and then each row once; old copies are removed."""
    out = tmp_path / "out"
    sinks: dict[str, Any] = {
        "json": weir.JsonLinesSink(str(out), **NO_LIMITS),
        "compacted": weir.ParquetSink(str(out), compact_checkpoints=1_000_000),
    }
    source, bomb, savepoint = Gated(total=20), Bomb(), ""
    for number, parallelism in enumerate((2, 3, 1)):
        job = compiled(sinks[kind], source, bomb, parallelism)
        records = MemoryRunStore(token=Token(10 * number + 1), restore_from=savepoint or None)
        records.reserve_ids_above(1_000 * number, 1)
        restart = FixedDelay(attempts=5, delay_ms=30)
        with jobs.running(job, tmp_path / "state", records, restart=restart, retained=2) as run:
            fail_once(run, source, bomb)
            if number == 0:  # later runs keep what the savepoint names
                run.wait_for(lambda: not list(out.glob(".weir-files-1-*")))
            if parallelism > 1:  # a single subtask rolls the files that it cannot continue
                assert not list(out.glob("part-*"))
            savepoint = Path(run.end("drain" if parallelism == 1 else "stop")).name
    values = Counter(value for path in out.glob("part-*") for value in values_in(path))
    assert values == Counter(value for value in range(source.total) for _ in range(source.splits))


def test_a_file_without_new_rows_becomes_visible(tmp_path: Path, jobs: Jobs) -> None:
    """S1-45: neither size nor age would end it, and the job goes on."""
    out, source = tmp_path / "out", Gated(total=20)
    sink = weir.JsonLinesSink(str(out), **NO_LIMITS | {"roll_after_idle_ms": 300})
    with jobs.running(compiled(sink, source, Bomb(), 2), tmp_path / "state") as run:
        for _ in range(2):
            run.wait_for(lambda: len([v for path in out.glob("part-*") for v in values_in(path)]) == 4 * source.total)
            source.total += 20
    values = Counter(value for path in out.glob("part-*") for value in values_in(path))
    assert all(values[value] == source.splits for value in range(source.total - 20))


@pytest.mark.parametrize("kind", ["json", "compacted"])
def test_a_restore_with_another_sink_is_refused_and_deletes_no_file(tmp_path: Path, kind: str) -> None:
    """S1-52: the clean-up of the refused attempt keeps the hidden files of the savepoint."""
    out = tmp_path / "out"
    sinks: dict[str, Any] = {
        "json": weir.JsonLinesSink(str(out), **NO_LIMITS),
        "compacted": weir.ParquetSink(str(out), compact_checkpoints=1_000_000),
    }
    source, savepoint, message = Gated(total=20), "", ""
    for number, sink in enumerate((sinks[kind], weir.ParquetSink(str(out)), sinks[kind])):
        records = MemoryRunStore(token=Token(10 * number + 1), restore_from=savepoint or None)
        records.reserve_ids_above(1_000 * number, 1)
        with running(compiled(sink, source, Bomb(), 1), tmp_path / "state", records) as run:
            if number == 1:
                assert run.join() is MasterExitCode.DONE
                message = str(records.failure)
            else:
                run.checkpoints(2)
                savepoint = Path(run.end("drain" if number else "stop")).name
    assert "state-not-declared" in message
    values = Counter(value for path in out.glob("part-*") for value in values_in(path))
    assert values == Counter(value for value in range(source.total) for _ in range(source.splits))
