"""Maintenance mode: what it refuses and accepts, who may switch it, and its trace."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import DatabaseError, transaction
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Conflict, Forbidden, InvalidField
from console.jobs.models import Run
from console.operations.kinds.job.drain import Drain
from console.operations.maintenance import begin_maintenance, end_maintenance
from console.operations.models import Maintenance, Operation
from console.operations.services import OperationRequestContext, request
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db
REASON = "the storage moves"


@pytest.fixture
def running() -> Run:
    run = rows.run(rows.job())
    rows.checkpoint(run, 3)
    return run


def test_maintenance_that_begins_while_a_request_waits_refuses_it(
    operator: User, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Drain.accept

    def accept_late(drain: Drain, row: Operation, params: Any) -> Operation:
        begin_maintenance(operator, REASON)
        return accept(drain, row, params)

    monkeypatch.setattr(Drain, "accept", accept_late)
    with pytest.raises(Conflict, match="the storage moves"):
        request(OperationRequestContext(user=operator), running.job, "drain")
    assert not Operation.objects.exists()


def test_a_refusal_names_user_and_reason_until_the_end(operator: User, running: Run) -> None:
    begin_maintenance(operator, REASON)
    with pytest.raises(Conflict, match=r"operator began maintenance at .* UTC: the storage moves\. ") as refused:
        request(OperationRequestContext(user=operator), running.job, "drain")
    assert (refused.value.code, refused.value.facts["by"]) == ("maintenance", "operator")
    end_maintenance(operator)
    assert request(OperationRequestContext(user=operator), running.job, "drain").operation.state == "queued"


def test_a_repeated_request_keeps_its_answer(operator: User, running: Run) -> None:
    context = OperationRequestContext(user=operator, idempotency_key="once")
    first = request(context, running.job, "drain")
    begin_maintenance(operator, REASON)
    assert request(context, running.job, "drain").operation == first.operation


def test_pages_have_a_banner_and_no_button_for_what_is_refused(browser: Client, running: Run, operator: User) -> None:
    page = f"/jobs/{running.job_id}/"
    first = browser.get(page)
    poll = {"HX-Request": "true"}
    tag = browser.get(page, headers=poll).headers["ETag"]
    begin_maintenance(operator, REASON)
    said = blocks.text(browser.get(page))
    assert "Maintenance since" in said
    assert "by operator: the storage moves. Runs continue." in said
    assert 'id="drain"' not in browser.get(page).content.decode()
    changed = browser.get(page, headers={**poll, "If-None-Match": tag})
    assert "the storage moves" in changed.content.decode(), "open pages get the banner"
    assert "the storage moves" in browser.get("/admin/").content.decode()
    assert "the storage moves" not in first.content.decode()
    end_maintenance(operator)
    assert "the storage moves" not in browser.get(page).content.decode()


@pytest.mark.parametrize(
    ("path", "button"),
    [
        ("/jobs/new/?pipeline=sums", 'name="start"'),
        ("/jobs/{job}/savepoint/", 'id="target"'),
        ("/jobs/{job}/drain/", 'class="button danger primary"'),
        ("/jobs/{job}/rescale/", 'class="button primary"'),
        ("/jobs/{job}/restore/?checkpoint={savepoint}", 'class="button primary danger"'),
        ("/checkpoints/{savepoint}/", 'id="copy-it"'),
        ("/checkpoints/{savepoint}/clone/", 'id="clone"'),
        ("/checkpoints/{savepoint}/clone/", 'id="drill"'),
        ("/checkpoints/{savepoint}/discard/", 'class="button danger primary"'),
        ("/checkpoints/{savepoint}/evidence/", 'id="verify"'),
        ("/jobs/bulk/?kind=drain&job={job}", 'id="do-all"'),
    ],
)
@pytest.mark.usefixtures("pipeline")
def test_a_refused_button_is_disabled_with_the_reason(
    browser: Client, running: Run, operator: User, path: str, button: str, settings: Settings
) -> None:
    settings.WEIR_SAVEPOINT_ROOTS = (*settings.WEIR_SAVEPOINT_ROOTS, Path("/backup"))
    savepoint = rows.checkpoint(running, 4, "savepoint")
    where = path.format(job=running.job_id, savepoint=savepoint.pk)
    pattern = rf"<(?:button|input)[^>]*{button}[^>]*>"
    begin_maintenance(operator, REASON)
    page = browser.get(where)
    (tag,) = re.findall(pattern, page.content.decode())
    assert " disabled" in tag
    text = blocks.text(page).partition("Runs continue.")[2]  # behind the banner
    assert "the storage moves" in text, "the reason is beside the button"


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("path", ["/jobs/new/?pipeline=sums", "/jobs/{job}/savepoint/"])
def test_pages_offer_starts_and_copies_outside_maintenance(
    browser: Client, running: Run, path: str, settings: Settings
) -> None:
    settings.WEIR_SAVEPOINT_ROOTS = (*settings.WEIR_SAVEPOINT_ROOTS, Path("/backup"))
    said = browser.get(path.format(job=running.job_id)).content.decode()
    (tag,) = re.findall(r'<(?:button|input)[^>]*(?:name="start"|id="target")[^>]*>', said)
    assert " disabled" not in tag


def test_a_savepoint_with_a_copy_is_refused_as_a_whole(operator: User, running: Run) -> None:
    """The copy would be made of files that maintenance may move."""
    begin_maintenance(operator, REASON)
    for kind in ("savepoint", "stop"):
        with pytest.raises(Conflict, match="no files of savepoints are copied"):
            request(OperationRequestContext(user=operator), running.job, kind, {"target": "/backup"})
    assert not Operation.objects.exists()


def test_the_switch_over_rest(api: APIClient, running: Run) -> None:
    path = "/api/v1/maintenance/"
    assert api.delete(path).json()["code"] == "no-maintenance"
    assert api.post(path, {"reason": " "}).status_code == 400
    response = api.post(path, {"reason": REASON})
    assert (response.status_code, response.json()["started_by"], response.json()["ended_at"]) == (201, "operator", None)
    assert api.post(path, {"reason": "again"}).status_code == 409
    drained = api.post(f"/api/v1/jobs/{running.job_id}/operations/", {"kind": "drain"})
    assert (drained.status_code, drained.json()["code"]) == (409, "maintenance")
    assert api.delete(path).json()["ended_by"] == "operator"
    (row,) = api.get(path).json()["results"]
    assert (row["reason"], row["ended_at"] is not None) == (f"{REASON}.", True)


def test_the_switch_in_the_admin(browser: Client) -> None:
    browser.post("/admin/operations/maintenance/add/", {"reason": REASON})
    row = Maintenance.objects.get()
    assert (row.reason, str(row.started_by), row.ended_at) == (f"{REASON}.", "operator", None)
    response = browser.post("/admin/operations/maintenance/add/", {"reason": "again"}, follow=True)
    assert "Maintenance is under way already" in blocks.text(response)
    browser.post("/admin/operations/maintenance/", {"action": "end_maintenance", "_selected_action": [row.pk]})
    assert Maintenance.objects.get().ended_at is not None


def test_the_switch_needs_its_own_permission(viewer: User) -> None:
    viewer.user_permissions.add(Permission.objects.get(codename="add_operation"))
    with pytest.raises(Forbidden, match=r"operations\.add_maintenance"):
        begin_maintenance(viewer, REASON)
    viewer.user_permissions.add(Permission.objects.get(codename="add_maintenance"))
    viewer = User.objects.get(pk=viewer.pk)
    begin_maintenance(viewer, REASON)
    end_maintenance(viewer)


def test_a_reason_is_required(operator: User) -> None:
    for reason in ("  ", "x" * 1001, "\0"):
        with pytest.raises(InvalidField):
            begin_maintenance(operator, reason)


def test_entries_are_never_changed_or_deleted(operator: User) -> None:
    row = begin_maintenance(operator, REASON)
    entries = Maintenance.objects.filter(pk=row.pk)
    with pytest.raises(DatabaseError, match="can only be ended"), transaction.atomic():
        entries.update(reason="another")
    end_maintenance(operator)
    with pytest.raises(DatabaseError, match="can only be ended"), transaction.atomic():
        entries.update(ended_at=None)
    with pytest.raises(DatabaseError, match="can only be ended"), transaction.atomic():
        entries.delete()
