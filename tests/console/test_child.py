"""A child process and its log."""

import subprocess
import sys
from pathlib import Path

from console.jobs.child import Child

LIMIT_S = 60
SPEAK_LATER = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("after")
"""


def test_the_tail_of_a_log_begins_where_the_child_began(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("of another child\n")
    with Child([sys.executable, "-c", "print('mine')"], log, stdin=subprocess.DEVNULL) as child:
        assert child.wait(LIMIT_S)
        assert child.log_tail() == ["mine"]


def test_the_tail_is_there_after_the_log_was_rotated(tmp_path: Path) -> None:
    """Rotated by copying and cutting, so the file is shorter now than it was when the child began."""
    log = tmp_path / "run.log"
    log.write_text("of another child\n" * 100)
    go = tmp_path / "go"
    with Child([sys.executable, "-c", SPEAK_LATER, str(go)], log, stdin=subprocess.DEVNULL) as child:
        log.write_text("")
        go.touch()
        assert child.wait(LIMIT_S)
        assert child.log_tail() == ["after"]
