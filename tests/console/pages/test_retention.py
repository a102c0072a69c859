"""The preview of retention: the decisions of the job master, the files that stay, and the reasons."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.jobs.models import JobVersion, Run
from console.pages.retention import preview_retention
from runtime.core.job.ids import Token
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore
from runtime.master.retention import discard_checkpoints, readable_manifests
from tests.console.stored import job_root, store
from tests.console.ui import rows
from tests.contracts.test_records import url

pytestmark = pytest.mark.django_db(transaction=True)
QUERIES = 5
START = datetime(2026, 1, 1, tzinfo=UTC)  #: checkpoint N is triggered N hours later


def made(run: Run, number: int, names: dict[str, int], **changes: Any) -> Checkpoint:
    """A checkpoint whose manifest names files by `folder of a checkpoint/name`, with their sizes; its own exist."""
    triggered = START + timedelta(hours=number)
    row = rows.checkpoint(run, number, is_stored=False, triggered_at=triggered, **changes)
    paths = {name if "/" in name else f"{row.path}/{name}": nbytes for name, nbytes in names.items()}
    segments = tuple(
        Segment(path=path, rows=1, nbytes=nbytes, checksum="blake2b:00", first_group=0, last_group=127)
        for path, nbytes in paths.items()
    )
    snapshot = SubtaskSnapshot(keyed={"state": segments})
    operator = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: snapshot})
    for path, nbytes in paths.items():
        file = job_root(run.job_id) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * nbytes)
    store(row, operators={"window": operator})
    return row


@pytest.fixture
def run() -> Run:
    """Checkpoints 1 to 6 and savepoint 7: 5 needs a file of 1, 2 is pinned, 3 is in review."""
    made_run = rows.run(rows.job())
    token = made_run.token
    base = f"chk-1-{token}/base"
    made(made_run, 1, {"base": 1_000, "delta": 10})
    made(made_run, 2, {"own": 200}, pinned_at=timezone.now())
    made(made_run, 3, {"own": 300}, review_state="in_review")
    made(made_run, 4, {base: 1_000, "own": 400})
    made(made_run, 5, {base: 1_000, "own": 500})
    made(made_run, 6, {"own": 600})
    made(made_run, 7, {"own": 700}, kind="savepoint")
    return made_run


def size_on_disk(run: Run) -> int:
    return sum(file.stat().st_size for file in job_root(run.job_id).rglob("*") if file.is_file())


def test_the_preview_names_what_stays_and_why(run: Run) -> None:
    preview = preview_retention(run.job, RetentionPolicy(2))
    assert [line.checkpoint.number for line in preview.discarded] == [4, 1]
    assert {line.checkpoint.number: line.reasons for line in preview.kept} == {
        7: ("Only a user discards a savepoint.",),
        6: ("It is among the 2 newest checkpoints.",),
        5: ("It is among the 2 newest checkpoints.",),
        3: ("It is in review.",),
        2: ("It is pinned.",),
    }
    by_number = {line.checkpoint.number: line for line in preview.discarded}
    for number, nbytes in ((1, 10), (4, 400)):
        line = by_number[number]
        manifest = (job_root(run.job_id) / line.checkpoint.path / MANIFEST_FILE).stat().st_size
        assert (line.freed_bytes, line.shared_bytes, line.needed_by) == (nbytes + manifest, 1_000, 5)
    assert preview.sentence.startswith("Keeping the 2 newest checkpoints would delete 2 of 6 checkpoints and free ")
    assert preview_retention(run.job).sentence.startswith("Keeping the 12 newest checkpoints would delete nothing")


def test_the_job_master_then_deletes_what_the_preview_says(run: Run) -> None:
    """The rows and the bytes on disk, for every policy from generous to strict."""
    Run.objects.filter(pk=run.pk).update(token=run.token)
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    files = FileStore(job_root(run.job_id))
    for each in ((1, 3), (3, None), (1, 2), (2, None), (1, None)):
        policy = RetentionPolicy(*each)
        preview, before = preview_retention(run.job, policy), size_on_disk(run)
        folders = records.discard_older(policy)
        assert sorted(folders) == sorted(line.checkpoint.path for line in preview.discarded)
        discard_checkpoints(files, folders, readable_manifests(files, records.retained_folders()))
        assert before - size_on_disk(run) == preview.freed_bytes
    records.close()


def test_a_run_without_a_checkpoint_keeps_the_checkpoint_that_it_began_with(run: Run) -> None:
    Run.objects.update(state="canceled")
    first = Checkpoint.objects.get(number=1)
    second = rows.run(run.job, restore_checkpoint=first)
    preview = preview_retention(run.job, RetentionPolicy(1))
    reasons = {line.checkpoint.number: line.reasons for line in preview.kept}
    assert reasons[1] == (f"Run {second.pk} was restored from it and has no checkpoint of its own yet.",)


def test_unreadable_manifests_free_nothing_that_they_may_need(run: Run) -> None:
    for number in (4, 5):
        (job_root(run.job_id) / Checkpoint.objects.get(number=number).path / MANIFEST_FILE).write_text("damaged")
    lines = {line.checkpoint.number: line for line in preview_retention(run.job, RetentionPolicy(2)).discarded}
    assert (lines[1].freed_bytes, lines[4].freed_bytes) == (0, None)


def test_an_age_keeps_checkpoints_beside_the_newest(browser: Client, api: APIClient, run: Run) -> None:
    preview = preview_retention(run.job, RetentionPolicy(1, hours=3))
    assert [line.checkpoint.number for line in preview.discarded] == [1]
    reasons = {line.checkpoint.number: line.reasons for line in preview.kept}
    assert reasons[4] == ("It is of the last 3 hours before the newest.",)
    assert preview.sentence.startswith(
        "Keeping the newest checkpoint and those of the last 3 hours would delete 1 of 6"
    )
    path = f"/jobs/{run.job_id}/checkpoints/retention/"
    body = api.get(f"/api/v1{path}", {"keep": 1, "hours": 3}).json()
    assert (body["sentence"], body["hours"], body["present_hours"]) == (preview.sentence, 3, None)
    assert browser.get(path, {"keep": 1, "hours": 3}).context["preview"].sentence == preview.sentence
    assert "0 is not a number from 1 to 8760." in browser.get(path, {"keep": 1, "hours": 0}).content.decode()
    for wrong in ({"keep": 1, "hours": 0}, {"hours": 3}):
        assert api.get(f"/api/v1{path}", wrong).json()["code"] == "invalid-field"
    settings = {"retained_checkpoints": 1, "retained_hours": 3}
    aged = JobVersion.objects.create(job=run.job, number=2, parallelism=2, state="ready", settings=settings)
    Run.objects.update(version=aged)
    assert preview_retention(run.job).sentence == preview.sentence


def test_page_and_api_show_the_same_in_few_queries(browser: Client, api: APIClient, run: Run) -> None:
    path = f"/jobs/{run.job_id}/checkpoints/retention/"
    with CaptureQueriesContext(connection) as counted:
        response = browser.get(path, {"keep": 2})
    assert len(counted) == QUERIES
    page = response.content.decode()
    assert 'checkpoint <span class="q">5</span> needs them' in page
    assert "It is in review." in page
    body = api.get(f"/api/v1{path}", {"keep": 2}).json()
    assert body["sentence"] == response.context["preview"].sentence
    assert [line["number"] for line in body["discarded"]] == [4, 1]
    assert body["freed_bytes"] == response.context["preview"].freed_bytes
    for wrong in ("0", "1001", "-1", "x", "9" * 40):
        assert "is not a number from 1 to 1000" in browser.get(path, {"keep": wrong}).content.decode()
        assert api.get(f"/api/v1{path}", {"keep": wrong}).json()["code"] == "invalid-field"
    assert Checkpoint.objects.filter(discarded_at=None).count() == 7, "it deletes nothing"
