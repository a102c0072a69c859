"""Inspects the machine: interpreters, installed servers, rights. `choice.py` decides."""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Iterator, Mapping, Optional

from stack.launch import java
from stack.launch.choice import Interpreter, Machine

_PROBE = """
import importlib.util as u, json, sys
has = bool(u.find_spec("venv") and u.find_spec("ensurepip"))
base = getattr(sys, "_base_executable", "") or sys.executable
print(json.dumps([base, list(sys.version_info[:2]), has, sys.implementation.name]))
"""
_PYTHON_NAMES = ("python3.11", "python3.12", "python3", "python3.13", "python3.14")


def inspect_machine(environment: Mapping[str, str]) -> Machine:
    return Machine(
        interpreters=tuple(_interpreters()),
        has_wheels=_has_wheels(),
        has_urls=bool(environment.get("DATABASE_URL") and environment.get("CELERY_BROKER_URL")),
        postgres=system_postgres(),
        redis=shutil.which("redis-server"),
        has_java=java.find_java(environment) is not None,
        can_install=can_install(),
    )


def _has_wheels() -> bool:
    """Whether pip can install the wheels of the extra `embedded`, whose tags are manylinux_2_28 and older."""
    name, version = platform.libc_ver()
    is_recent = name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 28)
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and is_recent


def can_install() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def system_postgres() -> Optional[str]:
    """Folder of the newest installed Postgres server, or None."""
    folders = glob.glob("/usr/lib/postgresql/*/bin")
    newest = sorted(folders, key=lambda folder: int("0" + "".join(filter(str.isdigit, folder.split("/")[4]))))
    on_path = [os.path.dirname(os.path.realpath(program)) for program in (shutil.which("initdb"),) if program]
    for folder in [*reversed(newest), *on_path]:
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in ("initdb", "postgres")):
            return folder
    return None


def _interpreters() -> Iterator[Interpreter]:
    paths = set()
    for path in _candidates():
        interpreter = _probe(path)
        if interpreter and os.path.realpath(interpreter.path) not in paths:
            paths.add(os.path.realpath(interpreter.path))
            yield interpreter


def _candidates() -> Iterator[str]:
    yield sys.executable
    for name in _PYTHON_NAMES:
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            path = os.path.join(folder, name)
            if os.access(path, os.X_OK):
                yield path
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    yield from sorted(glob.glob(os.path.join(root, "versions", "3.1[1-9]*", "bin", "python3")))


def _probe(path: str) -> Optional[Interpreter]:
    """The interpreter at `path`; None if it does not start (like a pyenv shim without a version) or is not CPython."""
    try:
        process = subprocess.run([path, "-c", _PROBE], capture_output=True, timeout=20, check=True)
        real, version, has_venv, name = json.loads(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter(real, (version[0], version[1]), has_venv) if name == "cpython" else None
