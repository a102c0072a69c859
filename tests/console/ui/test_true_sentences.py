"""Sentences of the pages that were false: after a drain, about failed and canceled checkpoints, about ended runs."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.checkpoints.models import Checkpoint
from console.health.housekeeping import store_verdicts
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import blocks, rows

DRAINED: dict[str, Any] = {
    "operators": [{**row, "finished": "finished"} for row in rows.OPERATORS],
    "finished_operators": [row["uid"] for row in rows.OPERATORS],
}


@pytest.fixture
def drained(db: None) -> Run:
    run = rows.run(rows.job(), "finished")
    rows.checkpoint(run, 11)
    rows.checkpoint(run, 12, kind="drain", **DRAINED)
    return run


def primary(page: str) -> list[str]:
    return re.findall(r'class="button primary"[^>]*id="do-(\w+)"', page)


# ---------------------------------------------------------------- after a drain


def test_after_a_drain_no_act_is_suggested(at_console: Client, drained: Run) -> None:
    assert primary(at_console.get(f"/jobs/{drained.job_id}/").content.decode()) == []


def test_the_restore_page_chooses_what_leaves_something_to_do(at_console: Client, drained: Run) -> None:
    page = at_console.get(f"/jobs/{drained.job_id}/restore/").content.decode()
    assert f'value="{Checkpoint.objects.get(number=11).pk}" checked' in page
    assert "had finished" in page, "the drained one is marked in the list"


def test_a_restore_that_would_do_nothing_is_refused_and_promises_nothing(at_console: Client, drained: Run) -> None:
    query = {"checkpoint": Checkpoint.objects.get(number=12).pk, "version": drained.version_id, "parallelism": 2}
    path = f"/jobs/{drained.job_id}/restore/"
    mapping = at_console.get(f"/api/v1/checkpoints/{query['checkpoint']}/mapping/").json()
    assert not mapping["restorable"]
    page, posted = at_console.get(path, query), at_console.post(path, query)
    said = blocks.text(page)
    assert "every operator of version 1 had finished" in said
    assert "Sources continue" not in said
    assert "A new run" not in said
    assert re.search(r"<button[^>]* disabled>Restore", page.content.decode())
    assert posted.status_code == 409
    assert not Operation.objects.exists()


def test_sources_that_had_finished_are_named(at_console: Client, drained: Run) -> None:
    said = blocks.text(at_console.get(f"/jobs/{drained.job_id}/restore/"))
    assert "Sources continue from its positions: flights. airlines had finished and is not read again." in said


def test_a_run_that_failed_after_its_drain_may_still_commit_what_the_savepoint_owes(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed", failure={"code": "x", "message": "the disk is full"})
    row = rows.checkpoint(run, 12, kind="drain", **DRAINED)
    path, query = f"/jobs/{run.job_id}/restore/", {"version": run.version_id, "parallelism": 2, "checkpoint": row.pk}
    said = blocks.text(at_console.get(path, query))
    assert "No source is read" in said
    assert "This run would end at once" in said
    assert at_console.post(path, query).status_code == 302


def test_the_question_before_a_start_offers_no_drained_savepoint(at_console: Client, drained: Run) -> None:
    Checkpoint.objects.filter(number=11).update(discarded_at=timezone.now())
    assert "restore savepoint 12" not in blocks.text(at_console.get(f"/jobs/{drained.job_id}/start/"))


def test_a_failure_does_not_point_to_a_drained_savepoint(at_console: Client, drained: Run) -> None:
    Checkpoint.objects.filter(number=11).update(discarded_at=timezone.now())
    rows.run(drained.job, "failed", failure={"code": "attempt-failed", "message": "the disk is full"})
    said = blocks.text(at_console.get(f"/jobs/{drained.job_id}/"))
    assert "Restore from savepoint 12" not in said
    assert "start the job again" in said


# ---------------------------------------------------------------- failed and aborted checkpoints


def test_a_failed_checkpoint_says_how_many_acknowledged_and_never_completed(at_console: Client) -> None:
    run = rows.run(rows.job())
    ended = timezone.now()
    row = rows.checkpoint(run, 3, status="failed", reason="expired", detail="no acknowledgement from window-1",
                          acknowledged=6, duration_ms=600_000, completed_at=ended)  # fmt: skip
    said = blocks.text(at_console.get(f"/checkpoints/{row.pk}/"))
    assert "6 of 10" in said
    assert "Subtasks 0 and 1 of sessions, and 2 subtasks behind them, had not acknowledged when the" in said
    assert not re.search(r"Completed\s+\d", said)
    assert "Failed now" in said or re.search(r"Failed \d+ s ago", said)


def test_the_graph_and_the_tables_show_one_number(at_console: Client) -> None:
    run = rows.run(rows.job(), live=rows.live(acknowledged=6))
    row = rows.checkpoint(run, 214, status="in_progress", acknowledged=0)
    contents = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))
    assert "6 of 10 acknowledged" in contents["graph"]
    table = re.sub(r"<[^>]+>", "", contents["checkpoints"])
    assert "6 of 10" in table
    assert "0 of 10" not in table
    assert "6 of 10" in blocks.text(at_console.get(f"/checkpoints/{row.pk}/"))


def test_what_a_cancel_aborts_is_no_failure(at_console: Client) -> None:
    run = rows.run(rows.job(), "canceled")
    rows.checkpoint(run, 1)
    row = rows.checkpoint(run, 2, status="failed", reason="suspended", detail="the attempt ended", acknowledged=6)
    job = at_console.get(f"/jobs/{run.job_id}/")
    table = blocks.live(job)["checkpoints"]
    assert "Aborted" in table
    assert "status failed" not in table
    assert 'class="cross"' not in blocks.live(job)["strip"]
    page = at_console.get(f"/checkpoints/{row.pk}/").content.decode()
    assert "Aborted" in page
    assert "notice failed" not in page
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/checkpoints/statistics/"))
    assert "Failed 0" in said
    assert "Aborted 1" in said
    assert "No checkpoint has failed." in said


# ---------------------------------------------------------------- operations and runs


def test_a_start_shows_what_has_become_of_its_run(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed", failure={"code": "x", "message": "the disk is full"})
    operation = rows.operation(run.job, "start", run=run, phase="run running", result={"run": run.pk})
    for path in (f"/jobs/{run.job_id}/", "/operations/", f"/operations/{operation.pk}/"):
        said = blocks.text(at_console.get(path))
        now = said.partition("Phases")[0] if path == f"/operations/{operation.pk}/" else said  # its history is below
        assert "run running" not in now.lower(), path
        assert re.search(rf"[Rr]un {run.pk}\s+Failed", said), path


def test_a_cancel_says_what_is_lost_of_this_run(at_console: Client) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/cancel/"
    assert "This run has completed no checkpoint" in blocks.text(at_console.get(path))
    rows.checkpoint(run, 7)
    rows.checkpoint(run, 8, kind="savepoint", triggered_at=timezone.now() - timedelta(seconds=1))
    said = blocks.text(at_console.get(path))
    assert "Output since checkpoint 7 is not committed" in said
    assert "A restore from savepoint 8 reads all input after it again. " in said
    assert "a second time" not in said
    rows.checkpoint(run, 9, kind="drain", triggered_at=timezone.now())
    said = blocks.text(at_console.get(path))
    assert "A restore from savepoint 8" in said, "no run goes on from a drained savepoint"
    assert "The output from there to savepoint 9 is then written a second time." in said


def test_a_cancel_of_a_run_that_is_being_restored_names_the_snapshot_that_stays(at_console: Client) -> None:
    """The page said that its state cannot be restored: the snapshot that it restores can be."""
    first = rows.run(rows.job(), "stopped")
    run = rows.run(first.job, "starting", restore_checkpoint=rows.checkpoint(first, 7, "stop"))
    path = f"/jobs/{run.job_id}/cancel/"
    said = blocks.text(at_console.get(path))
    assert "This run has completed no checkpoint: its output is not committed." in said
    assert "The state that it restored is that of savepoint 7, which stays: a later restore can begin from it" in said
    assert "cannot be restored" not in said
    Checkpoint.objects.update(discarded_at=timezone.now())
    assert "savepoint 7, whose files were discarded." in blocks.text(at_console.get(path))
    Run.objects.filter(pk=run.pk).update(restore_checkpoint=None, restore_path="/moved/savepoint-7")
    assert "The savepoint that it restored stays in its folder." in blocks.text(at_console.get(path))


def test_an_aborted_checkpoint_has_one_outcome_on_page_and_rest(at_console: Client) -> None:
    """REST had a second field, the status, which called it failed."""
    run = rows.run(rows.job(), "canceled")
    row = rows.checkpoint(run, 2, status="failed", reason="suspended")
    assert "Aborted" in blocks.text(at_console.get(f"/checkpoints/{row.pk}/"))
    over_rest = at_console.get(f"/api/v1/checkpoints/{row.pk}/").json()
    assert over_rest["outcome"] == "aborted"
    assert "failed" not in over_rest.values()
    assert at_console.get(f"/api/v1/jobs/{run.job_id}/checkpoints/?outcome=failed").json()["results"] == []


def test_checkpoints_of_an_earlier_run_are_not_this_run_s_progress(at_console: Client) -> None:
    job = rows.job()
    rows.checkpoint(rows.run(job, "stopped"), 7)
    rows.run(job)
    assert "This run has completed no checkpoint" in blocks.text(at_console.get(f"/jobs/{job.pk}/cancel/"))


# ---------------------------------------------------------------- refused parallelism


# ---------------------------------------------------------------- operators of runs that do not flow

ALL_FINISHED = {uid: {**numbers, "state": "finished"} for uid, numbers in rows.live()["operators"].items()}


def operator_states(response: Any) -> dict[str, str]:
    """The column State of the table of operators."""
    table = blocks.live(response)["operators"]
    cells = re.findall(r'<th scope="row"[^>]*>(.*?)<.*?/th>\s*<td>(.*?)</td>', table)
    return {name: re.sub(r"<[^>]+>", "", state).strip() for name, state in cells}


def test_operators_of_a_stopped_run_have_not_finished(at_console: Client) -> None:
    """Subtasks of a stop end too. The savepoint records which operators were done; a restore goes on with the rest."""
    run = rows.run(rows.job(), "stopped", live=rows.live(None, operators=ALL_FINISHED))
    rows.checkpoint(run, 1, kind="stop")
    page = at_console.get(f"/jobs/{run.job_id}/")
    states = operator_states(page)
    assert states.pop("airlines") == "finished"
    assert set(states.values()) == {"stopped"}
    assert blocks.live(page)["graph"].count('class="done"') == 1


def test_operators_of_a_drained_run_have_finished(at_console: Client, drained: Run) -> None:
    Run.objects.update(live=rows.live(None, operators=ALL_FINISHED))
    assert set(operator_states(at_console.get(f"/jobs/{drained.job_id}/")).values()) == {"finished"}


@pytest.mark.parametrize("state", ["failed", "canceled", "restarting", "waiting"])
def test_no_operator_is_running_where_the_run_is_not(at_console: Client, state: str) -> None:
    run = rows.run(rows.job(), state)
    states = operator_states(at_console.get(f"/jobs/{run.job_id}/"))
    assert states["airlines"] == "finished"
    assert "running" not in states.values()
    assert len(states) == 6


# ---------------------------------------------------------------- the list


def test_a_job_without_checkpoints_does_not_look_well_in_the_list(at_console: Client) -> None:
    run = rows.run(rows.job())
    earlier = rows.checkpoint(run, 3, triggered_at=timezone.now() - timedelta(minutes=7))
    store_verdicts()
    said = blocks.text(at_console.get("/jobs/"))
    assert "Running, needs attention" in said
    assert re.search(r"No checkpoint has completed for [67] min", said)
    Checkpoint.objects.filter(pk=earlier.pk).update(completed_at=timezone.now())
    store_verdicts()
    assert "needs attention" not in blocks.text(at_console.get("/jobs/"))


def test_a_checkpoint_of_an_earlier_run_does_not_count_in_the_list(at_console: Client) -> None:
    job = rows.job()
    rows.checkpoint(rows.run(job, "stopped"), 3)
    rows.run(job)
    store_verdicts()
    assert "No checkpoint has completed for 3 h" in blocks.text(at_console.get("/jobs/"))


# ---------------------------------------------------------------- small falsehoods of the job page


def test_without_a_completed_checkpoint_none_is_the_longest(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1, status="failed", reason="expired", duration_ms=5000)
    assert "longest 5" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


def test_an_attempt_under_way_runs_only_if_its_run_does(at_console: Client) -> None:
    run = rows.run(rows.job(), "starting", live=None)
    rows.attempts(run)
    rows.operation(run.job, "start", "running", run=run, phase="starting")
    contents = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))
    attempts, slots, notices = (re.sub(r"<[^>]+>", "", contents[name]) for name in ("attempts", "slots", "notices"))
    assert "In progress" in attempts
    assert "Running" not in attempts
    assert "the job is not running" not in slots
    assert "Start running" not in notices
    assert "Start: starting" in notices
