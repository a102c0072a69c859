"""Installs Debian packages if the user is root. Output of apt goes to a log."""

from __future__ import annotations

import os
import subprocess
from typing import IO, Sequence

from stack.launch.machine import can_install


def install(alternatives: Sequence[Sequence[str]], log: str) -> bool:
    """Installs the first list of packages that apt can install, after an update if necessary. False if apt cannot."""
    if not can_install():
        return False
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "ab") as sink:
        if any(_run(["install", "-y", "--no-install-recommends", *packages], sink) for packages in alternatives):
            return True
        _run(["update"], sink)
        return any(_run(["install", "-y", "--no-install-recommends", *packages], sink) for packages in alternatives)


def _run(arguments: list[str], sink: IO[bytes]) -> bool:
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    process = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sink,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return process.returncode == 0
