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


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `python -m spark_jobs …` in a folder of its own, with `params` on stdin."""

    def run(*arguments: str, params: object = None, text: str | None = None, **env: str) -> Answer:
        roots = os.pathsep.join([str(tmp_path), "/in", "/out"])
        stdin = text if text is not None else json.dumps(params if params is not None else {})
        done = subprocess.run(
            [sys.executable, "-m", "spark_jobs", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ
            | {"WEIR_VAR": str(tmp_path / "var"), "PYTHONPATH": str(ROOT), "WEIR_DATA_ROOTS": roots}
            | env,
            timeout=120,
            check=False,
        )
        return Answer(done.returncode, json.loads(done.stdout) if done.stdout.strip() else None, done.stderr)

    return run
