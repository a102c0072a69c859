"""Faults in real jobs, many at once: the page of each job names its own, and none looks well.

One run waits for a worker. A receiver on a socket gets an alert of each faulty job, with operator, reason and act.
"""

import multiprocessing
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

import weir
from console.accounts.models import User
from console.alerts.models import Channel, Delivery
from console.alerts.watching import watch_jobs
from console.checkpoints.models import Checkpoint
from console.incidents import following
from console.jobs.models import Job, JobVersion, Run
from runtime.core.job.ids import Token
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.master.job_master import JobMaster
from tests.console.alerts.passes import deliver_due
from tests.console.alerts.receivers import SECRET, Webhook, webhook
from tests.console.compiled import compiled_graph
from tests.console.health import sick_jobs
from tests.console.health.sick_jobs import (
    FullSink,
    RefusedSink,
    SlowStore,
    chain,
    files,
    held,
    poisoned,
    skewed,
    slow,
    starved,
    stopped,
    undeployable,
)
from tests.console.ui import blocks
from tests.contracts.sinks.disks import delete_folder, full, read_only, small_disk
from tests.contracts.test_records import url
from tests.kafka_proxy import serial_broker
from tests.spark import spark_cluster
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 120.0

#: A slot without time for its source. Where other jobs take much of the machine, its channel is full at times.
STARVED = "The operators of slot .* greedy most, .*event time advances|Backpressure from greedy, which is"


@dataclass(frozen=True)
class Signs:
    """What an operator on call reads of a faulty job.

    Args:
        words: patterns that the page of the job shows at once.
        operator: of an alert; "": no operator is to blame, None: any may be.
        reason: pattern of the sentence of the same alert.
    """

    words: Sequence[str]
    operator: str | None
    reason: str


SIGNS = {
    "slow": Signs(["Backpressure from slow, which is", "ticks waits for it"], "slow", "Backpressure from slow"),
    "starved": Signs([STARVED], "greedy", STARVED),
    "skewed": Signs(
        ["Skew: subtask", "of hot gets 100 % of the records of 2 subtasks."], "hot", "Skew: subtask"
    ),
    "held": Signs(
        ["Event time stands still: subtask", "of payments has sent no records", "while orders goes on"],
        "payments",
        "Event time stands still",
    ),
    "refused": Signs(
        ["Waiting for storage or a service: out.", "Connection refused", "times in a row"],
        "out",
        "Waiting for storage or a service: out.",
    ),
    "looping": Signs(
        ["Restart loop: failed", "in broken:", "the rate of EUR is missing", "No checkpoint has completed"],
        "broken",
        "the rate of EUR is missing",
    ),
    "full": Signs(
        ["Storage is full: out.", "No space left on device", "Free space"], "out", "Storage is full: out."
    ),
    "dying": Signs(["The job master has not reported for"], "", "The job master has not reported"),
    "stored": Signs(["Storage is slow: checkpoint", "after the last acknowledgement"], None, "Storage is slow"),
    "queued": Signs(["The run has waited", "no Celery worker of the queue runs has claimed it"], "", "has waited"),
}  # fmt: skip
MORE_SIGNS = {
    "stopped": Signs(
        ["ticks has sent no records for", "the limit of the job is 15 s"], "ticks", "ticks has sent no records"
    ),
    "locked": Signs(
        ["The file system is read-only: out.", "mount it writable"], "out", "The file system is read-only: out."
    ),
    "removed": Signs(["Restart loop: failed", "each time in out:", "neither pending nor"], "out", "neither pending"),
    "blocking": Signs(["No checkpoint has completed for", "failed since then", "expired"], "block", "expired"),
    "poisoned": Signs(
        ["Rows that parse has set aside in this attempt", "Errors: ValueError"], "parse", "parse has set aside"
    ),
    "both": Signs(["Skew: subtask", "of hot gets 100 %", "Storage is slow: checkpoint"], None, "Skew|Storage is slow"),
}  # fmt: skip
SIGNS_ON_SPARK = {
    "leaking": Signs(["Slot . on host .* its bound of 512 MB"], "", "its bound of 512 MB"),
    "short": Signs(["Waiting for slots: 4 of 5 are available"], "", "Waiting for slots: 4 of 5"),
    "undeployable": Signs(
        ["Restart loop: failed", "in score:", "No such file or directory", "/nowhere/model.bin"],
        "score",
        "/nowhere/model.bin",
    ),
    "brokerless": Signs(
        ["Waiting for storage or a service: out", "Kafka at 127.0.0.1"], "out", "Waiting for storage or a service: out"
    ),
}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system without room, and a folder in it."""
    with small_disk(tmp_path / "disk") as disk:
        (disk / "out").mkdir()
        with full(disk):
            yield disk


class FaultyJobs:
    """Runs of sick jobs, in threads of this process and in a process of its own."""

    def __init__(self, folder: Path, author: str = "author") -> None:
        self._folder, self._user = folder, User.objects.create_user(author)
        self.runs: dict[str, Run] = {}
        self._started: list[tuple[JobMaster, threading.Thread, PostgresRunStore]] = []

    def create(self, name: str, flow: weir.Dataflow | None, state: str = "starting") -> Run:
        job = Job.objects.create(name=name, pipeline="flights", created_by=self._user)
        graph = compiled_graph(flow, sick_jobs.PARALLELISM) if flow else None
        version = JobVersion.objects.create(
            job=job, number=1, parallelism=2, state="ready", graph=graph,
            settings={"checkpoint_interval_ms": sick_jobs.INTERVAL_MS},
        )  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('weir_token_seq')")
            (token,) = cursor.fetchone()
        run = Run.objects.create(
            job=job, version=version, parallelism=2, state=state, token=token, started_at=timezone.now()
        )
        self.runs[name] = run
        return run

    def start(self, name: str, flow: weir.Dataflow, store: type[FileStore] = FileStore, **arguments: Any) -> None:
        """Starts a job master; `arguments`: further ones of `sick_jobs.master_of`."""
        run = self.create(name, flow)
        records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
        master = sick_jobs.master_of(flow, records, run.job_id, run.token, self._folder / name, store, **arguments)
        thread = threading.Thread(target=master.run, daemon=True)
        thread.start()
        self._started.append((master, thread, records))

    def has_completed(self, name: str) -> bool:
        return Checkpoint.objects.filter(run=self.runs[name], status="completed").exists()

    def release(self) -> None:
        started, self._started = self._started, []
        for master, _, _ in started:
            master.release()
        for _, thread, records in started:
            thread.join(60)
            records.close()
            assert not thread.is_alive()


def test_pages_and_alerts_of_nine_faulty_jobs_name_their_faults(
    tmp_path: Path, full_disk: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow operator, one in the slot of its source, skew, an idle input, a failing sink, a restart loop, …"""
    with night_shift(monkeypatch) as receiver:
        run_faulty_jobs(tmp_path, full_disk, client)
        alerts = alerts_by_job(receiver)
    check_alerts(alerts, SIGNS)
    assert {name: messages[0]["event"] for name, messages in alerts.items()} == dict.fromkeys(alerts, "opened")
    opened = [message["id"] for messages in alerts.values() for message in messages if message["event"] == "opened"]
    assert len(opened) == len(set(opened)) == len(alerts), "an incident per job"
    assert {message["id"] for messages in alerts.values() for message in messages} == {
        str(row.pk) for row in Delivery.objects.all()
    }


def test_six_more_faulty_jobs_are_named_and_one_that_recovers_is_resolved(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input that stops, a disk that is locked, a target that is removed, a step that blocks, poison, two at once."""
    client.force_login(User.objects.create_superuser("operator", password="a long enough one"))
    jobs, out = FaultyJobs(tmp_path), tmp_path / "target"
    with night_shift(monkeypatch) as receiver, small_disk(tmp_path / "disk") as disk:
        try:
            jobs.start("well", chain("well", tmp_path / "well"))
            jobs.start("stopped", stopped(tmp_path / "stopped"))
            Job.objects.filter(name="stopped").update(max_silence_s=15)
            jobs.start("locked", chain("locked", tmp_path, files(disk / "out")))
            jobs.start("removed", chain("removed", tmp_path, files(out)))
            jobs.start("blocking", chain("blocking", tmp_path / "blocking", block=sick_jobs.block))
            jobs.start("poisoned", poisoned(tmp_path / "poisoned"))
            jobs.start("both", skewed(tmp_path / "both"), SlowStore)
            until(lambda: all(_has_committed(folder) for folder in (disk / "out", out)), PATIENCE_S)
            with read_only(disk):
                delete_folder(out)
                _check_pages(client, jobs, MORE_SIGNS)
            assert _health(client, jobs.runs["well"]) == ("ok", ())
            until(lambda: _health(client, jobs.runs["locked"])[0] == "ok", PATIENCE_S)
            monkeypatch.setattr(following, "WELL_FOR", timedelta(seconds=5))
            until(lambda: _is_resolved(receiver, "locked"), PATIENCE_S)
            alerts = alerts_by_job(receiver)
        finally:
            jobs.release()
    check_alerts(alerts, MORE_SIGNS)


@pytest.mark.spark
def test_four_more_faulty_jobs_are_named_two_of_them_on_spark(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that grows, too few slots, a deployment without a file, a broker that is away."""
    client.force_login(User.objects.create_superuser("operator", password="a long enough one"))
    on_spark, jobs = FaultyJobs(tmp_path), FaultyJobs(tmp_path, "another author")
    with night_shift(monkeypatch) as receiver, spark_cluster("sick") as launcher:
        try:
            with serial_broker() as proxy:
                sink = weir.KafkaSink(
                    proxy.broker.servers, proxy.broker.topic(), weir.KafkaJson(), options={"socket.timeout.ms": "2000"}
                )
                jobs.start("brokerless", chain("brokerless", tmp_path / "brokerless", sink))
                jobs.start("undeployable", undeployable(tmp_path / "undeployable"))
                flow = chain("leaking", tmp_path / "leaking", leak=sick_jobs.leak)
                on_spark.start("leaking", flow, launcher=launcher, slot_memory_bytes=512 << 20)
                until(lambda: jobs.has_completed("brokerless"), PATIENCE_S)
            for each in (jobs, on_spark):
                _check_pages(client, each, {name: SIGNS_ON_SPARK[name] for name in each.runs})
            on_spark.release()
            on_spark.start("short", chain("short", tmp_path / "short"), launcher=launcher, parallelism=5)
            _check_pages(client, on_spark, {"short": SIGNS_ON_SPARK["short"]})
            alerts = alerts_by_job(receiver)
        finally:
            jobs.release()
            on_spark.release()
    check_alerts(alerts, SIGNS_ON_SPARK)


@contextmanager
def night_shift(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """A channel that gets all alerts, and its receiver."""
    monkeypatch.setenv("WEIR_SECRET_HOOK", SECRET)
    with webhook() as receiver:
        Channel.objects.create(name="night shift", address=receiver.url, signing_secret="${secret:HOOK}")
        yield receiver


def alerts_by_job(receiver: Webhook) -> dict[str, list[dict[str, Any]]]:
    """Delivers what is due. Returns the messages by the name of their job."""
    until(lambda: not deliver_due() and not Delivery.objects.filter(delivered_at=None).exists(), PATIENCE_S)
    alerts: dict[str, list[dict[str, Any]]] = {}
    for message in receiver.messages:
        alerts.setdefault(message["job"]["name"], []).append(message)
    return alerts


def _is_resolved(receiver: Webhook, job: str) -> bool:
    watch_jobs()
    return bool(alerts_by_job(receiver)[job][-1]["event"] == "resolved")


def check_alerts(alerts: Mapping[str, Sequence[Mapping[str, Any]]], signs: Mapping[str, Signs]) -> None:
    assert alerts.keys() == signs.keys(), "each faulty job, and none of the job that is well"
    missing = {
        name: [(message["cause"]["operator"], message["cause"]["sentence"]) for message in alerts[name]]
        for name, sign in signs.items()
        if not any(_names(message, sign) for message in alerts[name])
    }
    assert not missing, "\n".join(map(str, missing.items()))


def _names(message: Mapping[str, Any], sign: Signs) -> bool:
    """Whether an alert names the operator, the reason and an act, and leads to its incident."""
    cause, text = message["cause"], message["text"]
    is_linked = f"/incidents/{message['incident']['id']}/" in text
    has_operator = sign.operator in (None, cause["operator"])
    has_operator &= (f"Operator: {cause['operator_name']}" in text) == bool(cause["operator"])
    return has_operator and bool(re.search(sign.reason, cause["sentence"])) and bool(cause["remedy"]) and is_linked


def _has_committed(folder: Path) -> bool:
    return any(folder.glob("part-*"))


def run_faulty_jobs(tmp_path: Path, full_disk: Path, client: Client) -> None:
    """Runs the jobs until the page of each has named its fault. Passes over the jobs open incidents meanwhile."""
    client.force_login(User.objects.create_superuser("operator", password="a long enough one"))
    jobs = FaultyJobs(tmp_path)
    alone = jobs.create("dying", chain("dying", tmp_path / "dying"))
    process = multiprocessing.get_context("spawn").Process(
        target=sick_jobs.run_alone, args=(alone.pk, alone.job_id, alone.token, url(), tmp_path / "dying")
    )
    process.start()
    try:
        jobs.start("well", chain("well", tmp_path / "well"))
        jobs.start("slow", slow(tmp_path / "slow"))
        jobs.start("starved", starved(tmp_path / "starved"))
        jobs.start("skewed", skewed(tmp_path / "skewed"))
        jobs.start("held", held(tmp_path / "held"))
        jobs.start("refused", chain("refused", tmp_path, RefusedSink(tmp_path / "refused-out")))
        jobs.start("looping", chain("looping", tmp_path / "looping", broken=sick_jobs.broken))
        jobs.start("full", chain("full", tmp_path, FullSink(full_disk / "out")))
        jobs.start("stored", chain("stored", tmp_path / "stored"), SlowStore)
        queued = jobs.create("queued", None, "queued")
        Run.objects.filter(pk=queued.pk).update(created_at=timezone.now() - timedelta(seconds=30))
        until(lambda: Run.objects.get(pk=alone.pk).state == "running", PATIENCE_S)
        process.kill()
        _check_pages(client, jobs, SIGNS)
        assert _health(client, jobs.runs["well"]) == ("ok", ())
        watch_jobs()
        listed = client.get("/jobs/")
        levels = [(line.job.name, line.health.health) for line in listed.context["lines"]]
        assert levels[-1] == ("well", "ok")
        assert {level for _, level in levels[:-1]} == {"failed", "attention"}
        assert [level for _, level in levels] == sorted(
            (level for _, level in levels), key=["failed", "attention", "ok"].index
        )
    finally:
        process.kill()
        process.join()
        jobs.release()


def _check_pages(client: Client, jobs: FaultyJobs, signs: Mapping[str, Signs]) -> None:
    """Reads the pages until each has shown all its words at once."""
    missing = {name: sign.words for name, sign in signs.items()}
    deadline = time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < deadline:
        watch_jobs()
        for name in list(missing):
            page = blocks.text(client.get(f"/jobs/{jobs.runs[name].job_id}/"))
            missing[name] = [words for words in signs[name].words if not re.search(words, page)]
            if not missing[name]:
                del missing[name]
        time.sleep(2)
    assert not missing, "\n".join(
        f"{name}: no {words} in {_health(client, jobs.runs[name])}; {Run.objects.get(pk=jobs.runs[name].pk).live}"
        for name, words in missing.items()
    )


def _health(client: Client, run: Run) -> tuple[str, tuple[str, ...]]:
    health = client.get(f"/jobs/{run.job_id}/").context["view"].health
    return health.verdict.health, tuple(finding.sentence for finding in health.verdict.findings)
