"""A test session that is killed leaves no process behind: not one of its stacks, workers or servers."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.processes import MARK, marked_processes
from stack.settings import ROOT
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)

PROBE = "WEIR_TEST_PROBE"
PATIENCE_S = 150.0
SESSION = """
import time
from pathlib import Path
from tests.console.world import World

def test_that_never_ends(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.worker("runs"):
        Path({up!r}).write_text(str(tmp_path))
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGTERM, []), pytest.param(signal.SIGKILL, ["-n", "1"], marks=pytest.mark.slow)],
)
def test_a_killed_session_leaves_no_celery_worker(tmp_path: Path, number: signal.Signals, options: list[str]) -> None:
    up, probe = tmp_path / "up", secrets.token_hex(8)
    (tmp_path / "test_session.py").write_text(SESSION.format(up=str(up)))
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *options]
    environment = {name: value for name, value in os.environ.items() if name not in {MARK, "DATABASE_URL"}}
    session = subprocess.Popen(
        [*command, "--basetemp", str(tmp_path / "base"), str(tmp_path / "test_session.py")],
        cwd=ROOT, env={**environment, PROBE: probe}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert session.stdout is not None
    try:
        until(lambda: up.exists() or session.poll() is not None, PATIENCE_S)
        assert session.poll() is None, session.stdout.read()
        workers = [process for process in marked_processes(probe, PROBE) if b"celery" in cmdline(process.pid)]
        assert workers

        for pid in [
            session.pid,
            *(process.pid for process in marked_processes(probe, PROBE) if b"execnet" in cmdline(process.pid)),
        ]:
            os.kill(pid, number)
        session.wait()

        until(
            lambda: marked_processes(probe, PROBE) == [],
            or_else=lambda: str([cmdline(p.pid) for p in marked_processes(probe, PROBE)]),
        )
    finally:
        for process in marked_processes(probe, PROBE):
            process.send(signal.SIGKILL)
        session.stdout.close()


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
