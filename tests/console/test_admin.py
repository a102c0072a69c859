"""The admin: what can be found, what can be said about a checkpoint, what cannot be touched."""

import re
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin, site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from console import estimated_count
from console.accounts import read_only
from console.accounts.models import ApiToken, User
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.jobs.models import Run, StandingStage
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun

LIST = "/admin/checkpoints/checkpoint/"


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return make_run(RunState.RUNNING)


@pytest.fixture
def checkpoint(run: Run, make_checkpoint: MakeCheckpoint) -> Checkpoint:
    return make_checkpoint(run, 7, duration_ms=1500, size_bytes=2048, reason="expired")


def numbers(page: Any) -> list[int]:
    return [row.number for row in page.context["cl"].result_list]


@pytest.mark.parametrize(
    "path",
    [
        "jobs/pipeline", "jobs/job", "jobs/jobversion", "jobs/run", "jobs/standingstage", "operations/operation",
        "operations/schedule",
        "checkpoints/checkpoint", "accounts/user", "accounts/apitoken",
    ],
)  # fmt: skip
def test_every_list_opens_and_can_be_searched(browser: Client, checkpoint: Checkpoint, path: str) -> None:
    Operation.objects.create(job=checkpoint.job, run=checkpoint.run, kind="savepoint")
    StandingStage.objects.create(run=checkpoint.run, operator="orders", verb="stream")
    for query in ("", "?q=daily", "?q=7", "?q=not-an-id"):
        assert browser.get(f"/admin/{path}/{query}").status_code == 200


@pytest.mark.parametrize("model", [Run, Operation])
def test_a_search_looks_for_its_text_once_unless_many_rows_match(
    browser: Client, checkpoint: Checkpoint, model: type[Run | Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count, the page and the choice of dates use the keys of the rows that match."""
    Operation.objects.create(job=checkpoint.job, run=checkpoint.run, kind="savepoint")
    path = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    with CaptureQueriesContext(connection) as counted:
        rows = list(browser.get(path, {"q": "DAILY"}).context["cl"].result_list)
    assert rows == list(model.objects.all())
    assert sum("%DAILY%" in query["sql"] for query in counted) == 1
    assert not browser.get(path, {"q": "weekly"}).context["cl"].result_count
    monkeypatch.setattr(read_only, "MAX_KEYS", 0)
    assert list(browser.get(path, {"q": "DAILY"}).context["cl"].result_list) == rows


def test_the_list_of_runs_reads_no_large_column(browser: Client, run: Run) -> None:
    with CaptureQueriesContext(connection) as counted:
        browser.get("/admin/jobs/run/")
    assert not [query["sql"] for query in counted if '"graph"' in query["sql"] or '."live",' in query["sql"]]
    assert browser.get(f"/admin/jobs/run/{run.pk}/change/").status_code == 200


def test_the_box_of_a_checkpoint_is_that_of_django(checkpoint: Checkpoint) -> None:
    model_admin = site.get_model_admin(Checkpoint)
    assert model_admin.action_checkbox(checkpoint) == ModelAdmin.action_checkbox(model_admin, checkpoint)


def test_the_admin_is_for_staff(client: Client, viewer: User, checkpoint: Checkpoint) -> None:
    client.force_login(viewer)
    assert client.get(LIST).status_code == 302
    assert client.get(LIST)["Location"].startswith("/admin/login/")


def test_a_search_finds_reasons_names_and_reviews_among_the_filtered_rows(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint
) -> None:
    make_checkpoint(checkpoint.run, 8, status="failed", reason="expired", name="before 5.2")
    Checkpoint.objects.filter(number=7).update(review_state="reviewed", review_note="grew by 40 %")
    assert numbers(browser.get(LIST, {"q": "expired"})) == [8]
    assert numbers(browser.get(LIST, {"q": "before 5"})) == [8]
    assert numbers(browser.get(LIST, {"q": "GREW"})) == [7]
    assert numbers(browser.get(LIST, {"q": "GREW", "outcome": "failed"})) == []
    assert numbers(browser.get(LIST, {"q": "9" * 30})) == []


def test_checkpoints_are_found_by_job_number_status_and_day(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint
) -> None:
    make_checkpoint(checkpoint.run, 8, status="failed", reason="declined_task_not_ready")
    assert numbers(browser.get(LIST)) == [8, 7]
    assert numbers(browser.get(LIST, {"q": "7"})) == [7]
    assert numbers(browser.get(LIST, {"q": "daily"})) == [8, 7]
    assert numbers(browser.get(LIST, {"q": "weekly"})) == []
    assert numbers(browser.get(LIST, {"outcome": "failed"})) == [8]
    aborted = make_checkpoint(checkpoint.run, 9, status="failed", reason="suspended")
    assert numbers(browser.get(LIST, {"outcome": "aborted"})) == [9], "it was aborted on its page, and failed here"
    assert numbers(browser.get(LIST, {"outcome": "failed"})) == [8]
    assert ">aborted</td>" in browser.get(LIST).content.decode()
    assert "aborted" in browser.get(f"{LIST}{aborted.pk}/change/").content.decode()
    aborted.delete()
    assert numbers(browser.get(LIST, {"reason": "expired"})) == [7]
    assert numbers(browser.get(LIST, {"reason": "subsumed"})) == []
    assert numbers(browser.get(LIST, {"review_state__exact": "reviewed"})) == []
    assert numbers(browser.get(LIST, {"triggered_at__year": "1999"})) == []
    page = browser.get(LIST).content.decode()
    assert "1.50 s" in page
    assert f"{checkpoint.triggered_at:%Y-%m-%d %H:%M:%S}" in page
    assert "2.0\xa0KB" in page


def test_a_list_of_many_checkpoints_costs_no_query_each(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint, django_assert_max_num_queries: Any
) -> None:
    for number in range(100, 150):
        make_checkpoint(checkpoint.run, number)
    with django_assert_max_num_queries(16):
        browser.get(LIST)


def test_a_million_checkpoints_are_estimated_and_filtered_ones_counted(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is of the time before the last row; from two rows on, this test lets the list use it."""
    with connection.cursor() as cursor:
        make_checkpoint(checkpoint.run, 6)
        cursor.execute("ANALYZE weir_checkpoint")
    make_checkpoint(checkpoint.run, 8, status="failed", reason="declined_task_not_ready")
    assert browser.get(LIST).context["cl"].result_count == 3, "a small table is counted"
    monkeypatch.setattr(estimated_count, "MIN_ESTIMATED", 2)
    page = browser.get(LIST)
    assert (page.context["cl"].result_count, set(numbers(page))) == (2, {6, 7, 8})
    assert browser.get(LIST, {"outcome": "failed"}).context["cl"].result_count == 1
    assert browser.get(LIST, {"q": "daily"}).context["cl"].result_count == 3


def test_marking_reviewed_sets_who_and_when(browser: Client, operator: User, checkpoint: Checkpoint) -> None:
    browser.post(LIST, {"action": "mark_reviewed", "_selected_action": [checkpoint.pk], "confirmed": "yes"})
    checkpoint.refresh_from_db()
    assert (checkpoint.review_state, checkpoint.reviewer) == ("reviewed", operator)
    assert checkpoint.reviewed_at is not None


@pytest.mark.parametrize("action", ["mark_in_review", "mark_reviewed", "mark_waived", "pin", "unpin"])
def test_an_action_on_checkpoints_asks_first_and_keeps_the_reason(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint, action: str
) -> None:
    make_checkpoint(checkpoint.run, 8)
    if action == "unpin":
        Checkpoint.objects.update(pinned_at=timezone.now())
    page = browser.post(LIST, {"action": action, "_selected_action": [checkpoint.pk]})
    assert (page.status_code, Operation.objects.exists()) == (200, False)
    form = dict(re.findall(r'<input type="hidden" name="(\w+)"\s+value="(\w+)">', page.content.decode()))
    assert {"action": action, "_selected_action": str(checkpoint.pk), "confirmed": "yes"}.items() <= form.items()
    browser.post(LIST, {**form, "reason": "an audit"})
    operation = Operation.objects.get()
    assert (operation.params["checkpoint"], operation.reason) == (checkpoint.pk, "an audit")


def test_an_action_on_more_checkpoints_than_a_person_reads_is_refused(
    browser: Client, checkpoint: Checkpoint, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.operations.admin.MAX_SELECTED", 1)
    make_checkpoint(checkpoint.run, 8)
    everything = {"action": "mark_reviewed", "_selected_action": [checkpoint.pk], "select_across": "1"}
    for sent in (everything, {**everything, "confirmed": "yes"}):
        refused = browser.post(LIST, sent, follow=True)
        assert "Select at most 1 checkpoints for an action. No checkpoint was changed." in refused.content.decode()
    assert not Operation.objects.exists()


def test_a_review_with_a_note_is_saved_and_nothing_else(
    browser: Client, operator: User, checkpoint: Checkpoint
) -> None:
    path = reverse("admin:checkpoints_checkpoint_change", args=(checkpoint.pk,))
    assert browser.get(path).status_code == 200
    form = {"review_state": "waived", "review_note": "slow disk", "status": "failed", "reviewer": 0, "number": 99}
    saved = browser.post(path, form)
    assert saved.status_code == 302
    checkpoint.refresh_from_db()
    assert (checkpoint.review_state, checkpoint.review_note, checkpoint.reviewer) == ("waived", "slow disk", operator)
    assert (checkpoint.status, checkpoint.number) == ("completed", 7)


def test_a_review_does_not_undo_what_the_job_master_wrote_meanwhile(
    browser: Client, run: Run, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from console.checkpoints import services

    row = make_checkpoint(run, 9, status="in_progress")
    review = services.review

    def review_after_completion(*args: Any) -> int:
        Checkpoint.objects.filter(pk=row.pk).update(status="completed")
        return review(*args)

    monkeypatch.setattr(services, "review", review_after_completion)
    path = reverse("admin:checkpoints_checkpoint_change", args=(row.pk,))
    browser.post(path, {"review_state": "reviewed", "review_note": ""})
    row.refresh_from_db()
    assert (row.status, row.review_state) == ("completed", "reviewed")


def test_taking_a_review_back_forgets_who_and_when(browser: Client, checkpoint: Checkpoint) -> None:
    path = reverse("admin:checkpoints_checkpoint_change", args=(checkpoint.pk,))
    browser.post(path, {"review_state": "reviewed", "review_note": ""})
    browser.post(path, {"review_state": "unreviewed", "review_note": ""})
    checkpoint.refresh_from_db()
    assert (checkpoint.review_state, checkpoint.reviewer, checkpoint.reviewed_at) == ("unreviewed", None, None)


def test_a_member_of_staff_who_may_only_look_gets_no_action(client: Client, checkpoint: Checkpoint) -> None:
    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_checkpoint"))
    client.force_login(staff)
    assert "mark_reviewed" not in client.get(LIST).content.decode()
    client.post(LIST, {"action": "mark_reviewed", "_selected_action": [checkpoint.pk], "confirmed": "yes"})
    checkpoint.refresh_from_db()
    assert checkpoint.review_state == "unreviewed"


@pytest.mark.parametrize("model", ["jobs_run", "jobs_jobversion", "jobs_pipeline", "operations_operation"])
def test_what_happened_cannot_be_edited(browser: Client, checkpoint: Checkpoint, model: str) -> None:
    operation = Operation.objects.create(job=checkpoint.job, run=checkpoint.run, kind="savepoint")
    key = {
        "jobs_run": checkpoint.run_id,
        "jobs_jobversion": checkpoint.run.version_id,
        "jobs_pipeline": "sums",
        "operations_operation": operation.pk,
    }[model]
    assert browser.get(reverse(f"admin:{model}_change", args=(key,))).status_code == 200
    assert browser.post(reverse(f"admin:{model}_change", args=(key,)), {"state": "failed"}).status_code == 403
    assert browser.get(reverse(f"admin:{model}_add")).status_code == 403
    assert browser.post(reverse(f"admin:{model}_delete", args=(key,)), {"post": "yes"}).status_code == 403


def test_neither_jobs_nor_checkpoints_are_deleted_here(browser: Client, checkpoint: Checkpoint) -> None:
    for model, key in (("jobs_job", checkpoint.job_id), ("checkpoints_checkpoint", checkpoint.pk)):
        assert browser.post(reverse(f"admin:{model}_delete", args=(key,)), {"post": "yes"}).status_code == 403


def test_the_admin_lives_under_the_content_security_policy(browser: Client, checkpoint: Checkpoint) -> None:
    page = browser.get(LIST)
    policy = page["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


def test_a_stage_is_shown_and_not_changed(browser: Client, run: Run) -> None:
    stage = StandingStage.objects.create(run=run, operator="orders", verb="stream", deaths=2, reason="signal SIGKILL")
    path = f"/admin/jobs/standingstage/{stage.pk}/change/"
    said = browser.get(path).content.decode()
    assert "signal SIGKILL" in said
    assert browser.post(path, {"deaths": 0}).status_code == 403
    stage.refresh_from_db()
    assert stage.deaths == 2
    (row,) = browser.get("/admin/jobs/standingstage/", {"q": "SIGKILL"}).context["cl"].result_list
    assert row == stage


@pytest.mark.parametrize(
    ("model", "change"),
    [("jobs/job", {"description": "another"}),
     ("checkpoints/checkpoint", {"name": "another", "review_state": "unreviewed"})],
)  # fmt: skip
def test_a_change_that_is_refused_is_not_called_successful(
    browser: Client, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch,
    model: str, change: dict[str, str],
) -> None:  # fmt: skip
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Refused("conflict", "Not now: the job is archived.")

    monkeypatch.setattr("console.jobs.admin.edit_job", refuse)
    monkeypatch.setattr("console.operations.admin.services.request", refuse)
    pk = checkpoint.job_id if model == "jobs/job" else checkpoint.pk
    page = browser.post(f"/admin/{model}/{pk}/change/", change, follow=True)
    assert [str(message) for message in page.context["messages"]] == ["Not now: the job is archived."]
    assert not LogEntry.objects.exists()


def test_staff_may_not_widen_a_token_of_a_superuser(client: Client, operator: User, viewer: User) -> None:
    User.objects.filter(pk=viewer.pk).update(is_staff=True)
    viewer.user_permissions.add(*Permission.objects.filter(codename__in=["change_apitoken", "view_apitoken"]))
    client.force_login(viewer)
    of_superuser, of_viewer = (
        ApiToken.objects.create(user=user, digest=user.username, hint=user.username, scopes=["operate"])
        for user in (operator, viewer)
    )
    edit = {"scopes": ["operate", "define"]}
    assert client.post(f"/admin/accounts/apitoken/{of_superuser.pk}/change/", edit).status_code == 403
    assert client.post(f"/admin/accounts/apitoken/{of_viewer.pk}/change/", edit).status_code == 302
    of_superuser.refresh_from_db()
    of_viewer.refresh_from_db()
    assert (of_superuser.scopes, of_viewer.scopes) == (["operate"], edit["scopes"])


def test_the_names_of_all_lists_are_english(browser: Client) -> None:
    index = browser.get("/admin/").content.decode()
    assert "Health of jobs" in index
    assert not re.search(r">[A-Z][a-z ]*(?:healths|querys|ss|datas)<", index)
