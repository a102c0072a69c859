"""Pages show the command of `weirctl` that does the same."""

import shlex

import pytest
from django.test import Client

from tests.console.ui import blocks, rows
from weir.control.__main__ import main as weirctl


def command_in(text: str) -> list[str]:
    """The arguments of the command on the page."""
    after = text[text.index("From a shell: ") + len("From a shell: ") :]
    return shlex.split(after[: after.index("Or restore") if "Or restore" in after else after.index("Times are")])


@pytest.mark.parametrize("act", ["savepoint", "stop", "drain", "cancel"])
def test_a_confirmation_shows_its_command(at_console: Client, act: str) -> None:
    run = rows.run(rows.job(name="daily sums; now"))
    found = command_in(blocks.text(at_console.get(f"/jobs/{run.job_id}/{act}/")))
    assert found == ["weirctl", act, "daily sums; now"]
    assert act in weirctl.commands


def test_a_restore_shows_its_command(at_console: Client) -> None:
    run = rows.run(rows.job(name="daily sums"), "stopped")
    snapshot = rows.checkpoint(run, 7, "stop")
    query = {"checkpoint": snapshot.pk, "version": run.version_id, "parallelism": 2}
    found = command_in(blocks.text(at_console.get(f"/jobs/{run.job_id}/restore/", query)))
    options = ["--from", "7", "--version", "1", "--parallelism", "2"]
    assert found == ["weirctl", "restore", "daily sums", *options]
    assert {f"--{option.name}" for option in weirctl.commands["restore"].params} >= {"--version", "--parallelism"}
