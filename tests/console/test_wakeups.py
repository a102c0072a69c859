"""Wake-ups to a broker that does not answer."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.services import RunningServer, start_redis

ROOT = Path(__file__).parents[2]
#: As a web process does it: a wake-up while all is well, while the broker hangs, and when it is back.
SEND = """
import sys
import django
django.setup()
from console import wakeups
for line in sys.stdin:
    wakeups.send(wakeups.COMPILE_TASK, int(line))
    print("sent or given up", flush=True)
"""
#: The socket's timeout is 5 s; with another attempt it would be twice that.
LIMIT_S = 9
START_LIMIT_S = 60


@pytest.fixture
def broker() -> Iterator[RunningServer]:
    home = Path(tempfile.mkdtemp(prefix="weir-broker-"))  # not below pytest's own folders, see `place`
    home.chmod(0o711)
    try:
        with start_redis(home / "broker") as running:
            yield running
    finally:
        shutil.rmtree(home, ignore_errors=True)


def send(sender: "subprocess.Popen[str]", row_id: int) -> None:
    """Have a wake-up sent; fails when the sender is not done in time."""
    assert sender.stdin is not None
    assert sender.stdout is not None
    sender.stdin.write(f"{row_id}\n")
    sender.stdin.flush()
    answered, _, _ = select.select([sender.stdout], [], [], LIMIT_S if row_id else START_LIMIT_S)
    assert answered, f"wake-up {row_id} hangs"
    assert sender.stdout.readline() == "sent or given up\n"


def test_a_broker_that_hangs_costs_a_request_one_timeout(broker: RunningServer) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql://weir@/weir?host=/nowhere",
        "CELERY_BROKER_URL": broker.url,
        "WEIR_VAR": "/nowhere",
        "DJANGO_SECRET_KEY": "x",
        "DJANGO_SETTINGS_MODULE": "console.settings",
    }
    with subprocess.Popen(
        [sys.executable, "-c", SEND],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as sender:  # fmt: skip
        try:
            for number, stop in enumerate([None, signal.SIGSTOP, signal.SIGCONT]):
                if stop is not None:
                    os.kill(broker.process.pid, stop)
                send(sender, number)
            _, said = sender.communicate()
        finally:
            sender.kill()
    assert said.count("wake-up not sent, the reconciler will") == 1
