"""The page of a run in BATCH: its stages, the records of its operators, its one commit, and no checkpoints."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.checkpoints import selectors
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, JobVersion, Run
from console.metrics import live
from console.ui.graph.picture import draw
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

GRAPH = {**rows.GRAPH, "mode": "batch"}
STAGES: list[dict[str, Any]] = [
    {"number": 1, "name": "airlines", "operators": ["airlines"], "state": "complete", "tasks": 1, "tasks_done": 1,
     "tasks_failed": 0, "records_read": 16, "records_written": 16, "duration_ms": 312},
    {"number": 2, "name": "flights → prepared → join airlines", "operators": ["flights", "prepared", "join"],
     "state": "active", "tasks": None, "tasks_done": 1, "tasks_failed": 2, "records_read": 84_202,
     "records_written": 5_412, "duration_ms": None},
    {"number": 3, "name": "sessions → parquet", "operators": ["window", "parquet"], "state": "pending",
     "tasks": 2, "tasks_done": 0, "tasks_failed": None, "records_read": 0, "records_written": 0, "duration_ms": None},
]  # fmt: skip
OPERATORS = {
    "airlines": {"state": "finished", "records_in": 0, "records_out": 16},
    "flights": {"state": "running", "records_in": 0, "records_out": 84_202},
    "prepared": {"state": "running", "records_in": 84_202, "records_out": 84_190},
    "join": {"state": "running", "records_in": 84_190, "records_out": 84_190},
}
NUMBERS = {
    "batch": {"stages": STAGES, "tasks": 3, "tasks_done": 2, "tasks_failed": 2},
    "operators": OPERATORS,
    "parallelism": 2,
}


def batch_job() -> Job:
    return rows.job(version={"graph": GRAPH, "settings": {"execution_mode": "batch", "checkpoint_interval_ms": 5000}})


def batch_run(state: str = "running", **changes: Any) -> Run:
    return rows.run(batch_job(), state, **{"live": NUMBERS, **changes})


def page(client: Client, run: Run) -> str:
    return blocks.text(client.get(f"/jobs/{run.job_id}/"))


def committed(run: Run) -> Checkpoint:
    """As the job master of a run in BATCH records its end."""
    return rows.checkpoint(run, 1, kind="drain", duration_ms=0, finished_operators=[o["uid"] for o in rows.OPERATORS])


def test_the_page_shows_stages_with_operators_tasks_records_and_duration(at_console: Client) -> None:
    """S0-10: what a user of Spark looks for, of every stage of the plan."""
    said = page(at_console, batch_run())
    assert "2 of at least 3 tasks complete, 1 of 3 stages complete, 2 failed task attempts" in said
    assert "1 airlines complete 1 of 1 0 16 16 0.31 s" in said
    assert "2 flights → prepared → join airlines active 1 2 84 202 5 412 –" in said
    assert "3 sessions → parquet pending 0 of 2 – – – –" in said


def test_the_graph_shows_records_and_stages_and_invents_nothing(at_console: Client) -> None:
    """No watermark, no rate, no busy time; an operator whose stage has not begun has no numbers."""
    drawn = draw(GRAPH, live.parse(NUMBERS, None), timezone.now())
    nodes = {node.uid: node for node in drawn.nodes}
    assert str(nodes["flights"].records_out) == "84 k"
    assert nodes["window"].numbers is None
    assert nodes["flights"].stage is not None
    assert (nodes["flights"].stage.number, nodes["flights"].tasks_width) == (2, 0.0)
    assert nodes["airlines"].tasks_width == nodes["airlines"].bar_width
    graph = blocks.live(at_console.get(f"/jobs/{batch_run().job_id}/"))["graph"]
    assert "active, tasks complete: 1<" in graph
    assert "pending, tasks complete: 0 of 2" in graph
    for word in ("watermark", "busy ", "k/s", "no records flow"):
        assert word not in graph


def test_a_run_in_batch_has_no_checkpoints_and_no_slots(at_console: Client) -> None:
    said = page(at_console, batch_run(started_at=timezone.now() - timedelta(hours=1)))
    assert "A run in BATCH takes no checkpoints. Its output is committed once, when all stages are complete." in said
    for wrong in (
        "Slots and counters",
        "Statistics",
        "The first checkpoint",
        "No checkpoint has completed",
        "No slots yet",
    ):
        assert wrong not in said


def test_the_commit_at_its_end_is_no_checkpoint(at_console: Client) -> None:
    """It restores nothing, so the table, the statistics, the list of jobs and the restore leave it out."""
    run = batch_run("finished")
    committed(run)
    said = page(at_console, run)
    assert "Output committed" in said
    for wrong in ("savepoint 1", "Savepoint 1", "(drain)", "takes no checkpoints. Its"):
        assert wrong not in said
    assert "none: batch" in blocks.text(at_console.get("/jobs/"))
    assert selectors.statistics(run.job).counts.completed == 0
    assert blocks.text(at_console.get(f"/jobs/{run.job_id}/checkpoints/statistics/")).count("Savepoint 1") == 0


def test_spark_s_ui_is_linked_while_the_run_lives(at_console: Client) -> None:
    numbers = {**NUMBERS, "spark_ui": "http://127.0.0.1:40123"}
    job = batch_job()
    run = rows.run(job, live=numbers)
    assert 'href="http://127.0.0.1:40123"' in at_console.get(f"/jobs/{job.pk}/").content.decode()
    Run.objects.filter(pk=run.pk).update(state="finished", ended_at=timezone.now())
    assert "40123" not in at_console.get(f"/jobs/{job.pk}/").content.decode()


def test_a_poll_brings_the_same_blocks_as_the_page(at_console: Client) -> None:
    run = batch_run()
    poll = at_console.get(f"/jobs/{run.job_id}/", headers={"HX-Request": "true"})
    assert blocks.digests(poll).keys() <= blocks.digests(at_console.get(f"/jobs/{run.job_id}/")).keys()
    assert "checkpoints" not in blocks.digests(poll)


def test_checkpoints_of_a_version_that_streams_stay_in_sight(at_console: Client) -> None:
    job = rows.job()
    rows.checkpoint(rows.run(job, "stopped"), 7)
    version = JobVersion.objects.create(
        job=job, number=2, parallelism=2, params=rows.PARAMS, settings={"execution_mode": "batch"}, state="ready",
        graph=GRAPH,
    )  # fmt: skip
    run = Run.objects.create(job=job, version=version, parallelism=2, state="finished", live=NUMBERS)
    rows.checkpoint(run, 8, kind="drain", duration_ms=0)
    table = blocks.live(at_console.get(f"/jobs/{job.pk}/"))["checkpoints"]
    assert ">7</a>" in table
    assert ">8</a>" not in table


def test_stages_of_a_run_that_failed_are_not_active(at_console: Client) -> None:
    said = page(at_console, batch_run("failed", failure={"code": "batch-failed", "message": "no such airport"}))
    assert "airlines complete" in said
    assert "join airlines ended" in said
    assert "parquet not started" in said


def test_a_cancel_says_that_nothing_is_committed(at_console: Client) -> None:
    said = blocks.text(at_console.get(f"/jobs/{batch_run().job_id}/cancel/"))
    assert "commits its output once, at its end: no output of this run is committed." in said
    assert "savepoint" not in said
