"""The stack on a file system that fills up, which holds state, logs, Postgres and the supervisor's own files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.waiting import until

from .checkout import Checkout

pytestmark = pytest.mark.timeout(400)

MEGABYTE = 1 << 20


@pytest.fixture
def disk(weir_var: Path) -> Iterator[Path]:
    """A file system of 300 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder = Path(tempfile.mkdtemp(prefix="disk-", dir=weir_var))
    command = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=755", "tmpfs", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {process.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def checkout(disk: Path) -> Iterator[Checkout]:
    checkout = Checkout(disk / "var")
    yield checkout
    (disk / "ballast").unlink(missing_ok=True)
    checkout.remove()


def fill(disk: Path, left: int = 0) -> Path:
    """A file that takes all the space but `left` bytes."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while left == 0 or os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > left:
            file.write(bytes(4096))
    return ballast


def shows(log: Path, text: str) -> bool:
    return text in log.read_text()


def readiness(url: str) -> dict[str, Any]:
    """The answer of `readyz`; {} while the console does not answer."""
    try:
        with urllib.request.urlopen(f"{url}readyz", timeout=20) as response:
            body = response.read()
    except urllib.error.HTTPError as refusal:
        body = refusal.read()
    except OSError:
        return {}
    try:
        answer: dict[str, Any] = json.loads(body)
    except ValueError:
        return {}
    return answer


def postgres_pid(url: str) -> int | None:
    """The process that serves a connection to Postgres; None while Postgres is down."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
    except psycopg.Error:
        return None
    return int(row[0]) if row else None


def write_until_postgres_ends(url: str) -> None:
    """Writes until Postgres has no space for its log, and ends."""
    while True:
        try:
            with psycopg.connect(url, connect_timeout=2, autocommit=True) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS ballast (text TEXT)")
                while True:
                    with suppress(psycopg.errors.DiskFull):
                        rows = "SELECT repeat(md5(n::text), 60) FROM generate_series(1, 500) AS n"
                        connection.execute(f"INSERT INTO ballast {rows}")
        except psycopg.OperationalError:
            return


@pytest.mark.slow
def test_a_full_disk_ends_no_supervisor_and_all_comes_back_once_there_is_space(
    disk: Path, checkout: Checkout, tmp_path: Path
) -> None:
    """State, Postgres, logs, status and pid files share the disk. Postgres ends; workers are killed meanwhile."""
    log = tmp_path / "terminal.log"
    with log.open("w") as terminal:
        supervisor = subprocess.Popen(
            checkout.command("up", "--foreground"), env={**checkout.environment, "WEIR_MIN_FREE_MB": "20"},
            stdout=terminal, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    until(lambda: "password" in log.read_text(), 120)
    url, database = checkout.status()["url"], checkout.variables()["DATABASE_URL"]
    until(lambda: readiness(url)["status"] == "ok")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")

    fill(disk, left=10 * MEGABYTE)
    disk_part = until(lambda: readiness(url)["parts"].get("disk", "").startswith("unavailable") and readiness(url))
    assert disk_part["status"] == "unavailable"
    assert "WEIR_MIN_FREE_MB" in disk_part["parts"]["disk"]

    fill(disk)
    write_until_postgres_ends(database)
    for name in ("postgres", "runs-1"):
        os.kill(checkout.row(name)["pid"], signal.SIGKILL)
        until(partial(shows, log, f"{name}: ended with"), 30, or_else=lambda: log.read_text()[-3000:])
        fill(disk)
    ends = log.read_text().count("ended with")
    until(lambda: log.read_text().count("ended with") >= ends + 2, or_else=lambda: log.read_text()[-3000:])
    assert supervisor.poll() is None, log.read_text()[-3000:]
    assert "the status cannot be written, and the stack runs on: [Errno 28]" in log.read_text()

    (disk / "ballast").unlink()
    until(lambda: postgres_pid(database), 90, or_else=lambda: log.read_text()[-3000:])
    until(lambda: readiness(url).get("status") == "ok", 90, or_else=lambda: str(readiness(url)))
    until(lambda: all(row["state"] == "ready" for row in checkout.status()["processes"]))
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
    os.kill(supervisor.pid, signal.SIGINT)
    assert supervisor.wait(120) == 0
    assert checkout.left == []


def test_a_start_without_space_is_refused_by_folder_and_setting(disk: Path, checkout: Checkout) -> None:
    fill(disk, left=10 * MEGABYTE)
    for command in (("up",), ("up", "--foreground")):
        child = checkout.start(*command, WEIR_MIN_FREE_MB="20")
        output = child.communicate(timeout=60)[0]
        assert child.returncode == 1
        assert output.startswith(f"{disk / 'var'}: only ")
        assert output.endswith(
            " MB are free, and a start needs 20 MB: free space there, or lower WEIR_MIN_FREE_MB\n"
        ), output
