"""Acts on several jobs by `weir`."""

from typing import Any

import httpx
import pytest
from rest_framework.test import APIClient

from console.jobs.models import Job
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import Commands, MakeRun

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_bulk_has_a_result_for_each_job(weir: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert "--yes accepts" in weir("bulk", "stop", "daily sums", code=2).stderr
    rows = weir.json("bulk", "savepoint", "daily sums", "nobody", "--no-wait", "--reason", "upgrade", code=1)
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "accepted"), ("nobody", "refused")]
    assert "no job has the name 'nobody'" in rows[1]["detail"]
    late = weir("bulk", "stop", "daily sums", "--yes", "--timeout", "0", code=5)
    assert "daily sums" in late.stdout
    assert Operation.objects.get(kind="savepoint").reason == "upgrade"


def test_a_bulk_keeps_its_results_if_the_console_is_away(
    weir: Commands, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection fails for the wait, after the request was accepted."""
    make_run(RunState.RUNNING)
    send = httpx.Client.request

    def fail(self: httpx.Client, method: str, path: str, **request: Any) -> httpx.Response:
        if path.startswith("operations/"):
            raise httpx.ConnectError("the connection is refused")
        return send(self, method, path, **request)

    monkeypatch.setattr(httpx.Client, "request", fail)
    rows = weir.json("bulk", "savepoint", "daily sums", "nobody", code=1)
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "unknown"), ("nobody", "refused")]
    assert "no console answers" in rows[0]["detail"]
    assert [row["operation"] for row in rows] == [str(Operation.objects.get().pk), None]


def test_a_bulk_writes_what_rest_answers(weir: Commands, make_run: MakeRun, api: APIClient) -> None:
    """A script reads one shape, whichever of the two it uses."""
    run = make_run(RunState.RUNNING)
    for kind, body in (("untag", {"tags": ["eu"]}), ("cancel", {})):
        results = api.post("/api/v1/jobs/bulk/", {"kind": kind, "jobs": [run.job_id], **body}).json()["results"]
        names = ("untag", "eu", "daily sums") if kind == "untag" else ("bulk", "cancel", "daily sums", "--yes")
        if kind == "cancel":
            Operation.objects.all().delete()
            names = (*names, "--no-wait")
        (row,) = weir.json(*names)
        assert {**row, "operation": None} == {**results[0], "operation": None}


def test_tags_of_jobs(weir: Commands, job: Job) -> None:
    command = ("tag", "eu,nightly", "daily sums", "--reason", "a new region")
    assert [row["state"] for row in weir.json(*command)] == ["changed"]
    assert [row["state"] for row in weir.json(*command)] == ["unchanged"]
    assert Operation.objects.get(kind="edit").reason == "a new region"
    weir("untag", "eu", "daily sums")
    job.refresh_from_db()
    assert job.tags == ["nightly"]
    assert (
        "tags.0: Ensure this field has no more than 40 characters."
        in weir("tag", "x" * 41, "daily sums", code=3).stderr
    )


def test_a_bulk_cancels(weir: Commands, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    rows = weir.json("bulk", "cancel", "daily sums", "--yes", "--no-wait")
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "accepted")]
    assert Operation.objects.get().params == {"run": run.pk}, "the run that was there at the question"
