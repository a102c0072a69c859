"""The page and the API that compare two checkpoints: same content, both numbers in the address, few queries."""

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.jobs.models import Job
from tests.console.conftest import api_as
from tests.console.ui import blocks, rows

QUERIES = 6


@pytest.fixture
def job(db: None) -> Job:
    """Checkpoints 1 to 3; the window of 3 is slow and large, and the files of 1 are deleted."""
    run = rows.run(rows.job())
    rows.checkpoint(run, 1, is_stored=False)
    rows.checkpoint(run, 2, name="before the upgrade")
    slow = rows.acknowledgements()
    slow["window"]["sync_ms"], slow["window"]["at_ms"] = [2_000.0] * 2, [2_200] * 2
    operators = [
        {**row, "state_bytes": 9 << 20, "max_sync_ms": 2_000.0} if row["uid"] == "window" else row
        for row in rows.OPERATORS
    ]
    rows.checkpoint(run, 3, duration_ms=2_312, size_bytes=9 << 20, operators=operators, acknowledgements=slow)
    return run.job


def test_page_and_api_name_the_operator_that_explains_most(at_console: Client, job: Job) -> None:
    path = f"/jobs/{job.pk}/checkpoints/compare/"
    with CaptureQueriesContext(connection) as counted:
        response = at_console.get(path, {"base": 2, "other": 3})
    assert len(counted) == QUERIES
    page = response.content.decode()
    assert "the copy of the state of <code>sessions</code> grew by 2.0\N{NO-BREAK SPACE}s" in page
    assert "before the upgrade" in page
    assert "5 operators without a notable difference" in page
    api: APIClient = api_as(rows.operator_user("caller"))
    comparison = api.get(f"/api/v1{path}", {"base": 2, "other": 3}).json()
    assert comparison["sentence"] == response.context["comparison"].sentence
    assert (comparison["explained_by"], comparison["duration_ms"]["difference"]) == ("window", 2_000)
    window = next(row for row in comparison["operators"] if row["operator"] == "window")
    assert window["notable"]
    assert window["changes"]["sync_ms"] == {"base": 6.4, "other": 2_000.0, "difference": pytest.approx(1_993.6)}
    assert window["changes"]["rows"] == {"base": 11_198.0, "other": 84_262.0, "difference": 73_064.0}


def test_rows_that_one_side_does_not_know_make_no_operator_differ(at_console: Client, job: Job) -> None:
    """The files of checkpoint 1 are deleted. Each operator with state had changed by "not known before"."""
    job.checkpoints.filter(number=1).update(discarded_at=F("completed_at"))
    response = at_console.get(f"/jobs/{job.pk}/checkpoints/compare/", {"base": 1, "other": 2})
    page = blocks.text(response)
    assert "not known before" not in page
    assert response.context["comparison"].notable == ()
    assert "Checkpoint 1, completed and discarded, triggered" in page
    assert "so the rows of its state are not known" in page
    assert "Compare with base" in page


def test_the_two_newest_are_compared_by_default_and_bad_numbers_are_explained(at_console: Client, job: Job) -> None:
    path = f"/jobs/{job.pk}/checkpoints/compare/"
    assert at_console.get(path).context["comparison"].sentence.startswith("Checkpoint 3 took 2.0 s longer")
    api: APIClient = api_as(rows.operator_user("caller"))
    for query, words in (
        ({"base": "2", "other": "2"}, "must be another checkpoint than `base`"),
        ({"base": "2", "other": "77"}, "this job has no checkpoint 77"),
    ):
        assert words in at_console.get(path, query).content.decode()
        answer = api.get(f"/api/v1{path}", query)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/other")
    assert "has no checkpoint 0" in at_console.get(path, {"base": "x", "other": "3"}).content.decode()
    assert api.get(f"/api/v1{path}", {"base": 2}).status_code == 400
    empty = rows.job("empty")
    assert "Fewer than two checkpoints" in at_console.get(f"/jobs/{empty.pk}/checkpoints/compare/").content.decode()


def test_it_is_reached_from_the_checkpoint_and_in_two_steps_from_the_list(at_console: Client, job: Job) -> None:
    third = Checkpoint.objects.get(job=job, number=3)
    address = f"/jobs/{job.pk}/checkpoints/compare/?base=2&amp;other=3"
    assert address in at_console.get(f"/checkpoints/{third.pk}/").content.decode()
    listing = f"/jobs/{job.pk}/checkpoints/"
    assert 'href="?slower_than=1s&amp;compare=3"' in at_console.get(listing, {"slower_than": "1s"}).content.decode()
    page = at_console.get(listing, {"compare": "3"}).content.decode()
    assert address in page
    assert "Choose “With 3”" in page
