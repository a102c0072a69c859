"""Zombies with real objects: a coordinator and a committer that wake up after they were replaced change nothing."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from console.jobs.models import Run
from console.operations.models import Operation
from runtime.clock import SystemClock
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.core.job.settings import CoordinatorSettings, RetentionPolicy
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.errors import EnvironmentFailure
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.run_store import LaunchTimes
from tests.contracts.test_records import completed, make_run, report, url
from tests.contracts.test_sinks import batch, clean, names, visible, writer
from tests.jobs.numbers import Numbers, committed, counts
from tests.waiting import until

TABLES = ("weir_run", "weir_attempt", "weir_checkpoint", "weir_operation", "weir_job")


@dataclass
class SlowStore:
    """The real store, with a manifest that takes as long as it is told to."""

    real: FileStore
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def put(self, path: str, data: Iterable[bytes]) -> None:
        if path.endswith("manifest.json"):
            self.reached.set()
            assert self.go_on.wait(60)
        self.real.put(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def rows() -> dict[str, list[Any]]:
    contents = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} ORDER BY id")
            contents[table] = cursor.fetchall()
    return contents


@pytest.mark.django_db(transaction=True)
def test_a_coordinator_that_wakes_up_after_it_was_replaced_changes_nothing(tmp_path: Path) -> None:
    """S1-11, S1-12, S4-51: it was about to record a checkpoint, and has every reason to believe in it."""
    run = make_run()
    job = counts(Numbers(total=200, unbounded=True), tmp_path / "out").compile(2)
    store = SlowStore(FileStore(str(tmp_path / "state")))
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    config = MasterConfig(
        job_id=str(run.job_id),
        token=Token(run.token),
        job=job,
        storage=str(tmp_path / "state"),
        coordinator=CoordinatorSettings(interval_ms=100, min_pause_ms=10),
    )
    master = JobMaster(config, records, store, LocalLauncher(), SystemClock())
    exits: list[MasterExitCode] = []
    thread = threading.Thread(target=lambda: exits.append(master.run()))
    thread.start()
    until(store.reached.is_set)
    successor = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    assert successor.next_attempt("the master was silent", {}) is not None
    operation = Operation.objects.create(job=run.job, run=run, kind="savepoint", requested_by=run.job.created_by)
    before = rows()
    store.go_on.set()
    master.poke()
    thread.join(60)
    assert exits == [MasterExitCode.SUPERSEDED]
    assert rows() == before
    assert committed(tmp_path / "out") == [], "it has shown output"
    assert successor.restore_point() is None
    requests = successor.take_operations(only_cancel=False)
    assert [request.id for request in requests or ()] == [str(operation.pk)]
    for connected in (records, successor):
        connected.close()


@pytest.mark.django_db(transaction=True)
def test_no_write_of_an_older_attempt_counts() -> None:
    """S1-12, S4-51: each of them, also those that answer nothing."""
    run = make_run()
    zombie = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    successor = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    stop = Operation.objects.create(job=run.job, run=run, kind="stop", requested_by=run.job.created_by)
    zombie.take_operations(only_cancel=False)
    zombie.record_checkpoint(completed(1, token=run.token))
    zombie.report_checkpoint(report())
    assert successor.next_attempt("the master was silent", {}) is not None
    before = rows()
    assert zombie.next_checkpoint_id() is None
    assert not zombie.record_checkpoint(completed(3, token=run.token))
    assert zombie.change_state(RunEvent.GAVE_UP, {"message": "late"}) is None
    assert zombie.take_operations(only_cancel=False) is None
    zombie.report_checkpoint(report(FailureReason.SUSPENDED))
    zombie.write_live({"restarts": 1})
    zombie.end_attempt("failed", "late")
    zombie.record_restore("checkpoint-1")
    zombie.record_launch(LaunchTimes(listed=1, opened=2, connected=3, deployed=4))
    zombie.requeue_operations()
    zombie.complete_operation(str(stop.pk), {"checkpoint": 1}, None)
    assert zombie.discard_older(RetentionPolicy(0)) == []
    assert zombie.next_attempt("late", {}) is None
    assert rows() == before
    assert Run.objects.get(pk=run.pk).live is None
    for connected in (zombie, successor):
        connected.close()


def test_a_committer_that_wakes_up_after_it_was_replaced_changes_nothing(tmp_path: Path) -> None:
    """S1-11, S1-39: with the permit of its own attempt, whether the next one restored its checkpoint or disowned it."""
    zombie = writer(tmp_path, token=1)
    zombie.write(batch(1))
    recorded = zombie.prepare(1)
    zombie.write(batch(2))
    disowned = zombie.prepare(2)
    restored = ParquetSink(str(tmp_path)).committer()
    restored.commit(CommitPermit("7", Token(2), CheckpointId(1), Token(2)), recorded)
    assert clean(tmp_path, 2) == 1
    successor = writer(tmp_path, token=2)
    successor.write(batch(3))
    pending = successor.prepare(3)
    before = names(tmp_path)
    late = ParquetSink(str(tmp_path)).committer()
    assert late.commit(CommitPermit("7", Token(1), CheckpointId(1), Token(1)), recorded) == 0
    with pytest.raises(EnvironmentFailure, match="neither pending nor committed"):
        late.commit(CommitPermit("7", Token(1), CheckpointId(2), Token(1)), disowned)
    assert late.clean("7", "out", Token(1), []) == 0
    assert names(tmp_path) == before
    assert visible(tmp_path) == [1]
    assert restored.commit(CommitPermit("7", Token(2), CheckpointId(3), Token(2)), pending) == 1
    assert visible(tmp_path) == [1, 3]
