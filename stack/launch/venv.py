"""Creates `.venv` and installs the locked dependencies, again after each change of a pyproject.toml or of the locks.

Every file that pip installs must have a hash in `locks/`, including the build backend. Pip checks no hashes of packages
that an isolated build downloads. The backend is therefore installed first, and builds run without isolation.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import IO, Iterable

BUILD_LOCK = os.path.join("locks", "build.txt")  #: the build backend
DEMO_LOCK = os.path.join("locks", "demo.txt")  #: all that the demo uses
DEV_LOCK = os.path.join("locks", "all.txt")  #: all extras, and the tools of developers
_PROJECTS = ("pyproject.toml", os.path.join("examples", "pyproject.toml"))
_PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


class SetupFailed(Exception):
    """The set-up failed; the text is for the user."""


def python_of(root: str) -> str:
    return os.path.join(root, ".venv", "bin", "python")


def is_current(root: str, lock: str) -> bool:
    """Whether `.venv` was created in this place from the current files, and its interpreter still runs.

    An environment from `DEV_LOCK` has the packages of `DEMO_LOCK` too.
    """
    try:
        with open(_stamp(root), encoding="utf-8") as stamp:
            same = stamp.read() in (digest(root, lock), digest(root, DEV_LOCK))
        return same and subprocess.run([python_of(root), "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def make_venv(root: str, interpreter: str, lock: str, log: str) -> None:
    """Creates `.venv`, anew if another interpreter had created it, and installs the packages of `lock`.

    Raises:
        SetupFailed: the message has the end of the log.
    """
    folder = os.path.join(root, ".venv")
    if os.path.exists(folder) and not _is_made_by(folder, interpreter):
        shutil.rmtree(folder)
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "w", encoding="utf-8") as sink:
        if not os.path.exists(python_of(root)):
            run_logged([interpreter, "-m", "venv", folder], sink, "creating .venv")
        for arguments in _installations(root, lock):
            run_logged(
                [python_of(root), "-m", "pip", "install", *_PIP_OPTIONS, *arguments], sink, "installing packages"
            )
    with open(_stamp(root), "w", encoding="utf-8") as stamp:
        stamp.write(digest(root, lock))


def _installations(root: str, lock: str) -> list[list[str]]:
    """The arguments of each `pip install`, in order."""
    return [
        ["--require-hashes", "-r", os.path.join(root, BUILD_LOCK)],
        ["--require-hashes", "--no-build-isolation", "-r", os.path.join(root, lock)],
        ["--no-deps", "--no-build-isolation", "-e", root, "-e", os.path.join(root, "examples")],
    ]


def _is_made_by(folder: str, interpreter: str) -> bool:
    python = os.path.realpath(os.path.join(folder, "bin", "python"))
    process = subprocess.run(
        [interpreter, "-c", "import os, sys; print(os.path.realpath(sys.executable))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return python == process.stdout.strip()


def _stamp(root: str) -> str:
    return os.path.join(root, ".venv", "weir-stamp")


def digest(root: str, lock: str) -> str:
    """Identifies the files, the interpreter and the place from which `.venv` is created."""
    hasher = hashlib.sha256()
    for name in (*_PROJECTS, BUILD_LOCK, lock):
        with open(os.path.join(root, name), "rb") as source:
            hasher.update(source.read())
    hasher.update(os.path.realpath(python_of(root)).encode())
    hasher.update(os.path.realpath(root).encode())
    return hasher.hexdigest()


def run_logged(command: list[str], sink: IO[str], what: str) -> None:
    """Runs a command, with its output in `sink`. Raises SetupFailed with the last lines of output."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environment
    )
    assert child.stdout is not None
    last = _show_progress(child.stdout, sink, what)
    if child.wait() != 0:
        raise SetupFailed(f"{what} failed:\n" + "\n".join(last) + f"\nwhole log: {sink.name}")


def _show_progress(lines: Iterable[str], sink: IO[str], what: str) -> list[str]:
    """Copies output to `sink` and shows progress: on a terminal a line that is overwritten, else a line per stage.

    Returns:
        The last lines, for an error message.
    """
    last: list[str] = []
    packages = 0
    for line in lines:
        sink.write(line)
        last = [*last[-14:], line.rstrip()]
        word = re.match(r"\s*(Collecting|Building wheel for|Installing collected) ?(\S*)", line)
        if word:
            packages += word.group(1) == "Collecting"
            _progress(
                f"{what}: {packages} seen, {word.group(1).lower()} {word.group(2)}", word.group(1) != "Collecting"
            )
    _progress(f"{what}: done", True)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    return last


def _progress(text: str, is_stage: bool) -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K" + text[:100])
        sys.stderr.flush()
    elif is_stage:
        sys.stderr.write(text[:100] + "\n")
