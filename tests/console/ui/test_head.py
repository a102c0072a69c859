"""The top of the page of a job: what an operator needs in five seconds, and the graph close below."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import caches
from django.db.models import F
from django.test import Client
from django.utils import timezone

from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.jobs.models import Attempt, Job, Run
from tests.console.ui import blocks, numbers, rows
from tests.console.ui.browsing import Open


def test_state_health_rates_horizon_and_acts_come_first(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 7)
    Job.objects.filter(pk=run.job_id).update(owner="team delays", runbook="https://wiki.example/delays")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    order = ("Running for", "Runbook", "Reads 84 k/s Writes 12 /s Watermark 2013-06-12 08:00",
             "If it failed now back to checkpoint 7", "Take savepoint", "Cancel…", "More", "Named savepoint…", "About",
             "Delays of airlines.", "pipeline flights owner team delays", "Job graph")  # fmt: skip
    assert re.search(".*".join(map(re.escape, order)), said)


def test_a_run_names_its_last_restart_for_a_quarter_of_an_hour(at_console: Client, operator: object) -> None:
    """S1: two minutes after the loss of a slot, the page showed a run that has been well for hours."""
    run = numbers.recovered_run()
    Run.objects.update(live_at=timezone.now())  # to write so many numbers takes seconds
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    restored = run.attempts.latest("token").restored_checkpoint
    assert re.search(r"Running again for [67] min \d+ s", said)
    last = rf"after a failure [67] min \d+ s ago: {rows.LOST}; {restored} restored, no records for 8\.0 s ?\."
    assert re.search(last, said)
    hour = timedelta(hours=1)
    run.attempts.filter(token=run.token - 1).update(ended_at=F("ended_at") - hour)
    caches["fragments"].clear()
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert re.search(r"Running again for [67] min \d+ s", said)
    assert re.search(rf"after a failure 1 h [67] min ago: {rows.LOST}; .*, no records for 1 h\b", said)
    run.checkpoints.filter(token=run.token).update(triggered_at=F("triggered_at") - hour)
    caches["fragments"].clear()
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "Running again" not in said
    assert "running for 3 h 12 min" in said.lower()


def test_a_restart_loop_is_not_called_over_and_a_cause_is_whole(at_console: Client, operator: object) -> None:
    """*Running again* stood above *Restart loop*, with the cause of the loop cut at its first colon."""
    run, now = rows.run(rows.job()), timezone.now()
    reason = "KeyError: 'EUR' in rates.py, line 7"
    for token, seconds in enumerate((60, 40, 20), run.token - 3):
        ended_at = now - timedelta(seconds=seconds)
        Attempt.objects.create(
            run=run, token=token, started_at=ended_at - timedelta(seconds=9), ended_at=ended_at, outcome="failed",
            reason=reason, detail={"code": "attempt-failed", "message": reason},
        )  # fmt: skip
    Attempt.objects.create(run=run, token=run.token, started_at=now - timedelta(seconds=19), outcome="running")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "Restart loop: failed 3 times in 1 min" in said
    assert "Running again" not in said
    assert "again for" not in said
    store_verdicts()
    assert "again" not in blocks.text(at_console.get("/jobs/")).partition("Lines: the last hour")[0]
    Attempt.objects.filter(token__lt=run.token - 1).delete()
    JobHealth.objects.all().delete()
    assert f"Running again: after a failure 20 s ago: {reason};" in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


def test_a_failed_run_on_live_data_shows_how_far_it_falls_behind(at_console: Client) -> None:
    """S1: nothing said what waited for a job that had failed, and its lag was a dash."""
    run, now = rows.run(rows.job(), "failed"), timezone.now()
    operators = rows.live()["operators"]
    for operator in operators.values():
        operator["watermark"] = int((now - timedelta(minutes=7, seconds=9)).timestamp() * 1000)
    Run.objects.update(live=rows.live(operators=operators))
    assert re.search(r"Lag 7 min \S+ s and growing", blocks.text(at_console.get(f"/jobs/{run.job_id}/")))
    Run.objects.update(live=rows.live())
    assert "and growing" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/")), "historic data"


def test_a_run_that_restarts_or_was_moved_does_not_run_again(at_console: Client) -> None:
    run = rows.run(rows.job(), "restarting")
    rows.attempts(run)
    assert "Running again" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    Run.objects.update(state="stopping")
    assert "again" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    Run.objects.update(state="running")
    assert "Running again: " in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    Attempt.objects.filter(outcome="failed").update(outcome="released")
    assert "Running again" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


def test_a_run_that_has_ended_says_why(at_console: Client) -> None:
    earlier = rows.run(rows.job(), "stopped")
    rows.operation(earlier.job, "stop", run=earlier, requested_by=rows.operator_user("bob"))
    run = rows.run(earlier.job, "finished")
    path = f"/jobs/{run.job_id}/"
    assert "All inputs ended, and all output is committed." in blocks.live(at_console.get(path))["health"]
    rows.operation(run.job, "drain", run=run, requested_by=rows.operator_user("ada"), result={"checkpoint": 12})
    page = at_console.get(path)
    assert "A drain that ada requested ended the run with savepoint 12." in blocks.live(page)["health"]
    Run.objects.filter(pk=run.pk).update(state="running", ended_at=None)
    assert "ended the run" not in blocks.live(at_console.get(path))["health"]


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_figures_of_the_head_stand_in_a_line_of_a_wide_page(
    signed_in: Open, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a sentence, they wrapped in the middle of the age of the oldest restore point."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)  # a lag of half a minute ago is not shown
    rows.operator_user()
    run = numbers.recovered_run()
    with signed_in(1440) as page:
        page.goto(f"/jobs/{run.job_id}/")
        figures = page.locator("#vitals > div")
        assert figures.count() == 5
        assert len({(box["y"], box["height"]) for each in figures.all() if (box := each.bounding_box())}) == 1


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_graph_is_seen_at_once(signed_in: Open, running: Run) -> None:
    for width, most in ((1120, 360), (1440, 340)):
        with signed_in(width) as page:
            page.goto(f"/jobs/{running.job_id}/")
            top = page.get_by_role("heading", name="Job graph").bounding_box()
            assert top is not None
            assert top["y"] <= most


def short_graph() -> dict[str, Any]:
    """The last three operators of the flights job."""
    operators = rows.GRAPH["operators"][3:]
    uids = {operator["uid"] for operator in operators}
    edges = [edge for edge in rows.GRAPH["edges"] if {edge["source"], edge["target"]} <= uids]
    return {**rows.GRAPH, "operators": operators, "edges": edges}


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_graph_keeps_the_size_of_its_texts_beside_the_inspector_and_above_it(signed_in: Open, running: Run) -> None:
    """A graph of five ranks beside the inspector had texts of 9 px, and an empty place of 190 px below it."""
    short = rows.run(rows.job("short", version={"graph": short_graph()}))
    scale = "(e) => e.getBoundingClientRect().width / e.viewBox.baseVal.width"
    with signed_in(1440) as page:
        graph = page.locator("section[aria-labelledby=graph-head]")
        inspector = page.locator("section.inspector")
        for run, is_beside in ((running, False), (short, True)):
            page.goto(f"/jobs/{run.job_id}/")
            assert page.locator("svg.graph").evaluate(scale) == pytest.approx(1, abs=0.02)
            drawn, panel = graph.bounding_box(), inspector.bounding_box()
            assert drawn
            assert panel
            if is_beside:
                assert (drawn["y"], drawn["height"]) == (panel["y"], panel["height"])
            else:
                assert drawn["y"] + drawn["height"] <= panel["y"]
                assert drawn["width"] == panel["width"]
