"""`weirctl` at a real server."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pytest_django.live_server_helper import LiveServer

from console.accounts import tokens
from console.accounts.models import User
from weir.control import console as client
from weir.control.__main__ import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(client, "_RETRY_AFTER_S", 0.0)
    return tmp_path


class Commands:
    """`weirctl` with the address of the console and a token in its environment."""

    def __init__(self, url: str, token: str) -> None:
        self._env = {"WEIR_URL": url, "WEIR_TOKEN": token}

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=self._env)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def weirctl(home: Path, live_server: LiveServer, operator: User) -> Commands:
    return Commands(live_server.url, tokens.issue(operator))
