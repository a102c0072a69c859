"""Eight sicknesses in real jobs, all at once: the page of each job names its own, and no job looks well."""

import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

import weir
from console.accounts.models import User
from console.health.housekeeping import store_verdicts
from console.jobs.models import Job, JobVersion, Run
from runtime.core.job.ids import Token
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.master.job_master import JobMaster
from tests.console.health import sick_jobs
from tests.console.health.sick_jobs import FullSink, RefusedSink, SlowStore, chain, held, skewed, slow
from tests.console.ui import blocks
from tests.contracts.test_records import url
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 120.0

#: Words that the page of each job must show.
EXPECTED = {
    "slow": ["Backpressure from slow, which is", "ticks waits for it"],
    "skewed": ["Skew: subtask", "of hot gets 100 % of the records of 2 subtasks."],
    "held": ["Event time stands still: subtask", "of payments has sent no records", "while orders goes on"],
    "refused": ["Waiting for storage or a service: out.", "Connection refused", "times in a row"],
    "looping": ["Restart loop: failed", "in broken:", "the rate of EUR is missing", "No checkpoint has completed"],
    "full": ["Storage is full: out.", "No space left on device", "Free space"],
    "dying": ["The job master has not reported for"],
    "stored": ["Storage is slow: checkpoint", "after the last acknowledgement"],
    "queued": ["The run has waited", "no Celery worker of the queue runs has claimed it"],
}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB without room."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    (folder / "out").mkdir()
    (folder / "ballast").write_bytes(bytes(1 << 20 >> 1))
    with (folder / "rest").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Ward:
    """Runs of sick jobs, in threads of this process and in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._user = folder, User.objects.create_user("somebody")
        self.runs: dict[str, Run] = {}
        self._started: list[tuple[JobMaster, threading.Thread, PostgresRunStore]] = []

    def admit(self, name: str, flow: weir.Dataflow | None, state: str = "starting") -> Run:
        job = Job.objects.create(name=name, pipeline="flights", created_by=self._user)
        plan = flow.compile(sick_jobs.PARALLELISM) if flow else None
        version = JobVersion.objects.create(
            job=job, number=1, parallelism=2, state="ready", graph=plan.graph.to_json() if plan else None,
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

    def start(self, name: str, flow: weir.Dataflow, store: type[FileStore] = FileStore) -> None:
        run = self.admit(name, flow)
        records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
        master = sick_jobs.master_of(flow, records, run.job_id, run.token, self._folder / name, store)
        thread = threading.Thread(target=master.run, daemon=True)
        thread.start()
        self._started.append((master, thread, records))

    def release(self) -> None:
        for master, _, _ in self._started:
            master.release()
        for _, thread, records in self._started:
            thread.join(60)
            records.close()
            assert not thread.is_alive()


def test_eight_sick_jobs_name_their_sickness_on_the_page(tmp_path: Path, full_disk: Path, client: Client) -> None:
    """Issue 16: slow operator, skew, idle input, failing sink, restart loop, full disk, dead worker, slow storage."""
    client.force_login(User.objects.create_superuser("operator", password="a long enough one"))
    ward = Ward(tmp_path)
    alone = ward.admit("dying", chain("dying", tmp_path / "dying"))
    process = multiprocessing.get_context("spawn").Process(
        target=sick_jobs.run_alone, args=(alone.pk, alone.job_id, alone.token, url(), tmp_path / "dying")
    )
    process.start()
    try:
        ward.start("well", chain("well", tmp_path / "well"))
        ward.start("slow", slow(tmp_path / "slow"))
        ward.start("skewed", skewed(tmp_path / "skewed"))
        ward.start("held", held(tmp_path / "held"))
        ward.start("refused", chain("refused", tmp_path, RefusedSink(tmp_path / "refused-out")))
        ward.start("looping", chain("looping", tmp_path / "looping", broken=sick_jobs.broken))
        ward.start("full", chain("full", tmp_path, FullSink(full_disk / "out")))
        ward.start("stored", chain("stored", tmp_path / "stored"), SlowStore)
        queued = ward.admit("queued", None, "queued")
        Run.objects.filter(pk=queued.pk).update(created_at=timezone.now() - timedelta(seconds=30))
        until(lambda: Run.objects.get(pk=alone.pk).state == "running", PATIENCE_S)
        process.kill()
        seen = _read(client, ward)
        assert not any(seen.values()), f"words that a page did not show: {seen}"
        assert _health(client, ward.runs["well"]) == ("ok", ())
        store_verdicts()
        listed = client.get("/jobs/")
        levels = [(line.job.name, line.health.level) for line in listed.context["lines"]]
        assert levels[-1] == ("well", "ok")
        assert {level for _, level in levels[:-1]} == {"failed", "attention"}
        assert [level for _, level in levels] == sorted(
            (level for _, level in levels), key=["failed", "attention", "ok"].index
        )
    finally:
        process.kill()
        process.join()
        ward.release()


def _read(client: Client, ward: Ward) -> dict[str, list[str]]:
    """Reads the pages until each has shown all its words at once. The words that are missing on the newest pages."""
    missing = {name: list(words) for name, words in EXPECTED.items()}
    deadline = time.monotonic() + PATIENCE_S
    while any(missing.values()) and time.monotonic() < deadline:
        store_verdicts()
        for name, words in EXPECTED.items():
            if missing[name]:
                page = blocks.text(client.get(f"/jobs/{ward.runs[name].job_id}/"))
                missing[name] = [text for text in words if text not in page]
        time.sleep(1)
    return missing


def _health(client: Client, run: Run) -> tuple[str, tuple[str, ...]]:
    health = client.get(f"/jobs/{run.job_id}/").context["view"].health
    return health.level, tuple(finding.sentence for finding in health.verdict.findings)
