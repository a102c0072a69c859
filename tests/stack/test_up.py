"""The whole stack through its command line: two checkouts side by side, kills, and the end of everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stack import folders
from stack.processes import MARK, ProcessId, load, marked, serving
from stack.settings import ROOT

from .waiting import until

pytestmark = pytest.mark.timeout(400)


class Checkout:
    """One `var` and the commands on it, as `make` gives them."""

    def __init__(self, var: Path) -> None:
        self.var = var
        hidden = {MARK, "DATABASE_URL", "CELERY_BROKER_URL", "WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stack", "--var", str(self.var), *arguments]

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=ROOT, env={**self.environment, **more}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, **more: str) -> str:
        child = self.start(*arguments, **more)
        output, _ = child.communicate(timeout=300)
        assert child.returncode == 0, output
        return output

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.var / "run/status.json").read_text())
        return status

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.status()["processes"] if row["name"] == name)

    def answers(self) -> bool:
        with urllib.request.urlopen(f"{self.status()['url']}readyz", timeout=20) as response:
            return bool(response.status == 200)

    def variables(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.var / "run/env").read_text().splitlines())

    @property
    def left(self) -> list[ProcessId]:
        return [*marked(self.var), *serving(self.var / "pg"), *serving(self.var / "redis")]

    def remove(self) -> None:
        self.run("down")
        for name in ("pg", "redis", "programs"):
            folders.remove(self.var / name)


@pytest.fixture
def checkouts(tmp_path: Path) -> Iterator[tuple[Checkout, Checkout]]:
    pair = (Checkout(tmp_path / "one/var"), Checkout(tmp_path / ("two-" * 30) / "var"))
    yield pair
    for checkout in pair:
        checkout.remove()


def test_two_checkouts_live_side_by_side_and_leave_nothing_behind(checkouts: tuple[Checkout, Checkout]) -> None:
    """S0-21: SIGKILL of one supervisor and `down` end exactly its own processes; SIGTERM ends the other in order."""
    one, two = checkouts
    starts = [checkout.start("up") for checkout in checkouts]
    outputs = [start.communicate(timeout=300)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0], outputs
    for checkout, output in zip(checkouts, outputs, strict=True):
        assert (checkout.var / "run/password").read_text().strip() in output
        assert (checkout.var / "run/password").stat().st_mode & 0o777 == 0o600
        assert (checkout.var / "run/env").stat().st_mode & 0o777 == 0o600
    assert one.status()["url"] != two.status()["url"]
    assert one.answers()
    assert two.answers()

    _supervisor(one).send(signal.SIGKILL)
    assert "down" in one.run("down")
    assert one.left == []

    assert two.answers()
    assert two.run("status").startswith("ready")
    again = two.run("up")
    assert two.status()["url"] in again, "a second `up` only tells where it is"

    supervisor = _supervisor(two)
    supervisor.send(signal.SIGTERM)
    until(lambda: not supervisor.is_alive())
    assert two.left == []
    assert two.status()["phase"] == "down"
    assert list((two.var / "run").glob("*.pid")) == []


def test_a_killed_postgres_and_a_killed_worker_come_back_and_ctrl_c_ends_all(
    checkouts: tuple[Checkout, Checkout],
) -> None:
    """Rows outlive the SIGKILL; the restart waits for as long as WEIR_RESTART_DELAY_S says."""
    checkout = checkouts[0]
    child = checkout.start("up", "--foreground", WEIR_RESTART_DELAY_S="2.5")
    assert child.stdout is not None
    lines = iter(child.stdout.readline, "")
    assert any("password" in line for line in lines)
    url = checkout.variables()["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table kept as select 7 as n")

    for name in ("postgres", "runs-1"):
        os.kill(checkout.row(name)["pid"], signal.SIGKILL)
        assert any(line.startswith(f"{name}: ended with -9, starts again in 2.5 s") for line in lines)
        assert any(line == f"{name}: ready\n" for line in lines)
        assert checkout.row(name)["restarts"] == 1

    assert checkout.variables()["DATABASE_URL"] == url
    with psycopg.connect(url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)

    os.kill(child.pid, signal.SIGINT)
    rest = child.communicate(timeout=120)[0].splitlines()
    assert child.returncode == 0
    assert rest[-3:] == ["web: ended", "redis: ended", "postgres: ended"], "servers go last"
    assert checkout.left == []


def test_bad_settings_and_taken_ports_are_one_clear_line(checkouts: tuple[Checkout, Checkout]) -> None:
    checkout = checkouts[0]
    child = checkout.start("up", WEIR_RESTART_DELAY_S="soon")
    assert child.communicate()[0] == "WEIR_RESTART_DELAY_S must be a number, not 'soon'\n"
    assert child.returncode == 1


def _supervisor(checkout: Checkout) -> ProcessId:
    found = load(checkout.var / "run/supervisor.pid")
    assert found is not None
    return found
