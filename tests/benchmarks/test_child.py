"""Running a system: its events, its time box, and nothing left of it."""

import sys
from pathlib import Path

import psutil

from benchmarks import child, protocol
from benchmarks.footprint import Footprint

SAYS_ALL = """
import time
from benchmarks import protocol
print("a line of its log")
protocol.send_checked(rows=5, format="csv", columns={}, pattern="*")
protocol.send_started()
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
protocol.send_measured(rows=7, seconds=0.5, more=1)
"""
WAITS_FOR_NOBODY = """
import os, signal, time
from benchmarks import protocol
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
protocol.send_started()
worker = os.fork()
if worker == 0:
    until = time.process_time() + 1
    while time.process_time() < until:
        pass
    os._exit(0)
while os.path.exists(f"/proc/{worker}"):
    time.sleep(0.01)
protocol.send_measured(rows=7, seconds=0.5)
"""
RUNS_ON = """
import os, pathlib, subprocess, sys, time
from benchmarks import protocol
folder = pathlib.Path(os.environ["FOLDER"], "checkpoints")
folder.mkdir()
(folder / "deleted").write_bytes(bytes(1_000))
(folder / "unfinished").write_bytes(bytes(2_000))
protocol.send_started()
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(0.5)
(folder / "unfinished").rename(folder / "finished")
(folder / "deleted").unlink()
time.sleep(600)
"""
DIES_AND_LEAVES = """
import os, signal, subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
OTHERS_WRITE_TOO = r"""
import os, subprocess, sys
from benchmarks import protocol
protocol.send_checked(rows=5, format="csv", columns={}, pattern="*")
subprocess.run([sys.executable, "-c", "import os; os.write(1, b'half a line of a child')"], check=True)
os.write(1, b"half a line of its own \xff")
protocol.send_measured(rows=7, seconds=0.5)
"""
HANGS = """
import subprocess, sys, time
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(600)
"""


def test_a_child_that_says_everything(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    outcome = child.run([sys.executable, "-c", SAYS_ALL], environment={}, log=log, time_box_s=60)
    assert outcome.state == "done"
    assert outcome.events[protocol.CHECKED]["rows"] == 5
    assert outcome.events[protocol.MEASURED]["details"] == {"more": 1}
    assert 0.2 < outcome.cpu_seconds < 30
    assert "a line of its log" in log.read_text()


def test_a_child_that_is_killed_in_its_measured_run_leaves_nothing(tmp_path: Path) -> None:
    command, log = [sys.executable, "-c", RUNS_ON], tmp_path / "child.log"
    footprint = Footprint(tmp_path / "checkpoints")
    outcome = child.run(
        command, environment={"FOLDER": str(tmp_path)}, log=log, time_box_s=60, footprint=footprint, kill_after_s=1.0
    )
    assert outcome.state == "killed"
    assert protocol.STARTED in outcome.heard_at
    assert protocol.MEASURED not in outcome.events
    assert not psutil.pid_exists(int(log.read_text()))
    assert footprint.checkpoint_bytes == 3_000, "a file that was deleted counts, and a renamed one once"
    assert footprint.peak_rss_bytes > 1 << 20


def test_processor_time_of_a_process_that_nobody_waited_for_counts(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITS_FOR_NOBODY]
    outcome = child.run(command, environment={}, log=tmp_path / "child.log", time_box_s=60)
    assert outcome.state == "done"
    assert 0.3 < outcome.cpu_seconds < 30


def test_a_child_that_fails_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such connector')"]
    outcome = child.run(command, environment={}, log=tmp_path / "child.log", time_box_s=60)
    assert outcome.state == "failed"
    assert "no such connector" in (tmp_path / "child.log").read_text()


def test_a_child_over_its_time_box_ends_with_all_that_it_started(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    outcome = child.run([sys.executable, "-c", HANGS], environment={}, log=log, time_box_s=3)
    assert outcome.state == "did not finish"
    assert not psutil.pid_exists(int(log.read_text()))


def test_what_a_child_that_was_killed_has_started_is_ended_too(tmp_path: Path) -> None:
    """It would take a processor from all that is measured afterwards."""
    log = tmp_path / "child.log"
    outcome = child.run([sys.executable, "-c", DIES_AND_LEAVES], environment={}, log=log, time_box_s=60)
    assert outcome.state == "failed"
    assert not psutil.pid_exists(int(log.read_text()))


def test_what_others_write_between_events_is_log(tmp_path: Path) -> None:
    """A JVM and worker processes share the output of their parent; an event that is not heard is a hung run."""
    log = tmp_path / "child.log"
    outcome = child.run([sys.executable, "-c", OTHERS_WRITE_TOO], environment={}, log=log, time_box_s=20)
    assert outcome.state == "done"
    assert outcome.events[protocol.MEASURED]["rows"] == 7
    assert "half a line of a child" in log.read_text(errors="replace")
