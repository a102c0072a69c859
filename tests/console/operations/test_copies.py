"""Copies of savepoints in other folders, on request and as a part of the operation that takes the savepoint."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_operations
from console.jobs.models import Run
from console.operations import console_work
from console.operations.kinds.snapshot import copy
from console.operations.models import Operation
from runtime.core.snapshot.checksums import verified_chunks
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from tests.console.conftest import api_as
from tests.console.stored import job_root, store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db
POINTER = "/params/target"


@pytest.fixture
def savepoint(db: None) -> Checkpoint:
    return rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop")


@pytest.fixture
def api(operator: User) -> APIClient:
    return api_as(operator)


@pytest.fixture
def backup(tmp_path: Path, settings: Any) -> Path:
    settings.WEIR_SAVEPOINT_ROOTS = (*settings.WEIR_SAVEPOINT_ROOTS, str(tmp_path / "backup"))
    return tmp_path / "backup"


def ask(api: APIClient, job: int, kind: str, **params: Any) -> Any:
    return api.post(f"/api/v1/jobs/{job}/operations/", {"kind": kind, "params": params}, format="json")


def copied() -> Operation:
    advance_operations()
    return Operation.objects.filter(kind="copy").latest("created_at")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_copy_restores_by_its_path_when_the_original_is_gone(
    api: APIClient,
    backup: Path,
    savepoint: Checkpoint,
) -> None:
    assert (
        ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup / "nightly")).status_code == 202
    )
    row = copied()
    folder = job_root(savepoint.job_id) / savepoint.path
    path = backup / "nightly" / savepoint.path
    result = row.result or {}
    assert (row.state, result["checkpoint"], result["path"]) == ("succeeded", savepoint.number, str(path))
    assert contents(path) == contents(folder)
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no temporary folder is left"
    shutil.rmtree(folder)
    restored = ask(api, savepoint.job_id, "restore", path=str(path), allow_unmapped=True)
    assert restored.status_code == 202, restored.json()
    assert Run.objects.latest("pk").restore_path == str(path)


def test_a_repeated_copy_changes_nothing_and_replaces_no_other_folder(
    api: APIClient,
    backup: Path,
    savepoint: Checkpoint,
) -> None:
    files = set()
    for _ in range(2):
        ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
        assert copied().state == "succeeded"
        files.add((backup / savepoint.path / MANIFEST_FILE).stat().st_ino)
    assert len(files) == 1, "an equal manifest is not written again"
    (backup / savepoint.path / MANIFEST_FILE).unlink()
    (backup / savepoint.path / "notes").touch()
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert f"exists and is not this savepoint: it has {savepoint.path}/notes" in (copied().error or {})["message"]
    assert not (backup / savepoint.path / MANIFEST_FILE).exists()


def test_a_savepoint_that_another_installation_writes_meanwhile_stays(
    api: APIClient, backup: Path, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later manifest replaced it, and the failure of one copy deleted the files of the other."""
    manifest = backup / savepoint.path / MANIFEST_FILE

    def read_meanwhile(segment: Segment, chunks: Iterable[bytes]) -> Iterator[bytes]:
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text("of another installation")
        yield from verified_chunks(segment, chunks)

    monkeypatch.setattr(copy, "verified_chunks", read_meanwhile)
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert "Another installation has written a savepoint" in (copied().error or {})["message"]
    assert manifest.read_text() == "of another installation"


def test_a_damaged_savepoint_is_not_copied(
    api: APIClient,
    backup: Path,
    savepoint: Checkpoint,
) -> None:
    (job_root(savepoint.job_id) / savepoint.path / "join-0/state.arrow").write_bytes(b"short")
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    row = copied()
    assert (row.state, (row.error or {})["code"]) == ("failed", "corrupt-checkpoint")
    assert not backup.exists() or not list(backup.iterdir())


def test_targets_outside_the_roots_and_within_the_storage_are_refused(
    api: APIClient,
    backup: Path,
    savepoint: Checkpoint,
    tmp_path: Path,
) -> None:
    backup.mkdir()
    (backup / "link").symlink_to(tmp_path)
    within = str(job_root(savepoint.job_id))
    for target in (str(tmp_path / "elsewhere"), within, "relative", str(backup / ".." / "x"), str(backup / "link")):
        response = ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=target)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, POINTER), target
    checkpoint = rows.checkpoint(savepoint.run, 6)
    response = ask(api, savepoint.job_id, "copy", checkpoint=checkpoint.pk, target=str(backup))
    assert response.json()["code"] == "cannot-copy"
    assert not Operation.objects.exists()


def test_a_savepoint_with_a_target_is_copied_once_it_is_taken(browser: Client, backup: Path) -> None:
    run = rows.run(rows.job())
    browser.post(f"/jobs/{run.job_id}/savepoint/", {"target": str(backup)})
    parent, part = Operation.objects.get(kind="savepoint"), Operation.objects.get(kind="copy")
    assert (part.part_of, part.params, part.state) == (parent, {"target": str(backup)}, "queued")
    assert copied().state == "queued", "the savepoint has not been taken"
    rows.checkpoint(run, 7, kind="savepoint")
    Operation.objects.filter(pk=parent.pk).update(state="succeeded", result={"checkpoint": 7}, ended_at=part.created_at)
    said = blocks.text(browser.get(f"/operations/{parent.pk}/"))
    assert "Copy Queued" in said
    row = copied()
    assert row.ended_at is not None
    assert Checkpoint.objects.get(number=7).is_restorable, "whatever becomes of the copy"


def test_a_savepoint_is_copied_from_its_page(browser: Client, backup: Path, savepoint: Checkpoint) -> None:
    page = browser.get(f"/checkpoints/{savepoint.pk}/")
    assert f'<option value="{backup}">' in page.content.decode()
    assert f"weir copy flights-delays 5 {backup}" in blocks.text(page)
    refused = browser.post(f"/checkpoints/{savepoint.pk}/copy/", {"target": "/elsewhere"}, follow=True)
    assert "not in /elsewhere" in blocks.text(refused)
    response = browser.post(f"/checkpoints/{savepoint.pk}/copy/", {"target": f" {backup} "}, follow=True)
    assert "The copy of the savepoint was requested" in blocks.text(response)
    assert "waiting for a worker" in blocks.live(response)["checkpoint"]
    copied()
    assert str(backup / savepoint.path) in blocks.live(browser.get(f"/checkpoints/{savepoint.pk}/"))["checkpoint"]


def test_the_page_names_the_setting_that_allows_copies(browser: Client, savepoint: Checkpoint) -> None:
    page = browser.get(f"/checkpoints/{savepoint.pk}/")
    assert "WEIR_SAVEPOINT_ROOTS names the folders" in blocks.text(page)
    checkpoint = rows.checkpoint(savepoint.run, 6)
    assert "Copy to a folder" not in blocks.text(browser.get(f"/checkpoints/{checkpoint.pk}/"))


def test_a_copy_fails_with_its_savepoint(api: APIClient, backup: Path) -> None:
    run = rows.run(rows.job())
    assert ask(api, run.job_id, "stop", target="/nowhere").json()["errors"][0]["pointer"] == POINTER
    assert not Operation.objects.exists()
    ask(api, run.job_id, "stop", target=str(backup))
    parent = Operation.objects.get(kind="stop")
    Operation.objects.filter(pk=parent.pk).update(state="failed", ended_at=parent.created_at)
    row = copied()
    assert (row.state, (row.error or {})["code"]) == ("failed", "no-savepoint")


def test_a_copy_waits_until_the_output_of_its_savepoint_is_committed(api: APIClient, backup: Path) -> None:
    """A plain savepoint commits nothing by itself: its manifest names the output until the next checkpoint."""
    savepoint = rows.checkpoint(rows.run(rows.job(), "running"), 5, kind="savepoint", is_stored=False)
    sink = OperatorSnapshot(
        parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot(committables=("x",))}
    )
    store(savepoint, operators={"sink": sink})
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert (copied().state, copied().phase) == ("queued", "waiting for the commit of its output")
    committed = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot()})
    store(savepoint, operators={"sink": committed})
    row = copied()
    assert (row.state, row.phase, (row.result or {})["uncommitted"]) == ("succeeded", "", 0)
    assert (backup / savepoint.path).stat().st_mode & 0o777 == 0o700


def test_a_copy_does_not_wait_for_an_attempt_that_has_ended(api: APIClient, backup: Path) -> None:
    """Only the attempt that took the savepoint removes output from its manifest."""
    savepoint = rows.checkpoint(rows.run(rows.job(), "running"), 5, kind="savepoint", is_stored=False)
    sink = OperatorSnapshot(
        parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot(committables=("x",))}
    )
    store(savepoint, operators={"sink": sink})
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert copied().state == "queued"
    rows.checkpoint(savepoint.run, 6, token=savepoint.token + 1)
    row = copied()
    assert (row.state, (row.result or {})["uncommitted"]) == ("succeeded", 1)


def test_a_repeated_copy_names_no_output_that_is_committed_since(api: APIClient, backup: Path) -> None:
    savepoint = rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop", is_stored=False)
    sink = OperatorSnapshot(
        parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot(committables=("x",))}
    )
    store(savepoint, operators={"sink": sink})
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert (copied().result or {})["uncommitted"] == 1, "the run has ended: nothing more will be committed"
    store(
        savepoint,
        operators={
            "sink": OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot()})
        },
    )
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    assert copied().state == "succeeded"
    manifest = job_root(savepoint.job_id) / savepoint.path / MANIFEST_FILE
    assert (backup / savepoint.path / MANIFEST_FILE).read_bytes() == manifest.read_bytes()


def test_a_copy_is_withdrawn_while_it_is_under_way(
    api: APIClient, browser: Client, backup: Path, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11: a copy of hundreds of GiB could not be cancelled."""
    ask(api, savepoint.job_id, "copy", checkpoint=savepoint.pk, target=str(backup))
    row = Operation.objects.get(kind="copy")
    path = f"/api/v1/operations/{row.pk}/withdraw/"

    def read_and_withdraw(segment: Segment, chunks: Iterable[bytes]) -> Iterator[bytes]:
        yield from verified_chunks(segment, chunks)
        page = blocks.text(browser.get(f"/operations/{row.pk}/"))
        if "The copy stops, and its files are deleted; the savepoint stays." in page:
            answer = api.post(path).json()
            assert (answer["state"], answer["error"]["code"]) == ("running", "withdrawn")
            assert api.post(path).json()["detail"] == "The copy is being stopped."

    monkeypatch.setattr(copy, "verified_chunks", read_and_withdraw)
    monkeypatch.setattr(console_work, "_REPORT_S", 0.0)
    operation = copied()
    assert (operation.state, operation.phase, (operation.error or {})["code"]) == ("failed", "", "withdrawn")
    assert operation.ended_at is not None
    assert not list(backup.iterdir()), "neither a savepoint nor a temporary folder"
    assert job_root(savepoint.job_id).joinpath(savepoint.path, MANIFEST_FILE).exists()
    assert api.post(path).json()["detail"] == "The copy has ended: it is failed."


def test_a_queued_copy_is_withdrawn_and_its_savepoint_is_taken(api: APIClient, backup: Path) -> None:
    run = rows.run(rows.job())
    ask(api, run.job_id, "savepoint", target=str(backup))
    row = Operation.objects.get(kind="copy")
    assert api.post(f"/api/v1/operations/{row.pk}/withdraw/").json()["state"] == "failed"
    rows.checkpoint(run, 7, kind="savepoint")
    parent = Operation.objects.get(kind="savepoint")
    Operation.objects.filter(pk=parent.pk).update(state="succeeded", result={"checkpoint": 7}, ended_at=row.created_at)
    assert (copied().error or {})["code"] == "withdrawn"
    assert not backup.exists()
