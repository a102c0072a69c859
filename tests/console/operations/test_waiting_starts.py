"""Starts that wait for the compilation of their version, and jobs that are defined and started in one step."""

from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.housekeeping import reconciler
from console.jobs import services as definitions
from console.jobs.models import Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request, withdraw_operation
from tests.console.conftest import GRAPH
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

BODY: dict[str, Any] = {
    "name": "sums", "pipeline": "sums", "version": {"parallelism": 1, "params": {"path": "in"}}, "start": True
}  # fmt: skip


@pytest.fixture
def compiling(job: Job) -> JobVersion:
    return JobVersion.objects.create(job=job, number=7, parallelism=2)


def ask(user: User, job: Job, **params: Any) -> Operation:
    context = OperationRequestContext(user=user, reason="first day")
    return request(context, job, "start", {"when_ready": True, **params}).operation


def test_a_start_waits_until_its_version_is_compiled(operator: User, job: Job, compiling: JobVersion) -> None:
    row = ask(operator, job)
    reconciler.reconcile()
    row.refresh_from_db()
    assert (row.state, row.run, row.phase) == ("queued", None, "waiting for the compilation")
    definitions.store_graph(compiling.pk, GRAPH)
    reconciler.reconcile()
    reconciler.reconcile()
    run = Run.objects.get()
    row.refresh_from_db()
    assert (run.version, run.created_by, row.run, row.phase) == (compiling, operator, run, "waiting for a worker")


def test_a_start_ends_with_the_rejection_of_its_version(operator: User, job: Job, compiling: JobVersion) -> None:
    row = ask(operator, job)
    definitions.store_rejection(compiling.pk, {"code": "no-source", "field": "job", "detail": "has no source"})
    reconciler.reconcile()
    row.refresh_from_db()
    assert row.state == "failed"
    assert row.error is not None
    assert "version 7 was rejected with no-source, job: has no source" in row.error["message"]
    assert not Run.objects.exists()


def test_a_start_does_not_fall_back_from_a_version_that_is_rejected_already(
    operator: User, job: Job, version: JobVersion, compiling: JobVersion
) -> None:
    """The compilation may end before the request arrives; an older version, which is ready, must not start instead."""
    definitions.store_rejection(compiling.pk, {"code": "no-source", "field": "job", "detail": "has no source"})
    with pytest.raises(Conflict, match="version 7 was rejected with no-source, job: has no source") as refused:
        ask(operator, job)
    assert refused.value.code == "version-not-ready"
    assert not Run.objects.exists()
    assert ask(operator, job, version=version.pk).run == Run.objects.get(version=version)


def test_a_start_calls_no_version_rejected_whose_compilation_is_repeated(
    operator: User, job: Job, compiling: JobVersion
) -> None:
    definitions.postpone_compilation(compiling.pk, {"code": "unavailable", "field": "", "detail": "no storage"})
    with pytest.raises(Conflict, match=r"version 7 is compiling\.$") as refused:
        ask(operator, job, version=compiling.pk, when_ready=False)
    assert "rejection" not in refused.value.facts


def test_a_waiting_start_is_the_only_one_and_can_be_withdrawn(operator: User, job: Job, compiling: JobVersion) -> None:
    row = ask(operator, job)
    with pytest.raises(Conflict, match="already waits"):
        ask(operator, job)
    withdraw_operation(operator, row)
    definitions.store_graph(compiling.pk, GRAPH)
    reconciler.reconcile()
    assert not Run.objects.exists()
    with pytest.raises(Conflict, match="cannot be withdrawn"):
        withdraw_operation(operator, ask(operator, job))


def test_a_run_that_was_started_meanwhile_ends_the_waiting_start(
    operator: User, job: Job, version: JobVersion, compiling: JobVersion
) -> None:
    row = ask(operator, job)
    request(OperationRequestContext(user=operator), job, "start", {"version": version.pk})
    definitions.store_graph(compiling.pk, GRAPH)
    reconciler.reconcile()
    row.refresh_from_db()
    assert (row.state, (row.error or {})["code"]) == ("failed", "run-active")
    assert Run.objects.count() == 1


def test_a_job_is_defined_and_started_over_rest(api: APIClient, pipeline: Pipeline) -> None:
    answer = api.post("/api/v1/jobs/", BODY, format="json")
    assert answer.status_code == 201, answer.content
    row = Operation.objects.get(kind="start")
    assert (row.job_id, row.kind, row.params["version"]) == (answer.json()["id"], "start", JobVersion.objects.get().pk)


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [({"version": None}, 422, "start"), ({"version": {"parallelism": 0, "params": {}}}, 400, "parallelism")],
)
def test_a_refused_part_leaves_nothing(
    api: APIClient, pipeline: Pipeline, changes: dict[str, Any], status: int, field: str
) -> None:
    body = {name: value for name, value in {**BODY, **changes}.items() if value is not None}
    refused = api.post("/api/v1/jobs/", body, format="json")
    assert refused.status_code == status
    assert field in refused.content.decode()
    assert not Job.objects.exists()
    assert not Operation.objects.filter(kind="start").exists()


def test_a_page_defines_and_starts(client: Client) -> None:
    client.force_login(rows.operator_user())
    rows.pipeline()
    filled = {"pipeline": "flights", "name": "delays", "parallelism": "2", "params-input": "/in", "params-output": "/o",
              "params-on_malformed": '"fail"', "start": "on"}  # fmt: skip
    assert "Define and start" in blocks.text(client.get("/jobs/new/?pipeline=flights"))
    said = blocks.text(client.post("/jobs/new/", filled, follow=True))
    assert "Job delays was created. Version 1 is being compiled. The job starts once it is ready." in said
    assert Operation.objects.get(kind="start").params["version"] == JobVersion.objects.get().pk
    assert "waiting for the compilation" in said
