"""`weir stack up | down | clean | status | logs`: all processes of a console on this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from stack import folders
from stack.processes import ForeignProcess, ProcessId, environment_of, load_identity
from stack.programs import ProgramMissing
from stack.services import ServiceFailed
from stack.settings import (
    ROOT,
    BadSetting,
    DiskFull,
    Settings,
    changed_variables,
)
from stack.stack import AlreadyUp, Stack, greeting, prepare, print_line, sweep

_UP_TIMEOUT_S: Final = 240.0
_DOWN_TIMEOUT_S: Final = 60.0
#: Folders that a stack creates in `var`.
_DATA_FOLDERS: Final = (
    "storage", "inputs", "packages", "secrets", "demo", "data/examples", "spark", "spark-events", "weir-spark", "log",
    "run",
)  # fmt: skip


def main() -> int:
    arguments = _parser().parse_args()
    try:
        settings = Settings.read(arguments.var, os.environ)
        code = arguments.command(settings, arguments)
    except (BadSetting, DiskFull, ProgramMissing, ServiceFailed) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except ForeignProcess as failure:
        sys.stderr.write(f"{failure}; run `weir stack down` as that user\n")
        return 1
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weir stack", description=__doc__)
    parser.add_argument("--var", type=Path, help="folder of all data (default: $WEIR_VAR, else ./var)")
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start everything and return when it is ready")
    up.add_argument("--foreground", action="store_true", help="stay in the foreground and show changes until Ctrl-C")
    up.add_argument("--background", action="store_true", help=argparse.SUPPRESS)
    up.set_defaults(command=_up)
    for name, command, text in (
        ("down", _down, "stop all processes"),
        ("clean", _clean, "stop all processes and remove the state; output of jobs in the folder `data` stays"),
        ("status", _status, "show the running processes"),
        ("logs", _logs, "follow the logs"),
    ):
        commands.add_parser(name, help=text).set_defaults(command=command)
    return parser


def _up(settings: Settings, arguments: argparse.Namespace) -> int:
    if arguments.foreground or arguments.background:
        return _supervise(settings, shows_password=arguments.foreground)
    if supervisor := load_identity(settings.run / "supervisor.pid"):
        running = environment_of(supervisor)
        if changed := changed_variables(running, os.environ) if running else []:
            print_line(f"already up; these variables take effect after `weir stack down`: {', '.join(changed)}")
        return _wait_until_up(settings, None)
    prepare(settings)
    (settings.run / "status.json").unlink(missing_ok=True)
    with (settings.log / "supervisor.log").open("ab") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "stack", "--var", str(settings.var), "up", "--background"],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
        )  # fmt: skip
    return _wait_until_up(settings, child)


def _wait_until_up(settings: Settings, child: subprocess.Popen[bytes] | None) -> int:
    """Waits until the stack is ready and prints each process when it becomes ready. Returns the exit code."""
    names: set[str] = set()
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while time.monotonic() < deadline:
        has_ended = child.poll() is not None if child else not _is_up(settings)
        status = _read_status(settings)
        for row in status.get("processes", []):
            if row["state"] == "ready" and row["name"] not in names:
                names.add(row["name"])
                print_line(f"{row['name']}: ready")
        if status.get("phase") == "ready":
            print_line(greeting(settings, status["url"]))
            return 0
        if has_ended:
            sys.stderr.write(f"{status.get('message') or 'the supervisor ended'}\nlogs: {settings.log}\n")
            return 1
        time.sleep(0.1)
    sys.stderr.write(f"not ready after {_UP_TIMEOUT_S:g} s; logs: {settings.log}\n")
    return 1


def _supervise(settings: Settings, *, shows_password: bool) -> int:
    try:
        stack = Stack(settings, print_line, shows_password=shows_password)
    except AlreadyUp:
        sys.stderr.write("this stack is already up; `weir stack down` stops it\n")
        return 1
    return stack.run()


def _down(settings: Settings, _: argparse.Namespace) -> int:
    """Asks the supervisor to stop the stack, and kills it after a time limit. Then ends leftover processes."""
    supervisor = load_identity(settings.run / "supervisor.pid")
    if supervisor:
        print_line("ending")
        _ask_to_end(supervisor)
    left = sweep(settings)
    folders.remove_socket_folder(settings.run / "pg")
    (settings.run / "supervisor.pid").unlink(missing_ok=True)
    print_line(f"down{f', {left} left behind by a killed supervisor' if left else ''}")
    return 0


def _clean(settings: Settings, arguments: argparse.Namespace) -> int:
    """Stops the stack and removes only the folders that a stack creates. Other files in `var` stay."""
    _down(settings, arguments)
    folders.remove_service_folders(settings.var)
    for place, _, _ in os.walk(settings.var / "packages"):
        Path(place).chmod(0o700)  # folders of a package are read-only
    for name in _DATA_FOLDERS:
        shutil.rmtree(settings.var / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # files of users stay
        (settings.var / "data").rmdir()
    with contextlib.suppress(OSError):
        settings.var.rmdir()
    if settings.var.exists():
        print_line(f"left in {settings.var}: {', '.join(sorted(path.name for path in settings.var.iterdir()))}")
    else:
        print_line("removed all data")
    return 0


def _ask_to_end(supervisor: ProcessId) -> None:
    supervisor.send(signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_TIMEOUT_S
    while supervisor.is_alive():
        if time.monotonic() > deadline:
            supervisor.send(signal.SIGKILL)
        time.sleep(0.05)


def _status(settings: Settings, _: argparse.Namespace) -> int:
    status = _read_status(settings)
    if not _is_up(settings):
        print_line("down")
        return 3
    print_line(f"{status.get('phase', 'starting')}  {status.get('url', '')}")
    for row in status.get("processes", []):
        print_line(f"  {row['name']:<14}{row['state']:<10}pid {row['pid']!s:<9}restarts {row['restarts']}")
    return 0


def _logs(settings: Settings, _: argparse.Namespace) -> int:
    logs = sorted(str(path) for path in settings.log.glob("*.log"))
    if not logs:
        print_line(f"no logs in {settings.log} yet")
        return 1
    return subprocess.run(["tail", "-n", "20", "-F", *logs], check=False).returncode


def _is_up(settings: Settings) -> bool:
    return load_identity(settings.run / "supervisor.pid") is not None


def _read_status(settings: Settings) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((settings.run / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status


if __name__ == "__main__":
    sys.exit(main())
