"""The example pipelines on threads, with their sample input: stopped half way, restored at 3, drained; exact by DuckDB.

`tests/acceptance/test_examples.py` runs them on a whole stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from runtime.core.job.ids import Token
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from spark_jobs.pipelines import clickstream, enrichment
from spark_jobs.samples.__main__ import SAMPLES
from spark_jobs.samples.check import differences
from tests.jobs.live import running
from tests.postgres import address_without_password


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    yield database_url
    with psycopg.connect(database_url) as connection:
        connection.execute("DROP SCHEMA IF EXISTS enrichment CASCADE")


def params(example: str, folder: Path, database: str) -> dict[str, str]:
    if example == "clickstream":
        return {"clicks_dir": str(folder / "clicks"), "output_dir": str(folder)}
    return {"orders_dir": str(folder / "orders"), "database_url": address_without_password(database)}


PIPELINES = {module.PIPELINE.name: module.PIPELINE for module in (clickstream, enrichment)}
SOURCES = {"clickstream": "clicks", "enrichment": "orders"}


@pytest.mark.parametrize("example", PIPELINES)
def test_an_example_is_exact_over_a_stop_and_a_rescale(example: str, tmp_path: Path, database: str) -> None:
    sample, source = SAMPLES[example], SOURCES[example]
    flow = PIPELINES[example].dataflow(params(example, tmp_path, database), PipelineContext(""))
    sample.prepare(tmp_path, database)
    savepoint: str | None = None
    done = 0
    for token, (parallelism, steps) in enumerate([(2, range(sample.steps // 2)), (3, range(sample.steps))], 1):
        records = MemoryRunStore(token=Token(token), restore_from=savepoint)
        with running(flow.compile(parallelism), tmp_path / "state", records) as run:
            for step in steps:
                sample.write_step(tmp_path, database, step)
            written = sample.tables(tmp_path, database)[source].num_rows
            run.wait_for(lambda: run.operator(source).get("records_out", 0) == written - done)  # noqa: B023
            done = written
            savepoint = run.end("stop" if parallelism == 2 else "drain")
    tables = sample.tables(tmp_path, database)
    assert differences(example, tables) == []
    if example == "clickstream":
        assert tables["late_clicks"].num_rows > 0
        assert tables["late_views"].num_rows > 0


@pytest.mark.parametrize("example", PIPELINES)
def test_a_lost_row_and_a_repeated_row_are_found(example: str, tmp_path: Path, database: str) -> None:
    """The check of an example cannot pass for a wrong output."""
    sample, source = SAMPLES[example], SOURCES[example]
    sample.prepare(tmp_path, database)
    sample.write_step(tmp_path, database, 0)
    empty = sample.tables(tmp_path, database)
    assert empty[source].num_rows > 0
    found = differences(example, empty)
    assert {problem for _, problem, _ in found} == {"missing"}
