"""A cluster with too few slots: the run waits, says for what, hears a cancel, and starts by itself."""

import threading
from pathlib import Path

import pytest
from pyspark import SparkConf

from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.settings import JobSettings, SlotTimeouts
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch import slot_pool
from runtime.launch.local import LocalLauncher
from runtime.launch.slot_pool import SlotPool, StartMember
from runtime.launch.spark import cores_for
from runtime.launch.standalone_cluster import Holder, describe_cluster
from runtime.master.launcher import SlotPhase
from runtime.master.slot_wait import ShortageReports
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, counts


class Cluster(LocalLauncher):
    """Has `there` slots, and starts members once these are enough. `lives`: whether more slots can start."""

    def __init__(self, there: int) -> None:
        super().__init__()
        self.there = there
        self.lives = True
        self.losses = 0  #: members that are lost before a slot runs

    @property
    def loss(self) -> str:
        return "" if self.lives else "its Spark context has stopped"

    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        while self.there < job.graph.parallelism and not pool.is_dismissed:
            pool.on_status(SlotPhase.WAITING, self.there, "held by other (2)")
            threading.Event().wait(0.01)
        return super().open(pool, job)

    def run_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
        if number < self.losses:
            pool.on_end(number, "the executor is gone", is_retried=True)
        else:
            super().run_member(pool, number, job)


SOON = ShortageReports(grace_ms=0, interval_ms=20, poll_s=0.02)


@pytest.fixture(autouse=True)
def quick_relaunch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_pool, "REPLACEMENT_PAUSE_S", 0.02)
    monkeypatch.setattr(slot_pool, "POLL_INTERVAL_S", 0.02)


def job(folder: Path, *, unbounded: bool = False) -> CompiledJob:
    return counts(Numbers(total=100, unbounded=unbounded), folder / "out").compile(3)


def test_a_run_waits_for_slots_and_starts_by_itself(tmp_path: Path) -> None:
    """A shortage is a state of the run: no attempt, no token and no restart is used up."""
    cluster, records = Cluster(there=1), MemoryRunStore()
    with running(job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON) as run:
        run.wait_for(lambda: records.state is RunState.WAITING)
        run.wait_for(lambda: records.live["waiting"] == {"wanted": 3, "there": 1, "held_by": "held by other (2)"})
        cluster.there = 2
        run.wait_for(lambda: records.live["waiting"]["there"] == 2)
        cluster.there = 3
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert [outcome for _, outcome, _ in records.attempts] == ["ended"]
    assert "waiting" not in records.live
    assert records.live["restarts"] == 0


class SlowCluster(Cluster):
    """Answers, and has slots that connect, once the test sets these events."""

    def __init__(self) -> None:
        super().__init__(there=3)
        self.answers, self.connects = threading.Event(), threading.Event()

    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        self.answers.wait(60)
        return super().open(pool, job)

    def run_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
        if number == 1:
            self.connects.wait(60)
        super().run_member(pool, number, job)


def test_a_launch_that_lasts_reports_its_step(tmp_path: Path) -> None:
    """A page could not tell a slow cluster from slots that do not connect."""
    cluster, records = SlowCluster(), MemoryRunStore()
    with running(job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON) as run:
        run.wait_for(lambda: records.live.get("launch") == {"step": "spark", "wanted": 3, "there": 0})
        assert records.state is RunState.STARTING
        cluster.answers.set()
        run.wait_for(lambda: records.live.get("launch") == {"step": "slots", "wanted": 3, "there": 2})
        assert records.state is RunState.STARTING
        cluster.connects.set()
        assert run.join() is MasterExitCode.DONE
    assert "launch" not in records.live
    assert records.live["restarts"] == 0


def test_a_cancel_ends_the_wait(tmp_path: Path) -> None:
    cluster, records = Cluster(there=0), MemoryRunStore()
    with running(job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON) as run:
        run.wait_for(lambda: records.state is RunState.WAITING)
        run.end("cancel")
    assert records.state is RunState.CANCELED


def test_a_new_run_loses_its_patience_in_words(tmp_path: Path) -> None:
    cluster, records = Cluster(there=1), MemoryRunStore()
    slots = SlotTimeouts(request_ms=50)
    with running(
        job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON, slots=slots
    ) as run:
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FAILED
    assert records.failure is not None
    assert records.failure["code"] == "no-slots"
    assert "3 wanted, 1 there, held by other (2)" in records.failure["message"]


def test_a_run_that_had_slots_waits_without_end(tmp_path: Path) -> None:
    cluster, records = Cluster(there=1), MemoryRunStore()
    slots = SlotTimeouts(request_ms=1)
    with running(
        job(tmp_path),
        tmp_path / "state",
        records,
        launcher=cluster,
        shortage_reports=SOON,
        slots=slots,
        has_had_slots=True,
    ) as run:
        run.wait_for(lambda: records.state is RunState.WAITING)
        run.wait_for(lambda: records.live.get("waiting"))
        cluster.there = 3
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED


def test_slots_that_are_lost_before_the_start_are_waited_for(tmp_path: Path) -> None:
    """A lost executor is the cluster's affair as long as no slot of the job has run on it."""
    cluster, records = Cluster(there=3), MemoryRunStore()
    cluster.losses = 2
    with running(job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON) as run:
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert [outcome for _, outcome, _ in records.attempts] == ["ended"]


def test_a_context_that_became_useless_ends_the_master_and_not_the_run(tmp_path: Path) -> None:
    cluster, records = Cluster(there=1), MemoryRunStore()
    with running(job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON) as run:
        run.wait_for(lambda: records.state is RunState.WAITING)
        cluster.lives = False
        assert run.join() is MasterExitCode.BROKEN
    assert records.state is RunState.WAITING
    assert records.attempts == [(1, "failed", "its Spark context has stopped")]


def test_the_start_limit_begins_with_the_processes(tmp_path: Path) -> None:
    """The wait for slots before it does not count."""

    ended = threading.Event()

    class Stillborn(Cluster):
        def run_member(self, pool: SlotPool, number: int, job: CompiledJob) -> None:
            if number == 1:
                ended.wait(60)  # it never connects
            else:
                super().run_member(pool, number, job)

    cluster, records = Stillborn(there=1), MemoryRunStore()
    slots = SlotTimeouts(start_ms=200)
    try:
        with running(
            job(tmp_path), tmp_path / "state", records, launcher=cluster, shortage_reports=SOON, slots=slots
        ) as run:
            run.wait_for(lambda: records.state is RunState.WAITING)
            cluster.there = 3
            run.wait_for(lambda: records.state is RunState.FAILED)
    finally:
        ended.set()
    assert records.failure is not None
    assert "1 of 3 slots did not connect within 200 ms of their start" in records.failure["message"]


def test_settings_of_a_job_reach_the_wait() -> None:
    settings = JobSettings(slot_request_timeout_ms=2000, slot_replacement_timeout_ms=3000, slot_start_timeout_ms=4000)
    assert settings.slots == SlotTimeouts(request_ms=2000, replacement_ms=3000, start_ms=4000)
    assert JobSettings().slots == SlotTimeouts(), "the defaults are spelled twice"


@pytest.mark.parametrize(
    ("slots", "conf", "cores"),
    [
        (3, {}, 3),
        (3, {"spark.task.cpus": "2"}, 6),
        (3, {"spark.executor.cores": "2"}, 4),
        (3, {"spark.executor.cores": "5", "spark.task.cpus": "2"}, 10),
        (3, {"spark.executor.cores": "1"}, 3),
    ],
)
def test_a_run_takes_the_cores_that_it_needs(slots: int, conf: dict[str, str], cores: int) -> None:
    spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    assert cores_for(slots, spark_conf) == cores


def test_the_holders_of_a_cluster_in_words() -> None:
    holders = [Holder("small", 1), Holder("idle", 0), Holder("large", 4)]
    assert describe_cluster(6, 3, holders) == "held by large (4), small (1); the cluster has 6 cores on 3 workers"
    assert describe_cluster(2, 1, []) == "the cluster has 2 cores on 1 worker"
