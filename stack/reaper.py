"""`python -m stack.reaper HOME`: ends the processes of a test session once the session's process is gone.

After SIGTERM or SIGKILL no fixture cleans up. Every descendant of a session has `WEIR_TEST_HOME=HOME` in its
environment, even as an orphan. The reaper waits for the session's process, which `HOME/owner.json` names, ends the
descendants and removes the session's folder. After a regular end there are no leftovers.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
from pathlib import Path
from typing import Final

from stack import folders
from stack.processes import ProcessId, end_processes, load_identity, marked_processes

TEST_MARK: Final = "WEIR_TEST_HOME"
OWNER_FILE: Final = "owner.json"
_GRACE_S: Final = 5.0
_ROOT: Final = Path(__file__).resolve().parent.parent


def start(home: Path) -> None:
    """Starts the reaper of `home` in a new session, so that signals to pytest's process group do not reach it."""
    environment = {name: value for name, value in os.environ.items() if name != TEST_MARK}
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "stack.reaper", str(home)],
        {**environment, "PYTHONPATH": str(_ROOT)},
        file_actions=nothing,
        setsid=True,
    )


def remove_home(home: Path) -> None:
    folders.remove_service_folders(home)
    shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    home = Path(sys.argv[1])
    owner = load_identity(home / OWNER_FILE)
    if owner is not None:
        _wait(owner)
    end_processes(lambda: marked_processes(home, TEST_MARK), _GRACE_S)
    remove_home(home)


def _wait(process: ProcessId) -> None:
    """Waits until the process has ended. Unlike a pid, a pid descriptor never refers to another process."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    if process.is_alive():
        select.select([descriptor], [], [])
    os.close(descriptor)


if __name__ == "__main__":
    main()
