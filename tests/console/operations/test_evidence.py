"""The evidence pack: the check of every file, and the facts around it, as page, file and API."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import job_root
from console.operations.evidence import SIZE_ONLY, VERIFIED, verify
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.io.filesystem import FileStore
from runtime.state.files.segments import write_segment
from tests.console.conftest import api_as
from tests.console.stored import store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def savepoint(db: None) -> Checkpoint:
    """A savepoint with two state files and an inline segment, as subtasks write them."""
    row = rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop", is_stored=False)
    files, batch = FileStore(job_root(row.job_id)), pa.record_batch({"group": [1, 2, 3], "value": [4, 5, 6]})
    segments = tuple(
        write_segment(files, f"{row.path}/{name}", [batch], 3, groups=(0, 127), inline_bytes=limit)
        for name, limit in (("a.arrow", 0), ("b.arrow", 0), ("inline", 1 << 20))
    )
    operator = OperatorSnapshot(
        parallelism=1, finished=FinishedState.RUNNING, subtasks={0: SubtaskSnapshot(keyed={"state": segments})}
    )
    store(row, operators={"window": operator})
    return row


@pytest.fixture
def api(operator: User) -> APIClient:
    return api_as(operator)


def file_of(row: Checkpoint, name: str) -> Path:
    return job_root(row.job_id) / row.path / name


def results(row: Checkpoint) -> list[str]:
    return [each.result for each in verify(row).files]


def test_every_file_that_the_runtime_wrote_is_verified(savepoint: Checkpoint) -> None:
    found = verify(savepoint)
    assert results(savepoint) == [VERIFIED] * 3
    assert (found.is_complete, found.sentence) == (True, "The size and checksum of all 3 files were verified.")
    assert found.manifest_sha256 == hashlib.sha256(file_of(savepoint, MANIFEST_FILE).read_bytes()).hexdigest()


def test_altered_short_and_missing_files_are_named(savepoint: Checkpoint) -> None:
    first, second = file_of(savepoint, "a.arrow"), file_of(savepoint, "b.arrow")
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.write_bytes(b"short")
    assert results(savepoint) == ["was altered: its checksum differs", "has 5 bytes", VERIFIED]
    second.unlink()
    found = verify(savepoint)
    assert found.files[1].result == "cannot be read: No such file or directory"
    assert (found.is_complete, found.sentence) == (False, "2 of 3 files are missing or damaged.")


def test_beyond_the_limit_only_sizes_are_checked(savepoint: Checkpoint) -> None:
    nbytes = file_of(savepoint, "a.arrow").stat().st_size
    found = verify(savepoint, limit=nbytes)
    assert [each.result for each in found.files] == [VERIFIED, SIZE_ONLY, SIZE_ONLY]
    assert not found.is_complete
    assert found.sentence == "All 3 files have their size; the checksums of 1 were verified."


def test_checkpoints_without_files_have_a_pack_that_gives_the_reason(savepoint: Checkpoint, api: APIClient) -> None:
    failed = rows.checkpoint(savepoint.run, 6, status="failed", reason="expired")
    assert verify(failed).sentence == "Checkpoint 6 is failed: it has no files to verify."
    assert api.get(f"/api/v1/checkpoints/{failed.pk}/evidence/").json()["manifest"] is None
    file_of(savepoint, MANIFEST_FILE).write_text("damaged")
    assert verify(savepoint).sentence.startswith("The manifest cannot be read: ")
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at="2026-01-01T00:00Z")
    savepoint.refresh_from_db()
    assert verify(savepoint).sentence == "Savepoint 5 is discarded: it has no files to verify."


def test_page_file_and_api_have_the_same_facts(browser: Client, api: APIClient, savepoint: Checkpoint) -> None:
    review = f"/checkpoints/{savepoint.pk}/review/"
    browser.post(review, {"kind": "comment", "text": "read <twice>"})
    browser.post(review, {"kind": "review", "state": "reviewed", "note": "for the audit"})
    rows.operation(savepoint.job, "drill", params={"checkpoint": savepoint.pk}, result={"first_checkpoint_ms": 1500})
    path = f"/checkpoints/{savepoint.pk}/evidence/"
    response = browser.get(path)
    assert "read &lt;twice&gt;" in response.content.decode()
    said = blocks.text(response)
    assert "The size and checksum of all 3 files were verified." in said
    assert "for the audit" in said
    assert "first checkpoint after 1.5 s" in said
    file = browser.get(path, {"format": "json"})
    assert file["Content-Disposition"] == f'attachment; filename="evidence-{savepoint.job_id}-5.json"'
    pack, own = file.json(), api.get(f"/api/v1{path}").json()
    assert {**pack, "requested_at": ""} == {**own, "requested_at": ""}
    assert (pack["requested_by"], pack["review"]["state"], pack["version"]["number"]) == ("operator", "reviewed", 1)
    assert [entry["kind"] for entry in pack["review"]["history"]] == ["review", "comment"]
    assert [drill["result"] for drill in pack["drills"]] == [{"first_checkpoint_ms": 1500}]
    assert pack["manifest"]["manifest"]["checkpoint"] == 5
    assert f'href="{path}"' in browser.get(f"/checkpoints/{savepoint.pk}/").content.decode()
