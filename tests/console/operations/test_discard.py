"""Discarding a savepoint: over the API and on its page, refused while something depends on it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import STORAGE_MARKER
from console.housekeeping.advance import advance_operations
from console.jobs.models import Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.errors import EnvironmentFailure
from tests.console.stored import job_root, store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run() -> Run:
    return rows.run(rows.job())


@pytest.fixture
def savepoint(run: Run) -> Checkpoint:
    return rows.checkpoint(run, 5, kind="savepoint")


def folder(checkpoint: Checkpoint) -> Any:
    return job_root(checkpoint.job_id) / checkpoint.path


def ask(api: APIClient, checkpoint: Checkpoint) -> Any:
    body = {"kind": "discard", "params": {"checkpoint": checkpoint.pk}, "reason": "no room"}
    return api.post(f"/api/v1/jobs/{checkpoint.job_id}/operations/", body, format="json")


def test_a_savepoint_is_discarded_over_the_api_and_the_act_is_kept(api: APIClient, savepoint: Checkpoint) -> None:
    other = rows.checkpoint(savepoint.run, 6, kind="savepoint")
    assert ask(api, savepoint).status_code == 202
    savepoint.refresh_from_db()
    assert not savepoint.is_restorable, "at once: nobody restores what is being deleted"
    advance_operations()
    assert not folder(savepoint).exists()
    assert folder(other).exists()
    (operation,) = Operation.objects.all()
    assert (operation.kind, operation.state, operation.result) == ("discard", "succeeded", {"checkpoint": 5})
    assert (operation.reason, operation.requested_by is not None) == ("no room", True)
    assert ask(api, savepoint).status_code == 409, "once"


def test_it_is_refused_while_a_checkpoint_needs_its_files(api: APIClient, savepoint: Checkpoint) -> None:
    """A run that was restored from it goes on from its files until they are merged."""
    newer = rows.checkpoint(savepoint.run, 7)
    path = f"{savepoint.path}/window-0/state.arrow"
    segment = Segment(path=path, rows=1, nbytes=1, checksum="blake2b:00", first_group=0, last_group=127)
    snapshot = SubtaskSnapshot(keyed={"state": (segment,)})
    operator = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: snapshot})
    store(newer, operators={"window": operator})
    answer = ask(api, savepoint)
    assert answer.status_code == 409
    assert "Checkpoint 7 needs the savepoint's files" in answer.json()["detail"]
    (folder(newer) / "manifest.json").write_bytes(b"damaged")
    assert "Checkpoint 7 cannot be read" in ask(api, savepoint).json()["detail"]
    advance_operations()
    assert folder(savepoint).exists()
    assert not Operation.objects.exists()


def test_it_is_refused_while_a_run_begins_from_it_or_ends_with_it(api: APIClient, savepoint: Checkpoint) -> None:
    run = savepoint.run
    Run.objects.filter(pk=run.pk).update(restore_checkpoint=savepoint, state=RunState.STARTING)
    assert "was restored from this savepoint" in ask(api, savepoint).json()["detail"]
    Run.objects.filter(pk=run.pk).update(restore_checkpoint=None, state=RunState.STOPPING)
    Checkpoint.objects.filter(pk=savepoint.pk).update(kind="stop")
    assert "is still ending with this savepoint" in ask(api, savepoint).json()["detail"]


def test_it_is_refused_while_its_review_is_under_way(api: APIClient, browser: Client, savepoint: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=savepoint.pk).update(review_state="in_review")
    assert ask(api, savepoint).json()["detail"] == "Savepoint 5 is in review. End its review first."
    assert "is in review" in browser.get(f"/checkpoints/{savepoint.pk}/discard/").content.decode()
    Checkpoint.objects.filter(pk=savepoint.pk).update(review_state="reviewed")
    assert ask(api, savepoint).status_code == 202


def test_it_is_refused_while_an_operation_reads_its_files(api: APIClient, savepoint: Checkpoint) -> None:
    """A copy that a savepoint asked for has no parameter with the checkpoint; its parent has the number."""
    job, reads = savepoint.job, {"checkpoint": savepoint.pk}
    parent = rows.operation(job, "savepoint", run=savepoint.run, result={"checkpoint": savepoint.number})
    for kind, facts in (("copy", {"params": reads}), ("copy", {"part_of": parent}), ("verify", {"params": reads})):
        row = rows.operation(job, kind, "queued", **facts)
        answer = ask(api, savepoint)
        assert (answer.status_code, answer.json()["code"]) == (409, "cannot-discard")
        assert f"Operation {row.pk} ({kind}) needs the savepoint's files" in answer.json()["detail"]
        row.delete()
    rows.operation(job, "copy", params=reads)
    assert ask(api, savepoint).status_code == 202


def test_it_is_refused_while_a_rescale_restores_it(api: APIClient, savepoint: Checkpoint) -> None:
    """Its run has ended, and the run that restores it does not exist yet."""
    Run.objects.filter(pk=savepoint.run_id).update(state=RunState.STOPPED)
    Checkpoint.objects.filter(pk=savepoint.pk).update(kind="stop")
    rescale = rows.operation(savepoint.job, "rescale", "running", run=savepoint.run)
    assert f"Operation {rescale.pk} (rescale)" in ask(api, savepoint).json()["detail"]


def test_a_checkpoint_is_retentions_and_one_of_another_job_is_unknown(api: APIClient, run: Run) -> None:
    assert "is not a savepoint" in ask(api, rows.checkpoint(run, 6)).json()["detail"]
    body = {"kind": "discard", "params": {"checkpoint": 999_999}}
    assert api.post(f"/api/v1/jobs/{run.job_id}/operations/", body, format="json").status_code == 422


def test_a_damaged_savepoint_can_be_discarded_from_its_page(browser: Client, savepoint: Checkpoint) -> None:
    """Nobody could: its folder, and the warning about it, stayed for ever."""
    (folder(savepoint) / "manifest.json").write_bytes(b"damaged")
    assert f"/checkpoints/{savepoint.pk}/discard/" in browser.get(f"/checkpoints/{savepoint.pk}/").content.decode()
    page = browser.get(f"/checkpoints/{savepoint.pk}/discard/").content.decode()
    assert f"Discard savepoint 5: {savepoint.job.name}?" in page
    assert browser.post(f"/checkpoints/{savepoint.pk}/discard/").status_code == 302
    advance_operations()
    assert not folder(savepoint).exists()
    assert f"/checkpoints/{savepoint.pk}/discard/" not in browser.get(f"/checkpoints/{savepoint.pk}/").content.decode()


@pytest.mark.parametrize("below", ["", "missing"])
def test_a_discard_waits_for_storage_that_is_not_mounted(
    api: APIClient, browser: Client, savepoint: Checkpoint, settings: Settings, tmp_path: Path, below: str
) -> None:
    """The mount point is empty or missing. The savepoint was recorded as deleted, and its files stayed."""
    ask(api, savepoint)
    mounted, settings.WEIR_STORAGE = settings.WEIR_STORAGE, tmp_path / below
    advance_operations()
    operation = Operation.objects.get()
    assert (operation.state, operation.ended_at) == ("queued", None)
    assert operation.phase.startswith("waiting for storage: [Errno 2] No such file or directory")
    assert "(waiting for storage: [Errno 2] No such file" in blocks.text(browser.get(f"/checkpoints/{savepoint.pk}/"))

    settings.WEIR_STORAGE = mounted
    advance_operations()
    assert not folder(savepoint).exists()
    assert Operation.objects.get().state == "succeeded"
    assert "waiting for storage" not in blocks.text(browser.get(f"/checkpoints/{savepoint.pk}/"))


def test_a_discard_ends_if_the_folder_of_its_job_was_removed_by_hand(
    api: APIClient, browser: Client, savepoint: Checkpoint, settings: Settings
) -> None:
    """It waited for ever. The snapshot of another job shows that the storage is mounted."""
    (Path(settings.WEIR_STORAGE) / STORAGE_MARKER).unlink(missing_ok=True)
    ask(api, savepoint)
    shutil.rmtree(job_root(savepoint.job_id))
    advance_operations()
    assert Operation.objects.get().phase.startswith("waiting for storage: [Errno 2]")
    other = rows.checkpoint(rows.run(rows.job("orders")), 9, is_stored=False)
    advance_operations()
    assert Operation.objects.get().state == "queued", "the snapshot of the other job is not there either"
    store(other)
    advance_operations()
    row = Operation.objects.get()
    assert (row.state, row.phase, row.result) == ("succeeded", "the files were already gone", {"checkpoint": 5})
    assert "The files were already gone." in blocks.text(browser.get(f"/operations/{row.pk}/"))


def test_a_discard_ends_if_the_folder_of_its_savepoint_was_removed_by_hand(
    api: APIClient, savepoint: Checkpoint
) -> None:
    ask(api, savepoint)
    shutil.rmtree(folder(savepoint))
    advance_operations()
    row = Operation.objects.get()
    assert (row.state, row.phase) == ("succeeded", "the files were already gone")


def test_a_discard_is_refused_while_the_storage_with_later_checkpoints_is_not_mounted(
    api: APIClient, browser: Client, savepoint: Checkpoint, settings: Settings, tmp_path: Path
) -> None:
    """A later checkpoint was named as unreadable, as if it were damaged."""
    rows.checkpoint(savepoint.run, 7)
    mounted, settings.WEIR_STORAGE = settings.WEIR_STORAGE, tmp_path
    answer = ask(api, savepoint)
    assert (answer.status_code, answer.json()["code"]) == (503, "storage-away")
    assert "Checkpoint storage cannot be read" in blocks.text(browser.get(f"/checkpoints/{savepoint.pk}/discard/"))
    assert not Operation.objects.exists()
    settings.WEIR_STORAGE = mounted
    assert ask(api, savepoint).status_code == 202


def test_storage_that_is_away_is_tried_again(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(api, savepoint)

    def away(*_: Any) -> None:
        raise EnvironmentFailure("Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("runtime.io.filesystem.FileStore.delete", away)
        advance_operations()
    assert "Input/output error" in Operation.objects.get().phase
    advance_operations()
    assert Operation.objects.get().state == "succeeded"
