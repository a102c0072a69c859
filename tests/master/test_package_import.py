"""The job master's import of a package. Each import is in a process of its own: a process imports one package."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from console.jobs.models import Run
from runtime.access.job_package import PACKAGE_VARIABLE
from runtime.io.package_archive import write_archive
from runtime.io.package_cache import package_path
from runtime.io.store import open_store
from runtime.libraries import PACKAGE_VERSIONS_FILE, installed_versions
from tests.contracts.test_records import make_run, url
from tests.waiting import until

#: Imports a package with records in memory. Prints a line per failure, and at the end the state of the run. A line of
#: stdin requests a cancel.
PROGRAM: Final = """
import json, os, sys, threading
from pathlib import Path
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay, NoRestart
from runtime.io.memory.run_store import MemoryRunStore
from runtime.master.package_import import PackageImport

class Records(MemoryRunStore):
    def next_attempt(self, reason, detail):
        print(json.dumps({**detail, "state": self.state}), flush=True)
        return super().next_attempt(reason, detail)

records = Records()

def cancel():
    sys.stdin.readline()
    records.operations.append(OperationRequest("1", "cancel", ""))

threading.Thread(target=cancel, daemon=True).start()
strategy = NoRestart() if sys.argv[1] == "none" else FixedDelay(attempts=1, delay_ms=1)
beat = Path(os.environ["WEIR_VAR"]).parent / "beat"
result = PackageImport(records, Token(1), strategy, beat.touch).run()
import importlib.util
found = importlib.util.find_spec("wordmodule")
word = found.loader.load_module().WORD if found else ""
print(json.dumps({"result": int(result), "token": records.token, "state": records.state, "word": word,
                  "failure": records.failure, "settled": list(records.settled)}), flush=True)
"""


MASTER: Final = """
import sys
from runtime.master.master_process import run_master
sys.exit(run_master("master", lambda *_: 0))
"""


class Import:
    """A package, and a process that imports it."""

    def __init__(self, folder: Path) -> None:
        self.storage, self.var = folder / "storage", folder / "var"
        self.var.mkdir(exist_ok=True)
        source = folder / "source"
        source.mkdir()
        (source / PACKAGE_VERSIONS_FILE).write_text(json.dumps(installed_versions()))
        (source / "wordmodule.py").write_text("WORD = 'hey'")
        (source / "data.bin").write_bytes(os.urandom(100_000))
        self.archive, self.digest = write_archive(source)

    def store(self) -> None:
        """Mounts the storage. A storage without the package is another fault."""
        written = self.storage.with_name("written")
        assert open_store(str(written)).create(package_path(self.digest), self.archive)
        written.rename(self.storage)

    def begin(self, strategy: str = "fixed") -> "subprocess.Popen[str]":
        return self._process([PROGRAM, strategy])

    def begin_master(self, run: Run) -> "subprocess.Popen[str]":
        """A job master with the records of `run` in Postgres."""
        return self._process([MASTER, "run", str(run.pk), str(run.token)], DATABASE_URL=url())

    def _process(self, program: list[str], **variables: str) -> "subprocess.Popen[str]":
        variables |= {PACKAGE_VARIABLE: self.digest, "WEIR_STORAGE": str(self.storage), "WEIR_VAR": str(self.var)}
        return subprocess.Popen(
            [sys.executable, "-c", *program],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def read(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of the program, without those of the log."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith("{") and "event" not in (row := json.loads(line)):
            return dict(row)
    raise AssertionError("the program has ended")


@pytest.fixture
def job(tmp_path: Path) -> Import:
    return Import(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KB at the folder of the host."""
    var = tmp_path / "var"
    var.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(var)]
    mount = subprocess.run(command, capture_output=True, check=False)
    if mount.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mount.stderr.decode().strip()}")
    yield var
    subprocess.run(["umount", str(var)], check=True)


def test_an_outage_of_the_storage_is_waited_out_and_recorded_as_an_outage(job: Import, tmp_path: Path) -> None:
    with job.begin() as process:
        failures = [read(process), read(process)]
        job.store()
        ended = read(process)
    assert [(each["code"], each["tries"]) for each in failures] == [("outage", 1), ("outage", 2)]
    assert all(str(job.storage) in each["message"] for each in failures)
    assert [each["state"] for each in failures] == ["starting", "restarting"]
    assert (ended["word"], ended["result"], ended["state"]) == ("hey", ended["token"], "restarting")
    assert ended["token"] == 3, "each attempt has a token of its own"
    assert (tmp_path / "beat").exists()


def test_a_full_disk_below_the_cache_is_an_outage_that_ends_when_there_is_space(
    small_disk: Path, tmp_path: Path
) -> None:
    job = Import(tmp_path)
    job.store()
    (small_disk / "full").write_bytes(b" " * 100_000)
    with job.begin() as process:
        failure = read(process)
        assert failure["code"] == "outage"
        assert "No space left on device" in failure["message"]
        assert str(small_disk / "packages") in failure["message"]
        assert list((small_disk / "packages").iterdir()) == [], "no part of it stays"
        (small_disk / "full").unlink()
        assert read(process)["word"] == "hey"


def test_a_run_that_waits_for_its_package_can_be_cancelled(job: Import) -> None:
    with job.begin() as process:
        read(process)
        assert process.stdin is not None
        process.stdin.write("cancel\n")
        process.stdin.flush()
        ended = read(process)
        while "code" in ended:
            ended = read(process)
    assert (ended["state"], ended["result"]) == ("canceled", 0)
    assert ended["settled"] == ["1"]


def test_without_restarts_an_outage_ends_the_run_by_its_name(job: Import) -> None:
    with job.begin("none") as process:
        ended = read(process)
    assert ended["state"] == "failed"
    assert str(job.storage) in ended["failure"]["message"]


def test_a_fault_of_the_host_that_no_wait_heals_counts_as_a_restart(job: Import) -> None:
    """The folder of the cache belongs to a user who is not this one, or is open to others."""
    (job.var / "packages").mkdir()
    (job.var / "packages").chmod(0o777)
    job.store()
    with job.begin() as process:
        failures, ended = read(process), read(process)
    assert failures["code"] == "attempt-failed"
    assert (ended["state"], ended["result"]) == ("failed", 0)
    assert "another user may write to it" in ended["failure"]["message"]


@pytest.mark.django_db(transaction=True)
def test_a_damaged_package_behind_an_outage_fails_the_run_by_its_name(job: Import) -> None:
    """The attempt that rejects the package is not the one with which the master began."""
    run = make_run()
    with job.begin_master(run) as process:
        until(lambda: run.attempts.count() > 1, 30)
        job.archive = job.archive[:-20]
        job.store()
        assert process.stdout is not None
        process.stdout.read()
    run.refresh_from_db()
    assert (process.returncode, run.state) == (0, "failed")
    assert run.failure is not None
    assert run.failure["code"] == "bad-package"
    assert {attempt.outcome for attempt in run.attempts.all()} == {"failed"}
