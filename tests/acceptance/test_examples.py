"""The examples on a whole stack, by the commands of their pages: three SIGKILLs and a rescale each, exact by DuckDB.

All examples run at the same time. Input is written before and after each fault. The acceptance is the check of the
page: the whole output against a query over the same input.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.database import SECRET
from examples.demo.api import Api
from examples.samples.commands import SAMPLES
from stack.processes import marked_processes
from stack.settings import ROOT
from tests.acceptance.word_count import PATIENCE_S
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

log = logging.getLogger(__name__)

PAGES = ROOT / "docs/examples"
QUIET_CHECKPOINTS = 3  #: completed checkpoints without a new row: the source has read all files


def commands(page: str) -> list[str]:
    """The blocks of a page that a reader runs, in order."""
    return re.findall(r"^```sh\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


@dataclass
class Example:
    """A running example: its job, and the steps of input so far."""

    name: str
    checkout: Checkout
    api: Api
    job: int = 0
    step: int = 0

    def shell(self, *blocks: str) -> str:
        """Runs blocks of the page in a shell, after the functions that the pages share. Returns the output."""
        script = "\n".join(["set -eu", *commands("README"), *blocks, "wait"])
        environment = {**self.checkout.environment, "WEIR_VAR": str(self.checkout.var)}
        ran = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def start(self) -> None:
        """By the commands of the page, but for the time over which the input is written."""
        *blocks, _ = commands(self.name)
        self.shell(*(re.sub(r"--seconds \d+", "--seconds 5", block) for block in blocks))
        self.job = next(int(job["id"]) for job in self.api.all("jobs/") if job["name"] == self.name)
        self.step = SAMPLES[self.name].steps

    def feed(self) -> None:
        """Writes a further step of input."""
        folder, secret = self.checkout.var / "data/examples" / self.name, self.checkout.var / "secrets" / SECRET
        database = secret.read_text(encoding="utf-8") if SAMPLES[self.name].has_database else ""
        SAMPLES[self.name].write_step(folder, database, self.step)
        self.step += 1

    @property
    def run(self) -> dict[str, Any]:
        return dict(self.api.run(int(self.api.latest_run(self.job)["id"])))

    def checkpoints(self) -> int:
        newest = self.api.get(f"jobs/{self.job}/checkpoints/", outcome="completed", limit=1)["results"]
        return int(newest[0]["number"]) if newest else 0

    def rows_read(self) -> int:
        operators = (self.run["live"] or {}).get("operators", {})
        return sum(int(each.get("records_out", 0)) for uid, each in operators.items() if not each.get("records_in"))

    def is_restored(self, token: int, checkpoint: int) -> bool:
        """Whether an attempt after `token` runs from a checkpoint, and has completed another one than `checkpoint`."""
        run = self.run
        assert run["state"] != "failed", run["failure"]
        restored = [a for a in run["attempts"] if a["token"] == run["token"] and a["restored_checkpoint"] is not None]
        return bool(run["token"] > token and restored and run["state"] == "running" and self.checkpoints() > checkpoint)

    def has_read_all(self) -> bool:
        """Waits for some checkpoints; false if rows were read meanwhile."""
        before, rows = self.checkpoints(), self.rows_read()
        until(lambda: self.checkpoints() >= before + QUIET_CHECKPOINTS, PATIENCE_S)
        return self.rows_read() == rows

    def check(self) -> str:
        """The check of the page."""
        *_, block = commands(self.name)
        return self.shell(block)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A stack with the default data root, where the parameters of the examples have their defaults."""
    checkout = Checkout(tmp_path_factory.mktemp("examples") / "var")
    del checkout.environment["WEIR_DATA_ROOTS"], checkout.environment["WEIR_DATA_HOSTS"]
    checkout.run("up")
    try:
        yield checkout
    finally:
        checkout.remove()
    assert checkout.left == []


@pytest.fixture(scope="module")
def examples(checkout: Checkout) -> Iterator[list[Example]]:
    password = (checkout.var / "run/password").read_text().strip()
    api = Api.login(checkout.status()["url"].rstrip("/"), "operator", password)
    examples = [Example(name, checkout, api) for name in SAMPLES]
    yield examples
    for example in examples:
        if example.job and example.run["state"] == "running":
            api.operate(example.job, "cancel", {}, PATIENCE_S)


def all_of(examples: list[Example], act: Callable[[Example], object]) -> None:
    """Performs `act` for all examples at the same time."""
    with ThreadPoolExecutor(len(examples)) as threads:
        for future in [threads.submit(act, example) for example in examples]:
            future.result()


def slot(example: Example) -> int:
    return int(example.run["live"]["slots"][-1]["pid"])


def job_master(example: Example) -> int:
    command = f"runtime.launch.spark\0run\0{example.run['id']}\0".encode()
    pids = [
        process.pid
        for process in marked_processes(example.checkout.var)
        if Path(f"/proc/{process.pid}/cmdline").exists()
        and command in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    ]
    assert len(pids) == 1, pids
    return pids[0]


def survive(example: Example, victim: Callable[[Example], int]) -> None:
    """Kills a process while input is written; the job must restore its checkpoint by itself."""
    token, checkpoint = example.run["token"], example.checkpoints()
    example.feed()
    os.kill(victim(example), signal.SIGKILL)
    example.feed()
    until(lambda: example.is_restored(token, checkpoint), PATIENCE_S)


def rescale(example: Example) -> None:
    """Stops the job and asks for its restore at another parallelism. Returns when a worker has claimed the run."""
    example.api.operate(example.job, "stop", {}, PATIENCE_S)
    example.feed()
    params = {"checkpoint": example.api.checkpoints(example.job)[-1]["id"], "parallelism": 3}
    example.api.post(f"jobs/{example.job}/operations/", {"kind": "restore", "params": params})
    until(lambda: example.run["state"] != "stopped" and example.run["lease_owner"], PATIENCE_S)


def test_the_examples_are_exact_by_the_commands_of_their_pages(examples: list[Example]) -> None:
    """S0-11, S0-28, S1-25, S3-19: Parquet files and tables of Postgres, behind windows, joins, batches and changes."""
    began = time.monotonic()

    def passed(phase: str) -> None:
        log.info("%.1f s: %s", time.monotonic() - began, phase)

    all_of(examples, Example.start)
    all_of(examples, lambda example: until(lambda: example.checkpoints() > 1 and example.rows_read() > 0, PATIENCE_S))
    passed("started")
    all_of(examples, lambda example: survive(example, slot))
    passed("slots killed")
    all_of(examples, lambda example: survive(example, job_master))
    passed("job masters killed")
    before = {example.name: (example.run["token"], example.checkpoints()) for example in examples}
    all_of(examples, rescale)
    passed("rescale begun")
    owners = {example.name: example.run["lease_owner"] for example in examples}
    for owner in set(owners.values()):
        os.kill(int(owner.split(":")[1]), signal.SIGKILL)
    all_of(examples, Example.feed)
    all_of(examples, lambda example: until(lambda: example.is_restored(*before[example.name]), PATIENCE_S))
    passed("workers killed")
    assert all(example.run["lease_owner"] != owners[example.name] for example in examples)
    slots = {example.name: len(example.run["live"]["slots"]) for example in examples}
    assert slots == dict.fromkeys(slots, 3) | {"change_capture": 1}
    all_of(examples, lambda example: until(example.has_read_all, PATIENCE_S))
    passed("all read")
    all_of(examples, lambda example: example.api.operate(example.job, "drain", {}, PATIENCE_S))
    passed("drained")
    for example in examples:
        output = example.check()
        assert output.splitlines()[-1] == "the output is exact"
        first, *_ = sorted(int(run["id"]) for run in example.api.all(f"jobs/{example.job}/runs/"))
        assert len(example.api.run(first)["attempts"]) >= 3, "a slot and a job master were killed"
