"""Names, notes and pins: over the API, on the pages and in the admin, each as an operation in the ledger."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return rows.run(rows.job())


@pytest.fixture
def savepoint(run: Run) -> Checkpoint:
    return rows.checkpoint(run, 5, kind="savepoint")


def ask(api: APIClient, checkpoint: Checkpoint, kind: str, **params: Any) -> Any:
    body = {"kind": kind, "params": {"checkpoint": checkpoint.pk, **params}, "reason": "a release"}
    return api.post(f"/api/v1/jobs/{checkpoint.job_id}/operations/", body, format="json")


def ledger() -> list[tuple[str, str, Any]]:
    return list(Operation.objects.order_by("created_at").values_list("kind", "state", "result"))


def test_a_pin_is_in_the_ledger_and_forbids_the_discard(api: APIClient, savepoint: Checkpoint) -> None:
    answer = ask(api, savepoint, "pin")
    assert (answer.status_code, answer.json()["state"]) == (202, "succeeded")
    body = api.get(f"/api/v1/checkpoints/{savepoint.pk}/").json()
    assert body["pinned_at"]
    assert body["pinned_by"] == Operation.objects.get().requested_by_id
    refused = ask(api, savepoint, "discard")
    assert (refused.status_code, refused.json()["detail"]) == (409, "Savepoint 5 is pinned. Unpin it first.")
    assert ask(api, savepoint, "pin").json()["detail"] == "Savepoint 5 is already pinned."
    assert ask(api, savepoint, "unpin").status_code == 202
    assert ask(api, savepoint, "discard").status_code == 202
    assert ledger() == [
        ("pin", "succeeded", {"checkpoint": 5}), ("unpin", "succeeded", {"checkpoint": 5}), ("discard", "queued", None),
    ]  # fmt: skip
    assert ask(api, savepoint, "pin").json()["detail"] == "Savepoint 5 is discarded: its files are deleted."


def test_only_completed_checkpoints_are_pinned(api: APIClient, run: Run) -> None:
    failed = rows.checkpoint(run, 6, status="failed", reason="expired")
    refused = "Checkpoint 6 has failed; only a completed checkpoint can be pinned."
    assert ask(api, failed, "pin").json()["detail"] == refused
    assert ask(api, rows.checkpoint(run, 7), "pin").status_code == 202
    other = rows.checkpoint(rows.run(rows.job("other")), 1)
    body = {"kind": "pin", "params": {"checkpoint": other.pk}}
    answer = api.post(f"/api/v1/jobs/{run.job_id}/operations/", body, format="json")
    assert answer.json()["code"] == "unknown-checkpoint"


def test_a_label_changes_only_the_texts_that_it_names(api: APIClient, savepoint: Checkpoint) -> None:
    ask(api, savepoint, "label", name="before the upgrade", note="asked by Ada")
    ask(api, savepoint, "label", note="")
    savepoint.refresh_from_db()
    assert (savepoint.name, savepoint.note) == ("before the upgrade", "")
    for params, field in (
        ({"name": "x" * 101}, "params.name"), ({"name": "two\nlines"}, "params.name"),
        ({"note": "x" * 1001}, "params.note"), ({}, "params"),
    ):  # fmt: skip
        answer = ask(api, savepoint, "label", **params)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"].startswith("/" + field.split(".")[0]), params
    assert len(ledger()) == 2


def test_a_savepoint_may_be_asked_for_with_a_name(api: APIClient, run: Run) -> None:
    path = f"/api/v1/jobs/{run.job_id}/operations/"
    params = {"name": "nightly", "note": "", "pin": True}
    assert api.post(path, {"kind": "savepoint", "params": params}, format="json").json()["params"] == params
    for wrong in ({"name": "x" * 101}, {"title": "x"}, {"pin": "yes"}):
        assert api.post(path, {"kind": "stop", "params": wrong}, format="json").status_code == 422
    assert api.post(path, {"kind": "cancel", "params": {"name": "x"}}, format="json").status_code == 422


def succeed(operation: Operation, savepoint: Checkpoint) -> Checkpoint:
    """The job master ends the operation that took the savepoint."""
    operation.state, operation.result = "succeeded", {"checkpoint": savepoint.number}
    operation.save()
    savepoint.refresh_from_db()
    return savepoint


def test_the_end_of_a_stop_keeps_the_label_that_another_user_has_set(api: APIClient, savepoint: Checkpoint) -> None:
    """The savepoint is on record before the operation ends: the output is committed in between."""
    ada = rows.operator_user("ada")
    label = {"name": "nightly", "note": "", "pin": False}
    stop = rows.operation(savepoint.job, "stop", "running", run=savepoint.run, params=label, requested_by=ada)
    ask(api, savepoint, "pin")
    ask(api, savepoint, "label", name="before the upgrade", note="keep for the audit")
    ended = succeed(stop, savepoint)
    assert (ended.name, ended.note, ended.is_pinned) == ("before the upgrade", "keep for the audit", True)
    assert ended.pinned_by != ada


def test_the_end_of_a_savepoint_labels_and_pins_it(savepoint: Checkpoint) -> None:
    ada = rows.operator_user("ada")
    label = {"name": " nightly ", "note": "of ada", "pin": True}
    operation = rows.operation(savepoint.job, "savepoint", "running", run=savepoint.run, params=label, requested_by=ada)
    ended = succeed(operation, savepoint)
    assert (ended.name, ended.note, ended.is_pinned, ended.pinned_by) == ("nightly", "of ada", True, ada)


def test_the_page_pins_names_and_shows_both_in_lists(browser: Client, savepoint: Checkpoint) -> None:
    path = f"/checkpoints/{savepoint.pk}/"
    browser.post(f"{path}label/", {"name": "before <upgrade>", "note": "asked by Ada"})
    browser.post(f"{path}pin/", {"kind": "pin"})
    page = browser.get(path).content.decode()
    assert "Savepoint 5: before &lt;upgrade&gt;" in page
    assert "it cannot be discarded before it is unpinned" in page
    assert 'value="unpin"' in page
    job = f"/jobs/{savepoint.job_id}/"
    for listing in (job, f"{job}checkpoints/?name=upgrade", f"{job}restore/"):
        text = browser.get(listing).content.decode()
        assert "before &lt;upgrade&gt;" in text, listing
        assert "pinned</span>" in text, listing
    browser.post(f"{path}pin/", {"kind": "unpin"})
    assert "not pinned" in browser.get(path).content.decode()
    assert [kind for kind, _, _ in ledger()] == ["label", "pin", "unpin"]


def test_the_page_of_a_savepoint_takes_name_note_and_pin_and_the_button_none(browser: Client, run: Run) -> None:
    path = f"/jobs/{run.job_id}/savepoint/"
    page = browser.get(path).content.decode()
    assert all(f'name="{field}"' in page for field in ("name", "note", "pin", "reason"))
    browser.post(path, {"name": " nightly ", "note": "", "pin": "on", "reason": "a release"})
    browser.post(path, {"key": "another"})
    assert list(Operation.objects.order_by("created_at").values_list("params", "reason")) == [
        ({"name": "nightly", "pin": True}, "a release"), ({}, ""),
    ]  # fmt: skip


def test_the_admin_edits_the_label_and_pins_by_operations(browser: Client, savepoint: Checkpoint) -> None:
    path = reverse("admin:checkpoints_checkpoint_change", args=(savepoint.pk,))
    form = {"review_state": "in_review", "review_note": "", "name": "audited", "note": ""}
    assert browser.post(path, form).status_code == 302
    browser.post(path, {**form, "review_state": "reviewed"})
    listing = "/admin/checkpoints/checkpoint/"
    browser.post(listing, {"action": "pin", "_selected_action": [savepoint.pk], "confirmed": "yes"})
    savepoint.refresh_from_db()
    assert (savepoint.name, savepoint.is_pinned, savepoint.review_state) == ("audited", True, "reviewed")
    kinds = [kind for kind, _, _ in ledger()]
    assert sorted(kinds) == ["label", "pin", "review", "review"], "an unchanged name is no operation"
    assert [row.pk for row in browser.get(listing, {"pinned": "yes", "q": "audit"}).context["cl"].result_list] == [
        savepoint.pk
    ]
