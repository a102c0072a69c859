"""The list of a job's checkpoints: every filter in the address, pages of 50 by number, jump to a number."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, JobVersion, Run
from tests.console.conftest import api_as
from tests.console.ui import blocks, rows

LIST_QUERIES = 7


@pytest.fixture
def job(db: None) -> Job:
    """Checkpoints 1 to 9 of two runs, a number for each filter."""
    job = rows.job()
    first = rows.run(job, "finished")
    newer = JobVersion.objects.create(job=job, number=2, parallelism=2, params={}, state="ready", graph=rows.GRAPH)
    second = rows.run(job)
    Run.objects.filter(pk=second.pk).update(version=newer)
    at = timezone.now() - timedelta(hours=3)
    changes: list[dict[str, Any]] = [
        {"duration_ms": 90_000}, {"size_bytes": 5 << 20}, {"kind": "savepoint"},
        {"status": "failed", "reason": "expired"}, {"status": "failed", "reason": "suspended"},
        {"status": "failed", "reason": "subsumed"}, {"review_state": "reviewed", "name": "Before the upgrade"},
        {"discarded_at": at, "pinned_at": at},
        {"status": "in_progress", "triggered_at": timezone.now()},
    ]  # fmt: skip
    for number, facts in enumerate(changes, start=1):
        fields = {"triggered_at": at + timedelta(minutes=number), "is_stored": False, **facts}
        rows.checkpoint(first if number <= 4 else second, number, **fields)
    other = rows.run(rows.job("other"))
    rows.checkpoint(other, 1, duration_ms=90_000, is_stored=False)
    return job


def at(job: Job, number: int) -> str:
    return Checkpoint.objects.get(job=job, number=number).triggered_at.replace(tzinfo=None).isoformat()


def cases(job: Job) -> list[tuple[dict[str, Any], list[int]]]:
    """Filters, and the numbers of the matching checkpoints."""
    first = Run.objects.filter(job=job).earliest("pk").pk
    return [
        ({}, [9, 8, 7, 6, 5, 4, 3, 2, 1]),
        ({"kind": "savepoint"}, [3]),
        ({"outcome": "failed"}, [4]),
        ({"outcome": "aborted"}, [5]),
        ({"outcome": "superseded"}, [6]),
        ({"outcome": "in_progress"}, [9]),
        ({"outcome": "completed"}, [8, 7, 3, 2, 1]),
        ({"reason": "subsumed"}, [6]),
        ({"restorable": "true"}, [7, 3, 2, 1]),
        ({"restorable": "false"}, [9, 8, 6, 5, 4]),
        ({"review_state": "reviewed"}, [7]),
        ({"name": "UPGRADE"}, [7]),
        ({"name": "%"}, []),
        ({"pinned": "true"}, [8]),
        ({"pinned": "true", "restorable": "true"}, []),
        ({"slower_than": "1min"}, [1]),
        ({"slower_than": "89999"}, [1]),
        ({"slower_than": "90 s"}, []),
        ({"larger_than": "1.5MiB"}, [2]),
        ({"run": first}, [4, 3, 2, 1]),
        ({"version": 2, "outcome": "completed"}, [8, 7]),
        ({"version": 7}, []),
        ({"triggered__gte": at(job, 3), "triggered__lt": at(job, 5)}, [4, 3]),
        ({"number": 2}, [2]),
    ]


def test_page_and_api_give_the_same_rows_for_every_filter(at_console: Client, job: Job) -> None:
    api: Any = api_as(rows.operator_user("caller"))
    for query, numbers in cases(job):
        results = api.get(f"/api/v1/jobs/{job.pk}/checkpoints/", query).json()["results"]
        assert [row["number"] for row in results] == numbers, query
        if "number" not in query:  # the page of the checkpoint itself
            page = at_console.get(f"/jobs/{job.pk}/checkpoints/", query).context["found"].page
            assert [row.number for row in page.rows] == numbers, query
    run = Run.objects.filter(job=job).latest("pk")
    results = api.get(f"/api/v1/runs/{run.pk}/checkpoints/", {"version": 2, "outcome": "completed"}).json()["results"]
    assert [row["number"] for row in results] == [8, 7]


def test_page_and_api_refuse_the_same_values_at_the_field(at_console: Client, job: Job) -> None:
    api: APIClient = api_as(rows.operator_user("caller"))
    for name, value in (
        ("outcome", "lost"), ("slower_than", "2 parsecs"), ("slower_than", "-1"), ("larger_than", "1e9"),
        ("run", "1.5"), ("run", "9" * 30), ("version", "9" * 20), ("triggered__gte", "yesterday"), ("reason", "x\0"),
        ("name", "x" * 101),
    ):  # fmt: skip
        answer = api.get(f"/api/v1/jobs/{job.pk}/checkpoints/", {name: value})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, f"/{name}")
        response = at_console.get(f"/jobs/{job.pk}/checkpoints/", {name: value})
        (field,) = [field for field in response.context["found"].fields if field.name == name]
        assert field.errors, (name, value)
        assert "A filter is not valid." in response.content.decode()


def test_pages_of_fifty_keep_the_filters_and_take_the_same_few_queries(at_console: Client) -> None:
    run = rows.run(rows.job())
    Checkpoint.objects.bulk_create(
        Checkpoint(job=run.job, run=run, token=1, number=n, kind="checkpoint", status="completed", duration_ms=n)
        for n in range(1, 121)
    )
    path, pages = f"/jobs/{run.job_id}/checkpoints/", []
    query: dict[str, Any] = {"slower_than": "10"}
    while True:
        with CaptureQueriesContext(connection) as counted:
            response = at_console.get(path, query)
        assert len(counted) == LIST_QUERIES + 1, "with the number of matches"
        assert "110 match the filter." in blocks.text(response)
        page = response.context["found"].page
        pages.append([row.number for row in page.rows])
        if page.older is None:
            break
        assert f'href="?slower_than=10&amp;before={page.older}"' in response.content.decode()
        query["before"] = page.older
    assert [len(numbers) for numbers in pages] == [50, 50, 10]
    assert [number for numbers in pages for number in numbers] == list(range(120, 10, -1))


def test_matches_are_counted_up_to_a_bound(at_console: Client, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/jobs/{job.pk}/checkpoints/"
    assert "the filter." not in blocks.text(at_console.get(path))
    assert "1 matches the filter." in blocks.text(at_console.get(path, {"kind": "savepoint"}))
    assert "8 match the filter." in blocks.text(at_console.get(path, {"kind": "checkpoint"}))
    monkeypatch.setattr("console.ui.lists.checkpoint_list.ROWS_PER_PAGE", 2)
    assert "8 match the filter." in blocks.text(at_console.get(path, {"kind": "checkpoint", "before": "7"}))
    monkeypatch.setattr("console.ui.lists.checkpoint_list.MAX_COUNTED", 7)
    assert "more than 7 match the filter." in blocks.text(at_console.get(path, {"kind": "checkpoint"}))


def test_a_number_leads_to_its_checkpoint_or_is_reported_absent(at_console: Client, job: Job) -> None:
    path = f"/jobs/{job.pk}/checkpoints/"
    checkpoint = Checkpoint.objects.get(job=job, number=7)
    assert at_console.get(path, {"number": "7"}).headers["Location"] == f"/checkpoints/{checkpoint.pk}/"
    for number in ("77", "seven", "9" * 40):
        assert (
            f'This job has no checkpoint <span class="q">{number}</span>'
            in at_console.get(path, {"number": number}).content.decode()
        )
