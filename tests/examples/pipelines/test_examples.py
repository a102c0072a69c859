"""The example pipelines on threads, with their sample input: stopped half way, restored at 3, drained; exact by DuckDB.

`tests/acceptance/test_examples.py` runs them on a whole stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from examples.pipelines import change_capture, clickstream, enrichment, order_payments
from examples.samples.check import differences
from examples.samples.commands import SAMPLES
from runtime.core.job.ids import Token
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from tests.examples.inputs import OUTPUTS, drop_example_tables, example_params
from tests.jobs.live import PATIENCE_S, Run, running

#: The outputs are read again and again: they would be hundreds of files.
SETTINGS = CoordinatorSettings(interval_ms=300, min_pause_ms=0)


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    yield database_url
    drop_example_tables(database_url)


PIPELINES = {
    module.PIPELINE.name: module.PIPELINE for module in (change_capture, clickstream, enrichment, order_payments)
}


def has_read_all(example: str, run: Run, tables: Mapping[str, pa.Table], clicks_before: int) -> bool:
    """The last sessions and windows are emitted only by the drain."""
    if example == "clickstream":
        return bool(run.operator("clicks").get("records_out") == tables["clicks"].num_rows - clicks_before)
    return differences(example, tables) == []


@pytest.mark.slow
@pytest.mark.parametrize("example", PIPELINES)
def test_an_example_is_exact_over_a_stop_and_a_rescale(example: str, tmp_path: Path, database: str) -> None:
    """S0-30, S1-25, S3-19."""
    sample = SAMPLES[example]
    flow = PIPELINES[example].dataflow(example_params(example, tmp_path, database), PipelineContext(""))
    sample.prepare(tmp_path, database)
    half, savepoint, clicks = sample.steps // 2, None, 0
    for token, (parallelism, steps) in enumerate([(2, range(half)), (3, range(half, sample.steps))], 1):
        records = MemoryRunStore(token=Token(token), restore_from=savepoint)
        with running(flow.compile(parallelism), tmp_path / "state", records, settings=SETTINGS) as run:
            for step in steps:
                sample.write_step(tmp_path, database, step)
            run.wait_for(lambda: has_read_all(example, run, sample.tables(tmp_path, database), clicks))  # noqa: B023
            savepoint = run.end("stop" if parallelism == 2 else "drain")
        if example == "clickstream":
            clicks = sample.tables(tmp_path, database)["clicks"].num_rows
    tables = sample.tables(tmp_path, database)
    assert differences(example, tables) == []
    for output in OUTPUTS[example]:
        table = tables[output]
        lost = table.num_rows if output in ("late_orders", "late_payments") else 1  # a late row may have no partner
        assert differences(example, {**tables, output: table.slice(lost)}), f"a lost row of {output} is found"
        twice = pa.concat_tables([table, table.slice(table.num_rows - 1)])
        assert differences(example, {**tables, output: twice}), f"a repeated row of {output} is found"


@pytest.mark.parametrize(("example", "missing"), [("enrichment", "enrichment.orders"), ("change_capture", "accounts")])
def test_an_example_without_its_tables_fails_with_their_name(
    example: str, missing: str, tmp_path: Path, database: str
) -> None:
    flow = PIPELINES[example].dataflow(example_params(example, tmp_path, database), PipelineContext(""))
    with running(flow.compile(2), tmp_path / "state") as run:
        run.thread.join(PATIENCE_S)
    assert run.records.failure is not None
    assert missing in run.records.failure["message"]
