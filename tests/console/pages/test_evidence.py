"""The evidence pack: the check of every file, and the facts around it, as page, file and API."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

import weir
from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import file_chunks
from console.housekeeping import advance
from console.housekeeping.advance import FILE_WORK_LOCK, advance_operations
from console.operations import console_work
from console.operations.kinds.snapshot import verify
from console.operations.models import Operation, Verification
from console.operations.restores.effects import RestoreReport, report
from console.operations.restores.origin import Origin
from console.operations.restores.verification import (
    VERIFIED,
    check_files,
    found_damage,
    is_complete,
    read_manifest,
    summary,
)
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, encode_manifest
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.filesystem import FileStore
from runtime.io.store import Store
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema
from spark_jobs.savepoints.state_tables import add_rows, write_table
from tests.console.conftest import api_as
from tests.console.stored import job_root, store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

WHOLE = "The size and checksum of all 3 files were verified, and the rows of its state by their proof."


@pytest.fixture
def savepoint(db: None) -> Checkpoint:
    """A savepoint of three subtasks, as they write it: two state files and an inline segment."""
    row = rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop", is_stored=False)
    subtasks = {index: _subtask(row, name) for index, name in enumerate(("a", "b", "c"))}
    subtasks[2] = replace(subtasks[2], keyed={"state": (_inline(row, *subtasks[2].keyed["state"]),)})
    store(row, operators={"window": OperatorSnapshot(parallelism=3, finished=FinishedState.RUNNING, subtasks=subtasks)})
    return row


def _subtask(row: Checkpoint, name: str) -> SubtaskSnapshot:
    """With two entries."""
    schema = TableSchema("state", pa.schema([("key", pa.string())]), pa.schema([("value", pa.int64())]))
    table = KeyedTable(schema, row.max_parallelism)
    add_rows(table, [pa.array([f"{name}1", f"{name}2"])], [pa.array([1, 2])], "window")
    return write_table(FileStore(job_root(row.job_id)), f"{row.path}/{name}", table)


def _inline(row: Checkpoint, segment: Segment) -> Segment:
    file = job_root(row.job_id) / segment.path
    content = file.read_bytes()
    file.unlink()
    return replace(segment, content=content)


@pytest.fixture
def api(operator: User) -> APIClient:
    return api_as(operator)


def file_of(row: Checkpoint, name: str) -> Path:
    return job_root(row.job_id) / row.path / name


def results(row: Checkpoint) -> list[str]:
    manifest = read_manifest(row).manifest
    assert manifest is not None
    return list(check_files(row, manifest))


def test_every_file_that_the_runtime_wrote_is_verified(savepoint: Checkpoint) -> None:
    verdicts = results(savepoint)
    assert verdicts == [VERIFIED] * 3
    assert is_complete(verdicts)
    sha256 = hashlib.sha256(file_of(savepoint, MANIFEST_FILE).read_bytes()).hexdigest()
    assert read_manifest(savepoint).sha256 == sha256


def test_altered_short_and_missing_files_are_named(savepoint: Checkpoint) -> None:
    first, second = file_of(savepoint, "a/state-000001.arrow"), file_of(savepoint, "b/state-000001.arrow")
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.write_bytes(b"short")
    assert results(savepoint) == ["was altered: its checksum differs", "has 5 bytes", VERIFIED]
    second.unlink()
    verdicts = results(savepoint)
    assert verdicts[1] == "cannot be read: there is no such file"
    assert (is_complete(verdicts), summary(verdicts, [])) == (False, "2 of 3 files are missing or damaged.")


def test_the_manifest_of_another_checkpoint_is_named(savepoint: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=savepoint.pk).update(number=savepoint.number + 1)
    savepoint.refresh_from_db()
    stored = read_manifest(savepoint)
    assert stored.manifest is None
    assert stored.fault.startswith("The manifest is not that of this checkpoint. It is of checkpoint 5")


def test_every_file_is_read_whatever_its_size(savepoint: Checkpoint) -> None:
    """A limit of 256 MiB left the files of a large state unverified."""
    file, digest = file_of(savepoint, "a/state-000001.arrow"), hashlib.blake2b(digest_size=16)
    nbytes, zeros = (257 << 20), bytes(1 << 20)
    with file.open("wb") as opened:
        opened.truncate(nbytes)
    for _ in range(257):
        digest.update(zeros)
    manifest = read_manifest(savepoint).manifest
    assert manifest is not None
    snapshot, *_ = manifest.operators["window"].subtasks.values()
    first, *segments = snapshot.keyed["state"]
    large = replace(first, nbytes=nbytes, checksum=f"blake2b:{digest.hexdigest()}")
    subtasks = {**manifest.operators["window"].subtasks, 0: replace(snapshot, keyed={"state": (large, *segments)})}
    grown = replace(manifest.operators["window"], subtasks=subtasks)
    manifest = replace(manifest, operators={**manifest.operators, "window": grown})
    read: dict[int, int] = defaultdict(int)

    def on_read(number: int, nbytes: int) -> None:
        read[number] += nbytes

    assert list(check_files(savepoint, manifest, on_read)) == [VERIFIED] * 3
    assert read == {number: segment.nbytes for number, segment in enumerate(manifest.segments(), start=1)}


def test_checkpoints_without_files_have_a_pack_that_gives_the_reason(savepoint: Checkpoint, api: APIClient) -> None:
    failed = rows.checkpoint(savepoint.run, 6, status="failed", reason="expired")
    assert read_manifest(failed).fault == "Checkpoint 6 has failed: it has no files to verify."
    pack = api.get(f"/api/v1/checkpoints/{failed.pk}/evidence/").json()
    assert (pack["manifest"], pack["manifest_sha256"], pack["signature"]) == (None, None, None)
    assert ask(api, failed).json()["code"] == "not-verifiable"
    file_of(savepoint, MANIFEST_FILE).write_text("damaged")
    assert read_manifest(savepoint).fault.startswith("The manifest cannot be read: ")
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at="2026-01-01T00:00Z")
    savepoint.refresh_from_db()
    assert read_manifest(savepoint).fault == "Savepoint 5 is discarded: it has no files to verify."


def ask(api: APIClient, row: Checkpoint, kind: str = "verify", **params: Any) -> Any:
    body = {"kind": kind, "params": {"checkpoint": row.pk, **params}}
    return api.post(f"/api/v1/jobs/{row.job_id}/operations/", body, format="json")


def test_the_check_is_an_operation_and_readers_see_its_last_result(
    browser: Client, viewer: User, api: APIClient, savepoint: Checkpoint
) -> None:
    reading = Client()
    reading.force_login(viewer)
    path = f"/checkpoints/{savepoint.pk}/evidence/"
    assert "The checkpoint has not been checked." in blocks.text(reading.get(path))
    assert reading.post(path, follow=True).status_code in (200, 403)
    assert not Operation.objects.exists(), "a reader reads no state"
    browser.post(path)
    assert "A check is under way." in blocks.text(reading.get(path))
    assert ask(api, savepoint).json()["code"] == "verify-active"
    advance_operations()
    advance_operations()
    operation = Operation.objects.get()
    assert (operation.state, (operation.result or {})["is_complete"]) == ("succeeded", True)
    pack = api.get(f"/api/v1{path}").json()
    assert pack["verification"]["checked_at"] == operation.ended_at.isoformat()  # type: ignore[union-attr]
    assert [file["result"] for file in pack["verification"]["files"]] == [VERIFIED] * 3
    file_of(savepoint, "a/state-000001.arrow").unlink()
    assert WHOLE in blocks.text(reading.get(path)), "no file is read"
    ask(api, savepoint)
    advance_operations()
    damaged = Operation.objects.latest("created_at")
    assert (damaged.state, damaged.error) == (
        "failed", {"code": "damaged-files", "message": "1 of 3 files are missing or damaged."},
    )  # fmt: skip
    assert (damaged.result or {})["is_complete"] is False
    assert "1 of 3 files are missing or damaged. damaged-files" in blocks.text(
        reading.get(f"/operations/{damaged.pk}/")
    )
    assert "1 of 3 files are missing or damaged." in blocks.text(reading.get(path))
    file_of(savepoint, MANIFEST_FILE).write_text("damaged")
    ask(api, savepoint)
    advance_operations()
    newest = Operation.objects.latest("created_at")
    assert (newest.state, (newest.error or {})["code"]) == ("failed", "not-verified")
    assert "The manifest cannot be read" in blocks.text(reading.get(path))


def test_a_state_that_lacks_rows_in_an_undamaged_file_is_named(
    browser: Client, api: APIClient, savepoint: Checkpoint
) -> None:
    """The file has the checksum of the manifest: it was written without the row."""
    manifest = read_manifest(savepoint).manifest
    assert manifest is not None
    window = manifest.operators["window"]
    without = replace(window.subtasks[1], keyed=_subtask(savepoint, "other").keyed)
    changed = replace(window, subtasks={**window.subtasks, 1: without})
    manifest = replace(manifest, operators={"window": changed})
    file_of(savepoint, MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    assert results(savepoint) == [VERIFIED] * 3
    ask(api, savepoint)
    advance_operations()
    row = Operation.objects.get()
    assert (row.state, (row.error or {})["code"]) == ("failed", "damaged-state")
    sentence = (row.error or {})["message"]
    assert sentence.startswith("1 of 1 states differ from their proofs: state 'state' of operator 'window': ")
    (state,) = api.get(f"/api/v1/checkpoints/{savepoint.pk}/evidence/").json()["verification"]["states"]
    assert (state["operator"], state["state"], state["entries"]) == ("window", "state", 6)
    assert state["result"] in sentence
    page = blocks.text(browser.get(f"/checkpoints/{savepoint.pk}/evidence/"))
    assert state["result"] in page
    assert found_damage(Checkpoint.objects.get(pk=savepoint.pk)) == sentence


def test_a_check_under_way_shows_the_file_that_it_reads(api: APIClient, savepoint: Checkpoint) -> None:
    """A check whose worker died is begun anew. It ends without a phase."""
    ask(api, savepoint)
    Operation.objects.update(state="running", phase="checking files: 2 of 3")
    with CaptureQueriesContext(connection) as captured:
        advance_operations()
    assert any(re.search(r"checking files: 1 of 3, [\d.]+ \w+ of [\d.]+ \w+", query["sql"]) for query in captured)
    assert any("checking states" in query["sql"] for query in captured)
    operation = Operation.objects.get()
    assert (operation.state, operation.phase) == ("succeeded", "")


def test_a_restore_warns_of_a_version_whose_package_was_raised_since(savepoint: Checkpoint) -> None:
    """A run executes the code that is installed, whose graph the effects do not show."""
    version = savepoint.run.version
    assert version.graph is not None
    code = {**version.graph["code"], "package": "weir-streams", "version": "0.0.9"}
    version.graph = {**version.graph, "code": code}
    warning = report(savepoint.job, Origin.from_row(savepoint.job, savepoint), version, 2).warnings[-1]
    assert warning.startswith("Version 1 was defined with weir-streams 0.0.9. The run executes the installed code of")
    assert f"weir-streams {weir.__version__}" in warning


def test_a_restore_warns_of_damage_until_a_check_finds_none(api: APIClient, savepoint: Checkpoint) -> None:
    def plan() -> RestoreReport:
        row = Checkpoint.objects.get(pk=savepoint.pk)  # as a request reads it
        return report(row.job, Origin.from_row(row.job, row), row.run.version, 2)

    file = file_of(savepoint, "a/state-000001.arrow")
    body, before = file.read_bytes(), plan()
    file.write_bytes(bytes(len(body)))  # a restore is refused if a file is missing or has another size
    ask(api, savepoint)
    advance_operations()
    damage = "The last check of this savepoint found damage: 1 of 3 files are missing or damaged."
    assert plan().warnings == (*before.warnings, damage)
    assert plan().plan_hash != before.plan_hash, "a restore that was confirmed before must be confirmed anew"
    file.write_bytes(body)
    ask(api, savepoint)
    advance_operations()
    assert (plan().warnings, plan().plan_hash) == (before.warnings, before.plan_hash)


def test_a_check_waits_for_other_work_on_files_and_leaves_the_next_check_to_the_next_pass(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of compilations has two workers: long work on files must occupy one at most."""
    other = rows.checkpoint(savepoint.run, 6)
    ask(api, savepoint)
    ask(api, other)
    keys: list[int] = []

    @contextmanager
    def busy(key: int) -> Iterator[bool]:
        keys.append(key)
        yield False

    with monkeypatch.context() as patched:
        patched.setattr(advance, "try_lock", busy)
        advance_operations()
    assert keys == [FILE_WORK_LOCK]
    assert list(Operation.objects.values_list("state", flat=True)) == ["queued", "queued"]
    advance_operations()
    assert Operation.objects.filter(state="queued").count() == 1


def test_a_long_check_gives_other_work_its_turn_and_continues_with_the_next_file(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of a terabyte held the lock of all file work for hours, and began anew after the end of its worker."""
    read: list[str] = []

    def read_and_note(store: Store, path: str, nbytes: int) -> Iterator[bytes]:
        read.append(path)
        yield from file_chunks(store, path, nbytes)

    monkeypatch.setattr("console.operations.restores.verification.file_chunks", read_and_note)
    monkeypatch.setattr(verify, "_MAX_PASS_S", 0.0)
    first = file_of(savepoint, "a/state-000001.arrow")
    first.write_bytes(bytes(first.stat().st_size))
    ask(api, savepoint)
    for passes_made in (1, 2):
        advance_operations()
        row = Operation.objects.get()
        assert (row.state, len((row.result or {})["files"])) == ("running", passes_made)
    begun = row.started_at
    assert not Verification.objects.exists()
    advance_operations()
    row.refresh_from_db()
    assert (row.state, row.started_at, row.result) == ("failed", begun, {
        "checkpoint": 5, "manifest_sha256": read_manifest(savepoint).sha256, "is_complete": False,
        "sentence": "1 of 3 files are missing or damaged.",
    })  # fmt: skip
    assert len(read) == len(set(read)), "each file is read once"
    assert [result for *_, result in Verification.objects.get().files] == [
        "was altered: its checksum differs", VERIFIED, VERIFIED,
    ]  # fmt: skip


def test_a_check_is_withdrawn_between_two_passes(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(api, savepoint)
    with monkeypatch.context() as patched:
        patched.setattr(verify, "_MAX_PASS_S", 0.0)
        advance_operations()
    row = Operation.objects.get()
    assert api.post(f"/api/v1/operations/{row.pk}/withdraw/").status_code == 200
    advance_operations()
    row.refresh_from_db()
    assert (row.state, (row.error or {})["code"], row.result) == ("failed", "withdrawn", None)
    assert not Verification.objects.exists()


def test_a_check_begins_anew_if_the_manifest_has_changed_between_two_passes(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(api, savepoint)
    with monkeypatch.context() as patched:
        patched.setattr(verify, "_MAX_PASS_S", 0.0)
        advance_operations()
    manifest = read_manifest(savepoint).manifest
    assert manifest is not None
    file_of(savepoint, MANIFEST_FILE).write_bytes(encode_manifest(replace(manifest, triggered_at=77)))
    file = file_of(savepoint, "a/state-000001.arrow")
    file.write_bytes(bytes(file.stat().st_size))
    advance_operations()
    assert Verification.objects.get().is_damaged


@pytest.mark.parametrize("has_storage", [True, False], ids=["an error of storage", "the storage is not mounted"])
def test_storage_that_cannot_be_read_is_no_damage(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, has_storage: bool
) -> None:
    root = job_root(savepoint.job_id)

    def fail(store: Store, path: str, nbytes: int) -> Iterator[bytes]:
        if not has_storage:
            root.rename(root.with_name("elsewhere"))
            raise CorruptState(path, "there is no such file")
        raise EnvironmentFailure(f"{path} cannot be read: Input/output error")

    monkeypatch.setattr("console.operations.restores.verification.file_chunks", fail)
    ask(api, savepoint)
    advance_operations()
    row = Operation.objects.get()
    assert (row.state, (row.error or {})["code"], row.result) == ("failed", "not-verified", None)
    assert "Checkpoint storage cannot be read: " in (row.error or {})["message"]
    assert not Verification.objects.exists()


def test_a_long_check_keeps_the_pin_of_a_periodic_checkpoint(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin holds for ten minutes."""
    pinned: list[int] = []
    monkeypatch.setattr(verify, "pin", lambda checkpoint: pinned.append(checkpoint.pk))
    monkeypatch.setattr(verify, "_PIN_RENEWAL_S", 0.0)
    ask(api, savepoint)
    advance_operations()
    assert pinned[:4] == [savepoint.pk] * 4, "at its begin and at each of three chunks"
    assert len(pinned) > 4, "and while states are read"


def test_a_manifest_that_changed_since_the_check_is_not_verified(api: APIClient, savepoint: Checkpoint) -> None:
    ask(api, savepoint)
    advance_operations()
    manifest = read_manifest(savepoint).manifest
    assert manifest is not None
    file_of(savepoint, MANIFEST_FILE).write_bytes(encode_manifest(replace(manifest, triggered_at=77)))
    pack = api.get(f"/api/v1/checkpoints/{savepoint.pk}/evidence/").json()
    assert pack["verification"]["is_complete"] is False
    assert pack["verification"]["sentence"].startswith("The manifest has changed since the check. ")
    assert pack["verification"]["manifest_sha256"] != pack["manifest_sha256"]


def test_the_pack_tells_whether_the_manifest_is_signed(api: APIClient, savepoint: Checkpoint, settings: Any) -> None:
    def signature() -> str:
        return str(api.get(f"/api/v1/checkpoints/{savepoint.pk}/evidence/").json()["signature"])

    key = b"a key of more than thirty-two characters"
    assert signature() == "The manifest is not signed."
    manifest = read_manifest(savepoint).manifest
    assert manifest is not None
    file_of(savepoint, MANIFEST_FILE).write_bytes(encode_manifest(manifest, (key,)))
    settings.WEIR_MANIFEST_KEYS = (key,)
    assert signature() == "The manifest is signed, and a key of this console verifies the signature."
    settings.WEIR_MANIFEST_KEYS = ()
    assert signature().endswith("This console has no WEIR_MANIFEST_KEY to verify the signature.")
    settings.WEIR_MANIFEST_KEYS = (b"another key of more than thirty-two characters",)
    pack = api.get(f"/api/v1/checkpoints/{savepoint.pk}/evidence/").json()
    assert "no key in WEIR_MANIFEST_KEY verifies its signature" in pack["verification"]["sentence"]


def test_the_decision_of_a_review_names_its_manifest(api: APIClient, browser: Client, savepoint: Checkpoint) -> None:
    stored = read_manifest(savepoint)
    decision = ask(api, savepoint, "review", state="reviewed").json()
    assert decision["result"]["manifest_sha256"] == stored.sha256
    path = f"/checkpoints/{savepoint.pk}/evidence/"
    assert f"about this manifest {stored.sha256[:12]}…" in blocks.text(browser.get(path))
    assert stored.manifest is not None
    file_of(savepoint, MANIFEST_FILE).write_bytes(encode_manifest(replace(stored.manifest, triggered_at=77)))
    assert f"about an earlier manifest {stored.sha256[:12]}…" in blocks.text(browser.get(path))
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at="2026-01-01T00:00Z")
    assert ask(api, savepoint, "review", state="waived").json()["result"]["manifest_sha256"] is None


def test_page_file_and_api_have_the_same_facts(browser: Client, api: APIClient, savepoint: Checkpoint) -> None:
    review = f"/checkpoints/{savepoint.pk}/review/"
    browser.post(review, {"kind": "comment", "text": "read <twice>"})
    browser.post(review, {"kind": "review", "state": "reviewed", "note": "for the audit"})
    rows.operation(savepoint.job, "drill", params={"checkpoint": savepoint.pk}, result={"first_checkpoint_ms": 1500})
    path = f"/checkpoints/{savepoint.pk}/evidence/"
    browser.post(path)
    advance_operations()
    response = browser.get(path)
    assert "read &lt;twice&gt;" in response.content.decode()
    said = blocks.text(response)
    assert WHOLE in said
    assert "for the audit" in said
    assert "first checkpoint after 1.5 s" in said
    file = browser.get(path, {"format": "json"})
    assert file["Content-Disposition"] == f'attachment; filename="evidence-{savepoint.job_id}-5.json"'
    pack, body = file.json(), api.get(f"/api/v1{path}").json()
    assert {**pack, "requested_at": ""} == {**body, "requested_at": ""}
    assert (pack["requested_by"], pack["review"]["state"], pack["version"]["number"]) == ("operator", "reviewed", 1)
    assert [entry["kind"] for entry in pack["review"]["history"]] == ["review", "comment"]
    assert [drill["result"] for drill in pack["drills"]] == [{"first_checkpoint_ms": 1500}]
    assert pack["manifest"]["manifest"]["checkpoint"] == 5
    assert f'href="{path}"' in browser.get(f"/checkpoints/{savepoint.pk}/").content.decode()


def test_a_pack_is_sealed_and_a_change_is_found(
    browser: Client, api: APIClient, savepoint: Checkpoint, settings: Settings
) -> None:
    """The seal survives another order of members and white space, and a key that is replaced."""
    settings.WEIR_MANIFEST_KEYS = (b"a key of thirty-two bytes or more",)
    path, check = f"/checkpoints/{savepoint.pk}/evidence/?format=json", "/api/v1/evidence/check/"
    pack = browser.get(path).json()
    assert len(pack["seal"]) == 64
    reordered = json.loads(json.dumps(dict(reversed(pack.items())), indent=8))
    assert api.post(check, reordered, format="json").json()["valid"]
    forged = json.dumps(pack).replace('"review":', '"review": {"state": "reviewed"}, "review":', 1)
    refused = api.post(check, forged, content_type="application/json")
    assert (refused.status_code, "'review' occurs twice" in refused.json()["detail"]) == (400, True)
    changed = {**pack, "review": {**pack["review"], "state": "reviewed"}}
    assert api.post(check, changed, format="json").json() == {
        "valid": False, "detail": "The pack was changed, or made with another key.",
    }  # fmt: skip
    settings.WEIR_MANIFEST_KEYS = (b"a newer key of thirty-two bytes.", *settings.WEIR_MANIFEST_KEYS)
    assert api.post(check, pack, format="json").json()["valid"]
    settings.WEIR_MANIFEST_KEYS = settings.WEIR_MANIFEST_KEYS[:1]
    assert not api.post(check, pack, format="json").json()["valid"]
    assert "has no seal" in api.post(check, {**pack, "seal": None}, format="json").json()["detail"]
    assert api.post(check, [pack], format="json").status_code in (400, 422)
    settings.WEIR_MANIFEST_KEYS = ()
    assert browser.get(path).json()["seal"] is None
    assert "cannot check" in api.post(check, pack, format="json").json()["detail"]


def test_a_check_is_withdrawn_while_it_is_under_way(
    api: APIClient, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(api, savepoint)
    row = Operation.objects.get(kind="verify")
    path = f"/api/v1/operations/{row.pk}/withdraw/"

    def read_and_withdraw(store: Store, file: str, nbytes: int) -> Iterator[bytes]:
        assert api.post(path).status_code in (200, 409)
        yield from file_chunks(store, file, nbytes)

    monkeypatch.setattr("console.operations.restores.verification.file_chunks", read_and_withdraw)
    monkeypatch.setattr(console_work, "_REPORT_S", 0.0)
    advance_operations()
    row.refresh_from_db()
    assert (row.state, row.phase, (row.error or {})["code"]) == ("failed", "", "withdrawn")
    assert "The check stops without a result." in (row.error or {})["message"]
    assert not Verification.objects.exists()
    assert ask(api, savepoint).status_code == 202, "another check may follow"
