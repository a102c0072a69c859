"""Orphans: folders without a row and rows without files, on the page and over REST."""

import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.housekeeping import orphans
from console.housekeeping.lineage_folders import remove_unused_folders
from console.housekeeping.orphans import find_orphans
from console.jobs.models import Run
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from tests.console.stored import job_root, store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    """Checkpoints 1 and 2 are in storage, 3 is discarded, 4 is in progress, and the files of 5 are gone."""
    run = rows.run(rows.job())
    for number in (1, 2, 3, 5):
        rows.checkpoint(run, number, kind="savepoint" if number == 2 else "checkpoint")
    run.checkpoints.filter(number=3).update(discarded_at=run.created_at)
    rows.checkpoint(run, 4, status="in_progress")
    root = job_root(run.job_id)
    leave(run, f"chk-4-{run.token}")
    shutil.rmtree(root / run.checkpoints.get(number=5).path)
    return run


def leave(run: Run, name: str, nbytes: int = 0) -> None:
    folder = job_root(run.job_id) / name
    (folder / "window-0").mkdir(parents=True)
    (folder / "window-0" / "state.arrow").write_bytes(b"x" * nbytes)


def test_storage_in_order_has_no_orphan_folders(run: Run) -> None:
    report = find_orphans(run.job)
    assert (report.folders, [row.number for row in report.missing]) == ((), [5])


def test_folders_without_a_row_are_listed_with_their_size(run: Run, browser: Client, api: APIClient) -> None:
    leave(run, f"chk-9-{run.token}", 700)
    leave(run, f"chk-1-{run.token + 1}", 30)  # a row has this number, and another token
    leave(run, "savepoint-2-0-abc", 5)  # a copy of a savepoint with a row
    for name in ("streams", "pins", "chk-x-1"):
        leave(run, name, 9)
    path = f"/jobs/{run.job_id}/checkpoints/orphans/"
    body = api.get(f"/api/v1{path}").json()
    assert {folder["name"]: folder["nbytes"] for folder in body["folders"]} == {
        f"chk-9-{run.token}": 700, f"chk-1-{run.token + 1}": 30, "savepoint-2-0-abc": 5,
    }  # fmt: skip
    assert (body["folder_total"], body["missing_total"], body["missing"][0]["number"]) == (3, 1, 5)
    said = blocks.text(browser.get(path))
    assert re.search(rf"chk-9-{run.token} 700 B (now|\d+ s ago)", said)
    assert "Folders without a checkpoint 3 in all" in said
    assert (job_root(run.job_id) / f"chk-9-{run.token}").exists(), "the page deletes nothing"


def test_the_folder_of_a_failed_checkpoint_is_listed_once_its_run_has_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is gone deletes nothing, and without a further run no other master does."""
    run.checkpoints.filter(number=4).update(status="failed")
    assert find_orphans(run.job).folders == (), "the run may delete it, or need its files"
    Run.objects.update(state="canceled")
    assert [folder.name for folder in find_orphans(run.job).folders] == [f"chk-4-{run.token}"]
    later = rows.checkpoint(run, 6, is_stored=False)
    segment = Segment(
        path=f"chk-4-{run.token}/a.arrow", rows=1, nbytes=9, checksum="blake2b:00", first_group=0, last_group=127
    )
    subtask = SubtaskSnapshot(keyed={"state": (segment,)})
    window = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: subtask})
    store(later, operators={"window": window})
    assert find_orphans(run.job).folders == (), "checkpoint 6 needs a file of it"
    leave(run, f"chk-7-{run.token}")
    (job_root(run.job_id) / later.path / MANIFEST_FILE).write_text("damaged")
    names = [folder.name for folder in find_orphans(run.job).folders]
    assert names == [f"chk-7-{run.token}"], "checkpoint 6 may need files of older checkpoints"
    monkeypatch.setattr(orphans, "WALK_S", 0.0)
    late = find_orphans(run.job)
    assert (late.fault, late.folders) == ("The storage cannot be read: its manifests were not read in time", ())


def test_the_folder_of_a_failed_checkpoint_of_a_run_under_way_is_listed_and_then_removed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed for as long as the run lasted, and the list of orphans was empty."""
    run.checkpoints.filter(number=4).update(status="failed")
    run.checkpoints.filter(number=5).update(discarded_at=run.created_at)
    name = f"chk-4-{run.token}"
    assert find_orphans(run.job).folders == (), "the run has no later checkpoint yet: its state may need the files"
    assert removed(run) == []
    later = rows.checkpoint(run, 6)
    assert [folder.name for folder in find_orphans(run.job).folders] == [name]
    assert removed(run) == [], "a slot may still write to it"
    monkeypatch.setattr(orphans, "FAILED_GRACE", timedelta(0))
    leave(run, f"chk-9-{run.token}")
    (job_root(run.job_id) / later.path / MANIFEST_FILE).rename(job_root(run.job_id) / "aside")
    assert removed(run) == [], "checkpoint 6 may need it"
    (job_root(run.job_id) / "aside").rename(job_root(run.job_id) / later.path / MANIFEST_FILE)
    assert removed(run) == [name]
    assert [folder.name for folder in find_orphans(run.job).folders] == [f"chk-9-{run.token}"], "no row is its own"


def test_files_of_a_failed_checkpoint_that_a_later_checkpoint_needs_stay(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "FAILED_GRACE", timedelta(0))
    run.checkpoints.filter(number=4).update(status="failed")
    run.checkpoints.filter(number=5).update(discarded_at=run.created_at)
    later = rows.checkpoint(run, 6, is_stored=False)
    segment = Segment(
        path=f"chk-4-{run.token}/a.arrow", rows=1, nbytes=9, checksum="blake2b:00", first_group=0, last_group=127
    )
    subtask = SubtaskSnapshot(keyed={"state": (segment,)})
    window = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: subtask})
    store(later, operators={"window": window})
    assert removed(run) == []
    Run.objects.update(state="canceled")
    assert removed(run) == []


def removed(run: Run) -> list[str]:
    """The folders that a pass removes."""
    before = {path.name for path in job_root(run.job_id).iterdir()}
    remove_unused_folders()
    return sorted(before - {path.name for path in job_root(run.job_id).iterdir()})


def test_a_checkpoint_that_is_discarded_meanwhile_is_not_missing(run: Run) -> None:
    """Retention discards it after its row was read, and deletes its files before they are looked for."""
    checkpoint = run.checkpoints.get(number=1)

    def discard(execute: Any, sql: str, *args: Any) -> Any:
        answer = execute(sql, *args)
        if "discarded_at" in sql and (job_root(run.job_id) / checkpoint.path).exists():
            shutil.rmtree(job_root(run.job_id) / checkpoint.path)
            run.checkpoints.filter(number=1).update(discarded_at=run.created_at)
        return answer

    with connection.execute_wrapper(discard):
        assert [row.number for row in find_orphans(run.job).missing] == [5]
    assert run.checkpoints.get(number=1).discarded_at is not None


def test_changes_that_take_too_long_to_read_are_unknown(
    run: Run, browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(run, f"chk-9-{run.token}", 700)
    (job_root(run.job_id) / f"chk-8-{run.token}").symlink_to(job_root(run.job_id))
    monkeypatch.setattr(orphans, "WALK_S", 0.0)
    (folder,) = find_orphans(run.job).folders
    assert (folder.name, folder.nbytes, folder.changed_at) == (f"chk-9-{run.token}", 700, None)
    page = blocks.text(browser.get(f"/jobs/{run.job_id}/checkpoints/orphans/"))
    assert f"chk-9-{run.token} 700 B unknown" in page


def test_a_job_without_storage_has_no_orphans(browser: Client, run: Run) -> None:
    other = rows.job("new")
    said = blocks.text(browser.get(f"/jobs/{other.pk}/checkpoints/orphans/"))
    assert "Each folder has its checkpoint." in said
    assert "Each checkpoint that can be restored has its manifest." in said


def test_storage_that_cannot_be_read_is_named(browser: Client, run: Run) -> None:
    root = job_root(run.job_id)
    shutil.rmtree(root)
    root.write_text("a file in place of the folder")
    said = blocks.text(browser.get(f"/jobs/{run.job_id}/checkpoints/orphans/"))
    assert "The storage cannot be read:" in said


def test_storage_that_is_not_mounted_has_no_orphans(run: Run, settings: Settings, tmp_path: Path) -> None:
    """All checkpoints were listed as checkpoints without files."""
    settings.WEIR_STORAGE = tmp_path
    report = find_orphans(run.job)
    assert (report.missing_total, report.folders) == (0, ())
    assert report.fault.startswith("The storage cannot be read: [Errno 2] No such file or directory")


def test_the_lists_are_bounded(run: Run, browser: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(300):
        leave(run, f"chk-{1000 + number}-1")
    with django_assert_max_num_queries(8):
        page = browser.get(f"/jobs/{run.job_id}/checkpoints/orphans/", headers={"Accept-Encoding": "gzip"})
    assert len(page.content) < 30_000
    assert (len(page.context["found"].folders), page.context["found"].folder_total) == (200, 300)
