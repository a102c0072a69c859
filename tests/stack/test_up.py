"""The whole stack through its command line: two checkouts side by side, kills, and the end of everything."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stack.processes import ProcessId, load

from .checkout import Checkout
from .waiting import until

pytestmark = pytest.mark.timeout(400)


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
