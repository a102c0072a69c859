"""Pages show the command of `weir` and the request by curl that do the same."""

import html
import json
import re
import shlex
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import Scope, User
from console.jobs.models import JobVersion, Run
from console.operations.models import Operation, Schedule
from console.operations.restores.rescale_plan import rescale_hash
from tests.console.ui import rows
from weir.control.__main__ import main as weir

SUGGESTED_SCHEDULE = ["--operation", "savepoint", "--every-hours", "6", "--keep", "7", "--name", "scheduled"]


def commands_in(page: Any) -> list[list[str]]:
    """The arguments of each command on the page."""
    commands = re.findall(r"From a shell: <code>(.*?)</code>", page.content.decode())
    return [shlex.split(html.unescape(command)) for command in commands]


def command_in(page: Any) -> list[str]:
    """The arguments of the first command on the page."""
    return commands_in(page)[0]


def version_without_window(run: Run) -> JobVersion:
    """A version that lacks an operator with state."""
    operators = [each for each in rows.GRAPH["operators"] if each["uid"] != "window"]
    return JobVersion.objects.create(
        job=run.job, number=2, parallelism=2, max_parallelism=128, state="ready",
        graph={**rows.GRAPH, "operators": operators, "edges": []},
    )  # fmt: skip


def send(page: Any, token: str) -> None:
    """Sends the request by curl on the page, which must be accepted."""
    ((url, body),) = curls_in(page)
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    answer = api.post(url, body, format="json")
    assert answer.status_code == 202, answer.json()


def call(page: Any, token: str, server: LiveServer, *options: str) -> None:
    """Calls the command on the page, which must succeed."""
    _, *arguments = command_in(page)
    environment = {"WEIR_URL": server.url, "WEIR_TOKEN": token}
    result = CliRunner().invoke(weir, [*arguments, *options, "--no-wait"], env=environment)
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("act", ["savepoint", "stop", "drain", "cancel"])
def test_a_confirmation_shows_its_command(at_console: Client, act: str) -> None:
    run = rows.run(rows.job(name="daily sums; now"))
    command = command_in(at_console.get(f"/jobs/{run.job_id}/{act}/"))
    assert command == ["weir", act, "daily sums; now"]
    assert act in weir.commands


def test_a_restore_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"), "stopped")
    snapshot = rows.checkpoint(run, 7, "stop")
    query = {"checkpoint": snapshot.pk, "version": run.version_id, "parallelism": 2}
    command = command_in(at_console.get(f"/jobs/{run.job_id}/restore/", query))
    options = ["--from", "7", "--version", "1", "--parallelism", "2"]
    assert command == ["weir", "restore", "daily sums", *options]
    assert {f"--{option.name}" for option in weir.commands["restore"].params} >= {"--version", "--parallelism"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by_curl", [False, True], ids=["weir", "curl"])
@pytest.mark.parametrize("state", ["stopped", "running", "restarting"])
def test_the_commands_of_a_restore_accept_what_its_plan_requires(
    at_console: Client, operator: User, live_server: LiveServer, state: str, by_curl: bool
) -> None:
    """The plan repeats output and loses state. With an active run, it ends that run first."""
    run = rows.run(rows.job(name="daily sums"), state)
    snapshot = rows.checkpoint(run, 7)
    rows.checkpoint(run, 8)
    newer = version_without_window(run)
    query = {"checkpoint": snapshot.pk, "version": newer.pk, "parallelism": 2}
    page = at_console.get(f"/jobs/{run.job_id}/restore/", query)
    token = tokens.issue(operator, scopes=Scope).text
    send(page, token) if by_curl else call(page, token, live_server, "--yes")
    operation = Operation.objects.get(kind="restore" if state == "stopped" else "rollback")
    assert operation.params["accept_repeated_output"]
    assert operation.params["allow_unmapped"]
    assert operation.params.get("end_run") == {"running": "stop", "restarting": "cancel"}.get(state)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["page", "weir", "curl"])
def test_the_commands_of_a_drill_drop_the_state_that_its_form_drops(
    at_console: Client, operator: User, live_server: LiveServer, by: str
) -> None:
    """They had no option, and the form had no field, so a version without an operator could not be drilled."""
    run = rows.run(rows.job(name="daily sums"))
    snapshot = rows.checkpoint(run, 7)
    newer = version_without_window(run)
    path = f"/checkpoints/{snapshot.pk}/clone/"
    form: dict[str, Any] = {"version": newer.pk, "parallelism": 1, "name": ""}
    refused = at_console.post(path, {**form, "kind": "clone"})
    assert (refused.status_code, "window" in refused.content.decode()) == (422, True)
    form["allow_unmapped"] = "on"
    page = at_console.get(path, form, headers={"HX-Request": "true", "HX-Target": "commands"})
    token = tokens.issue(operator, scopes=Scope).text
    if by == "page":
        assert at_console.post(path, {**form, "kind": "drill"}).status_code == 302
    elif by == "curl":
        send(page, token)
    else:
        call(page, token, live_server)
    params = Operation.objects.get(kind="drill").params
    assert params["allow_unmapped"]
    assert (params["version"], params["parallelism"]) == (newer.pk, 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by_curl", [False, True], ids=["weir", "curl"])
def test_the_commands_of_a_start_accept_the_output_that_it_repeats(
    at_console: Client, operator: User, live_server: LiveServer, by_curl: bool
) -> None:
    """The console refused the printed commands."""
    run = rows.run(rows.job(name="daily sums"), "stopped")
    rows.checkpoint(run, 7)
    page, token = at_console.get(f"/jobs/{run.job_id}/start/"), tokens.issue(operator, scopes=Scope).text
    send(page, token) if by_curl else call(page, token, live_server)
    assert Operation.objects.get(kind="start").params["accept_repeated_output"]


def test_a_restore_that_is_refused_shows_no_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"), "stopped")
    snapshot = rows.checkpoint(run, 7, "stop")
    query = {"checkpoint": snapshot.pk, "version": run.version_id, "parallelism": 129}
    page = at_console.get(f"/jobs/{run.job_id}/restore/", query)
    assert "This cannot be restored" in page.content.decode()
    assert "From a shell" not in page.content.decode()


def test_pages_of_snapshots_show_their_commands(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"))
    snapshot = rows.checkpoint(run, 7, "savepoint")
    address, job = f"/checkpoints/{snapshot.pk}/", f"/jobs/{run.job_id}/"
    for path, act, arguments in (
        (f"{address}discard/", "discard", ["7"]),
        (f"{address}clone/", "drill", ["7", "--version", "1", "--parallelism", "2"]),
        (address, "review", ["7", "reviewed"]),
        (f"{job}checkpoints/schedule/", "schedule", SUGGESTED_SCHEDULE),
    ):
        words = command_in(at_console.get(path))
        assert words == ["weir", act, "daily sums", *arguments]
        assert act in weir.commands
    for command in ("weir pin", "weir label"):
        assert command in at_console.get(address).content.decode()


def test_the_commands_of_schedules_are_those_of_their_forms(at_console: Client, operator: User) -> None:
    """The form had an interval, the command a time of the day. Drills had no command."""
    run, now = rows.run(rows.job(name="daily sums")), timezone.now()
    blackouts = ["mon,tue 09:00-17:00", "sat,sun 00:00-24:00"]
    Schedule.objects.create(
        job=run.job, operation="drill", daily_at=time(4, 15), blackouts=blackouts, owner=operator, next_at=now
    )
    page = at_console.get(f"/jobs/{run.job_id}/checkpoints/schedule/")
    savepoints, drills = commands_in(page)
    assert savepoints == ["weir", "schedule", "daily sums", *SUGGESTED_SCHEDULE]
    assert drills == [
        "weir", "schedule", "daily sums", "--operation", "drill", "--daily-at", "04:15",
        "--not-within", blackouts[0], "--not-within", blackouts[1],
    ]  # fmt: skip
    assert [body["params"] for _, body in curls_in(page)] == [
        {"operation": "savepoint", "every_hours": 6, "keep": 7, "name": "scheduled"},
        {"operation": "drill", "daily_at": "04:15", "blackouts": blackouts},
    ]
    assert all(f'value="{value}"' in page.text for value in (6, 7, "scheduled", "04:15"))


def test_a_bulk_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"))
    command = command_in(at_console.get("/jobs/bulk/", {"kind": "stop", "job": str(run.job_id)}))
    assert command == ["weir", "bulk", "stop", "daily sums"]
    assert "bulk" in weir.commands


def test_a_queued_request_shows_the_command_that_withdraws_it(at_console: Client) -> None:
    row = rows.operation(rows.run(rows.job()).job, state="queued")
    assert f"weir withdraw {row.pk}" in at_console.get(f"/operations/{row.pk}/").content.decode()


def test_a_savepoint_with_a_copy_shows_its_command(at_console: Client, settings: Settings, tmp_path: Path) -> None:
    run = rows.run(rows.job(name="daily sums"))
    path = f"/jobs/{run.job_id}/stop/"
    assert "--target" not in at_console.get(path).content.decode()
    settings.WEIR_SAVEPOINT_ROOTS = [str(tmp_path)]
    page = at_console.get(path).content.decode()
    assert html.escape(f"weir stop 'daily sums' --target {tmp_path}") in page
    assert "--target" not in at_console.get(f"/jobs/{run.job_id}/cancel/").content.decode(), "no savepoint, no copy"


def test_requests_by_curl_are_accepted(at_console: Client, operator: User) -> None:
    """Each is sent as the page shows it, with a token in WEIR_TOKEN."""
    run = rows.run(rows.job(name="daily sums"))
    snapshot, spare = (rows.checkpoint(run, number, "savepoint") for number in (7, 6))
    ended = rows.run(rows.job(name="ended"), "stopped")
    newest = rows.checkpoint(ended, 3, "stop")
    api, address, job = APIClient(), f"/checkpoints/{snapshot.pk}/", f"/jobs/{run.job_id}/"
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(operator, scopes=Scope).text}")
    pages = {
        address: ["pin", "review"], f"{address}clone/": ["drill"], f"{job}checkpoints/schedule/": ["schedule"] * 2,
        f"/checkpoints/{spare.pk}/discard/": ["discard"], f"{job}savepoint/": ["savepoint"], f"{job}stop/": ["stop"],
        f"{job}cancel/": ["cancel"], f"/jobs/{ended.job_id}/restore/?checkpoint={newest.pk}": ["restore"],
    }  # fmt: skip
    requests = {path: curls_in(at_console.get(path)) for path in pages}
    assert {path: sorted(body["kind"] for _, body in calls) for path, calls in requests.items()} == pages
    for kind in ("review", "schedule", "savepoint", "stop", "cancel", "drill", "discard", "restore"):
        for url, body in (each for calls in requests.values() for each in calls if each[1]["kind"] == kind):
            answer = api.post(url, body, format="json")
            assert answer.status_code == 202, (kind, answer.json())


def curls_in(page: Any) -> list[tuple[str, Any]]:
    """The address and the body of each request on a page."""
    requests = []
    for command in re.findall(r'<code class="curl">(.*?)</code>', page.content.decode()):
        curl, *arguments = shlex.split(html.unescape(command))
        assert (curl, arguments[:2]) == ("curl", ["-H", "Authorization: Bearer $WEIR_TOKEN"])
        assert arguments[2:5] == ["-H", "Content-Type: application/json", "-d"]
        requests.append((arguments[6], json.loads(arguments[5])))
    return requests


def test_a_rescale_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"))
    page = at_console.get(f"/jobs/{run.job_id}/rescale/")
    assert command_in(page) == ["weir", "rescale", "daily sums", "--version", "1", "--parallelism", "2"]
    assert {option.name for option in weir.commands["rescale"].params} >= {"version", "parallelism"}
    ((_, body),) = curls_in(page)
    assert body["params"] == {"parallelism": 2, "version": run.version_id, "plan_hash": rescale_hash(run)}
