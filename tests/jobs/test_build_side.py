"""Whole jobs with a join whose build side is read slowly: checkpoints, a killed slot and a stop meanwhile."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated, GatedReader
from tests.jobs.live import Run
from tests.jobs.numbers import committed

HALF, WHOLE = 100, 200
PROBES = 50  #: rows in each of 4 splits


@dataclass(eq=False)
class Table(Gated):
    """Bounded: it ends when a test has let it give `WHOLE` rows. Its one split has each value once."""

    total: int = HALF
    splits: int = 1
    bounded = True

    def reader(self) -> "TableReader":
        return TableReader(self)

    def shows_half(self, run: Run) -> bool:
        return bool(run.operator("table") and run.operator("join")["records_in"] >= 2 * HALF)


class TableReader(GatedReader):
    @property
    def exhausted(self) -> bool:
        column = self._table.column("next")
        return all(int(column[slot]) >= WHOLE for slot in self._slots)


def labelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["label", "value"])


def joining(table: Table, probes: Gated, bomb: Bomb, output: Path) -> CompiledJob:
    flow = Dataflow("joining")
    build = flow.source("table", table).map_batches("bomb", bomb).map_batches("labelled", labelled)
    joined = flow.source("probes", probes).join_broadcast("join", build, on=["value"], take=["label"])
    joined.sink("out", ParquetSink(str(output)))
    return flow.compile(2)


def expected() -> list[tuple[int, int]]:
    """Every probe finds its label: value * 31 % 7, as `Numbers` makes the keys of its first split."""
    return sorted((value, value * 31 % 7) for value in range(PROBES) for _ in range(4))


def output_of(folder: Path) -> list[tuple[int, int]]:
    return sorted((row["value"], row["label"]) for row in committed(folder))


def finish(run: Run, table: Table, output: Path) -> None:
    table.total = WHOLE
    run.wait_for(lambda: len(output_of(output)) == len(expected()))
    run.end("drain")
    assert output_of(output) == expected()


def test_checkpoints_complete_and_a_restart_reads_on(jobs: Jobs, tmp_path: Path) -> None:
    """No checkpoint is declined while a table is read; after a SIGKILL the table is read on, not anew."""
    table, probes, bomb = Table(), Gated(total=PROBES), Bomb()
    output = tmp_path / "out"
    restart = FixedDelay(attempts=3, delay_ms=10)
    with jobs.running(joining(table, probes, bomb, output), tmp_path / "storage", restart=restart) as run:
        run.wait_for(lambda: table.shows_half(run))
        run.checkpoints(3)
        assert FailureReason.DECLINED_TASK_NOT_READY not in {report.reason for report in run.records.reports}
        probe = run.operator("probes")
        assert (probe["records_out"], probe["state"]) == (0, "waits for a build side")
        if jobs.launcher is None:
            bomb.arm()
            table.total += 1
        else:
            os.kill(run.records.live["slots"][0]["pid"], signal.SIGKILL)
        run.wait_for(lambda: run.records.token == 2 and len(table.opened) == 4)
        resumed = [opening.positions for opening in table.opened if opening.token == 2 and opening.positions]
        assert resumed == [{0: HALF}]
        finish(run, table, output)


def test_a_stop_does_not_wait_for_the_table(jobs: Jobs, tmp_path: Path) -> None:
    """S0-69: the savepoint has the rows that were read; a run that restores it reads the rest."""
    table, probes, bomb = Table(), Gated(total=PROBES), Bomb()
    job, output = joining(table, probes, bomb, tmp_path / "out"), tmp_path / "out"
    with jobs.running(job, tmp_path / "storage") as run:
        run.wait_for(lambda: table.shows_half(run))
        savepoint = run.end("stop")
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    with jobs.running(job, tmp_path / "storage", records) as run:
        finish(run, table, output)
    assert [o.positions for o in table.opened if o.token == 2 and o.positions] == [{0: HALF}]


def test_a_drain_waits_for_the_table(jobs: Jobs, tmp_path: Path) -> None:
    """S0-69: nothing comes after a drain, so the table is read to its end. Probes that were not sent stay unread."""
    table, probes, bomb = Table(), Gated(total=PROBES), Bomb()
    job, output = joining(table, probes, bomb, tmp_path / "out"), tmp_path / "out"
    with jobs.running(job, tmp_path / "storage") as run:
        run.wait_for(lambda: table.shows_half(run))
        run.ask("drain")
        run.wait_for(lambda: run.records.state.value == "draining")
        table.total = WHOLE
        run.join()
    assert run.records.failure is None
    assert output_of(output) == []


def test_at_least_once_reads_each_row_of_the_table_once(jobs: Jobs, tmp_path: Path) -> None:
    """Keys of a table are unique: a row that came again after a restart would fail the job."""

    table, probes, bomb = Table(), Gated(total=PROBES), Bomb()
    output, settings = tmp_path / "out", replace(jobs.settings, mode=CheckpointMode.AT_LEAST_ONCE)
    job = joining(table, probes, bomb, output)
    with jobs.running(job, tmp_path / "storage", settings=settings, restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: table.shows_half(run))
        run.checkpoints(2)
        bomb.arm()
        table.total += 1
        run.wait_for(lambda: run.records.token == 2)
        finish(run, table, output)
