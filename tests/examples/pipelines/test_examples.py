"""The example pipelines on threads, with their sample input: stopped half way, restored at 3, drained; exact by DuckDB.

`tests/acceptance/test_examples.py` runs them on a whole stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from examples.pipelines import change_capture, clickstream, enrichment, order_payments
from examples.samples.check import differences
from examples.samples.commands import SAMPLES
from runtime.core.job.ids import Token
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.live import PATIENCE_S, Run, running
from tests.postgres import address_without_password


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    yield database_url
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'accounts'"
        )
        connection.execute("DROP PUBLICATION IF EXISTS accounts")
        for schema in ("enrichment", "change_capture"):
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def params(example: str, folder: Path, database: str) -> dict[str, str]:
    if example == "clickstream":
        return {"clicks_dir": str(folder / "clicks"), "output_dir": str(folder)}
    if example == "order_payments":
        inputs = {f"{name}_dir": str(folder / name) for name in ("orders", "payments")}
        return {**inputs, "output_dir": str(folder)}
    if example == "change_capture":
        return {"history_dir": str(folder / "history"), "database_url": address_without_password(database)}
    return {"orders_dir": str(folder / "orders"), "database_url": address_without_password(database)}


PIPELINES = {
    module.PIPELINE.name: module.PIPELINE for module in (change_capture, clickstream, enrichment, order_payments)
}
OUTPUTS = {
    "change_capture": ["accounts_copy", "history"],
    "clickstream": ["sessions", "late_clicks", "views", "late_views"],
    "enrichment": ["enriched_orders"],
    "order_payments": ["paid", "late_orders", "late_payments"],
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
    flow = PIPELINES[example].dataflow(params(example, tmp_path, database), PipelineContext(""))
    sample.prepare(tmp_path, database)
    half, savepoint, clicks = sample.steps // 2, None, 0
    for token, (parallelism, steps) in enumerate([(2, range(half)), (3, range(half, sample.steps))], 1):
        records = MemoryRunStore(token=Token(token), restore_from=savepoint)
        with running(flow.compile(parallelism), tmp_path / "state", records) as run:
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
    flow = PIPELINES[example].dataflow(params(example, tmp_path, database), PipelineContext(""))
    with running(flow.compile(2), tmp_path / "state") as run:
        run.thread.join(PATIENCE_S)
    assert run.records.failure is not None
    assert missing in run.records.failure["message"]
