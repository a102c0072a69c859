"""A POST with an `Idempotency-Key` takes effect once: each route that accepts a POST is tried."""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now
from django.urls import URLPattern
from rest_framework.test import APIClient

from console.accounts.models import ApiToken, IdempotentRequest, SavedView, User
from console.alerts.models import Silence
from console.api import urls
from console.checkpoints.models import StateQuery
from console.housekeeping.old_rows import remove_old_rows
from console.incidents.models import IncidentNote
from console.jobs.models import Job, JobVersion
from console.jobs.services import lock_job
from console.operations.models import BulkOperation, Maintenance, Operation
from runtime.core.job.lifecycle import RunState
from tests.console.api.test_api import check_problem
from tests.console.conftest import MakeCheckpoint, MakeRun, api_as
from tests.console.incidents.verdicts import open_incident
from tests.waiting import until

KEY: Final = {"Idempotency-Key": "once"}
VERSION: Final = {"parallelism": 1, "params": {"path": "in"}}
Case = tuple[dict[str, Any], dict[str, Any], Callable[[], int]]


def count_rows() -> int:
    """Rows that a POST may create."""
    of_jobs: tuple[Any, ...] = (Job, JobVersion, Operation, BulkOperation, StateQuery, Maintenance, SavedView)
    return sum(table.objects.count() for table in (*of_jobs, IncidentNote, Silence))


@pytest.fixture
def places(make_run: MakeRun, make_checkpoint: MakeCheckpoint, operator: User) -> Mapping[str, Any]:
    """By the name of a route: its address, a body and another body."""
    run = make_run(RunState.RUNNING)
    facts = [{"uid": "sums", "name": "Sums", "subtasks": 2, "state_bytes": 100, "has_state": True}]
    checkpoint = make_checkpoint(run, 1, operators=facts)
    JobVersion.objects.create(
        job=run.job, number=2, parallelism=1, params={"path": "other"}, state="ready", graph=run.version.graph
    )
    queued = Operation.objects.create(job=run.job, run=run, kind="savepoint", requested_by=operator)
    job, incident = f"jobs/{run.job_id}", f"incidents/{open_incident(run).pk}/"
    tagged = {"kind": "tag", "jobs": [run.job_id], "tags": ["eu"]}
    return {
        "jobs": ("jobs/", {"name": "a", "pipeline": "sums"}, {"name": "b", "pipeline": "sums"}),
        "versions": (f"{job}/versions/", VERSION, {**VERSION, "parallelism": 2}),
        "version-differences": (f"{job}/versions/difference/", VERSION, {**VERSION, "parallelism": 2}),
        "equal-version": (f"versions/{run.version_id}/equal/", {}, {"unread": 1}),
        "operations": (f"{job}/operations/", {"kind": "savepoint"}, {"kind": "cancel"}),
        "operation-withdrawal": (f"operations/{queued.pk}/withdraw/", {}, {"unread": 1}),
        "bulk": ("jobs/bulk/", tagged, {**tagged, "tags": ["us"]}),
        "state-queries": (
            f"checkpoints/{checkpoint.pk}/state-queries/",
            {"operator": "sums", "state": "state"}, {"operator": "sums", "state": "other"},
        ),
        "evidence-check": ("evidence/check/", {}, {"a": 1}),
        "incident-take": (f"{incident}take/", {}, {"unread": 1}),
        "incident-notes": (f"{incident}notes/", {"text": "a"}, {"text": "b"}),
        "incident-silence": (f"{incident}silence/", {"hours": 1}, {"hours": 2}),
        "maintenance": ("maintenance/", {"reason": "a"}, {"reason": "b"}),
        "saved-views": ("saved-views/", {"name": "a", "query": ""}, {"name": "b", "query": ""}),
    }  # fmt: skip


ROUTES: Final = sorted(
    str(route.name)
    for route in urls.urlpatterns
    if isinstance(route, URLPattern) and hasattr(getattr(route.callback, "view_class", None), "post")
)


@pytest.mark.parametrize("route", [name for name in ROUTES if name not in ("login", "packages")])
def test_a_repetition_has_the_same_answer_and_no_further_effect(
    api: APIClient, places: Mapping[str, Any], route: str
) -> None:
    path, body, other = places[route]
    first = api.post(f"/api/v1/{path}", body, headers=KEY)
    assert first.status_code in (200, 201, 202), first.content
    rows = count_rows()
    again = api.post(f"/api/v1/{path}", body, headers=KEY)
    assert (again.status_code, again.content, again["Idempotent-Replay"]) == (first.status_code, first.content, "true")
    for name in ("Location", "Retry-After"):
        assert again.get(name) == first.get(name)
    assert count_rows() == rows
    check_problem(api.post(f"/api/v1/{path}", other, headers=KEY), 422, "idempotency-key-reused", "/Idempotency-Key")
    assert count_rows() == rows


def test_a_repeated_login_leaves_one_token(operator: User) -> None:
    """The answer has a secret, so it is not stored: the repetition replaces the unused token."""
    body = {"username": "operator", "password": "a long enough one"}
    answers = [APIClient().post("/api/v1/auth/token/", body, headers=KEY) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert ApiToken.objects.count() == 1
    other = APIClient().post("/api/v1/auth/token/", {**body, "scopes": ["define"]}, headers=KEY)
    check_problem(other, 422, "idempotency-key-reused")
    assert not IdempotentRequest.objects.exists()


def test_a_refusal_is_not_an_answer(api: APIClient, job: Job) -> None:
    """The reason for it may end: the request is made again with the same key."""
    path = f"/api/v1/jobs/{job.pk}/versions/"
    job.archived_at = Now()
    job.save()
    assert api.post(path, VERSION, headers=KEY).status_code == 409
    Job.objects.update(archived_at=None)
    assert api.post(path, VERSION, headers=KEY).status_code == 202
    assert JobVersion.objects.count() == 1


def test_keys_belong_to_users(api: APIClient, definer: User, job: Job) -> None:
    path = f"/api/v1/jobs/{job.pk}/versions/"
    assert api.post(path, VERSION, headers=KEY).status_code == 202
    assert api_as(definer).post(path, {**VERSION, "parallelism": 2}, headers=KEY).status_code == 202


@pytest.mark.django_db(transaction=True)
def test_concurrent_repetitions_create_one_version(operator: User, job: Job) -> None:
    barrier = threading.Barrier(4)
    clients = [api_as(operator) for _ in range(4)]

    def post(client: APIClient) -> Any:
        barrier.wait(30)
        try:
            return client.post(f"/api/v1/jobs/{job.pk}/versions/", VERSION, headers=KEY)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, clients))
    assert {answer.status_code for answer in answers} == {202}
    assert len({json.loads(answer.content)["id"] for answer in answers}) == 1
    assert JobVersion.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_request_that_ends_in_a_deadlock_says_so(operator: User, job: Job) -> None:
    """With a key all jobs of a request change in one transaction, so it holds the lock of the first at the second."""
    other = Job.objects.create(name="other", pipeline=job.pipeline, created_by=operator)
    first, second = sorted((job, other), key=lambda each: each.name)

    def post(number: int) -> Any:
        body = {"kind": "tag", "jobs": [job.pk, other.pk], "tags": [f"round-{number}"]}
        try:
            return api_as(operator).post("/api/v1/jobs/bulk/", body, headers={"Idempotency-Key": str(number)})
        finally:
            connection.close()

    def is_ended_by_postgres(number: int) -> bool:
        """Whether Postgres ended the request of this round; else it ended the transaction of this thread."""
        with ThreadPoolExecutor(1) as pool, suppress(OperationalError), transaction.atomic():
            lock_job(second)
            answer = pool.submit(post, number)
            until(is_waited_for)
            lock_job(first)
        if answer.result().status_code == 200:
            return False
        check_problem(answer.result(), 503, "deadlock")
        assert answer.result().headers["Retry-After"] == "2"
        assert not Job.objects.filter(tags__contains=[f"round-{number}"]).exists()
        return True

    assert any(is_ended_by_postgres(number) for number in range(10))


def is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT bool_or(pg_backend_pid() = ANY (pg_blocking_pids(pid))) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_answers_are_removed_after_a_day(api: APIClient, job: Job) -> None:
    assert api.post(f"/api/v1/jobs/{job.pk}/versions/", VERSION, headers=KEY).status_code == 202
    remove_old_rows()
    assert IdempotentRequest.objects.count() == 1
    IdempotentRequest.objects.update(created_at=Now() - timedelta(days=1, seconds=1))
    remove_old_rows()
    assert not IdempotentRequest.objects.exists()
