"""The policy of a job on restores from snapshots that are not reviewed: pages, API and rescale."""

from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_rows
from console.jobs.models import Job, Run
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from tests.console.conftest import api_as
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

SENTENCE = (
    "Savepoint 5 is not reviewed, and the policy of job flights-delays is to restore from reviewed snapshots only."
)


@pytest.fixture
def savepoint(db: None) -> Checkpoint:
    return rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop")


@pytest.fixture
def api(operator: User) -> APIClient:
    return api_as(operator)


def choose(api: APIClient, job_id: int, policy: str) -> Any:
    return api.patch(f"/api/v1/jobs/{job_id}/", {"review_policy": policy}, format="json", headers={"If-Match": "*"})


def restore(api: APIClient, savepoint: Checkpoint) -> Any:
    body = {"kind": "restore", "params": {"checkpoint": savepoint.pk}}
    return api.post(f"/api/v1/jobs/{savepoint.job_id}/operations/", body, format="json")


def plan(api: APIClient, savepoint: Checkpoint) -> tuple[bool, list[str], str | None]:
    body = api.get(f"/api/v1/checkpoints/{savepoint.pk}/mapping/").json()
    return body["restorable"], body["warnings"], body["refusal"]


def test_without_a_policy_every_snapshot_is_restored(api: APIClient, savepoint: Checkpoint) -> None:
    assert plan(api, savepoint) == (True, [], None)
    assert restore(api, savepoint).status_code == 202


def test_a_warning_is_in_the_plan_and_changes_its_hash(api: APIClient, browser: Client, savepoint: Checkpoint) -> None:
    path = f"/api/v1/checkpoints/{savepoint.pk}/mapping/"
    before = api.get(path).json()["plan_hash"]
    assert choose(api, savepoint.job_id, "warn").json()["review_policy"] == "warn"
    assert plan(api, savepoint) == (True, [SENTENCE], None)
    assert api.get(path).json()["plan_hash"] != before
    assert SENTENCE in blocks.text(browser.get(f"/jobs/{savepoint.job_id}/restore/?checkpoint={savepoint.pk}"))
    assert restore(api, savepoint).status_code == 202


def test_a_refusal_names_the_snapshot_until_it_is_reviewed(
    api: APIClient, browser: Client, savepoint: Checkpoint
) -> None:
    choose(api, savepoint.job_id, "refuse")
    assert plan(api, savepoint) == (False, [], SENTENCE)
    assert SENTENCE in blocks.text(browser.get(f"/jobs/{savepoint.job_id}/restore/?checkpoint={savepoint.pk}"))
    answer = restore(api, savepoint)
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (409, "not-reviewed", SENTENCE)
    Checkpoint.objects.update(review_state="waived")
    assert restore(api, savepoint).json()["detail"].startswith("Savepoint 5 is waived, and the policy")
    Checkpoint.objects.update(review_state="reviewed")
    assert plan(api, savepoint) == (True, [], None)
    assert restore(api, savepoint).status_code == 202


def test_a_rescale_continues_from_its_own_savepoint(operator: User) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1)
    Job.objects.update(review_policy="refuse")
    job = Job.objects.get()
    request(OperationRequestContext(user=operator), job, "rescale", {"parallelism": 3})
    rows.checkpoint(run, 2, kind="stop")
    Operation.objects.filter(kind="stop").update(state="succeeded", result={"checkpoint": 2})
    Run.objects.filter(pk=run.pk).update(state="stopped")
    advance_rows()
    assert Operation.objects.get(kind="restore").run is not None


def test_the_edit_page_sets_the_policy(browser: Client, savepoint: Checkpoint) -> None:
    path = f"/jobs/{savepoint.job_id}/edit/"
    assert "Recovery after a failure is never affected." in blocks.text(browser.get(path))
    form = {"name": "flights-delays", "review_policy": "refuse"}
    assert browser.post(path, form).status_code == 302
    assert Job.objects.get().review_policy == "refuse"
    assert browser.post(path, {**form, "review_policy": "sometimes"}).status_code == 422


def test_an_unknown_policy_is_refused(api: APIClient, savepoint: Checkpoint) -> None:
    assert choose(api, savepoint.job_id, "sometimes").status_code in (400, 422)
