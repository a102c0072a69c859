"""Makes `.venv` and installs the locked dependencies, once per content of pyproject.toml and the locks.

Every file that pip takes must have a hash of `locks/`, also the build backend: pip checks no hash of what an isolated
build downloads, so the backend is installed first and builds run without isolation.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import IO, Iterable

EXTRAS = "embedded,demo,dev"
BUILD_LOCK = os.path.join("locks", "build.txt")  #: the build backend
LOCK = os.path.join("locks", "all.txt")  #: what pyproject.toml and `EXTRAS` need
_INPUTS = ("pyproject.toml", BUILD_LOCK, LOCK)
_PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


class SetupFailed(Exception):
    """Set-up cannot go on; the text is for a person."""


def python_of(root: str) -> str:
    return os.path.join(root, ".venv", "bin", "python")


def is_current(root: str) -> bool:
    """True when `.venv` was made here, from these files, by an interpreter that still runs."""
    try:
        with open(_stamp(root), encoding="utf-8") as stamp:
            same = stamp.read() == _digest(root)
        return same and subprocess.run([python_of(root), "-c", ""], check=False).returncode == 0
    except OSError:
        return False


def make(root: str, interpreter: str, log: str) -> None:
    """Builds it anew where another interpreter made it, and installs.

    Raises:
        SetupFailed: with the end of the log.
    """
    folder = os.path.join(root, ".venv")
    if os.path.exists(folder) and not _made_by(folder, interpreter):
        shutil.rmtree(folder)
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "w", encoding="utf-8") as sink:
        if not os.path.exists(python_of(root)):
            _run([interpreter, "-m", "venv", folder], sink, "making .venv")
        for arguments in _installations(root):
            _run([python_of(root), "-m", "pip", "install", *_PIP_OPTIONS, *arguments], sink, "installing packages")
    with open(_stamp(root), "w", encoding="utf-8") as stamp:
        stamp.write(_digest(root))


def _installations(root: str) -> list[list[str]]:
    """The arguments of one `pip install` after the other."""
    build, lock = (os.path.join(root, name) for name in (BUILD_LOCK, LOCK))
    return [
        ["--require-hashes", "-r", build],
        ["--require-hashes", "--no-build-isolation", "-r", lock],
        ["--no-deps", "--no-build-isolation", "-e", f"{root}[{EXTRAS}]"],
    ]


def _made_by(folder: str, interpreter: str) -> bool:
    found = os.path.realpath(os.path.join(folder, "bin", "python"))
    ours = subprocess.run(
        [interpreter, "-c", "import os, sys; print(os.path.realpath(sys.executable))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found == ours.stdout.strip()


def _stamp(root: str) -> str:
    return os.path.join(root, ".venv", "weir-stamp")


def _digest(root: str) -> str:
    digest = hashlib.sha256()
    for name in _INPUTS:
        with open(os.path.join(root, name), "rb") as source:
            digest.update(source.read())
    digest.update(os.path.realpath(python_of(root)).encode())
    digest.update(os.path.realpath(root).encode())
    digest.update(EXTRAS.encode())
    return digest.hexdigest()


def _run(command: list[str], sink: IO[str], what: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=environment
    )
    assert child.stdout is not None
    last = _show_progress(child.stdout, sink, what)
    if child.wait() != 0:
        raise SetupFailed(f"{what} failed:\n" + "\n".join(last) + f"\nwhole log: {sink.name}")


def _show_progress(lines: Iterable[str], sink: IO[str], what: str) -> list[str]:
    """One line that is written over on a terminal; elsewhere a line per stage. Returns the last lines for an error."""
    last: list[str] = []
    seen = 0
    for line in lines:
        sink.write(line)
        last = [*last[-14:], line.rstrip()]
        word = re.match(r"\s*(Collecting|Building wheel for|Installing collected) ?(\S*)", line)
        if word:
            seen += word.group(1) == "Collecting"
            _progress(f"{what}: {seen} seen, {word.group(1).lower()} {word.group(2)}", word.group(1) != "Collecting")
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
