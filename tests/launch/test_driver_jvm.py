"""A JVM of a Spark driver that does not answer: its calls are bounded, it is killed, and the cause is recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from runtime.core.job.lifecycle import MasterExitCode

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(300)]
ROOT: Final = Path(__file__).parents[2]


def test_a_stopped_jvm_is_killed_and_named_and_a_fresh_master_may_follow(tmp_path: Path) -> None:
    """A call of the JVM waited for ever: no recovery followed, and the page named a silent job master."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.launch.hung_jvm", str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    recorded = json.loads(ended.stdout.splitlines()[-1])
    assert recorded["exits"] == [MasterExitCode.BROKEN]
    ((_, outcome, reason),) = recorded["attempts"]
    assert outcome == "failed"
    assert "slot 1" in reason
    assert "the JVM of the Spark driver did not answer" in reason
    assert "within 5 s and was killed" in reason
    assert recorded["alive"] == []
