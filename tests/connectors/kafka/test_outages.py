"""A broker that is away and returns: requests are outages meanwhile, and no fault of librdkafka ends the process."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_that_returns_ends_no_process_that_asked_meanwhile() -> None:
    """An admin client that asked during the outage aborted the process in two of three returns of the broker."""
    command = [sys.executable, "-m", "tests.connectors.kafka.outages", "4"]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-1_000:]
    assert ended.stdout == "lived\n"


def test_no_connector_makes_an_admin_client() -> None:
    """A broker may be away at any request, so the runtime has no admin client at all."""
    folder = ROOT / "runtime" / "connectors" / "kafka"
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert [name for name, text in sources.items() if "AdminClient" in text or "kafka.admin" in text] == []
