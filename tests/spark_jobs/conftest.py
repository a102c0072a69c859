"""A Spark session for the tests that need one, and the command line as the console calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    code: int
    json: Any
    stderr: str


Command = Callable[..., Answer]


@pytest.fixture(scope="module")  # whatever comes next in this process may need a context of its own
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch = tmp_path_factory.mktemp("spark")
    settings = SparkSettings(app_name="weir tests", scratch_dir=str(scratch), shuffle_partitions=2)
    with spark_session(settings) as session:
        yield session


def environment_of(folder: Path) -> dict[str, str]:
    roots = os.pathsep.join([str(folder), "/in", "/out"])
    return {"WEIR_VAR": str(folder / "var"), "PYTHONPATH": str(ROOT), "WEIR_DATA_ROOTS": roots}


def _answer(code: int, stdout: str, stderr: str) -> Answer:
    return Answer(code, json.loads(stdout) if stdout.strip() else None, stderr)


def _stdin(params: object, text: str | None) -> str:
    return text if text is not None else json.dumps(params if params is not None else {})


@pytest.fixture(scope="session")
def command_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark_jobs.command_server"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=tmp_path_factory.mktemp("commands"), env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def command(command_server: subprocess.Popen[str], tmp_path: Path) -> Command:
    """Runs a command line of `spark_jobs` in a forked process and a folder of its own, with `params` on stdin."""

    def run(*arguments: str, params: object = None, text: str | None = None, **env: str) -> Answer:
        assert command_server.stdin is not None
        assert command_server.stdout is not None
        files = {name: tmp_path / f".{name}" for name in ("stdin", "stdout", "stderr")}
        files["stdin"].write_text(_stdin(params, text))
        request = {
            "arguments": arguments,
            "cwd": str(tmp_path),
            "env": os.environ | environment_of(tmp_path) | env,
            **{name: str(path) for name, path in files.items()},
        }
        command_server.stdin.write(json.dumps(request) + "\n")
        command_server.stdin.flush()
        code = int(command_server.stdout.readline())
        return _answer(code, files["stdout"].read_text(), files["stderr"].read_text())

    return run


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """As `command`, as the console starts it: `python -m spark_jobs …`."""

    def run(*arguments: str, params: object = None, text: str | None = None, **env: str) -> Answer:
        process = subprocess.run(
            [sys.executable, "-m", "spark_jobs", *arguments],
            input=_stdin(params, text),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment_of(tmp_path) | env,
            timeout=120,
            check=False,
        )
        return _answer(process.returncode, process.stdout, process.stderr)

    return run
