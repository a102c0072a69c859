"""What a run shows of itself once it has ended: its final numbers, not those of its last full second."""

from pathlib import Path

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.restart_strategy import NoRestart
from runtime.errors import WeirError
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from tests.jobs.live import FAST
from tests.jobs.numbers import Numbers, counts


def test_a_run_that_has_ended_shows_its_final_numbers(tmp_path: Path) -> None:
    source = Numbers(total=2_000)
    records = run_local(counts(source, tmp_path / "out"), parallelism=2, storage=str(tmp_path / "s"), settings=FAST)
    operators = records.live["operators"]
    assert operators["numbers"]["records_out"] == operators["counts"]["records_in"] == 2_000 * source.splits
    assert {operator["state"] for operator in operators.values()} == {"finished"}
    assert records.live["checkpoint"] is None


def test_a_run_that_has_failed_shows_how_far_it_got(tmp_path: Path) -> None:
    records = MemoryRunStore()
    flow = counts(Numbers(total=500), tmp_path / "out")
    broken = flow.source("more", Numbers(total=500, splits=1)).map_batches("broken", lambda batch: batch.column("nope"))
    broken.sink("out2", ParquetSink(str(tmp_path / "out2")))
    with pytest.raises(WeirError, match="broken"):
        run_local(flow, storage=str(tmp_path / "s"), settings=FAST, records=records, restart=NoRestart())
    assert records.live["operators"]["broken"]["records_in"] > 0
