"""The command line of the examples, without a stack."""

import subprocess
import sys
from pathlib import Path

import pytest

from stack.settings import ROOT


@pytest.mark.parametrize("action", ["prepare", "feed", "check"])
def test_without_a_stack_the_command_to_start_it_is_named(tmp_path: Path, action: str) -> None:
    command = [sys.executable, "-m", "examples", "--var", str(tmp_path), action, "clickstream"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.endswith("run `make up` first\n")
    assert list(tmp_path.iterdir()) == []
