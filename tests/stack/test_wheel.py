"""The installed wheels play the demo: from an empty folder, without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from stack.settings import ROOT

_OUTSIDE = ("WEIR_", "DJANGO_", "SPARK_", "PYSPARK_", "PYTHON", "DATABASE_URL", "CELERY_BROKER_URL")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An environment with the wheels and, from the environment of the tests, the packages of its lock."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if not name.startswith(("tests/", "docs/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = tmp_path / "wheels"
    folders = (source, source / "examples")
    _run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, *folders], tmp_path)
    shutil.rmtree(source)
    _run([sys.executable, "-m", "venv", "--without-pip", environment], tmp_path)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    _run([*pip, "--python", environment / "bin/python", "install", "--no-deps", *wheels.iterdir()], tmp_path)
    # The path of packages is a plain entry: files beside them that name the checkout are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return environment / "bin/python"


def _run(command: list[str | Path], folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OUTSIDE)}
    process = subprocess.run(command, cwd=folder, env=clean, check=False, capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_wheel_plays_the_demo_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    names = "console, examples, runtime, spark_jobs, stack, weir"
    places = _run([installed, "-c", f"import {names}; print(*(each.__file__ for each in ({names})))"], empty).split()
    assert all(Path(place).is_relative_to(installed.parent.parent) for place in places), places
    try:
        output = _run([installed, "-m", "examples", "demo", "--exit"], empty)
        assert "demo: exact, 336776 records" in output, output
        assert [each.name for each in empty.iterdir()] == ["var"]
    finally:
        _run([installed, "-m", "stack", "clean"], empty)
