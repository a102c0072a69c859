"""Pages show the command of `weirctl` that does the same."""

import html
import re
import shlex
from typing import Any

import pytest
from django.test import Client

from tests.console.ui import rows
from weir.control.__main__ import main as weirctl


def command_in(page: Any) -> list[str]:
    """The arguments of the command on the page."""
    found = re.search(r"From a shell: <code>(.*?)</code>", page.content.decode())
    assert found is not None
    return shlex.split(html.unescape(found[1]))


@pytest.mark.parametrize("act", ["savepoint", "stop", "drain", "cancel"])
def test_a_confirmation_shows_its_command(at_console: Client, act: str) -> None:
    run = rows.run(rows.job(name="daily sums; now"))
    found = command_in(at_console.get(f"/jobs/{run.job_id}/{act}/"))
    assert found == ["weirctl", act, "daily sums; now"]
    assert act in weirctl.commands


def test_a_restore_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"), "stopped")
    snapshot = rows.checkpoint(run, 7, "stop")
    query = {"checkpoint": snapshot.pk, "version": run.version_id, "parallelism": 2}
    found = command_in(at_console.get(f"/jobs/{run.job_id}/restore/", query))
    options = ["--from", "7", "--version", "1", "--parallelism", "2"]
    assert found == ["weirctl", "restore", "daily sums", *options]
    assert {f"--{option.name}" for option in weirctl.commands["restore"].params} >= {"--version", "--parallelism"}


def test_pages_of_snapshots_show_their_commands(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"))
    snapshot = rows.checkpoint(run, 7, "savepoint")
    own, job = f"/checkpoints/{snapshot.pk}/", f"/jobs/{run.job_id}/"
    for path, act, rest in (
        (f"{own}discard/", "discard", ["7"]),
        (f"{own}clone/", "drill", ["7"]),
        (own, "review", ["7", "reviewed"]),
        (f"{job}checkpoints/schedule/", "schedule", ["--daily-at", "02:00"]),
    ):
        found = command_in(at_console.get(path))
        assert found == ["weirctl", act, "daily sums", *rest]
        assert act in weirctl.commands
    for command in ("weirctl pin", "weirctl label"):
        assert command in at_console.get(own).content.decode()


def test_a_bulk_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"))
    found = command_in(at_console.get("/jobs/bulk/", {"kind": "stop", "job": str(run.job_id)}))
    assert found == ["weirctl", "bulk", "stop", "daily sums"]
    assert "bulk" in weirctl.commands


def test_a_queued_request_shows_the_command_that_withdraws_it(at_console: Client) -> None:
    row = rows.operation(rows.run(rows.job()).job, state="queued")
    assert f"weirctl withdraw {row.pk}" in at_console.get(f"/operations/{row.pk}/").content.decode()
