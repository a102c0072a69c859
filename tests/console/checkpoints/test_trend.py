"""The trend over days: percentiles by day of the trigger, on the page and over the API."""

import csv
import re
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.checkpoints.trend import daily_trend
from console.jobs.models import Job
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 23, 0, 30, tzinfo=UTC)


def test_days_have_their_percentiles_and_gaps_none() -> None:
    run = rows.run(rows.job())
    number = 0

    def add(at: datetime, duration_ms: int, **fields: Any) -> None:
        nonlocal number
        number += 1
        rows.checkpoint(run, number, is_stored=False, triggered_at=at, duration_ms=duration_ms, **fields)

    add(NOW - timedelta(days=7), 9_999)
    for ms in range(1, 101):
        add(datetime(2026, 11, 21, 23, 59, 59, tzinfo=UTC), ms, size_bytes=1_000 * ms)
    add(datetime(2026, 11, 21, 12, tzinfo=UTC), 60_000, status="failed", reason="expired")
    add(datetime(2026, 11, 21, 13, tzinfo=UTC), 60_000, status="failed", reason="suspended")
    add(datetime(2026, 11, 23, tzinfo=UTC), 500, size_bytes=7, kind="savepoint")
    other = rows.run(rows.job("other"))
    rows.checkpoint(other, 1, is_stored=False, triggered_at=NOW, duration_ms=1)
    days = daily_trend(run.job, 7, NOW)
    assert [(day.day.day, day.checkpoints) for day in days] == [
        (17, 0), (18, 0), (19, 0), (20, 0), (21, 100), (22, 0), (23, 1),
    ]  # fmt: skip
    busy = days[4]
    cuts = quantiles(range(1, 101), n=100)
    assert (busy.duration_p50_ms, busy.duration_p95_ms) == (int(cuts[49]), int(cuts[94]))
    assert (busy.size_p50_bytes, busy.size_p95_bytes) == (50_000, 95_000)
    assert [day.failures for day in days if day.failures] == [{"expired": 1}], "by the day of the trigger"
    assert (days[5].duration_p50_ms, days[6].duration_p95_ms, days[6].size_p50_bytes) == (None, 500, 7)


def test_page_and_api_show_the_trend(browser: Client, api: APIClient) -> None:
    run = rows.run(rows.job())
    rows.history(run)
    older = Checkpoint.objects.filter(number__lt=170)
    older.update(triggered_at=datetime.now(UTC) - timedelta(days=3), duration_ms=100)
    path = f"/jobs/{run.job_id}/checkpoints/trend/"
    response = browser.get(path, {"days": 7})
    page = response.content.decode()
    sentence = r"From \S+ to \S+, the 95th percentile of the duration rose from 0\.10 s to [\d.]+ s, and that of the "
    assert re.search(sentence + r"full size (stayed at|rose from|fell from) [^.]+\.", page)
    assert page.count('class="line out"') == 2
    days = api.get(f"/api/v1{path}", {"days": 7}).json()
    first = next(day for day in days if day["checkpoints"])
    assert (first["checkpoints"], first["duration_p50_ms"]) == (older.filter(status="completed").count(), 100)
    assert 'href="?days=30" aria-current="true"' in browser.get(path, {"days": "x"}).content.decode()
    for wrong in ("0", "91", "x"):
        assert api.get(f"/api/v1{path}", {"days": wrong}).status_code == 422


def test_a_job_without_checkpoints_has_an_empty_trend(browser: Client) -> None:
    job: Job = rows.job()
    page = browser.get(f"/jobs/{job.pk}/checkpoints/trend/").content.decode()
    assert "No checkpoint has completed in this time." in page
    assert "<svg class=" not in page


def test_failures_are_counted_by_day_and_reason(browser: Client, api: APIClient) -> None:
    """In the table with a link to the checkpoints, as CSV and over REST; a day with failures only is shown too."""
    run, now = rows.run(rows.job()), datetime.now(UTC)
    for number, reason in enumerate(["expired", "expired", "async_failed", "suspended", "subsumed"], 1):
        rows.checkpoint(run, number, status="failed", reason=reason, triggered_at=now - timedelta(days=1))
    path, day = f"/jobs/{run.job_id}/checkpoints/trend/", (now - timedelta(days=1)).date()
    page = browser.get(path)
    assert "2 expired, 1 async failed" in blocks.text(page)
    match = re.search(rf'id="failed-{day}-expired"\s+href="([^"]+)"', page.content.decode())
    assert match
    listed = browser.get(match[1].replace("&amp;", "&")).context["found"].page.rows
    assert {row.number for row in listed} == {1, 2}
    answer = browser.get(f"/jobs/{run.job_id}/checkpoints/trend.csv?days=7").getvalue().decode()
    (row,) = csv.DictReader(answer.splitlines())
    assert (row["day"], row["failed"], row["failed_async_failed"], row["failed_expired"]) == (str(day), "3", "1", "2")
    assert row["duration_p50_ms"] == ""
    yesterday = api.get(f"/api/v1{path}", {"days": 7}).json()[-2]
    assert (yesterday["checkpoints"], yesterday["failures"]) == (0, {"expired": 2, "async_failed": 1})


def test_a_single_day_has_its_numbers_and_no_plot_of_one_point(browser: Client) -> None:
    run = rows.run(rows.job())
    rows.history(run)
    Checkpoint.objects.update(triggered_at=datetime.now(UTC))
    page = browser.get(f"/jobs/{run.job_id}/checkpoints/trend/").content.decode()
    assert "only, so there is no trend yet." in page
    assert '<details id="table" open>' in page
    assert "<svg class=" not in page
