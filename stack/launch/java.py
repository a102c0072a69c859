"""Finds a Java runtime that Spark accepts, and lists its packages."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import Iterator, Mapping, Optional

OLDEST_JAVA = 17
PACKAGES = (("openjdk-17-jre-headless",), ("default-jre-headless",))  #: Debian 13 has Java 21 but no Java 17
ADVICE = "Spark needs Java 17 or newer. Install it: apt-get install default-jre-headless (or set JAVA_HOME)"


def find_java(environment: Mapping[str, str]) -> Optional[str]:
    """Home of the first suitable runtime: JAVA_HOME, then PATH, then the oldest suitable under /usr/lib/jvm."""
    for home in _homes(environment):
        if major_version(home) >= OLDEST_JAVA:
            return home
    return None


def major_version(home: str) -> int:
    """Major version; 0 if there is no Java. Reads the file `release`; starts a JVM only if this file is missing."""
    program = os.path.join(home, "bin", "java")
    if not os.access(program, os.X_OK):
        return 0
    try:
        with open(os.path.join(home, "release"), encoding="utf-8") as release:
            text = release.read()
    except OSError:
        text = _ask(program)
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else 0


def _ask(program: str) -> str:
    try:
        process = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stderr + process.stdout


def _homes(environment: Mapping[str, str]) -> Iterator[str]:
    if environment.get("JAVA_HOME"):
        yield environment["JAVA_HOME"]
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    installed = {os.path.realpath(folder) for folder in glob.glob("/usr/lib/jvm/*")}
    yield from sorted(installed, key=lambda home: (major_version(home), home))
