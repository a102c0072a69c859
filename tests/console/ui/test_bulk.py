"""Acts on several jobs: what is asked before, and the result of each."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect
from rest_framework.test import APIClient

from console.jobs.models import Job, Run
from console.operations.models import BulkOperation, Operation
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import POLL_MS, Open, jump


def _selection(kind: str, *jobs: int) -> dict[str, Any]:
    return {"kind": kind, "job": list(jobs)}


def test_jobs_are_selected_in_the_list(at_console: Client) -> None:
    job = rows.run(rows.job()).job
    page = at_console.get("/jobs/").content.decode()
    assert re.search(rf'<input type="checkbox" form="bulk" name="job" id="select-{job.pk}" value="{job.pk}"', page)
    assert re.search(r'<form id="bulk"[^>]* action="/jobs/bulk/"', page)


def test_each_job_has_its_own_result_and_a_refusal_stops_no_other(at_console: Client) -> None:
    running, other = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    ended = rows.run(rows.job("gamma"), "stopped")
    selection = _selection("stop", running.job_id, other.job_id, ended.job_id)
    page = at_console.get("/jobs/bulk/", selection)
    said = blocks.text(page)
    assert "Each of these jobs takes a savepoint, commits the output up to it and ends." in said
    assert "Possible for 2 of 3 jobs now." in said
    assert re.search(r"gamma Stopped Not possible [^.]+\.", said)
    assert not Operation.objects.exists()
    key = re.findall(r'name="key" value="(\w+)"', page.content.decode())[0]
    sent = {**selection, "key": key, "reason": "move of the storage"}
    for _ in range(2):  # a form that is sent twice requests each stop once
        said = blocks.text(at_console.post("/jobs/bulk/", sent, follow=True))
        assert "2 of 3 requests accepted." in said
        assert re.search(r"alpha Running Stop In queue|alpha Running Stop Queued", said)
        assert "gamma Stopped Refused" in said
    operations = Operation.objects.order_by("job__name")
    assert [(row.run, row.kind, row.reason) for row in operations] == [
        (running, "stop", "move of the storage"), (other, "stop", "move of the storage"),
    ]  # fmt: skip


def test_the_results_have_an_address_and_show_the_present_states(at_console: Client, reading: Client) -> None:
    """A repeated form leads to the same page. The page rests once all operations have ended."""
    running, ended = rows.run(rows.job("alpha")), rows.run(rows.job("beta"), "stopped")
    selection = {**_selection("savepoint", running.job_id, ended.job_id), "key": "once", "reason": "before the move"}
    path = at_console.post("/jobs/bulk/", selection).headers["Location"]
    assert at_console.post("/jobs/bulk/", selection).headers["Location"] == path
    page = reading.get(path)
    said = blocks.text(page)
    assert "by operator. Reason: “before the move”" in said
    assert "alpha Running Savepoint Queued" in said
    assert "beta Stopped Refused The run has ended (stopped)." in said
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    poll = {"HX-Request": "true", "X-Blocks": digests}
    assert reading.get(path, headers=poll).status_code == 204
    error = {"code": "expired", "message": "Subtask 1 of window did not acknowledge."}
    Operation.objects.update(state="failed", error=error)
    answer = reading.get(path, headers=poll)
    assert (answer.status_code, blocks.swapped(answer)) == (200, {"bulk-result"})
    assert "Savepoint Failed Subtask 1 of window did not acknowledge." in blocks.text(answer)
    assert reading.get(f"/jobs/bulk/{uuid4()}/").status_code == 404


def test_the_results_of_changed_tags_have_an_address(at_console: Client) -> None:
    job = rows.job("alpha")
    path = at_console.post("/jobs/bulk/", {**_selection("tag", job.pk), "tags": "eu"}).headers["Location"]
    said = blocks.text(at_console.get(path))
    assert "Tags: eu" in said
    assert "alpha Gets eu" in said


def test_a_cancel_names_its_effect_on_each_job(at_console: Client) -> None:
    now = timezone.now()
    committed, early, queued = (rows.run(rows.job(name), state) for name, state in (
        ("alpha", "running"), ("beta", "running"), ("gamma", "queued"),
    ))  # fmt: skip
    rows.checkpoint(committed, 7, triggered_at=now - timedelta(seconds=90))
    rows.checkpoint(committed, 8, "savepoint", triggered_at=now)
    selection = _selection("cancel", committed.job_id, early.job_id, queued.job_id)
    said = blocks.text(at_console.get("/jobs/bulk/", selection))
    assert re.search(r"Run \d+ ends at once; output since checkpoint 7, 1 min \d+ s ago, is not committed", said)
    assert "has completed no checkpoint, so all of its work is lost" in said
    assert re.search(r"Run \d+ leaves the queue", said)
    assert "weir bulk cancel alpha beta gamma" in said
    said = blocks.text(at_console.post("/jobs/bulk/", selection, follow=True))
    assert "3 of 3 requests accepted." in said
    assert {row.kind for row in Operation.objects.all()} == {"cancel"}


def test_savepoints_and_drains_have_the_numbers_of_each_job(at_console: Client) -> None:
    """Size of its state, expected time, and the windows that would fire early."""
    known, new = rows.run(rows.job("alpha")), rows.run(rows.job("beta"), live=None, live_at=None)
    rows.checkpoint(known, 7)
    savepoint, least = (
        "a savepoint of about 1.2 MiB",
        "expected time at least 0.31 s (as checkpoint 7: the job has no earlier",
    )
    for kind, of_known, of_new in (
        ("savepoint", f"Run {known.pk} takes {savepoint} and continues; {least} savepoint)",
         f"Run {new.pk} takes a savepoint and continues"),
        ("stop", f"Run {known.pk} takes {savepoint}, commits the output up to it and ends; {least} stop)",
         f"Run {new.pk} takes a savepoint, commits the output up to it and ends"),
        ("drain", f"Every open window of run {known.pk} fires early (open sessions: 11 198), its output is",
         f"Every open window of run {new.pk} fires early, its output is committed"),
    ):  # fmt: skip
        said = blocks.text(at_console.get("/jobs/bulk/", _selection(kind, known.job_id, new.job_id)))
        assert of_known in said
        assert of_new in said


@pytest.mark.parametrize("kind", ["savepoint", "stop", "drain"])
def test_each_job_has_the_expected_time_of_its_own_page(at_console: Client, kind: str) -> None:
    """The page for several jobs named the last checkpoint, and no savepoint that had expired."""
    now = timezone.now()
    risky, new = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    for run in (risky, new):
        rows.checkpoint(run, 7)
    for took_s, state, error in ((1, "succeeded", None), (3, "succeeded", None), (60, "failed", {"code": "expired"})):
        rows.operation(
            risky.job, "savepoint", state, error=error, created_at=now, ended_at=now + timedelta(seconds=took_s)
        )
    said = blocks.text(at_console.get("/jobs/bulk/", _selection(kind, risky.job_id, new.job_id)))
    note = "the last 2 savepoints of this job took 1.0 s to 3.0 s; 1 of the last 3 expired after 1 min"
    assert f"{'2.0 s' if kind == 'savepoint' else 'at least 1.0 s'} ({note})" in said
    assert f"at least 0.31 s (as checkpoint 7: the job has no earlier {kind})" in said
    page = blocks.text(at_console.get(f"/jobs/{risky.job_id}/{kind}/"))
    assert note.capitalize() in page or note in page


def test_tags_are_added_and_removed_with_a_result_for_each_job(at_console: Client) -> None:
    tagged, plain = rows.job("alpha"), rows.job("beta")
    Job.objects.filter(pk=tagged.pk).update(tags=["eu", "nightly"])
    selection = {**_selection("tag", tagged.pk, plain.pk), "tags": "Nightly, "}
    said = blocks.text(at_console.get("/jobs/bulk/", selection))
    assert "alpha Nothing changes: it has these tags" in said
    assert "beta Gets nightly" in said
    assert "This changes 1 of 2 jobs now." in said
    assert "weir tag Nightly alpha beta" in said
    answer = at_console.post("/jobs/bulk/", {**selection, "reason": "runs at night"}, follow=True)
    assert "1 of 2 jobs changed." in blocks.text(answer)
    assert Operation.objects.get(kind="edit").reason == "runs at night"
    assert "0 of 2 jobs changed." in blocks.text(at_console.post("/jobs/bulk/", selection, follow=True))
    assert re.search(r'id="do-all" disabled', at_console.get("/jobs/bulk/", selection).content.decode())
    assert dict(Job.objects.values_list("name", "tags")) == {"alpha": ["eu", "nightly"], "beta": ["nightly"]}
    at_console.post("/jobs/bulk/", {**_selection("untag", tagged.pk, plain.pk), "tags": "nightly"})
    assert dict(Job.objects.values_list("name", "tags")) == {"alpha": ["eu"], "beta": []}
    assert Operation.objects.filter(kind="edit").count() == 3, "an unchanged job has no entry"
    refused = at_console.get("/jobs/bulk/", {**selection, "tags": " "})
    assert (refused.status_code, "at least one tag" in blocks.text(refused)) == (422, True)


def test_acts_on_several_jobs_over_rest(api: APIClient) -> None:
    running, ended = rows.run(rows.job("alpha")), rows.run(rows.job("beta"), "stopped")
    payload = {"kind": "cancel", "jobs": [ended.job_id, running.job_id], "reason": "move"}
    for _ in range(2):
        answer = api.post("/api/v1/jobs/bulk/", payload, headers={"Idempotency-Key": "once"})
        accepted, refused = answer.json()["results"]
        assert (accepted["name"], accepted["state"], refused["state"]) == ("alpha", "accepted", "refused")
        assert str(Operation.objects.get().pk) == accepted["operation"]
        assert refused["operation"] is None
        assert "stopped" in refused["detail"]
        assert (accepted["operation_state"], refused["operation_state"]) == ("queued", None)
    Operation.objects.update(state="running")
    later = api.get(answer.headers["Location"]).json()
    assert (later["id"], later["kind"], later["reason"]) == (answer.json()["id"], "cancel", "move")
    assert [row["operation_state"] for row in later["results"]] == ["running", None]
    answer = api.post("/api/v1/jobs/bulk/", {"kind": "tag", "jobs": [running.job_id], "tags": ["eu"]})
    assert [row["state"] for row in answer.json()["results"]] == ["changed"]
    for body, pointer in (({"jobs": [1], "tags": []}, "/tags"), ({"jobs": [10**6], "tags": ["a"]}, "/jobs")):
        answer = api.post("/api/v1/jobs/bulk/", {"kind": "tag", **body})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_an_idempotency_key_of_full_length_serves_each_job(api: APIClient) -> None:
    """The keys of the requests were the given key with a suffix: longer than allowed, or the key of another request."""
    first, second = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    payload = {"kind": "savepoint", "jobs": [first.job_id, second.job_id]}
    for _ in range(2):
        answer = api.post("/api/v1/jobs/bulk/", payload, headers={"Idempotency-Key": "k" * 200})
        assert [row["state"] for row in answer.json()["results"]] == ["accepted"] * 2
    assert Operation.objects.count() == 2
    single = {"kind": "savepoint"}
    key = {"Idempotency-Key": f"{'k' * 190}-{first.job_id}"}
    assert api.post(f"/api/v1/jobs/{first.job_id}/operations/", single, headers=key).status_code == 202
    answer = api.post("/api/v1/jobs/bulk/", payload, headers={"Idempotency-Key": "k" * 190})
    assert len({row["operation"] for row in answer.json()["results"]}) == 2
    assert Operation.objects.count() == 5


def test_a_repeated_change_of_tags_has_the_result_of_the_first(api: APIClient) -> None:
    """It undoes no later change. Other tags under the same key are refused."""
    job = rows.job("alpha")
    Job.objects.filter(pk=job.pk).update(tags=["us"])

    def answer(key: str, kind: str, *tags: str) -> Any:
        payload = {"kind": kind, "jobs": [job.pk], "tags": tags}
        return api.post("/api/v1/jobs/bulk/", payload, headers={"Idempotency-Key": key})

    def ask(key: str, kind: str, *tags: str) -> str:
        (row,) = answer(key, kind, *tags).json()["results"]
        return str(row["state"])

    assert ask("first", "tag", "us", "eu") == "changed"
    Job.objects.filter(pk=job.pk).update(tags=["us"])
    assert ask("first", "tag", "us", "eu") == "changed"
    assert Job.objects.get().tags == ["us"]
    assert answer("first", "untag", "us").status_code == 422
    assert ask("second", "untag", "us") == "changed"
    assert ask("third", "untag", "eu") == "unchanged"


@pytest.mark.parametrize("key", ["k" * 201, "", "a\tb"])
@pytest.mark.parametrize("kind", ["savepoint", "tag"])
def test_a_bad_idempotency_key_refuses_the_whole_request(api: APIClient, key: str, kind: str) -> None:
    run = rows.run(rows.job())
    payload = {"kind": kind, "jobs": [run.job_id], "tags": ["eu"]}
    answer = api.post("/api/v1/jobs/bulk/", payload, headers={"Idempotency-Key": key})
    problem = answer.json()["errors"][0]
    assert (answer.status_code, problem["pointer"]) == (422, "/Idempotency-Key")
    assert problem["detail"] == "Idempotency-Key: must be 1 to 200 printable characters."
    assert not Operation.objects.exists()


def test_a_bulk_act_takes_few_queries(at_console: Client, django_assert_max_num_queries: object) -> None:
    """The same for one job and for nine."""
    jobs = [rows.run(rows.job(f"job {number}")).job_id for number in range(9)]
    for pks in (jobs[:1], jobs):
        with django_assert_max_num_queries(7):  # type: ignore[operator]
            at_console.get("/jobs/bulk/", _selection("savepoint", *pks))


def test_a_reader_requests_nothing(reading: Client) -> None:
    run = rows.run(rows.job())
    selection = _selection("savepoint", run.job_id)
    assert re.search(r'id="do-all" disabled', reading.get("/jobs/bulk/", selection).content.decode())
    refused = reading.post("/jobs/bulk/", selection)
    assert (refused.status_code, "You may not operate jobs" in blocks.text(refused)) == (403, True)
    assert not Operation.objects.exists()
    assert not BulkOperation.objects.exists()


def test_an_unknown_act_and_no_selection(at_console: Client) -> None:
    assert at_console.get("/jobs/bulk/", _selection("restore", 1)).status_code == 400
    assert "No job is selected." in blocks.text(at_console.get("/jobs/bulk/", {"kind": "stop"}))
    assert "No job is selected." in blocks.text(at_console.post("/jobs/bulk/", {"kind": "stop"}))


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_acts_are_disabled_with_the_reason_until_a_job_is_selected(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    job = rows.run(rows.job()).job
    with signed_in() as page:
        page.goto("/jobs/")
        stop = page.get_by_role("button", name="Stop with savepoint…")
        expect(stop).to_be_disabled()
        expect(stop).to_have_accessible_description("No job is selected:")
        stop.click(force=True)
        page.locator("#bulk-tags").fill("eu")
        page.keyboard.press("Enter")
        assert page.url.endswith("/jobs/")
        page.locator(f"#select-{job.pk}").check()
        expect(stop).to_be_enabled()
        expect(stop).to_have_accessible_description("Selected jobs: 1")
        page.locator(f"#select-{job.pk}").uncheck()
        expect(stop).to_be_disabled()
        page.locator(f"#select-{job.pk}").check()
        stop.click()
        expect(page.get_by_role("heading", name="Stop with savepoint?")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("button", name="Stop with savepoint…")).to_be_enabled()
    with signed_in(390) as page:
        page.goto("/jobs/")
        expect(stop := page.get_by_role("button", name="Stop with savepoint…")).to_be_hidden()
        page.locator(f"#select-{job.pk}").check()
        expect(stop).to_be_visible()
    with signed_in(java_script_enabled=False) as page:
        page.goto("/jobs/")
        page.get_by_role("button", name="Stop with savepoint…").click()
        expect(page.locator("main")).to_contain_text("No job is selected. Select jobs in the list first.")


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_all_jobs_of_the_page_are_selected_at_once(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    first, second = rows.run(rows.job("alpha")).job, rows.run(rows.job("beta")).job
    with signed_in() as page:
        page.clock.install()
        page.goto("/jobs/")
        everything = page.get_by_label("All on this page")
        everything.check()
        expect(page.locator("#bulk-selected")).to_have_text("Selected jobs: 2")
        Run.objects.filter(job=first).update(state="draining")
        jump(page)
        expect(page.locator("#live-jobs")).to_contain_text("Draining", timeout=POLL_MS)
        expect(page.locator(f"#select-{first.pk}")).to_be_checked()
        page.locator(f"#select-{second.pk}").uncheck()
        expect(everything).to_be_checked(indeterminate=True)
        page.locator(f"#select-{second.pk}").check()
        expect(everything).to_be_checked()
        everything.uncheck()
        expect(page.locator("#bulk-selected")).to_have_text("No job is selected:")
    with signed_in(java_script_enabled=False) as page:
        page.goto("/jobs/")
        expect(page.get_by_label("All on this page")).to_be_hidden()


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_names_of_jobs_have_a_line_each(signed_in: Open, transactional_db: None) -> None:
    """The table broke "flights-delays" after its hyphen, beside free width. It shows long names whole, too."""
    user = rows.operator_user()
    runs = [rows.run(rows.job(name)) for name in ("flights-delays", "flights-" + "of-all-airlines-" * 4)]
    short, long = (run.job_id for run in runs)
    operation = rows.operation(runs[0].job, "stop", "running", run=runs[0])
    results = [
        {"job": short, "operation": str(operation.pk), "refusal": "", "changes": False, "effect": ""},
        {"job": long, "operation": None, "refusal": "A stop is already running.", "changes": False, "effect": ""},
    ]
    bulk = BulkOperation.objects.create(kind="stop", requested_by=user, results=results)
    for width in (1280, 390):
        with signed_in(width) as page:
            for path in (f"/jobs/bulk/?kind=cancel&job={short}&job={long}", f"/jobs/bulk/{bulk.pk}/"):
                page.goto(path)
                assert page.locator(f"#job-{short}").evaluate("each => each.getClientRects().length") == 1, path
                assert page.locator("main .scroll").evaluate("each => each.scrollWidth - each.clientWidth") <= 0, path
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
