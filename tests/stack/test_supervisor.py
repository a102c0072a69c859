"""The supervisor with real children: restarts, back-off, order and the end of all of them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stack.processes import MARK, marked_processes, session_members
from stack.supervisor import ProcessSpec, StartFailed, State, Supervisor, delay_s, rotate_logs
from tests.waiting import until


class Bench:
    """A supervisor and what it said."""

    def __init__(self, folder: Path, restart_delay_s: float) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.supervisor = Supervisor(folder, folder, restart_delay_s, self.said.append)

    def spec(self, name: str, code: str, *, grace_s: float = 10.0, runs_once: bool = False) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-c", code],
            environment={**os.environ, MARK: str(self.folder)},
            folder=self.folder,
            is_ready=lambda: (self.folder / f"{name}.log").exists() and "up" in self.log(name),
            grace_s=grace_s,
            runs_once=runs_once,
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def tended(self) -> bool:
        self.supervisor.wait(0.05)
        self.supervisor.check_children()
        return True


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, restart_delay_s=0.2)
    yield bench
    bench.supervisor.stop_all()


SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def test_a_killed_child_is_started_again(bench: Bench) -> None:
    child = bench.supervisor.start(bench.spec("one", SLEEP))
    bench.supervisor.wait_ready(child, 30)
    first = child.identity
    assert first is not None

    os.kill(first.pid, signal.SIGKILL)
    until(lambda: bench.tended() and child.state is State.READY and child.identity != first)

    assert child.restarts == 1
    assert "one: ended with -9, starts again in 0.2 s" in bench.said


def test_what_a_dead_child_left_in_its_session_goes_before_the_next_start(bench: Bench) -> None:
    """Pool workers of a killed Celery worker would go on holding its runs."""
    code = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    child = bench.supervisor.start(bench.spec("pool", code))
    bench.supervisor.wait_ready(child, 30)
    assert child.identity is not None
    session = child.identity.pid
    until(lambda: len(session_members(session)) == 2)

    os.kill(session, signal.SIGKILL)
    until(lambda: bench.tended() and child.state is not State.READY)

    assert session_members(session) == []


@pytest.mark.parametrize("runs_once", [True, False])
def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(tmp_path: Path, runs_once: bool) -> None:
    """A child that has ended, or waits for its next start, was reaped: its number is free for anybody's session."""
    bench = Bench(tmp_path, restart_delay_s=600)
    child = bench.supervisor.start(bench.spec("short", "print('up')", runs_once=runs_once))
    until(lambda: bench.tended() and child.state in (State.ENDED, State.WAITING))
    assert child.exit_code == 0
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        assert child.popen is not None
        child.popen.pid = stranger.pid  # as if the kernel had given it away again
        bench.tended()
        bench.supervisor.stop_all()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_a_finished_child_left_in_its_session_goes_with_it(bench: Bench) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '600']); print('up')"
    child = bench.supervisor.start(bench.spec("demo", code, runs_once=True))
    until(lambda: bench.tended() and child.state is State.ENDED)
    assert marked_processes(bench.folder) == []


def test_back_off_doubles_up_to_a_limit_and_never_undercuts_the_setting() -> None:
    assert [delay_s(n, 1.0) for n in (1, 2, 3, 6, 60)] == [1.0, 2.0, 4.0, 30.0, 30.0]
    assert delay_s(1, 5.0) == 5.0
    assert delay_s(3, 45.0) == 45.0


def test_a_child_that_dies_again_and_again_waits_longer_each_time(bench: Bench) -> None:
    child = bench.supervisor.start(bench.spec("bad", "import sys; sys.exit(3)"))
    until(lambda: bench.tended() and child.consecutive_deaths == 3)

    waits = [line for line in bench.said if "starts again" in line]
    assert waits == [f"bad: ended with 3, starts again in {s} s" for s in ("0.2", "0.4", "0.8")]


def test_a_start_that_fails_shows_the_end_of_the_log(bench: Bench) -> None:
    child = bench.supervisor.start(bench.spec("bad", "raise SystemExit('port taken')"))
    with pytest.raises(StartFailed, match=r"(?s)bad did not start:.*port taken"):
        bench.supervisor.wait_ready(child, 30, may_restart=False)


def test_a_preparation_runs_once_and_its_failure_is_told(bench: Bench) -> None:
    bench.supervisor.run_once(bench.spec("fine", "print('done')"))
    assert bench.supervisor.children == []

    with pytest.raises(StartFailed, match=r"(?s)broken failed:.*no such table"):
        bench.supervisor.run_once(bench.spec("broken", "raise SystemExit('no such table')"))


def test_children_end_in_reverse_order_and_the_stubborn_are_killed(bench: Bench) -> None:
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    for name, code, grace_s in (("first", SLEEP, 10.0), ("second", stubborn, 0.2), ("third", SLEEP, 10.0)):
        child = bench.supervisor.start(bench.spec(name, code, grace_s=grace_s))
        bench.supervisor.wait_ready(child, 30)

    bench.supervisor.stop_all()

    assert bench.said[-3:] == ["third: ended", "second: ended", "first: ended"]
    assert marked_processes(bench.folder) == []
    assert list(bench.folder.glob("*.pid")) == []


def test_orphans_come_to_the_supervisor_and_leave_no_zombie(bench: Bench) -> None:
    """A process in a session of its own, whose parent was killed, stays in sight."""
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], start_new_session=True,"
        " stdin=subprocess.PIPE)\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    child = bench.supervisor.start(bench.spec("parent", code))
    bench.supervisor.wait_ready(child, 30)
    assert child.identity is not None
    orphan = next(p for p in marked_processes(bench.folder) if p != child.identity)

    os.kill(child.identity.pid, signal.SIGKILL)
    until(lambda: bench.tended() and not os.path.exists(f"/proc/{orphan.pid}"))  # noqa: PTH110


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from stack.supervisor import ProcessSpec, Supervisor\n"
        "folder = Path(sys.argv[1])\n"
        "supervisor = Supervisor(folder, folder, 1.0, print)\n"
        "for name in 'ab':\n"
        "    spec = ProcessSpec(name=name, argv=['sleep', '600'], environment=dict(os.environ), folder=folder)\n"
        "    supervisor.start(spec)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, MARK: str(tmp_path)}, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    while owner.stdout.readline() != b"up\n":
        pass
    until(lambda: len(marked_processes(tmp_path)) == 3)

    owner.kill()
    owner.wait()
    owner.stdout.close()

    until(lambda: marked_processes(tmp_path) == [])


def test_a_long_log_is_moved_aside_under_the_hands_of_its_writer(tmp_path: Path) -> None:
    with (tmp_path / "a.log").open("ab", buffering=0) as writer:
        writer.write(b"old line\n" * 10)
        rotate_logs(tmp_path, longest_bytes=50)
        writer.write(b"new line\n")
        rotate_logs(tmp_path, longest_bytes=50)

    assert (tmp_path / "a.log").read_bytes() == b"new line\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"old line\n" * 10


def test_a_long_log_stays_if_its_copy_has_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(b"line\n" * 20)

    def fill(source: Path, target: Path) -> None:
        target.write_bytes(b"li")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", fill)
    rotate_logs(tmp_path, longest_bytes=50)
    assert (tmp_path / "a.log").read_bytes() == b"line\n" * 20
    assert not (tmp_path / "a.log.1").exists()


def test_a_restart_that_the_system_refuses_is_tried_again(bench: Bench) -> None:
    """The program, or a log on a full disk, cannot be opened for a while."""
    program = bench.folder / "program"
    program.write_text(f"#!{sys.executable}\n{SLEEP}\n")
    program.chmod(0o700)
    child = bench.supervisor.start(replace(bench.spec("one", SLEEP), argv=[str(program)]))
    bench.supervisor.wait_ready(child, 30)
    program.rename(bench.folder / "aside")
    assert child.identity is not None
    os.kill(child.identity.pid, signal.SIGKILL)
    message = "one: cannot start ([Errno 2] No such file or directory: "
    until(lambda: bench.tended() and sum(line.startswith(message) for line in bench.said) >= 2)
    (bench.folder / "aside").rename(program)
    until(lambda: bench.tended() and child.state is State.READY)


def test_a_held_socket_is_handed_to_each_new_start(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            f"import socket\nlistener = socket.socket(fileno={listener.fileno()})\nprint('up', flush=True)\n"
            "while True: listener.accept()[0].sendall(b'hello')\n"
        )
        spec = bench.spec("web", code)
        child = bench.supervisor.start(
            ProcessSpec(
                name="web",
                argv=spec.argv,
                environment=spec.environment,
                folder=spec.folder,
                pass_fds=(listener.fileno(),),
            )
        )
        for _ in range(2):
            with socket.create_connection(listener.getsockname()) as client:
                until(lambda: bench.tended() and child.is_alive)
                assert client.recv(5) == b"hello"
            assert child.identity is not None
            os.kill(child.identity.pid, signal.SIGKILL)
            until(lambda: bench.tended() and child.state is State.WAITING)


def test_it_waits_in_a_process_with_many_open_files(bench: Bench) -> None:
    """`select` refuses descriptors above 1,023."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    descriptor = bench.supervisor._wake
    bench.supervisor._wake = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 1_100)
    try:
        bench.supervisor.wait(0.01)
    finally:
        os.close(bench.supervisor._wake)
        bench.supervisor._wake = descriptor
