"""Standing stages on the page of a job: what they report, and why one does not run."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django.fixtures import Settings

from console.housekeeping import reconciler
from console.jobs.models import Job, Run, StandingStage
from console.runs import run_store, standing_stages
from console.runs.standing_stages import StageReport
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

FIGURES: list[dict[str, Any]] = [
    {"label": "Input rate", "value": 84_000.0, "kind": "rate"},
    {"label": "Batch duration", "value": 310.0, "kind": "ms"},
    {"label": "Epochs written", "value": 57, "kind": "count"},
    {"label": "Epochs to read", "value": 3, "kind": "count"},
    {"label": "Size to read", "value": 2_000_000, "kind": "bytes"},
    {"label": "Last message", "value": None, "kind": "text"},
]


def staged_job(name: str = "flights-delays") -> Job:
    """A job whose first operator has a stage beside it."""
    first, *operators = rows.GRAPH["operators"]
    return rows.job(name, version={"graph": {**rows.GRAPH, "operators": [{**first, "stage": "stream"}, *operators]}})


def stage_of(run: Run, **facts: object) -> StandingStage:
    return StandingStage.objects.create(run=run, verb="stream", **{"operator": "orders", **facts})


def page(client: Client, run: Run) -> str:
    return blocks.text(client.get(f"/jobs/{run.job_id}/"))


def test_the_page_shows_what_a_stage_reports(at_console: Client) -> None:
    run = rows.run(staged_job())
    stage_of(run, state="running", lease_owner="w", live={"steps": 3, "figures": FIGURES}, live_at=Now())
    said = page(at_console, run)
    assert "PySpark stages of the run" in said
    for label, value in [
        ("Input rate", "84 k/s"), ("Batch duration", "0.31 s"), ("Epochs written", "57"), ("Epochs to read", "3"),
        ("Size to read", "1.9 MiB"), ("Last message", "–"),
    ]:  # fmt: skip
        assert f"{label} {value}" in said
    assert "PySpark stages of the run" not in page(at_console, rows.run(rows.job("without")))


def test_the_death_of_the_process_before_is_not_that_of_the_one_that_runs(at_console: Client) -> None:
    run = rows.run(staged_job())
    stage_of(run, state="running", lease_owner="w", deaths=1, reason="Its process ended with signal SIGKILL.")
    assert "The previous process: Its process ended with signal SIGKILL." in page(at_console, run)


def test_a_stage_that_waited_when_its_run_ended_was_not_started(at_console: Client) -> None:
    run = rows.run(staged_job(), "failed", failure={"code": "missing-table", "message": "there is no table orders"})
    stage_of(run, state="waiting")
    said = page(at_console, run)
    assert "orders Not started" in said
    assert "Waiting for a worker" not in said


def test_a_sentence_is_no_large_number(at_console: Client) -> None:
    run = rows.run(staged_job())
    figures = [{"label": "Back-pressure", "value": "the query waits", "kind": "text"}]
    stage_of(run, state="running", live={"figures": figures})
    assert '<dd class="words">the query waits</dd>' in at_console.get(f"/jobs/{run.job_id}/").content.decode()


def test_a_sign_of_life_without_figures_is_no_running_query(at_console: Client) -> None:
    """Spark takes its time to start; until then nothing is read or delivered."""
    stage = stage_of(rows.run(staged_job()), state="starting", lease_owner="w")
    standing_stages.renew(stage.pk, "w", StageReport())
    stage.refresh_from_db()
    assert (stage.state, stage.live_at is not None) == ("starting", True)
    standing_stages.renew(stage.pk, "w", StageReport(figures=FIGURES))
    stage.refresh_from_db()
    assert stage.state == "running"


def test_a_stage_that_has_ended_has_no_rate(at_console: Client) -> None:
    run = rows.run(staged_job(), "stopped")
    stage_of(run, state="ended", live={"steps": 3, "figures": FIGURES}, live_at=Now())
    said = page(at_console, run)
    assert "Epochs written 57" in said
    assert "84 k/s" not in said


def test_a_report_of_another_shape_does_not_break_the_page(at_console: Client) -> None:
    run = rows.run(staged_job())
    stage_of(run, state="running", live={"figures": "none"})
    assert "orders" in page(at_console, run)


def test_a_stage_that_died_says_why_above_all(at_console: Client) -> None:
    run = rows.run(staged_job())
    stage_of(run, state="restarting", lease_owner="w", deaths=2, reason="Its process ended with signal SIGKILL.")
    said = page(at_console, run)
    assert (
        "The PySpark stage of orders has failed 2 times and is restarting. Its process ended with signal SIGKILL."
        in said
    )


def test_a_stage_without_a_place_says_who_has_them(at_console: Client, settings: Settings) -> None:
    settings.WEIR_STANDING_STAGES = 1
    other = rows.run(rows.job(name="clicks"))
    stage_of(other, state="running", lease_owner="w")
    run = rows.run(staged_job("sales"))
    stage_of(run)
    said = page(at_console, run)
    assert "The PySpark stage of orders is waiting: the limit of standing stages is reached by clicks (orders)" in said
    assert "WEIR_STANDING_STAGES sets the limit" in said


def test_a_stage_that_no_worker_takes_says_so_after_a_while(at_console: Client) -> None:
    run = rows.run(staged_job())
    stage = stage_of(run)
    missing = "no Celery worker of the queue standing has claimed it"
    assert missing not in page(at_console, run)
    StandingStage.objects.filter(pk=stage.pk).update(created_at=Now() - timedelta(minutes=1))
    assert missing in page(at_console, run)


def test_a_run_gets_the_stages_that_its_graph_asks_for_and_the_epochs_of_what_it_continues(at_console: Client) -> None:
    graph = {**rows.GRAPH, "operators": [{**operator, "stage": "stream"} for operator in rows.GRAPH["operators"][:1]]}
    job = rows.job(version={"graph": graph})
    first = run_store.create(None, job, job.versions.get(), 2)
    assert [stage.verb for stage in first.standing_stages.all()] == ["stream"]
    Run.objects.filter(pk=first.pk).update(state="stopped")
    savepoint = rows.checkpoint(first, 1, kind="stop")
    second = run_store.create(None, job, job.versions.get(), 2, restore_checkpoint=savepoint)
    Run.objects.filter(pk=second.pk).update(state="stopped")
    third = run_store.create(None, job, job.versions.get(), 2)
    assert [run_store.lineage_of(run) for run in (first, second, third)] == [first.pk, first.pk, third.pk]


def test_the_stages_of_an_ended_run_end(at_console: Client) -> None:
    run = rows.run(staged_job(), "failed", ended_at=Now())
    stage = stage_of(run)
    reconciler.reconcile()
    stage.refresh_from_db()
    assert stage.state == "ended"
