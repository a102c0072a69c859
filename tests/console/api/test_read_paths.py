"""Reads of the API that have the numbers and sentences of pages."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.jobs.models import Attempt, JobVersion
from console.operations.models import Operation
from tests.console.conftest import api_as
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db


def numbers_of(preview: Any) -> dict[str, float]:
    return {number["key"]: number["amount"] for number in preview["numbers"]}


# ---------------------------------------------------------------- operations and cluster


def test_operations_of_all_jobs_have_filters_and_pages(api: APIClient, viewer: User) -> None:
    first, second = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    same = timezone.now()
    for run in (first, second, second):
        rows.operation(run.job, run=run, created_at=same, reason=f"for {run.job.name}")
    stop = Operation.objects.create(
        job=second.job, run=second, kind="stop", state="failed", requested_by=viewer, created_at=same,
        request_id="6f0c",
    )  # fmt: skip
    pages, path = [], "/api/v1/operations/?limit=3"
    while path:
        page = api.get(path).json()
        pages.append([row["id"] for row in page["results"]])
        path = page["next"]
    assert [len(page) for page in pages] == [3, 1]
    assert len({pk for page in pages for pk in page}) == 4, "operations of the same time are not lost between pages"
    for query, count in (
        ({"job": first.job_id}, 1), ({"run": second.pk}, 3), ({"kind": "stop"}, 1), ({"state": "failed"}, 1),
        ({"user": "viewer"}, 1), ({"q": "BET"}, 3), ({"q": "for alpha"}, 1), ({"q": stop.request_id}, 1),
        ({"q": "gamma"}, 0),
    ):  # fmt: skip
        assert len(api.get("/api/v1/operations/", query).json()["results"]) == count, query


@pytest.mark.parametrize("jobs", [1, 6])
def test_the_queries_of_the_reads_are_constant(operator: User, django_assert_max_num_queries: Any, jobs: int) -> None:
    for number in range(jobs):
        run = rows.run(rows.job(f"job {number}"), lease_owner="node-1:4711:abc")
        checkpoint = rows.checkpoint(run, 7)
        Attempt.objects.create(run=run, token=5_000 + number, outcome="failed", reason="lost", ended_at=timezone.now())
        Operation.objects.create(job=run.job, run=run, kind="stop", requested_by=operator)
    client, job = api_as(operator), f"jobs/{run.job_id}"
    for path, most in (
        ("operations/", 4), ("cluster/", 7), (f"{job}/failures/", 5), (f"{job}/preview/?act=stop", 14),
        (f"{job}/preview/?act=cancel", 14), (f"runs/{run.pk}/", 8), (f"runs/{run.pk}/start/", 5),
        (f"checkpoints/{checkpoint.pk}/", 6),
    ):  # fmt: skip
        with django_assert_max_num_queries(most):
            assert client.get(f"/api/v1/{path}").status_code == 200, path


def test_the_cluster_has_the_numbers_of_its_page(api: APIClient) -> None:
    running = rows.run(rows.job("alpha"), lease_owner="node-1:4711:abc")
    lost = rows.run(rows.job("lost"), lease_owner="")
    queued = rows.run(rows.job("beta"), "queued", live=None, live_at=None)
    rows.run(rows.job("gamma"), "stopped")
    cluster = api.get("/api/v1/cluster/").json()
    assert [(place["run"], place["supervisor"], place["slots"]) for place in cluster["places"]] == [
        (lost.pk, "", 2),
        (running.pk, "node-1:4711", 2),
    ]
    assert [(run["run"], run["job_name"], run["state"]) for run in cluster["queue"]] == [(queued.pk, "beta", "queued")]
    hosts = {slot["host"]: 2 for slot in rows.live()["slots"]}
    assert (cluster["supervised"], cluster["slots"], cluster["hosts"]) == (1, 4, hosts)
    assert cluster["parts"]["database"] == "ok"
    assert cluster["versions"].keys() >= {"Weir", "Postgres"}
    assert cluster["storage"]


# ---------------------------------------------------------------- checkpoints, failures and starts


def test_a_checkpoint_has_the_explanation_of_its_page(api: APIClient, browser: Client) -> None:
    run = rows.run(rows.job())
    completed = rows.checkpoint(run, 7)
    late = rows.checkpoint(run, 8, status="failed", reason="expired", completed_at=timezone.now())
    before = rows.checkpoint(run, 6, acknowledgements={})
    for row, begin in ((completed, "Subtask 1 of "), (late, "Subtasks 0 and 1 of ")):
        explanation = api.get(f"/api/v1/checkpoints/{row.pk}/").json()["explanation"]
        assert explanation.startswith(begin)
        assert explanation.replace("`", "") in blocks.text(browser.get(f"/checkpoints/{row.pk}/"))
    assert api.get(f"/api/v1/checkpoints/{before.pk}/").json()["explanation"] == ""


def test_failures_are_grouped_by_cause(api: APIClient) -> None:
    run, now = rows.run(rows.job(), "failed"), timezone.now()
    for token, minutes, operator in ((1, 9, "window"), (2, 5, "window"), (3, 1, "parquet")):
        Attempt.objects.create(
            run=run, token=token, outcome="failed", ended_at=now - timedelta(minutes=minutes),
            reason=f"division by zero at offset {token}",
            detail={"code": "attempt-failed", "operator": operator, "slot": 1, "traceback": f"line {token}"},
        )  # fmt: skip
    path = f"/api/v1/jobs/{run.job_id}/failures/"
    last, window = api.get(path).json()["causes"]
    assert (window["number"], window["attempt"], window["traceback"]) == (2, 2, "line 2")
    assert (last["operator"], last["subtask"]) == ("parquet", 1)
    assert [cause["number"] for cause in api.get(path, {"operator": "window"}).json()["causes"]] == [2]


def test_a_run_tells_why_it_ended_and_how_it_started(api: APIClient, operator: User) -> None:
    now = timezone.now().replace(microsecond=0)
    run = rows.run(rows.job(), created_at=now - timedelta(minutes=9), started_at=now - timedelta(minutes=8))
    rows.checkpoint(run, 1, triggered_at=now - timedelta(minutes=6), is_stored=False)
    assert api.get(f"/api/v1/runs/{run.pk}/").json()["end"] == ""
    phases = api.get(f"/api/v1/runs/{run.pk}/start/").json()["phases"]
    assert [phase["phase"] for phase in phases] == ["queue", "deploy", "first"]
    assert (phases[0]["took_ms"], phases[0]["expected_ms"]) == (60_000, None)
    assert run.started_at
    seconds = {"listed": 3, "opened": 7, "connected": 8, "deployed": 20}
    launch = {step: int((run.started_at.timestamp() + s) * 1000) for step, s in seconds.items()}
    Attempt.objects.create(run=run, token=2, launch=launch)
    phases = api.get(f"/api/v1/runs/{run.pk}/start/").json()["phases"]
    assert [phase["phase"] for phase in phases] == ["queue", "inputs", "spark", "slots", "restore", "first"]
    assert [phase["took_ms"] for phase in phases[1:5]] == [3_000, 4_000, 1_000, 12_000]
    Operation.objects.create(
        job=run.job, run=run, kind="stop", state="succeeded", requested_by=operator, result={"checkpoint": 7},
        reason="the move",
    )  # fmt: skip
    run.state = "stopped"
    run.save()
    ended = "A stop that operator requested ended the run with savepoint 7. Reason given: the move"
    assert api.get(f"/api/v1/runs/{run.pk}/").json()["end"] == ended


# ---------------------------------------------------------------- previews


def test_the_preview_of_a_stop_has_the_numbers_of_its_page(api: APIClient) -> None:
    live = {"operators": {"window": {"open_results": {"windows": 12_000}}}}
    run, now = rows.run(rows.job(), live=live, live_at=timezone.now()), timezone.now()
    newest = rows.checkpoint(run, 213, triggered_at=now - timedelta(seconds=10))
    rows.operation(run.job, "stop", created_at=now, ended_at=now + timedelta(seconds=4))
    preview = api.get(f"/api/v1/jobs/{run.job_id}/preview/", {"act": "stop"}).json()
    assert numbers_of(preview) == {"expected_ms": 4_000, "written_bytes": newest.size_bytes, "windows": 12_000}
    assert (preview["act"], preview["run"], preview["horizon"]["checkpoint"]) == ("stop", run.pk, 213)
    drained = api.get(f"/api/v1/jobs/{run.job_id}/preview/", {"act": "drain"}).json()
    assert drained["numbers"][-1]["note"] == "emitted early, one per key: sessions"


def test_the_preview_of_a_cancel_has_the_recovery_horizon(api: APIClient) -> None:
    run, now = rows.run(rows.job()), timezone.now()
    rows.checkpoint(run, 213, triggered_at=now - timedelta(seconds=10))
    rows.operation(run.job, "restore", created_at=now, ended_at=now + timedelta(seconds=9))
    preview = api.get(f"/api/v1/jobs/{run.job_id}/preview/", {"act": "cancel"}).json()
    assert numbers_of(preview)["restore_ms"] == 9_000
    assert preview["horizon"].keys() == {"point", "checkpoint", "records", "restart_ms", "restarts"}


def test_a_run_that_has_ended_has_no_preview(api: APIClient) -> None:
    run = rows.run(rows.job(), "stopped")
    preview = api.get(f"/api/v1/jobs/{run.job_id}/preview/", {"act": "cancel"}).json()
    assert (preview["run"], preview["numbers"], preview["horizon"]) == (run.pk, [], None)
    never = rows.job("never")
    assert api.get(f"/api/v1/jobs/{never.pk}/preview/", {"act": "stop"}).json()["run"] is None
    for query in ({}, {"act": "restore"}):
        assert api.get(f"/api/v1/jobs/{never.pk}/preview/", query).status_code == 422


# ---------------------------------------------------------------- versions


def test_two_versions_are_compared_as_on_their_page(api: APIClient) -> None:
    job = rows.job()
    first = job.versions.get()
    path = f"/api/v1/jobs/{job.pk}/versions/difference/"
    assert api.get(path).status_code == 404, "a single version"
    for number in (2, 3):
        JobVersion.objects.create(
            job=job, number=number, parallelism=number + 2, params=first.params, settings=first.settings,
            state="ready", graph=first.graph,
        )  # fmt: skip
    changed = {"part": "parallelism", "name": "parallelism", "before": 4, "after": 5}
    assert api.get(path).json() == {"base": 2, "other": 3, "differences": [changed]}
    assert api.get(path, {"base": 1, "other": 3}).json()["differences"] == [{**changed, "before": 2}]
    assert api.get(path, {"base": 1, "other": 9}).status_code == 404
    wrong: tuple[dict[str, Any], ...] = ({"base": 1}, {"base": 1, "other": "two"})
    for query in wrong:
        assert api.get(path, query).status_code == 422
    refused = api.post(f"{path}?base=1&other=3", {"parallelism": 9}, format="json")
    assert (refused.status_code, "compares the body" in refused.json()["detail"]) == (422, True), "it ignored them"
