"""Buttons and what they do: offered when legal, disabled with a reason when not, asked where nothing can be undone."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.jobs.models import JobVersion, Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunAct, RunState, refusal
from tests.console.ui import blocks, rows

ENDS = ["stop", "drain", "cancel"]


def buttons(client: Client, job_id: int) -> dict[str, bool]:
    return buttons_of(client.get(f"/jobs/{job_id}/"))


def buttons_of(page: Any) -> dict[str, bool]:
    """Label of each act and whether it can be pressed."""
    contents = blocks.live(page)
    buttons = re.findall(r"<(button|a)([^>]*)>([^<]+)</", contents["acts"] + contents["refused-acts"])
    return {label.rstrip("…"): "disabled" not in attributes for _, attributes, label in buttons}


LABELS = {RunAct.SAVEPOINT: "Take savepoint", RunAct.STOP: "Stop with savepoint", RunAct.DRAIN: "Drain and finish",
          RunAct.CANCEL: "Cancel"}  # fmt: skip


@pytest.mark.parametrize("state", list(RunState))
def test_a_button_can_be_pressed_exactly_when_the_lifecycle_allows_it(at_console: Client, state: RunState) -> None:
    """A disabled button has its reason in words."""
    run = rows.run(rows.job(), state)
    rows.checkpoint(run, 1)
    page = at_console.get(f"/jobs/{run.job_id}/")
    buttons, said = buttons_of(page), blocks.text(page)
    assert {act: buttons[label] for act, label in LABELS.items()} == {
        act: refusal(state, act) is None for act in LABELS
    }
    assert buttons["Start"] is buttons["Restore"] is state.is_terminal
    for act, label in LABELS.items():
        if reason := refusal(state, act):
            assert re.search(rf"{label}[^:]*: {re.escape(reason)}", said)


def test_possible_acts_stand_in_a_row_and_the_rest_in_a_menu_with_reasons(at_console: Client) -> None:
    run = rows.run(rows.job())
    response = at_console.get(f"/jobs/{run.job_id}/")
    contents = blocks.live(response)
    assert "disabled" not in contents["acts"]
    assert re.findall(r'id="do-([\w-]+)"', contents["acts"]) == [
        "savepoint", "rescale", "stop", "drain", "rollback", "cancel",
    ]  # fmt: skip
    safe, _, dangerous = contents["acts"].partition('class="acts apart"')
    assert re.findall(r'id="do-([\w-]+)"', dangerous) == ["drain", "rollback", "cancel"]
    assert "danger" not in safe
    assert re.findall("disabled>([^<]+)<", contents["refused-acts"]) == ["Start", "Restore"]
    assert '<details class="more" id="more-acts"><summary>More</summary>' in contents["refused-acts"]
    assert 'id="do-named-savepoint"' in contents["refused-acts"], "the plain savepoint is one click, its name two"


def test_the_menu_is_open_if_nothing_is_possible(reading: Client) -> None:
    page = reading.get(f"/jobs/{rows.run(rows.job()).job_id}/").content.decode()
    assert '<details class="more" id="more-acts" open>' in page


def test_who_may_not_operate_sees_every_button_disabled_and_why(reading: Client) -> None:
    run = rows.run(rows.job())
    assert not any(buttons(reading, run.job_id).values())
    assert "You may not operate jobs: the permission operations.add_operation is required." in blocks.text(
        reading.get(f"/jobs/{run.job_id}/")
    )


def test_a_job_that_never_ran_can_only_be_started(at_console: Client) -> None:
    acts = buttons(at_console, rows.job().pk)
    assert [label for label, enabled in acts.items() if enabled] == ["Start"]


# ---------------------------------------------------------------- start and savepoint: at once


def test_start_makes_a_run_and_an_operation(at_console: Client, operator: User) -> None:
    job = rows.job()
    response = at_console.post(f"/jobs/{job.pk}/start/", follow=True)
    operation = Operation.objects.get()
    assert (operation.kind, operation.requested_by, operation.state) == ("start", operator, "queued")
    assert operation.request_id
    assert job.runs.get().pk == operation.run_id
    assert "The start was requested." in blocks.text(response)
    assert "Start queued" in blocks.text(response)


def test_the_page_of_a_savepoint_asks_and_takes_none(at_console: Client) -> None:
    run = rows.run(rows.job())
    assert "Take savepoint: flights-delays?" in at_console.get(f"/jobs/{run.job_id}/savepoint/").content.decode()
    assert not Operation.objects.exists()


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_button_that_asks_first_ends_with_an_ellipsis(at_console: Client, state: str) -> None:
    """Its page leads back with the same word, whatever it asks."""
    run = rows.run(rows.job(), state)
    savepoint = rows.checkpoint(run, 5, kind="savepoint")
    possible = at_console.get(f"/jobs/{run.job_id}/").context["view"].acts.possible
    assert possible
    for button in possible:
        assert button.asks == button.label.endswith("…"), button.label
    asking = {button.url for button in possible} - {f"/jobs/{run.job_id}/restore/"}  # nothing is chosen there yet
    for path in (*asking, f"/checkpoints/{savepoint.pk}/discard/"):
        page = at_console.get(path).content.decode()
        assert ">Back</a>" in page, path
        assert "Keep it" not in page, path


def test_a_start_that_repeats_output_is_asked_with_numbers_and_restore_comes_first(at_console: Client) -> None:
    run = rows.run(rows.job(), "stopped")
    for number in (3, 4):
        rows.checkpoint(run, number)
    newest = rows.checkpoint(run, 5, kind="stop")
    path = f"/jobs/{run.job_id}/start/"
    block = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["acts"]
    assert re.search(rf'<a class="button" id="do-start" data-key="b" href="{path}">Start…</a>', block)
    assert re.search(r'<a class="button primary" id="do-restore"', block)
    page = at_console.get(path)
    said = blocks.text(page)
    assert "Checkpoints 3 to 5 were committed; the output up to there is written a second time." in said
    assert f"restore savepoint {newest.number} instead" in said
    assert f'href="/jobs/{run.job_id}/restore/"' in page.content.decode()
    assert 'name="accept_repeated_output" required' in page.content.decode()
    assert at_console.post(path).headers["Location"] == path
    assert not Operation.objects.exists()
    assert at_console.post(path, {"accept_repeated_output": "on"}).headers["Location"] == f"/jobs/{run.job_id}/"
    assert Operation.objects.get().params == {"accept_repeated_output": True}


def test_a_start_that_repeats_output_stands_behind_a_restore_that_waits_for_new_code(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed")
    rows.checkpoint(run, 3)
    Run.objects.update(failure={"code": "final", "message": "ZeroDivisionError in delays.py"})
    possible = at_console.get(f"/jobs/{run.job_id}/").context["view"].acts.possible
    assert [(button.label, button.primary) for button in possible] == [("Restore…", False), ("Start…", False)]


def test_a_first_start_is_primary_and_asks_nothing(at_console: Client) -> None:
    job = rows.job()
    block = blocks.live(at_console.get(f"/jobs/{job.pk}/"))["acts"]
    assert '<button class="button primary" id="do-start" data-key="b" form="act-start">Start</button>' in block
    assert "accept_repeated_output" not in at_console.get(f"/jobs/{job.pk}/start/").content.decode()


def test_a_start_in_the_wrong_state_is_refused_in_a_sentence(at_console: Client) -> None:
    run = rows.run(rows.job())
    said = blocks.text(at_console.post(f"/jobs/{run.job_id}/start/", follow=True))
    assert f"Run {run.pk} is running; a job has one run at a time." in said
    assert not Operation.objects.exists()


def test_the_button_of_a_savepoint_names_the_run_that_the_page_shows(at_console: Client) -> None:
    run = rows.run(rows.job())
    page = at_console.get(f"/jobs/{run.job_id}/").content.decode()
    assert f'<input type="hidden" form="act-savepoint" name="run" value="{run.pk}">' in page
    Run.objects.filter(pk=run.pk).update(state="stopped")
    later = rows.run(run.job)
    said = blocks.text(at_console.post(f"/jobs/{run.job_id}/savepoint/", {"run": run.pk}, follow=True))
    assert f"The request is for run {run.pk}, but the latest run of the job is run {later.pk}." in said
    assert not Operation.objects.exists()


def test_a_double_click_takes_one_savepoint_and_another_page_another(at_console: Client) -> None:
    run = rows.run(rows.job())

    def key() -> str:
        page = at_console.get(f"/jobs/{run.job_id}/").content.decode()
        return str(re.findall(r'id="act-savepoint".*?name="key" value="(\w+)"', page)[0])

    first, second = key(), key()
    for value in (first, first, second):
        assert at_console.post(f"/jobs/{run.job_id}/savepoint/", {"key": value}).status_code == 302
    assert {operation.idempotency_key for operation in Operation.objects.all()} == {first, second}
    assert Operation.objects.count() == 2


def key_of(page: Any, act: str) -> str:
    """What makes a second click on the same page the same request."""
    form = re.findall(rf'<form[^>]*action="[^"]*/{act}/".*?</form>|<form class="form" method="post">.*?</form>',
                      page.content.decode(), re.DOTALL)  # fmt: skip
    return str(re.findall(r'name="key" value="([\w-]+)"', form[0])[0])


@pytest.mark.parametrize("act", ["start", *ENDS])
def test_a_double_click_is_one_request(at_console: Client, act: str) -> None:
    job = rows.job()
    if act != "start":
        rows.run(job)
    page = at_console.get(f"/jobs/{job.pk}/" if act == "start" else f"/jobs/{job.pk}/{act}/")
    form = {"key": key_of(page, act)}
    at_console.post(f"/jobs/{job.pk}/{act}/", form)
    said = blocks.text(at_console.post(f"/jobs/{job.pk}/{act}/", form, follow=True))
    assert "This page had already sent the request." in said
    assert Operation.objects.count() == 1


def test_a_savepoint_from_a_page_that_has_started_the_job_is_another_request(at_console: Client) -> None:
    job = rows.job()
    page = at_console.get(f"/jobs/{job.pk}/")
    assert key_of(page, "start") != key_of(page, "savepoint")


def test_who_may_not_operate_is_told_and_nothing_happens(reading: Client) -> None:
    run = rows.run(rows.job())
    for act in ("start", "savepoint", *ENDS):
        said = blocks.text(reading.post(f"/jobs/{run.job_id}/{act}/", follow=True))
        assert "You may not operate jobs" in said, act
    assert not Operation.objects.exists()


def test_acts_need_the_token_of_the_form(operator: User) -> None:
    run = rows.run(rows.job())
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    for act in ("start", "savepoint", *ENDS, "restore"):
        response = client.post(f"/jobs/{run.job_id}/{act}/")
        assert response.status_code == 403, act
        assert "The form has expired" in blocks.text(response), act
    assert not Operation.objects.exists()


def test_a_job_that_does_not_exist_cannot_be_acted_on(at_console: Client) -> None:
    for act in ("start", "savepoint", *ENDS, "restore"):
        assert at_console.post(f"/jobs/99/{act}/").status_code == 404, act


# ---------------------------------------------------------------- stop, drain, cancel: asked first


@pytest.mark.parametrize(
    ("act", "sentences"),
    [
        (
            "stop",
            [
                "takes a savepoint of run {run}",
                "Expected time at least 0.31 s · as checkpoint 213: the job has no earlier stop",
                "To write 1.2 MiB · all state, as of checkpoint 213",
                "without stopping",
            ],
        ),
        (
            "drain",
            ["fires early", "Already finished: airlines.", "finishes for good", "stop it with a savepoint"],
        ),
        (
            "cancel",
            ["at once, without a savepoint", "since checkpoint 213 is not committed", "stop it with a savepoint"],
        ),
    ],
)
def test_what_cannot_be_undone_is_asked_in_a_sentence_with_numbers(
    at_console: Client, act: str, sentences: list[str]
) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 213)
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/{act}/"))
    for sentence in sentences:
        assert sentence.format(run=run.pk) in said
    assert not Operation.objects.exists()


def test_a_question_shows_the_operation_that_another_user_requests_meanwhile(at_console: Client) -> None:
    run = rows.run(rows.job())
    path = f"/jobs/{run.job_id}/drain/"
    page = at_console.get(path)
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    anna = rows.operator_user("anna")
    rows.operation(run.job, "stop", "queued", run=run, requested_by=anna, reason="maintenance")
    poll = at_console.get(path, blocks.shown_runs(page), headers={"HX-Request": "true", "X-Blocks": digests})
    assert blocks.swapped(poll) == {"effects", "confirm-button"}
    said = blocks.text(poll)
    assert "anna has requested a stop (queued)" in said
    assert "maintenance" in said
    assert "A stop is already queued." in said


def test_a_cancel_without_any_checkpoint_says_what_that_means(at_console: Client) -> None:
    run = rows.run(rows.job())
    assert "its output is not committed, and its state cannot be restored" in blocks.text(
        at_console.get(f"/jobs/{run.job_id}/cancel/")
    )


@pytest.mark.parametrize(("act", "gentler"), [("cancel", "stop"), ("drain", "stop"), ("stop", "savepoint")])
def test_a_confirmation_leads_to_the_gentler_operation(at_console: Client, act: str, gentler: str) -> None:
    run = rows.run(rows.job())
    page = at_console.get(f"/jobs/{run.job_id}/{act}/").content.decode()
    assert f'<a id="gentler" href="/jobs/{run.job_id}/{gentler}/">' in page
    assert ('class="panel plan failed"' in page) == ("danger primary" in page), "as its button"


@pytest.mark.parametrize("act", ENDS)
def test_confirmed_acts_become_operations_with_their_reason(at_console: Client, act: str) -> None:
    run = rows.run(rows.job())
    response = at_console.post(f"/jobs/{run.job_id}/{act}/", {"reason": " The year is over. "})
    assert response.headers["Location"] == f"/jobs/{run.job_id}/"
    operation = Operation.objects.get()
    assert (operation.kind, operation.run, operation.reason) == (act, run, "The year is over.")


def test_the_question_is_disabled_with_its_reason_in_the_wrong_state(at_console: Client) -> None:
    ended, never = rows.run(rows.job(), "finished").job_id, rows.job("never ran").pk
    for act in ENDS:
        for job, reason in ((ended, "The run has ended (finished)."), (never, "The job has never run.")):
            response = at_console.get(f"/jobs/{job}/{act}/")
            assert reason in blocks.text(response), act
            assert re.search(r"<button[^>]* disabled>", response.content.decode()), act


def test_a_running_stop_behind_many_newer_operations_is_still_shown(at_console: Client) -> None:
    """The list holds the newest 20 operations; names and pins of checkpoints are operations too."""
    run = rows.run(rows.job())
    stop = rows.operation(run.job, "stop", "running", run=run)
    for _ in range(25):
        rows.operation(run.job, "label")
    assert not buttons(at_console, run.job_id)["Drain and finish"]
    assert f'id="active-{stop.pk}"' in at_console.get(f"/jobs/{run.job_id}/").content.decode()


def test_a_second_stop_is_refused_while_the_first_is_open(at_console: Client) -> None:
    run = rows.run(rows.job())
    at_console.post(f"/jobs/{run.job_id}/stop/")
    said = blocks.text(at_console.post(f"/jobs/{run.job_id}/drain/", follow=True))
    assert said.count("A stop is already queued.") == 2, "in the answer, and beside the disabled buttons"
    assert Operation.objects.count() == 1


def test_a_run_in_batch_offers_a_cancel_and_says_why_nothing_else(at_console: Client) -> None:
    """A savepoint is refused with the reason."""
    job = rows.job(version={"graph": {**rows.GRAPH, "mode": "batch"}, "settings": {"execution_mode": "batch"}})
    run = rows.run(job)
    acts = buttons(at_console, run.job_id)
    assert [label for label, enabled in acts.items() if enabled] == ["Cancel"]
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "A run in BATCH takes no checkpoints: cancel it, or wait for its end." in said
    at_console.post(f"/jobs/{run.job_id}/savepoint/", {"key": "s"})
    assert not job.operations.exists()


def test_a_start_again_can_have_a_reason(at_console: Client) -> None:
    job = rows.job()
    assert "do-start-with-reason" not in at_console.get(f"/jobs/{job.pk}/").content.decode(), "it never ran"
    rows.run(job, "failed")
    assert "do-start-with-reason" in at_console.get(f"/jobs/{job.pk}/").content.decode()
    assert 'name="reason"' in at_console.get(f"/jobs/{job.pk}/start/").content.decode()
    at_console.post(f"/jobs/{job.pk}/start/", {"reason": "disk is free again"})
    assert Operation.objects.get().reason == "disk is free again"


@pytest.mark.parametrize("act", ["savepoint", "stop", "drain"])
def test_a_copy_can_be_requested_where_a_folder_outside_is_allowed(
    at_console: Client, act: str, settings: Settings, tmp_path: Path
) -> None:
    path = f"/jobs/{rows.run(rows.job()).job_id}/{act}/"
    page = at_console.get(path)
    assert re.search(r'<input id="target"[^>]* disabled>', page.content.decode())
    assert "No folder outside the storage of Weir is allowed." in blocks.text(page)
    settings.WEIR_SAVEPOINT_ROOTS = [tmp_path / "backup"]
    page = at_console.get(path)
    assert re.search(rf'<input id="target"[^>]* placeholder="{tmp_path}/backup">', page.content.decode())
    assert f"Copy to folder optional, below {tmp_path}/backup" in blocks.text(page)


# ---------------------------------------------------------------- rescale


def test_the_page_of_a_rescale_describes_it_and_offers_the_versions(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1)
    page = at_console.get(f"/jobs/{run.job_id}/rescale/")
    said = blocks.text(page)
    assert f"Run {run.pk} stops with a savepoint" in said
    assert "version 1, as now" in said
    assert 'max="128" value="2"' in page.content.decode()
    assert "returns its 2 slots when it stops" in said
    assert "Runs of other jobs hold or wait for 0 slots." in said
    rows.run(rows.job("other"), parallelism=3)
    assert "hold or wait for 3 slots." in blocks.text(at_console.get(f"/jobs/{run.job_id}/rescale/"))


def test_a_rescale_compares_the_run_that_continues_with_the_present_one(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1, size_bytes=3 * 2**20)
    path, script = f"/jobs/{run.job_id}/rescale/", {"HX-Request": "true", "HX-Target": "rescale-figures"}

    def figures(parallelism: str) -> str:
        query: dict[str, Any] = {"version": run.version_id, "parallelism": parallelism}
        return blocks.text(at_console.get(path, query, headers=script))

    now = "Parallelism, and slots 2 {} Key groups per subtask 64 {} Mean state per subtask 1.5 MiB {}"
    assert now.format(2, 64, "1.5 MiB") in blocks.text(at_console.get(path))
    assert now.format(3, "42 or 43", "1.0 MiB") in figures("3")
    for impossible in ("", "0", "129", "x"):
        assert now.format("–", "–", "–") in figures(impossible)


def test_a_rescale_is_requested_with_its_reason(at_console: Client) -> None:
    run = rows.run(rows.job())
    form = {"parallelism": 3, "version": run.version_id, "reason": "load"}
    response = at_console.post(f"/jobs/{run.job_id}/rescale/", form, follow=True)
    assert "The rescale was requested" in blocks.text(response)
    operation = Operation.objects.get(kind="rescale")
    assert (operation.params["parallelism"], operation.reason, operation.parts.get().kind) == (3, "load", "stop")
    page = blocks.text(at_console.get(f"/operations/{operation.pk}/"))
    assert "Steps Stop Queued" in page
    assert "Part of rescale" in blocks.text(at_console.get(f"/operations/{operation.parts.get().pk}/"))


def test_a_rescale_without_a_change_is_refused_at_its_field(at_console: Client) -> None:
    """The same parallelism with another version is an upgrade."""
    run = rows.run(rows.job())
    other = JobVersion.objects.create(
        job=run.job, number=2, parallelism=2, params=rows.PARAMS, state="ready", graph=rows.GRAPH
    )
    path, same = f"/jobs/{run.job_id}/rescale/", {"parallelism": run.parallelism, "version": run.version_id}
    response = at_console.post(path, same)
    assert response.status_code == 422
    assert "The run has this parallelism and version already" in blocks.text(response)
    assert not Operation.objects.exists()
    assert at_console.post(path, {**same, "version": other.pk}).status_code == 302
