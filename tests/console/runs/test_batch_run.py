"""A run in BATCH from the row to the end: a real worker, supervisor, Postgres, job master and Spark."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.console.world import Worker, World
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 300.0
LINES = [f"line {number} of the file" for number in range(300)]


@pytest.fixture(scope="module")
def worker(place: World) -> Iterator[Worker]:
    with place.worker("runs", "-c2", silence_s=180) as process:
        yield process


def batch_run(place: World, root: Path, lines: str = "lines") -> int:
    """A queued run of a version of wordcount that was compiled for BATCH."""
    params = {"lines_dir": str(root / lines), "output_dir": str(root / "out"), "bounded": True}
    rows = place.sql(
        """
        WITH job AS (INSERT INTO weir_job (name, pipeline) VALUES (gen_random_uuid()::text, 'wordcount') RETURNING id),
        version AS (
            INSERT INTO weir_job_version (job_id, number, parallelism, state, settings, params, graph)
            SELECT id, 1, 2, 'ready', '{"execution_mode": "batch", "restart_strategy": "none"}'::jsonb,
                   %s::jsonb, '{"mode": "batch"}'::jsonb FROM job RETURNING id, job_id)
        INSERT INTO weir_run (job_id, version_id, parallelism, state)
        SELECT job_id, id, 2, 'queued' FROM version RETURNING id
        """,
        json.dumps(params),
    )
    return int(rows[0]["id"])


def ended(place: World, run: int) -> dict[str, Any]:
    until(lambda: place.run(run)["ended_at"] is not None, LIMIT_S, or_else=lambda: str(place.run(run)))
    return place.run(run)


def words(folder: Path) -> dict[str, int]:
    rows = [row for path in folder.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len({row["word"] for row in rows}) == len(rows)
    return {row["word"]: row["count"] for row in rows}


def test_a_run_in_batch_ends_with_its_output_and_is_recorded_like_any_other(
    place: World, worker: Worker, tmp_path: Path
) -> None:
    """S0-10: stages with tasks and records stand in the live report; the end is one recorded drain."""
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("\n".join(LINES))
    run = batch_run(place, tmp_path)
    place.supervise(run)
    row = ended(place, run)
    assert (row["state"], row["failure"]) == ("finished", None)
    assert words(tmp_path / "out") == Counter(" ".join(LINES).split())
    assert [(attempt["outcome"], attempt["reason"]) for attempt in place.attempts(run)] == [("ended", "")]
    batch, rows = row["live"]["batch"], 5 * len(LINES)
    assert batch["tasks"] == batch["tasks_done"] > 0
    assert [stage["number"] for stage in batch["stages"]] == list(range(1, len(batch["stages"]) + 1))
    assert {stage["state"] for stage in batch["stages"]} == {"complete"}
    assert batch["stages"][-1]["records_written"] == len(words(tmp_path / "out"))
    assert row["live"]["spark_ui"].startswith("http://127.0.0.1:")
    operators = row["live"]["operators"]
    assert {operator["state"] for operator in operators.values()} == {"finished"}
    assert max(operator["records_in"] for operator in operators.values()) == rows
    recorded = place.sql("SELECT kind, status FROM weir_checkpoint WHERE run_id = %s", run)
    assert [(checkpoint["kind"], checkpoint["status"]) for checkpoint in recorded] == [("drain", "completed")]


def test_a_run_in_batch_whose_input_is_missing_fails_and_names_it(place: World, worker: Worker, tmp_path: Path) -> None:
    run = batch_run(place, tmp_path, lines="nowhere")
    place.supervise(run)
    row = ended(place, run)
    assert row["state"] == "failed"
    assert row["failure"]["message"] == f"there is no folder {tmp_path / 'nowhere'}"
