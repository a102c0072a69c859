"""A job into a Delta table whose slots end at each phase of the sink, on threads and on Spark executors."""

from pathlib import Path

from deltalake import DeltaTable

import weir
from runtime.core.job.restart_strategy import FixedDelay
from tests.jobs.conftest import Jobs
from tests.jobs.mortal import Deaths
from tests.jobs.numbers import Numbers
from tests.jobs.test_kafka import PHASES, MortalSink


def test_a_job_whose_slots_end_at_each_phase_appends_every_row_once(jobs: Jobs, tmp_path: Path) -> None:
    """S1-06: each end is followed by a restart from the newest checkpoint."""
    table, go = tmp_path / "table", tmp_path / "go"
    deaths = Deaths(*(f"out: {phase}" for phase in PHASES))
    source = Numbers(total=400, unbounded=True, batch=5, slow_until=str(go))
    flow = weir.Dataflow("delta")
    flow.source("numbers", source).sink("out", MortalSink(weir.DeltaSink(str(table)), deaths))

    def is_complete() -> bool:
        return DeltaTable.is_deltatable(str(table)) and DeltaTable(table).to_pyarrow_table().num_rows >= 1600

    with jobs.running(flow.compile(2), tmp_path / "state", restart=FixedDelay(attempts=100, delay_ms=30)) as run:
        run.wait_for(lambda: not deaths.waiting)
        go.touch()
        run.wait_for(is_complete)
        run.end("drain")
    values = sorted(DeltaTable(table).to_pyarrow_table()["value"].to_pylist())
    assert values == sorted([*range(400)] * source.splits)
