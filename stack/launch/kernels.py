"""Compiles the kernels of `runtime.kernels` at the first set-up and after each change of them.

A failure is no error: jobs then compile the kernels themselves.
"""

from __future__ import annotations

import glob
import hashlib
import os
import subprocess

from stack.launch.venv import python_of


def is_current(root: str) -> bool:
    """Whether the kernels were compiled with this `.venv`."""
    try:
        with open(_stamp(root), encoding="utf-8") as stamp:
            return stamp.read() == _digest(root)
    except OSError:
        return False


def compile_kernels(root: str) -> None:
    """Takes about ten seconds."""
    subprocess.run([python_of(root), "-m", "runtime.kernels"], cwd=root, stdin=subprocess.DEVNULL, check=False)
    with open(_stamp(root), "w", encoding="utf-8") as stamp:
        stamp.write(_digest(root))


def _stamp(root: str) -> str:
    return os.path.join(root, ".venv", "weir-kernels")


def _digest(root: str) -> str:
    hasher = hashlib.sha256()
    for name in sorted(glob.glob(os.path.join(root, "runtime", "kernels", "*.py"))):
        with open(name, "rb") as source:
            hasher.update(source.read())
    with open(os.path.join(root, ".venv", "weir-stamp"), "rb") as venv:
        hasher.update(venv.read())
    return hasher.hexdigest()
