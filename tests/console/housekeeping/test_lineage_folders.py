"""Folders of PySpark stages go with the last checkpoint and run that may need them, and not before."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django.fixtures import Settings

from console.checkpoints.models import Checkpoint
from console.housekeeping import lineage_folders
from console.jobs.models import Job, JobVersion, Run, StandingStage
from console.runs import run_store
from runtime.connectors.names import encode_name
from runtime.connectors.sources.epochs import EpochSource
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from tests.console.housekeeping.test_advance import WAIT_S, in_thread, take_next_number
from tests.console.ui import rows
from tests.contracts.files import Reading
from tests.contracts.test_epochs import COLUMNS, ids, write

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def folders(settings: Settings, tmp_path: Path) -> None:
    settings.WEIR_STORAGE, settings.WEIR_INPUTS = str(tmp_path / "storage"), str(tmp_path / "inputs")


@pytest.fixture
def job() -> Job:
    return rows.job()


def graph(*uids: str) -> dict[str, Any]:
    return {**rows.GRAPH, "operators": [{**rows.GRAPH["operators"][0], "uid": uid} for uid in uids]}


def new_run(job: Job, *uids: str, restore: Checkpoint | None = None) -> Run:
    """With a folder of epochs and one of a table for each operator."""
    number = job.versions.count() + 1
    version = JobVersion.objects.create(
        job=job, number=number, parallelism=2, state="ready", graph=graph(*uids), params={}, settings={}
    )
    run = run_store.create(None, job, version, 2, restore_checkpoint=restore)
    for uid in uids:
        for folder in (run_store.streams_folder(run) / encode_name(uid), run_store.inputs_folder(run) / uid):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "file").touch()
    return run


def end(run: Run, *, seconds_ago: int = 600) -> None:
    Run.objects.filter(pk=run.pk).update(state="canceled", ended_at=Now() - timedelta(seconds=seconds_ago))


def left(run: Run) -> list[str]:
    """The operators of its lineage with a folder, in both places alike."""
    streams, inputs = run_store.streams_folder(run), run_store.inputs_folder(run)
    uids = sorted(path.name for path in inputs.glob("*"))
    assert sorted(path.name for path in streams.glob("*")) == [encode_name(uid) for uid in uids]
    assert not list(streams.parent.glob(".*")), "nothing is left aside"
    assert streams.exists() == bool(uids)
    return uids


def test_a_canceled_run_without_a_checkpoint_leaves_nothing(job: Job) -> None:
    run = new_run(job, "orders", "rates")
    assert lineage_folders.remove_unused_folders() == 0
    end(run)
    assert lineage_folders.remove_unused_folders() == 2
    assert left(run) == []
    assert lineage_folders.remove_unused_folders() == 0


def test_a_run_that_has_just_ended_keeps_them_for_a_while(job: Job) -> None:
    """Its processes may not know of its end yet."""
    run = new_run(job, "orders")
    end(run, seconds_ago=1)
    assert lineage_folders.remove_unused_folders() == 0
    end(run)
    stage = StandingStage.objects.create(run=run, operator="orders", verb="stream", state="running", lease_owner="w")
    assert lineage_folders.remove_unused_folders() == 0
    StandingStage.objects.filter(pk=stage.pk).update(lease_owner="", state="ended")
    assert lineage_folders.remove_unused_folders() == 2


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint", "stop"])
def test_what_may_be_restored_keeps_them(job: Job, kind: str) -> None:
    run = new_run(job, "orders")
    checkpoint = rows.checkpoint(run, 3, kind=kind)
    end(run)
    other = new_run(job, "orders")
    assert lineage_folders.remove_unused_folders() == 0
    Checkpoint.objects.filter(pk=checkpoint.pk).update(discarded_at=Now())
    assert lineage_folders.remove_unused_folders() == 2
    assert (left(run), left(other)) == ([], ["orders"])


def test_a_checkpoint_that_failed_keeps_nothing(job: Job) -> None:
    run = new_run(job, "orders")
    rows.checkpoint(run, 3, status="failed")
    end(run)
    assert lineage_folders.remove_unused_folders() == 2


def test_a_lineage_stays_while_any_of_its_runs_goes_on(job: Job) -> None:
    first = new_run(job, "orders")
    savepoint = rows.checkpoint(first, 3, kind="stop")
    end(first)
    second = new_run(job, "orders", restore=savepoint)
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at=Now())
    assert lineage_folders.remove_unused_folders() == 0
    assert left(second) == ["orders"]


def test_the_folder_of_a_renamed_operator_goes_with_the_last_checkpoint_that_knows_it(job: Job) -> None:
    first = new_run(job, "orders-1", "rates")
    savepoint = rows.checkpoint(first, 3, kind="stop")
    end(first)
    second = new_run(job, "orders-1", "exchange", restore=savepoint)
    assert lineage_folders.remove_unused_folders() == 0
    assert left(second) == ["exchange", "orders-1", "rates"]
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at=Now())
    assert lineage_folders.remove_unused_folders() == 2
    assert left(second) == ["exchange", "orders-1"]


def test_what_no_run_on_record_can_have_made_stays(job: Job) -> None:
    """Another installation may share the storage, or the database be an older copy."""
    run = new_run(job, "orders")
    strange = run_store.streams_folder(run).with_name("999999")
    for folder in (strange / "orders", run_store.streams_folder(run) / "notes"):
        folder.mkdir(parents=True)
    assert lineage_folders.remove_unused_folders() == 0
    assert (strange / "orders").exists()
    assert (run_store.streams_folder(run) / "notes").exists()


def test_a_removal_that_was_cut_short_is_completed(job: Job) -> None:
    run = new_run(job, "orders")
    streams = run_store.streams_folder(run)
    for half in (streams / ".removed-rates", streams.with_name(".removed-7")):
        half.mkdir()
        (half / "file").touch()
    assert lineage_folders.remove_unused_folders() == 0
    assert left(run) == ["orders"]
    assert not list(streams.glob(".removed-*"))


def test_the_job_is_not_locked_while_a_folder_is_deleted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that was cut short left the folder with whose name the next one begins."""
    run = new_run(job, "orders")
    end(run)
    streams, delete = run_store.streams_folder(run), shutil.rmtree
    deleted: list[Path] = []
    streams.with_name(f".removed-{streams.name}").mkdir()

    def delete_meanwhile(folder: Path) -> None:
        with ThreadPoolExecutor(1) as master:
            master.submit(in_thread, partial(take_next_number, job)).result(WAIT_S)
        deleted.append(folder)
        delete(folder)

    monkeypatch.setattr("shutil.rmtree", delete_meanwhile)
    assert lineage_folders.remove_unused_folders() == 2
    assert len(deleted) == 3
    assert left(run) == []


def test_storage_that_is_away_stops_no_other_job(job: Job) -> None:
    first, second = new_run(job, "orders"), new_run(rows.job("clicks"), "orders")
    end(first)
    end(second)
    streams = run_store.streams_folder(first).parent
    aside = streams.rename(streams.with_name("aside"))
    streams.touch()  # a file cannot be listed
    assert lineage_folders.remove_unused_folders() == 2
    streams.unlink()
    aside.rename(streams)
    assert (left(first), left(second)) == (["orders"], [])


def test_a_savepoint_of_a_canceled_run_still_restores(job: Job) -> None:
    """Its reader finds every epoch that it had not read, after a later lineage has come and gone."""
    run = new_run(job, "orders")
    stage = run_store.streams_folder(run) / "orders"
    for number in range(3):
        write(stage, number, range(number * 10, number * 10 + 10))
    source = EpochSource(make=print, folder=str(stage), lineage=str(run.pk), columns=COLUMNS, is_bound=True)
    store = MemorySnapshotStore()
    reading = Reading(source, store=store)
    assert reading.poll(10) is not None
    snapshot = reading.snapshot("savepoint-3")
    rows.checkpoint(run, 3, kind="savepoint")
    end(run)
    end(new_run(job, "orders"))
    assert lineage_folders.remove_unused_folders() == 2
    assert ids(Reading(source, store=store, snapshots=[snapshot])) == [*range(10, 30)]
