"""Checkpoints of the console in a bucket of a real S3 server: what it reads, copies, clones, checks and deletes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import InvalidField, Refused
from console.checkpoints import storage
from console.checkpoints.file_systems import file_systems
from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_operations
from console.housekeeping.orphans import find_orphans
from console.jobs.models import Job
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from runtime import s3
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.core.snapshot.pins import PINS_FOLDER
from runtime.io import object_store
from runtime.io.store import open_store
from tests.console.ui import blocks, rows
from tests.s3 import S3Server, environment_of
from tests.s3_proxy import Fault, Faults, faulty_proxy

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def bucket(settings: Settings, bucket_uri: str, tmp_path: Path) -> str:
    settings.WEIR_STORAGE = bucket_uri
    settings.WEIR_SAVEPOINT_ROOTS = [bucket_uri, f"{bucket_uri}-backup", str(tmp_path / "backup")]
    return bucket_uri


@pytest.fixture
def faults(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """A proxy before the server, for clients that are made from now on."""
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        object_store._client.cache_clear()
        yield faults
    object_store._client.cache_clear()


@pytest.fixture
def savepoint() -> Checkpoint:
    return rows.checkpoint(rows.run(rows.job()), 5, "savepoint")


def perform(user: User, job: Job, kind: str, **params: Any) -> Operation:
    row = request(OperationRequestContext(user=user), job, kind, params).operation
    advance_operations()
    row.refresh_from_db()
    return row


def test_a_missing_file_is_named_and_an_outage_is_no_damage(
    savepoint: Checkpoint, bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.load_manifest(savepoint).checkpoint == savepoint.number
    monkeypatch.setattr(s3, "RETRIES", 0)
    faults.rule = lambda method, path: Fault.UNAVAILABLE
    with pytest.raises(Refused, match="Checkpoint storage cannot be read") as away:
        storage.load_manifest(savepoint)
    assert away.value.code == "storage-away"
    faults.rule = lambda method, path: None
    file = f"{savepoint.path}/join-0/state.arrow"
    storage.job_store(savepoint.job_id).delete([file])
    with pytest.raises(Refused, match="there is no such file") as refused:
        storage.load_manifest(savepoint)
    assert (refused.value.code, f"{bucket}/{savepoint.job_id}/{file}" in refused.value.detail) == (
        "corrupt-checkpoint", True,
    )  # fmt: skip


def test_a_checkpoint_is_pinned_while_it_is_read() -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 6)
    storage.load_pinned_manifest(checkpoint)
    pin = f"{PINS_FOLDER}/console-{checkpoint.pk}.json"
    assert storage.job_store(checkpoint.job_id).list(f"{PINS_FOLDER}/") == [pin]


@pytest.mark.parametrize("is_bucket", [True, False])
def test_a_copy_is_a_savepoint_that_is_restored_by_its_place(
    operator: User, api: APIClient, savepoint: Checkpoint, bucket: str, tmp_path: Path, is_bucket: bool
) -> None:
    target = f"{bucket}-backup/nightly" if is_bucket else str(tmp_path / "backup")
    row = perform(operator, savepoint.job, "copy", checkpoint=savepoint.pk, target=target)
    assert (row.state, (row.result or {}).get("path")) == ("succeeded", f"{target}/{savepoint.path}"), row.error
    assert storage.load_savepoint(f"{target}/{savepoint.path}")[1].checkpoint == savepoint.number
    mapping = api.get(f"/api/v1/jobs/{savepoint.job_id}/mapping/", {"path": f"{target}/{savepoint.path}"})
    assert mapping.status_code == 200, mapping.content


def test_a_large_file_is_copied_from_bucket_to_bucket(bucket: str) -> None:
    """The library reads the chunks of an upload, and they are read by the library."""
    home, target, nbytes = storage.shared_store(), open_store(f"{bucket}-backup"), 3 * s3.PART_BYTES + 5
    home.put("large", [b"x" * nbytes])
    target.put("large", storage.file_chunks(home, "large", nbytes))
    assert target.size("large") == nbytes


def test_places_outside_the_roots_are_refused(savepoint: Checkpoint, bucket: str) -> None:
    for place in (f"{bucket}-other/{savepoint.path}", "s3://elsewhere/state"):
        with pytest.raises(Refused, match="savepoints lie below"):
            storage.load_savepoint(place)
    for place in (f"{bucket}/../x", "s3://", f"{bucket}/a?b"):
        with pytest.raises((InvalidField, Refused)):
            storage.load_savepoint(place)
    with pytest.raises(Refused, match="lies within WEIR_STORAGE"):
        storage.target_place(f"{bucket}/copies")


def test_a_clone_has_copies_of_the_files_and_is_deleted_with_them(
    operator: User, savepoint: Checkpoint, faults: Faults
) -> None:
    row = perform(operator, savepoint.job, "clone", checkpoint=savepoint.pk)
    clone = (row.result or {})["job"]
    files = storage.shared_store().list(f"{clone}/")
    assert len(files) > 1
    assert faults.requests["GET"] < len(files), "the bucket copies by itself"
    assert storage.shared_store().list(".unfinished-clones/") == []
    assert storage.delete_clone(clone, savepoint.job_id)
    assert storage.shared_store().list(f"{clone}/") == []


def test_files_are_checked_against_their_manifest(operator: User, savepoint: Checkpoint) -> None:
    store, file = storage.job_store(savepoint.job_id), f"{savepoint.path}/join-0/state.arrow"
    content = store.get(file)
    store.put(file, [b"\1" * len(content)])
    row = perform(operator, savepoint.job, "verify", checkpoint=savepoint.pk)
    assert (row.error or {})["code"] == "damaged-files", (row.error, row.result)


def test_orphans_are_listed_and_a_discard_deletes_the_files(
    operator: User, savepoint: Checkpoint, browser: Client
) -> None:
    store = storage.job_store(savepoint.job_id)
    store.put("chk-9-1/window-0/state.arrow", [b"x" * 700])
    report = find_orphans(savepoint.job)
    assert [(folder.name, folder.nbytes) for folder in report.folders] == [("chk-9-1", 700)], report.fault
    page = blocks.text(browser.get(f"/jobs/{savepoint.job_id}/checkpoints/orphans/"))
    assert "chk-9-1 700 B" in page
    rows.checkpoint(savepoint.run, 7)
    row = perform(operator, savepoint.job, "discard", checkpoint=savepoint.pk)
    assert row.state == "succeeded", row.error
    assert store.list(f"{savepoint.path}/") == []
    assert store.list(f"chk-7-{savepoint.token}/{MANIFEST_FILE}")


def test_a_bucket_is_no_file_system_of_the_console(browser: Client) -> None:
    labels = [system.label for system in file_systems()]
    assert "Logs" in labels
    assert "Checkpoints" not in labels
    assert browser.get("/cluster/").status_code == 200
