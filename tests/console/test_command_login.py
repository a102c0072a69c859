"""How `weir` finds a console and its token, and what it prints if either is missing."""

import json
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer

from console.accounts import tokens
from console.accounts.models import ApiToken, Scope, User
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import Commands, MakeRun
from weir.control.__main__ import main
from weir.control.login import credentials_path, store_credentials

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_login_stores_a_token_that_only_the_user_can_read(
    home: Path, live_server: LiveServer, operator: User
) -> None:
    command = ["login", live_server.url, "--user", "operator"]
    refused = CliRunner().invoke(main, command, input="guess\n")
    assert (refused.exit_code, credentials_path().exists()) == (3, False)
    assert "The user name or password is wrong." in refused.stderr
    assert CliRunner().invoke(main, command, input="a long enough one\n").exit_code == 0
    assert credentials_path().stat().st_mode & 0o777 == 0o600
    assert CliRunner().invoke(main, ["jobs"]).exit_code == 0
    assert CliRunner().invoke(main, ["logout"]).exit_code == 0
    assert not ApiToken.objects.exists(), "the token is revoked"
    without = CliRunner().invoke(main, ["jobs"])
    assert (without.exit_code, "run `weir login URL`" in without.stderr) == (3, True)


def test_the_token_of_the_login_is_sent_to_its_console_only(
    home: Path, live_server: LiveServer, operator: User
) -> None:
    credentials_path().parent.mkdir(parents=True)
    credentials_path().write_text(
        json.dumps({"url": "http://127.0.0.1:1", "token": tokens.issue(operator, scopes=Scope).text})
    )
    elsewhere = CliRunner().invoke(main, ["--url", live_server.url, "jobs"])
    assert (elsewhere.exit_code, "`weir login` stores a token." in elsewhere.stderr) == (3, True)


def test_a_damaged_file_of_the_login_is_named(home: Path) -> None:
    credentials_path().parent.mkdir(parents=True)
    credentials_path().write_text("{")
    damaged = CliRunner().invoke(main, ["jobs"])
    assert (damaged.exit_code, str(credentials_path()) in damaged.stderr) == (3, True)


def test_a_console_that_does_not_answer_is_named(home: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        nobody = Commands(f"http://127.0.0.1:{server.getsockname()[1]}", "none")
        assert "no console answers at http://127.0.0.1:" in nobody("jobs", code=4).stderr
    assert "no console answers at ftp://x" in Commands("ftp://x", "none")("jobs", code=4).stderr


def test_a_server_that_is_no_console_is_named(live_server: LiveServer, home: Path) -> None:
    other = Commands(f"{live_server.url}/elsewhere", "none")
    assert "not as a console of Weir" in other("jobs", code=4).stderr


def test_a_login_limits_its_token(home: Path, live_server: LiveServer, operator: User, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    command = ["login", live_server.url, "--user", "operator", "--password", "a long enough one", "--scope", "read"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert CliRunner().invoke(main, ["jobs"]).exit_code == 0
    refused = CliRunner().invoke(main, ["savepoint", "daily sums"])
    assert (refused.exit_code, "it needs the scope operate" in refused.stderr) == (3, True)


def test_a_login_limits_the_lifetime_of_its_token(home: Path, live_server: LiveServer, operator: User) -> None:
    command = ["login", live_server.url, "--user", "operator", "--password", "a long enough one", "--days", "3"]
    assert CliRunner().invoke(main, command).exit_code == 0
    ends = ApiToken.objects.get().expires_at
    assert ends is not None
    assert timedelta(days=2) < ends - timezone.now() < timedelta(days=4)


def test_a_logout_with_a_token_that_is_revoked_already_succeeds(
    home: Path, live_server: LiveServer, operator: User
) -> None:
    """The answer to an earlier revocation may have been lost."""
    store_credentials(live_server.url, tokens.issue(operator, scopes=Scope).text)
    ApiToken.objects.all().delete()
    assert CliRunner().invoke(main, ["logout"]).exit_code == 0
    assert not credentials_path().exists()


def test_a_logout_without_an_answer_forgets_the_token_and_names_the_problem(home: Path) -> None:
    store_credentials("http://127.0.0.1:1", "weir_x")
    failed = CliRunner().invoke(main, ["logout"])
    assert (failed.exit_code, "the token is not revoked: no console answers" in failed.stderr) == (4, True)
    assert not credentials_path().exists()
    assert CliRunner().invoke(main, ["logout"]).exit_code == 0, "there is none any more"
