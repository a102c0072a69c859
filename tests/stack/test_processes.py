"""Identity, marks and ends of real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.processes import (
    MARK,
    ProcessId,
    children_of,
    end_processes,
    environment_of,
    load_identity,
    marked_processes,
    save_identity,
    servers_in,
    session_members,
)
from tests.waiting import until


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)}, start_new_session=True)
    until(lambda: bool(marked_processes(tmp_path)))  # a fork shows its parent's environment until it has become `sleep`
    yield child
    child.kill()
    child.wait()


def test_a_reused_pid_is_somebody_else(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert process.is_alive()

    stranger = ProcessId(process.pid, process.started_ticks + 1)
    assert not stranger.is_alive()
    stranger.send(signal.SIGKILL)
    assert process.is_alive()


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    process.send(signal.SIGKILL)
    until(lambda: not process.is_alive())  # nobody has waited for it yet


def test_a_record_is_trusted_only_for_a_living_process_of_this_boot(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    save_identity(tmp_path / "a.pid", process)
    assert load_identity(tmp_path / "a.pid") == process

    record = json.loads((tmp_path / "a.pid").read_text())
    (tmp_path / "b.pid").write_text(json.dumps({**record, "boot": "another"}))
    (tmp_path / "c.pid").write_text(json.dumps({**record, "started_ticks": 1}))
    (tmp_path / "d.pid").write_text("half a rec")
    assert [load_identity(tmp_path / f"{name}.pid") for name in "bcde"] == [None] * 4


def test_the_mark_finds_exactly_the_processes_of_one_var(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert [process.pid for process in marked_processes(tmp_path)] == [sleeper.pid]
    assert marked_processes(tmp_path / "other") == []
    assert marked_processes(tmp_path.parent) == []


def test_the_environment_of_a_process_is_that_of_its_start(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process = ProcessId.of(sleeper.pid)
    assert process is not None
    assert environment_of(process)[MARK] == str(tmp_path)
    sleeper.kill()
    sleeper.wait()
    assert environment_of(process) == {}


def test_end_kills_what_ignores_the_signal_and_what_it_starts_while_dying(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: subprocess.Popen(['sleep', '600']))\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: str(tmp_path)}, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"

    count = end_processes(lambda: marked_processes(tmp_path), grace_s=0.5)

    assert count >= 2
    assert marked_processes(tmp_path) == []
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_sessions_and_descendants_are_found_whoever_the_parent_is() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "sleep 601 & (sleep 602 &) ; echo up; wait"], start_new_session=True, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    this = ProcessId.of(child.pid)
    assert this is not None
    until(lambda: len(session_members(child.pid)) == 3)

    assert len(children_of([this])) == 2  # the shell and `sleep 601`; the other was orphaned

    end_processes(lambda: session_members(child.pid), grace_s=1)
    child.wait()
    child.stdout.close()


def test_only_servers_count_as_serving(tmp_path: Path) -> None:
    """A shell that stands in the data folder is somebody's, not ours."""
    child = subprocess.Popen(["sleep", "600"], cwd=tmp_path)
    try:
        assert servers_in(tmp_path) == []
        assert [p.pid for p in servers_in(tmp_path, ("sleep", "coreutils"))] == [child.pid]
    finally:
        child.kill()
        child.wait()
