"""Changes of definitions in the ledger: who, when, before and after; and entries that no statement changes."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Conflict
from console.checkpoints.models import Checkpoint
from console.jobs import editing, services
from console.jobs.models import Job
from console.operations.models import Operation
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db


def entries(job: Job, kind: str) -> list[dict[str, Any]]:
    """The changes of the entries, oldest first."""
    operations = Operation.objects.filter(job=job, kind=kind, state="succeeded").order_by("created_at")
    return [(row.result or {})["changes"] for row in operations]


def test_an_edit_of_a_job_leaves_an_entry_with_both_values(api: APIClient, browser: Client) -> None:
    job = rows.job()
    fields = {"owner": "ada", "tags": ["nightly"], "review_policy": "warn", "description": job.description}
    assert api.patch(f"/api/v1/jobs/{job.pk}/", fields, format="json", headers={"If-Match": "*"}).status_code == 200
    assert (
        api.patch(f"/api/v1/jobs/{job.pk}/", {"owner": "ada"}, format="json", headers={"If-Match": "*"}).status_code
        == 200
    )
    expected = {"owner": ["", "ada"], "tags": [[], ["nightly"]], "review_policy": ["off", "warn"]}
    assert entries(job, "edit") == [expected], "a request that changes nothing leaves none"
    row = Operation.objects.get(kind="edit")
    assert (str(row.requested_by), bool(row.request_id), row.ended_at is not None) == ("operator", True, True)
    said = blocks.text(browser.get(f"/operations/{row.pk}/"))
    assert 'review policy "off" "warn"' in said
    csv = browser.get("/operations/", {"format": "csv", "q": job.name}).getvalue().decode()
    assert '""owner"": ["""", ""ada""]' in csv
    assert "Edit" in blocks.text(browser.get(f"/jobs/{job.pk}/"))


def test_archive_and_return_are_entries(browser: Client) -> None:
    job = rows.job()
    for act in ("archive", "archive", "bring_back"):
        browser.post(f"/jobs/{job.pk}/archive/", {"act": act})
    assert entries(job, "edit") == [{"archived": [False, True]}, {"archived": [True, False]}]


def test_a_new_job_is_an_entry(api: APIClient, browser: Client) -> None:
    """Of each way in; a duplicate is a new job too."""
    source = rows.job()
    response = api.post("/api/v1/jobs/", {"name": "new", "pipeline": "flights"}, format="json")
    assert response.status_code == 201, response.content
    version = source.versions.get().pk
    assert api.post("/api/v1/jobs/", {"name": "twin", "duplicate_of": version}, format="json").status_code == 201
    new, twin = (Job.objects.get(name=name) for name in ("new", "twin"))
    assert entries(new, "define") == [{"name": [None, "new"], "pipeline": [None, "flights"]}]
    assert entries(twin, "define")[0] == {"name": [None, "twin"], "pipeline": [None, "flights"]}
    refused = api.post("/api/v1/jobs/", {"name": "new", "pipeline": "flights"}, format="json")
    assert (refused.status_code, Operation.objects.filter(kind="define", job=new).count()) == (409, 1)


def test_versions_are_entries_with_their_differences(definer: User, job: Job) -> None:
    services.create_version(definer, job, parallelism=2, params={"path": "in"})
    changed = {"retained_checkpoints": 3, "retained_hours": 48}
    newest = services.create_version(definer, job, parallelism=4, params={"path": "in"}, settings=changed)
    expected = {
        "version": [1, 2], "parallelism parallelism": [2, 4], "setting retained_checkpoints": [5, 3],
        "setting retained_hours": [None, 48],
    }  # fmt: skip
    assert entries(job, "define") == [{"version": [None, 1]}, expected]
    services.store_rejection(newest.pk, {"code": "x"})
    newest.refresh_from_db()
    editing.delete_version(definer, newest)
    assert entries(job, "define")[-1] == {"version 2": ["rejected", None]}


def test_a_refused_change_leaves_no_entry(definer: User) -> None:
    job, other = rows.job(), rows.job("another")
    with pytest.raises(Conflict):
        editing.edit_job(definer, job, name=other.name)
    assert not Operation.objects.exists()


def test_reviews_in_the_admin_are_operations(browser: Client, operator: User) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    form = {"action": "mark_reviewed", "_selected_action": [checkpoint.pk], "confirmed": "yes"}
    browser.post("/admin/checkpoints/checkpoint/", form)
    row = Operation.objects.get(kind="review")
    assert (row.requested_by, row.state) == (operator, "succeeded")
    assert (row.result or {})["changes"] == {"review_state": ["unreviewed", "reviewed"]}
    page = f"/admin/checkpoints/checkpoint/{checkpoint.pk}/change/"
    browser.post(page, {"review_state": "waived", "review_note": "known", "name": "", "note": ""})
    changes = (Operation.objects.latest("created_at").result or {})["changes"]
    assert changes == {"review_state": ["reviewed", "waived"], "review_note": ["", "known"]}
    assert Checkpoint.objects.get(pk=checkpoint.pk).review_state == "waived"


def test_a_description_in_the_admin_is_an_edit(browser: Client, operator: User) -> None:
    job = rows.job()
    browser.post(f"/admin/jobs/job/{job.pk}/change/", {"description": "of everything"})
    assert entries(job, "edit") == [{"description": [job.description, "of everything"]}]


@pytest.mark.parametrize("kind", ["edit", "define"])
def test_an_entry_cannot_be_requested(api: APIClient, kind: str) -> None:
    path = f"/api/v1/jobs/{rows.job().pk}/operations/"
    assert api.post(path, {"kind": kind}, format="json").json()["code"] == "unknown-kind"


@pytest.mark.parametrize("statement", ["UPDATE weir_operation SET reason = 'other'", "DELETE FROM weir_operation"])
@pytest.mark.parametrize(("state", "is_final"), [("succeeded", True), ("failed", True), ("unknown", False)])
def test_ended_entries_are_final(statement: str, state: str, is_final: bool) -> None:
    rows.operation(rows.job(), state=state)

    def run() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)

    if not is_final:
        run()
        return
    with pytest.raises(DatabaseError, match="cannot be changed or deleted"):
        run()
