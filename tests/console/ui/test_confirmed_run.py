"""An act is on the run that its user confirmed. A later run of the job is left alone."""

import re
from collections import defaultdict
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.housekeeping import reconciler
from console.jobs.models import Run
from console.operations.models import Operation
from console.runs.lease import ago
from tests.console.ui import blocks, rows


def form_of(page: Any) -> dict[str, list[str]]:
    """The hidden fields of a confirmation, by name."""
    fields: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.content.decode()):
        fields[name].append(value)
    return fields


def replace_run(run: Run) -> Run:
    """The run ends and a later run begins, as by a restore of another user."""
    Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=timezone.now())
    return rows.run(run.job)


@pytest.mark.parametrize("act", ["savepoint", "stop", "drain", "cancel"])
def test_a_confirmed_act_leaves_a_later_run_alone(at_console: Client, act: str) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/{act}/"
    form = form_of(at_console.get(path))
    later = replace_run(run)
    said = blocks.text(at_console.post(path, form, follow=True))
    assert f"The request is for run {run.pk}, but the latest run of the job is run {later.pk}." in said
    assert not Operation.objects.exists()
    later.refresh_from_db()
    assert later.state == "running"
    at_console.post(path, form_of(at_console.get(path)))
    assert (Operation.objects.get().run, Operation.objects.get().params) == (later, {"run": later.pk})


def poll(client: Client, path: str, page: Any, query: dict[str, Any] | None = None) -> Any:
    """The poll of an open confirmation: it names the runs that the page was opened for."""
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    params = {**(query or {}), **blocks.shown_runs(page)}
    return client.get(path, params, headers={"HX-Request": "true", "X-Blocks": digests})


def test_a_poll_shows_the_later_run_and_asks_for_a_fresh_confirmation(at_console: Client) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/cancel/"
    page = at_console.get(path)
    assert form_of(page)["run"] == [str(run.pk)]
    assert "no longer the run" not in blocks.text(poll(at_console, path, page))
    later = replace_run(run)
    answer = poll(at_console, path, page)
    said = blocks.text(answer)
    assert f"The latest run of this job is no longer the run that was shown. Show run {later.pk}" in said
    assert "run" not in form_of(answer), "the open form keeps the run that its user read about"
    assert re.search(r"<button[^>]* disabled>Cancel", blocks.live(answer)["confirm-button"])
    confirmation = at_console.get(path)
    assert form_of(confirmation)["run"] == [str(later.pk)]
    assert " disabled>" not in blocks.live(confirmation)["confirm-button"]


def test_a_confirmation_without_a_run_does_not_take_the_first_run(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/cancel/"
    page = at_console.get(path)
    first = rows.run(job)
    answer = poll(at_console, path, page)
    assert f"no longer the run that was shown. Show run {first.pk}" in blocks.text(answer)
    assert re.search(r"<button[^>]* disabled>", blocks.live(page)["confirm-button"])
    assert "confirm-button" not in blocks.swapped(answer), "it stays disabled"


def test_a_poll_of_an_act_on_several_jobs_asks_for_a_fresh_confirmation(at_console: Client) -> None:
    same, replaced = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    path = "/jobs/bulk/"
    query: dict[str, Any] = {"kind": "cancel", "job": [same.job_id, replaced.job_id]}
    page = at_console.get(path, query)
    assert "no longer the run" not in blocks.text(poll(at_console, path, page, query))
    later = replace_run(replaced)
    answer = poll(at_console, path, page, query)
    assert "The latest run of beta is no longer the run that was shown. Show the latest runs" in blocks.text(answer)
    assert f'href="?kind=cancel&amp;job={same.job_id}&amp;job={replaced.job_id}"' in answer.content.decode()
    assert "run" not in form_of(answer)
    assert re.search(r"<button[^>]* disabled>", blocks.live(answer)["bulk-button"])
    assert form_of(at_console.get(path, query))["run"] == [str(same.pk), str(later.pk)]


def test_a_confirmed_act_on_several_jobs_leaves_later_runs_alone(at_console: Client) -> None:
    same, replaced = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    idle = rows.job("gamma")
    query: dict[str, Any] = {"kind": "cancel", "job": [same.job_id, replaced.job_id, idle.pk]}
    form = form_of(at_console.get("/jobs/bulk/", query))
    later = replace_run(replaced)
    rows.run(idle)
    for _ in range(2):  # a form that is sent twice has the result of the first
        said = blocks.text(at_console.post("/jobs/bulk/", form, follow=True))
        assert "1 of 3 requests accepted." in said
        assert f"The request is for run {replaced.pk}, but the latest run of the job is run {later.pk}." in said
        assert "The request names no run of gamma." in said
    assert [row.run for row in Operation.objects.all()] == [same]


@pytest.mark.parametrize("kind", ["savepoint", "stop", "drain", "cancel", "rescale"])
def test_rest_binds_an_act_without_a_run_to_the_latest_run(api: APIClient, kind: str) -> None:
    """The answer names the run. The operation fails when that run has ended, and a later run goes on."""
    run = rows.run(rows.job())
    params = {"parallelism": 3} if kind == "rescale" else {}
    path = f"/api/v1/jobs/{run.job_id}/operations/"
    accepted = api.post(path, {"kind": kind, "params": params}, format="json").json()
    assert accepted["run"] == run.pk
    Run.objects.filter(pk=run.pk).update(state="failed", ended_at=ago(60))
    later = rows.run(run.job)
    reconciler.reconcile()
    row = Operation.objects.get(pk=accepted["id"])
    assert (row.run, row.state) == (run, "unknown" if kind == "savepoint" else "failed")
    assert (row.error or {})["message"].startswith("The run ended (failed) before the ")
    later.refresh_from_db()
    assert later.state == "running"
    assert not Operation.objects.filter(run=later).exists()


def test_rest_refuses_an_act_on_an_earlier_run(api: APIClient) -> None:
    run = rows.run(rows.job())
    later = replace_run(run)
    path = f"/api/v1/jobs/{run.job_id}/operations/"
    for kind in ("savepoint", "stop", "drain", "cancel"):
        answer = api.post(path, {"kind": kind, "params": {"run": run.pk}}, format="json")
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["run"]) == (409, "run-changed", later.pk), kind
    bulk = {"kind": "cancel", "jobs": [run.job_id], "runs": [run.pk]}
    (refused,) = api.post("/api/v1/jobs/bulk/", bulk, format="json").json()["results"]
    assert (refused["state"], f"run {later.pk}" in refused["detail"]) == ("refused", True)
    assert not Operation.objects.exists()
    (accepted,) = api.post("/api/v1/jobs/bulk/", {**bulk, "runs": [later.pk]}, format="json").json()["results"]
    assert accepted["state"] == "accepted"
    assert api.post(path, {"kind": "cancel", "params": {"run": 0}}, format="json").status_code == 422
