"""Open confirmations of a discard, clone, bulk act and restore: they show what another user requests meanwhile.

A button that has become impossible is disabled with its reason.
"""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run
from console.operations.models import Operation
from console.pages.workers import Answer, Worker
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import ARRIVAL_MS, POLL_MS, Open, jump

POLL = {"HX-Request": "true"}


@pytest.fixture
def anna(db: None) -> User:
    return rows.operator_user("anna")


def poll(client: Client, path: str, page: Any, query: dict[str, Any] | None = None) -> Any:
    """The poll of an open page, with the digests of its blocks."""
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    return client.get(path, query, headers={**POLL, "X-Blocks": digests})


def buttons(answer: Any) -> list[tuple[str, bool]]:
    """The buttons in the blocks of a poll, and whether they can be pressed."""
    markup = " ".join(blocks.live(answer).values())
    return [
        (label, "disabled" not in attributes) for attributes, label in re.findall(r"<button([^>]*)>([^<]+)<", markup)
    ]


def discard(of: Checkpoint, by: User, state: str = "queued") -> Operation:
    """A discard by another user, as its acceptance writes it."""
    Checkpoint.objects.filter(pk=of.pk).update(discarded_at=timezone.now())
    params, phase = {"checkpoint": of.pk}, "deleting files" if state == "queued" else ""
    return rows.operation(of.job, "discard", state, params=params, phase=phase, requested_by=by)


# ---------------------------------------------------------------- discard, clone and drill


@pytest.mark.parametrize(("state", "progress"), [("queued", "deleting files"), ("succeeded", "succeeded")])
def test_a_discard_shows_the_discard_by_another_user(at_console: Client, anna: User, state: str, progress: str) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job(), "stopped"), 7, kind="savepoint")
    path = f"/checkpoints/{checkpoint.pk}/discard/"
    page = at_console.get(path)
    assert b"data-poll" in page.content
    assert poll(at_console, path, page).status_code == 204
    discard(checkpoint, anna, state)
    answer = poll(at_console, path, page)
    assert blocks.swapped(answer) == {"effects", "confirm-button"}
    assert f"anna has requested a discard ({progress})" in blocks.text(answer)
    assert "Savepoint 7 is already discarded." in blocks.text(answer)
    assert buttons(answer) == [("Discard savepoint", False)]


def test_a_clone_shows_the_drill_and_the_discard_by_another_user(at_console: Client, anna: User) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7, kind="savepoint")
    path = f"/checkpoints/{checkpoint.pk}/clone/"
    page = at_console.get(path)
    assert poll(at_console, path, page).status_code == 204
    rows.operation(
        checkpoint.job, "drill", "running", params={"checkpoint": checkpoint.pk}, requested_by=anna, reason="proof"
    )
    answer = poll(at_console, path, page)
    assert blocks.swapped(answer) == {"effects", "buttons"}
    assert "anna has requested a drill (running)" in blocks.text(answer)
    assert "Another restore drill of this job has not ended." in blocks.text(answer)
    assert buttons(answer) == [("Run a restore drill", False), ("Create the clone", True)]
    discard(checkpoint, anna)
    answer = poll(at_console, path, page)
    assert "Savepoint 7 cannot be restored." in blocks.text(answer)
    assert buttons(answer) == [("Run a restore drill", False), ("Create the clone", False)]


def test_a_refused_clone_stays_live(at_console: Client) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    form = {"kind": "clone", "version": checkpoint.run.version_id, "parallelism": 2, "name": "flights-delays"}
    refused = at_console.post(f"/checkpoints/{checkpoint.pk}/clone/", form)
    assert (refused.status_code, b"data-poll" in refused.content) == (409, True)


# ---------------------------------------------------------------- several jobs


def test_an_act_on_several_jobs_shows_the_stop_by_another_user(at_console: Client, anna: User) -> None:
    alpha, beta = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    path = "/jobs/bulk/"
    query: dict[str, Any] = {"kind": "stop", "job": [alpha.job_id, beta.job_id]}
    page = at_console.get(path, query)
    params = {**query, **blocks.shown_runs(page)}
    assert poll(at_console, path, page, params).status_code == 204
    rows.operation(alpha.job, "stop", "queued", run=alpha, requested_by=anna)
    answer = poll(at_console, path, page, params)
    assert blocks.swapped(answer) == {"bulk-lines", "bulk-button"}
    said = blocks.text(answer)
    assert "alpha Running Not possible A stop is already queued. anna has requested a stop (queued)" in said
    assert "Possible for 1 of 2 jobs now." in said
    assert buttons(answer) == [("Stop with savepoint for 1 job", True)]
    rows.operation(beta.job, "drain", "running", run=beta, requested_by=anna)
    assert buttons(poll(at_console, path, page, params)) == [("Stop with savepoint for 0 jobs", False)]


def test_a_change_of_tags_shows_the_change_by_another_user(at_console: Client) -> None:
    job = rows.job("alpha")
    path = f"/jobs/bulk/?kind=tag&tags=eu&job={job.pk}"
    page = at_console.get(path)
    Job.objects.update(tags=["eu"])
    answer = poll(at_console, path, page)
    assert "Nothing changes: it has these tags" in blocks.text(answer)
    assert buttons(answer) == [("Add tags for 0 jobs", False)]


# ---------------------------------------------------------------- restore and rollback


@pytest.fixture
def stopped(db: None) -> Run:
    run = rows.run(rows.job(), "stopped")
    for number in (1, 2):
        rows.checkpoint(run, number)
    return run


def shown_plan(page: Any) -> dict[str, str]:
    """The values that the poll of a restore page includes."""
    (inputs,) = re.findall(r'<div id="shown-plan" hidden>(.*?)</div>', page.content.decode())
    return dict(re.findall(r'name="(\w+)" value="(\w+)"', inputs))


def test_a_restore_shows_the_start_by_another_user(at_console: Client, anna: User, stopped: Run) -> None:
    path = f"/jobs/{stopped.job_id}/restore/"
    page = at_console.get(path)
    assert poll(at_console, path, page, shown_plan(page)).status_code == 204
    run = rows.run(stopped.job, "queued")
    rows.operation(stopped.job, "start", "queued", run=run, requested_by=anna)
    answer = poll(at_console, path, page, shown_plan(page))
    assert blocks.swapped(answer) == {"restore-notice", "restore-refusal", "restore-button"}
    said = blocks.text(answer)
    assert "anna has requested a start (queued)" in said
    assert "The effects of this restore are no longer those that are shown. Show the new plan" in said
    assert [enabled for _, enabled in buttons(answer)] == [False]


def test_a_restore_of_a_snapshot_that_is_discarded_meanwhile_is_disabled(at_console: Client, stopped: Run) -> None:
    path = f"/jobs/{stopped.job_id}/restore/"
    page = at_console.get(path)
    Checkpoint.objects.filter(number=2).update(discarded_at=timezone.now())
    answer = poll(at_console, path, page, shown_plan(page))
    assert "The files of Checkpoint 2 have been removed." in blocks.text(answer)
    assert [enabled for _, enabled in buttons(answer)] == [False]


def test_a_rollback_shows_that_another_user_stops_the_run(at_console: Client, anna: User) -> None:
    """Commits of the run do not change the plan. The run can still be cancelled."""
    run = rows.run(rows.job())
    rows.checkpoint(run, 5)
    path = f"/jobs/{run.job_id}/restore/"
    page = at_console.get(path)
    rows.checkpoint(run, 6)
    assert poll(at_console, path, page, shown_plan(page)).status_code == 204
    rows.operation(run.job, "stop", "queued", run=run, requested_by=anna)
    answer = poll(at_console, path, page, shown_plan(page))
    assert blocks.swapped(answer) == {"restore-notice", "restore-ends"}
    assert "anna has requested a stop (queued)" in blocks.text(answer)
    assert re.search(
        r'value="stop" required disabled>.*A stop is already queued\.', blocks.live(answer)["restore-ends"]
    )
    assert re.search(r'value="cancel" required>', blocks.live(answer)["restore-ends"])


def test_the_plan_of_another_choice_is_live_too(at_console: Client, stopped: Run) -> None:
    """Its blocks are a part of it, so they must not replace those of the former plan."""
    path = f"/jobs/{stopped.job_id}/restore/"
    query = {
        "checkpoint": str(Checkpoint.objects.get(number=1).pk),
        "version": str(stopped.version_id),
        "parallelism": "3",
    }
    plan = at_console.get(path, query, headers={**POLL, "HX-Target": "plan"})
    assert blocks.swapped(plan) == set()
    assert blocks.digests(plan).keys() == {"restore-ends", "restore-refusal", "restore-button"}
    assert "restore-refusal" not in blocks.swapped(poll(at_console, path, plan, shown_plan(plan)))


def test_a_page_without_a_plan_gets_none_by_a_poll(at_console: Client, stopped: Run) -> None:
    path = f"/jobs/{stopped.job_id}/restore/?checkpoint=x"
    page = at_console.get(path)
    assert "Choose a checkpoint, a version and a parallelism." in blocks.text(page)
    assert shown_plan(page) == {}
    assert poll(at_console, path, page).status_code == 204


# ---------------------------------------------------------------- rescale


def test_a_restore_a_start_and_a_clone_learn_that_all_places_are_taken(
    at_console: Client, anna: User, stopped: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, snapshot = stopped.job_id, Checkpoint.objects.latest("pk").pk
    paths = [f"/jobs/{job}/restore/?checkpoint={snapshot}", f"/jobs/{job}/start/", f"/checkpoints/{snapshot}/clone/"]
    opened = [at_console.get(path) for path in paths]
    tags = [poll(at_console, path, page).headers["ETag"] for path, page in zip(paths, opened, strict=True)]
    full = Answer(timezone.now(), (Worker("runs@host-1", ("runs",), 4, 4),))
    monkeypatch.setattr("console.pages.workers.CENSUS", SimpleNamespace(last=lambda: full))
    for path, page, tag in zip(paths, opened, tags, strict=True):
        assert "places for runs" not in blocks.text(page)
        digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
        answer = at_console.get(path, headers={**POLL, "X-Blocks": digests, "If-None-Match": tag})
        said = " ".join(blocks.live(answer).values())
        assert "All places for runs (4) are in use: the new run waits until another run ends." in said, path


def test_a_rollback_takes_the_place_of_its_own_run(at_console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Answer(timezone.now(), (Worker("runs@host-1", ("runs",), 4, 4),))
    monkeypatch.setattr("console.pages.workers.CENSUS", SimpleNamespace(last=lambda: full))
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    assert "places for runs" not in blocks.text(
        at_console.get(f"/jobs/{checkpoint.job_id}/restore/?checkpoint={checkpoint.pk}")
    )


def test_a_rescale_shows_the_stop_by_another_user(at_console: Client, anna: User) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/rescale/"
    page = at_console.get(path)
    assert poll(at_console, path, page, shown_plan(page)).status_code == 204
    rows.operation(run.job, "stop", "queued", run=run, requested_by=anna)
    answer = poll(at_console, path, page, shown_plan(page))
    assert blocks.swapped(answer) == {"effects", "rescale-button"}
    assert "anna has requested a stop (queued)" in blocks.text(answer)
    assert "A stop is already queued." in blocks.text(answer)
    assert buttons(answer) == [("Rescale", False)]


def test_a_rescale_stops_no_other_run_than_the_one_that_was_shown(at_console: Client) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/rescale/"
    page = at_console.get(path)
    Run.objects.filter(pk=run.pk).update(state="stopped")
    other = rows.run(run.job)
    answer = poll(at_console, path, page, shown_plan(page))
    assert "The run of this job is no longer the one that was shown. Show the new plan" in blocks.text(answer)
    assert buttons(answer) == [("Rescale", False)]
    form = {"parallelism": 3, "version": run.version_id}
    refused = at_console.post(path, {**form, **shown_plan(page)})
    assert (refused.status_code, "Nothing was done: read the new plan." in blocks.text(refused)) == (409, True)
    assert not Operation.objects.exists()
    assert at_console.post(path, {**form, **shown_plan(refused)}).status_code == 302
    assert Operation.objects.get(kind="rescale").run == other


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_poll_of_a_restore_follows_the_choice(signed_in: Open, running: Run) -> None:
    Run.objects.filter(pk=running.pk).update(state="stopped")
    checkpoint = Checkpoint.objects.get(number=210)
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/restore/")
        page.get_by_label("Checkpoint 210").check()
        restore = page.get_by_role("button", name="Restore checkpoint 210 at parallelism 2")
        expect(restore).to_be_visible()
        page.get_by_label("I accept repeated output.").check()
        expect(restore).to_be_enabled()
        with page.expect_request(
            lambda request: f"shown=yes&checkpoint={checkpoint.pk}" in request.url, timeout=POLL_MS
        ):
            jump(page)
        page.wait_for_timeout(ARRIVAL_MS)
        expect(restore).to_be_enabled()
        Checkpoint.objects.filter(pk=checkpoint.pk).update(discarded_at=timezone.now())
        jump(page)
        expect(restore).to_be_disabled(timeout=POLL_MS)
        expect(page.locator("#live-restore-refusal")).to_contain_text("The files of Checkpoint 210 have been removed.")
