"""A stack on a cluster of three hosts: a full cluster, a lost host, a pulled cable, a new master, a missing mount."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.rig import Rig, reason_to_skip, standing_rig
from tests.stack.checkout import Checkout
from tests.waiting import until

Begin: TypeAlias = "Callable[[Path, str, int], Words]"
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with standing_rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture(scope="module")
def stack(rig: Rig) -> Iterator[Checkout]:
    """A stack on the rig's cluster, with small executors."""
    checkout = Checkout(rig.folder / "var")
    conf = rig.folder / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")
    checkout.environment.pop("SPARK_LOCAL_IP", None)  # of this test session
    try:
        checkout.run("up", SPARK_MASTER=rig.url, SPARK_CONF_DIR=str(conf))
        yield checkout
    finally:
        checkout.remove()


@pytest.fixture
def words(stack: Checkout) -> Iterator[Begin]:
    """Starts word counts, and cancels at the end what still runs: the next test needs the cores."""
    begun: list[Words] = []

    def begin(folder: Path, name: str, parallelism: int) -> Words:
        begun.append(Words(stack, folder, name, parallelism).begin())
        return begun[-1]

    yield begin
    for job in begun:
        if job.run["ended_at"] is None:
            job.cancel()


class Words(WordCount):
    """A word count whose start is not waited for: it may have to wait for slots."""

    def _start(self) -> None:
        """Left to the test."""

    def begin(self) -> Words:
        self.api.post(f"jobs/{self.job}/operations/", {"kind": "start", "params": {}})
        until(lambda: self.api.latest_run(self.job), PATIENCE_S)
        return self

    @property
    def state(self) -> str:
        return str(self.run["state"])

    @property
    def shortage(self) -> dict[str, Any]:
        """The live report of a run that waits; empty before the first one."""
        run = self.run
        return dict((run["live"] or {}).get("waiting") or {}) if run["state"] == "waiting" else {}

    def cancel(self) -> None:
        self.api.operate(self.job, "cancel", {}, PATIENCE_S)

    def runs_exactly(self) -> bool:
        return self.state == "running" and self.is_exact()

    def must_wait(self, there: int) -> None:
        until(lambda: self.shortage.get("there") == there, PATIENCE_S, or_else=lambda: str(self.run))

    def must_run(self) -> None:
        until(self.runs_exactly, PATIENCE_S, or_else=lambda: str(self.run))


@pytest.mark.long
def test_a_full_cluster_is_waited_for(words: Begin, tmp_path: Path) -> None:
    """A second job waits, says who holds the slots, can be cancelled, and starts by itself."""
    first = words(tmp_path / "first", "first", 4)
    first.must_run()
    second = words(tmp_path / "second", "second", 3)
    third = words(tmp_path / "third", "third", 6)
    second.must_wait(there=2)
    assert second.shortage["wanted"] == 3
    assert f"first, run {first.run['id']} (4)" in second.shortage["held_by"]
    third.must_wait(there=0)
    assert third.shortage["wanted"] == 6
    third.cancel()
    assert third.state == "canceled"
    first.cancel()
    second.must_run()
    assert len(second.run["attempts"]) == 1, "to wait costs no attempt"
    assert second.run["live"]["restarts"] == 0


def test_a_lost_host_is_waited_for(rig: Rig, words: Begin, tmp_path: Path) -> None:
    """A run that needs every host waits without end, and goes on when the host is back."""
    job = words(tmp_path, "lost-host", 6)
    job.must_run()
    rig.hosts[2].kill()
    job.must_wait(there=4)
    job.feed(3)
    attempts = len(job.run["attempts"])
    rig.hosts[2].boot()
    job.must_run()
    assert len(job.run["attempts"]) == attempts
    assert job.run["live"]["restarts"] <= 2


@pytest.mark.long
def test_a_silent_host_is_replaced(rig: Rig, words: Begin, tmp_path: Path) -> None:
    """The cable stays out: the run goes on without that host."""
    job = words(tmp_path, "silent-host", 3)
    job.must_run()
    rig.hosts[1].pull_cable()
    try:
        until(lambda: job.state != "running", PATIENCE_S)
        job.feed(3)
        job.must_run()
        assert {slot["host"] for slot in job.run["live"]["slots"]} <= {"w1", "w3"}
    finally:
        rig.hosts[1].plug_in()


@pytest.mark.long
def test_a_restarted_spark_master_gets_a_fresh_application(rig: Rig, words: Begin, tmp_path: Path) -> None:
    job = words(tmp_path, "new-master", 3)
    job.must_run()
    rig.stop_master()
    rig.start_master()
    until(lambda: job.state != "running", PATIENCE_S, or_else=lambda: str(job.run))
    job.feed(3)
    job.must_run()


def test_a_missing_mount_refuses_the_start(rig: Rig, words: Begin) -> None:
    """One host has another output folder: nothing is written, and the failure names host and folder."""
    job = words(rig.unmounted.parent, "missing-mount", 6)
    assert job.output == rig.unmounted
    until(lambda: job.state == "failed", PATIENCE_S, or_else=lambda: str(job.run))
    message = job.run["failure"]["message"]
    assert str(job.output) in message
    assert "host 'w3'" in message
    assert len(job.run["attempts"]) == 1
    assert list(job.output.iterdir()) == []
