"""A job into an Iceberg table whose slots end at each phase of the sink, on threads and on Spark executors."""

from pathlib import Path

from pyiceberg.catalog import load_catalog

import weir
from runtime.core.job.restart_strategy import FixedDelay
from tests.iceberg import sqlite_catalog
from tests.jobs.conftest import Jobs
from tests.jobs.mortal import Deaths
from tests.jobs.numbers import Numbers
from tests.jobs.test_kafka import PHASES, MortalSink


def test_a_job_whose_slots_end_at_each_phase_appends_every_row_once(jobs: Jobs, tmp_path: Path) -> None:
    """S1-06: each end is followed by a restart from the newest checkpoint."""
    catalog, go = sqlite_catalog(tmp_path), tmp_path / "go"
    deaths = Deaths(*(f"out: {phase}" for phase in PHASES))
    source = Numbers(total=400, unbounded=True, batch=5, slow_until=str(go))
    flow = weir.Dataflow("iceberg")
    flow.source("numbers", source).sink("out", MortalSink(weir.IcebergSink("ns.rows", catalog), deaths))

    def values() -> list[int]:
        opened = load_catalog("default", **catalog)
        if not opened.table_exists("ns.rows"):
            return []
        return sorted(opened.load_table("ns.rows").scan().to_arrow()["value"].to_pylist())

    with jobs.running(flow.compile(2), tmp_path / "state", restart=FixedDelay(attempts=100, delay_ms=30)) as run:
        run.wait_for(lambda: not deaths.waiting)
        go.touch()
        run.wait_for(lambda: len(values()) >= 1600)
        run.end("drain")
    assert values() == sorted([*range(400)] * source.splits)
