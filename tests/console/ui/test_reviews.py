"""The review desk: which checkpoints need a look, and how a review is assigned, discussed and ended."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints.models import Checkpoint, ReviewState
from console.checkpoints.review_queue import review_queue
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.conftest import api_as
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

MiB = 1 << 20
PAGE = 50


@pytest.fixture
def run(db: None) -> Run:
    """A run with a history of ten ordinary checkpoints."""
    row = rows.run(rows.job())
    for number in range(1, 11):
        rows.checkpoint(row, number, is_stored=False)
    return row


@pytest.fixture
def api(operator: User) -> APIClient:
    return api_as(operator)


def concerns(row: Checkpoint) -> list[str] | None:
    row.refresh_from_db()
    return row.concerns


def ask(api: APIClient, row: Checkpoint, kind: str, **params: Any) -> Any:
    body = {"kind": kind, "params": {"checkpoint": row.pk, **params}}
    return api.post(f"/api/v1/jobs/{row.job_id}/operations/", body, format="json")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, None),
        ({"duration_ms": 1_300}, None),
        ({"duration_ms": 1_400}, ["slow"]),
        ({"size_bytes": 2 * MiB}, None),
        ({"size_bytes": 3 * MiB}, ["oversized"]),
        ({"duration_ms": 9_000, "size_bytes": 9 * MiB}, ["slow", "oversized"]),
        ({"status": "failed", "reason": "expired"}, ["failed"]),
        ({"status": "failed", "reason": "suspended"}, None),
        ({"status": "failed", "reason": "subsumed"}, None),
        ({"kind": "savepoint"}, ["unverified"]),
        ({"kind": "drain"}, ["drained", "unverified"]),
        ({"status": "in_progress"}, None),
    ],
)  # fmt: skip
def test_a_checkpoint_has_the_concerns_that_its_figures_give(run: Run, facts: Any, expected: list[str] | None) -> None:
    assert concerns(rows.checkpoint(run, 11, is_stored=False, **facts)) == expected


def test_pages_name_a_missing_drill_apart_from_a_check_of_the_files(at_console: Client, run: Run) -> None:
    """Pages had three words: "Not reviewed", "unverified", which is a drill, and "Not verified", which is a check."""
    row = rows.checkpoint(run, 11, kind="savepoint")
    assert concerns(row) == ["unverified"]
    for path, words in (
        ("/reviews/", '<option value="unverified">not drilled</option>'),
        ("/reviews/?concern=unverified", "<td>not drilled</td>"),
        (f"/checkpoints/{row.pk}/", "Concerns: not drilled."),
        (f"/checkpoints/{row.pk}/evidence/", "<dt>Concerns</dt><dd>not drilled</dd>"),
    ):
        assert words in at_console.get(path).content.decode(), path


def test_concerns_come_when_the_master_ends_the_checkpoint(run: Run) -> None:
    row = rows.checkpoint(run, 11, status="in_progress")
    Checkpoint.objects.filter(pk=row.pk).update(status="completed", duration_ms=60_000)
    assert concerns(row) == ["slow"]


def test_a_slow_checkpoint_names_the_longest_of_those_behind_it(at_console: Client, run: Run) -> None:
    """Only the first has the concern; a reader took its duration for the worst."""
    for number, duration_ms in ((11, 1_400), (12, 4_300), (13, 2_000), (40, 9_000)):
        rows.checkpoint(run, number, is_stored=False, duration_ms=duration_ms)
    rows.checkpoint(run, 14, "savepoint", is_stored=False, duration_ms=8_000)
    said = blocks.text(at_console.get("/reviews/?concern=slow"))
    assert "1.4 s later up to 4.3 s" in said
    assert said.count("later up to") == 1


def test_a_new_job_has_no_usual_figures(run: Run) -> None:
    new_run = rows.run(rows.job("fresh"))
    verdicts = [concerns(rows.checkpoint(new_run, n, is_stored=False, duration_ms=4**n)) for n in range(1, 8)]
    assert verdicts == [None, None, None, None, None, ["slow"], None]


def test_the_first_checkpoint_of_a_slow_or_large_episode_needs_a_look(run: Run) -> None:
    """The desk has one of them, whether they become slower still or not; a later episode is another."""
    figures = [(9_000, MiB)] * 3 + [(20_000, 9 * MiB)] * 3
    verdicts = [concerns(rows.checkpoint(run, 11 + n, is_stored=False, duration_ms=ms, size_bytes=size))
                for n, (ms, size) in enumerate(figures)]  # fmt: skip
    assert verdicts == [["slow"], None, None, ["oversized"], None, None]
    for number in range(17, 38):
        rows.checkpoint(run, number, is_stored=False)
    assert concerns(rows.checkpoint(run, 38, is_stored=False, duration_ms=9_000)) == ["slow"]


def test_verification_discard_and_unpin_end_that_a_snapshot_is_unverified(run: Run) -> None:
    savepoint, pinned = rows.checkpoint(run, 11, "savepoint"), rows.checkpoint(run, 12)
    Checkpoint.objects.filter(pk=pinned.pk).update(pinned_at="2026-01-01T00:00Z")
    assert concerns(pinned) == ["unverified"]
    Checkpoint.objects.filter(pk=pinned.pk).update(pinned_at=None)
    assert concerns(pinned) is None
    Checkpoint.objects.filter(pk=savepoint.pk).update(verified_at="2026-01-01T00:00Z")
    assert concerns(savepoint) is None


def test_later_changes_keep_the_verdict_of_the_end(run: Run) -> None:
    """Pin, discard and verification of an old checkpoint compare nothing with the figures of today."""
    slow, usual = rows.checkpoint(run, 11, duration_ms=9_000), rows.checkpoint(run, 12, "savepoint")
    Checkpoint.objects.filter(number__lt=11).update(duration_ms=9_000)
    Checkpoint.objects.filter(pk=slow.pk).update(pinned_at="2026-01-01T00:00Z")
    assert concerns(slow) == ["slow", "unverified"]
    Checkpoint.objects.filter(pk=slow.pk).update(pinned_at=None, discarded_at="2026-01-01T00:00Z")
    assert concerns(slow) == ["slow"]
    Checkpoint.objects.filter(number__lt=11).update(duration_ms=1)
    Checkpoint.objects.filter(pk=usual.pk).update(verified_at="2026-01-01T00:00Z")
    assert concerns(usual) is None


def test_the_desk_filters_and_leads_to_the_checkpoint(at_console: Client, run: Run, operator: User) -> None:
    slow = rows.checkpoint(run, 11, is_stored=False, duration_ms=9_000, assignee=operator)
    other = rows.run(rows.job("other"))
    failed = rows.checkpoint(other, 1, status="failed", reason="expired")
    said = blocks.text(at_console.get("/reviews/"))
    assert "Checkpoint 11 flights-delays slow" in said
    assert "Checkpoint 1 other failed" in said
    for query, expected in (
        ("concern=slow", [slow.pk]), ("concern=drained", []), ("job=oth", [failed.pk]),
        ("assignee=operator", [slow.pk]), ("assigned=false", [failed.pk]), ("assigned=true&job=other", []),
    ):  # fmt: skip
        assert [row.pk for row in at_console.get(f"/reviews/?{query}").context["found"].rows] == expected, query
    assert "A filter is not valid." in blocks.text(at_console.get("/reviews/?concern=ugly"))
    assert 'href="/reviews/"' in at_console.get("/jobs/").content.decode()
    assert "/admin/checkpoints/checkpoint/" in at_console.get("/reviews/").content.decode()
    admin = at_console.get(f"/admin/checkpoints/checkpoint/{slow.pk}/change/").content.decode()
    assert f'href="/checkpoints/{slow.pk}/"' in admin


def test_the_desk_assigns_to_the_user_and_keeps_the_filters(at_console: Client, run: Run, operator: User) -> None:
    row = rows.checkpoint(run, 11, status="failed", reason="expired")
    answer = at_console.post("/reviews/?concern=failed", {"checkpoint": row.pk})
    assert (answer.status_code, answer["Location"]) == (302, "/reviews/?concern=failed")
    row.refresh_from_db()
    assert row.assignee == operator
    assert at_console.post("/reviews/", {"checkpoint": "x"}).status_code == 404


def test_a_review_is_assigned_discussed_and_ended_on_the_page(at_console: Client, run: Run, operator: User) -> None:
    row = rows.checkpoint(run, 11, status="failed", reason="expired")
    path = f"/checkpoints/{row.pk}/"
    at_console.post(f"{path}review/", {"kind": "assign", "user": "operator"})
    at_console.post(f"{path}review/", {"kind": "comment", "text": " the disk <was> full "})
    at_console.post(f"{path}review/", {"kind": "review", "state": "waived", "note": "a known outage"})
    row.refresh_from_db()
    assert (row.assignee, row.review_state, row.review_note, row.reviewer) == (
        operator, ReviewState.WAIVED, "a known outage", operator,
    )  # fmt: skip
    response = at_console.get(path)
    assert "the disk &lt;was&gt; full" in response.content.decode()
    said = blocks.text(response)
    assert "Marked waived: a known outage" in said
    assert "Assigned to operator" in said
    assert list(Operation.objects.order_by("created_at").values_list("kind", "state", "requested_by")) == [
        (kind, "succeeded", operator.pk) for kind in ("assign", "comment", "review")
    ]
    assert blocks.text(at_console.get("/reviews/")).count("Checkpoint 11") == 0


def test_the_api_lists_assigns_comments_and_reviews(api: APIClient, run: Run, operator: User) -> None:
    row = rows.checkpoint(run, 11, status="failed", reason="expired")
    listed = api.get("/api/v1/reviews/?concern=failed").json()["results"]
    assert [(entry["id"], entry["concerns"], entry["assignee"]) for entry in listed] == [(row.pk, ["failed"], None)]
    assert ask(api, row, "assign", user="operator").json()["state"] == "succeeded"
    assert [entry["assignee"] for entry in api.get("/api/v1/reviews/?assignee=operator").json()["results"]] == [
        operator.pk
    ]
    ask(api, row, "assign", user="")
    ask(api, row, "comment", text="looked at")
    assert ask(api, row, "review", state="reviewed", note="fine").status_code == 202
    assert api.get("/api/v1/reviews/").json()["results"] == []
    history = api.get(f"/api/v1/checkpoints/{row.pk}/review/").json()["results"]
    assert [entry["kind"] for entry in history] == ["review", "comment", "assign", "assign"]
    assert history[1]["params"]["text"] == "looked at"
    row.refresh_from_db()
    assert (row.review_state, row.assignee) == ("reviewed", None)


def test_a_wrong_review_is_refused_by_name(api: APIClient, run: Run) -> None:
    row = rows.checkpoint(run, 11, status="failed", reason="expired")
    for kind, params, pointer in (
        ("assign", {"user": "nobody-here"}, "/params/user"), ("comment", {"text": ""}, "/params/text"),
        ("comment", {"text": "x" * 4_001}, "/params/text"), ("review", {"state": "fine"}, "/params/state"),
    ):  # fmt: skip
        answer = ask(api, row, kind, **params)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), params
    assert api.get("/api/v1/reviews/?concern=ugly").status_code in (400, 422)
    assert not Operation.objects.exists()


def test_readers_see_the_desk_and_change_nothing(reading: Client, run: Run) -> None:
    row = rows.checkpoint(run, 11, status="failed", reason="expired")
    assert "You may not operate jobs" in blocks.text(reading.get("/reviews/"))
    reading.post("/reviews/", {"checkpoint": row.pk})
    reading.post(f"/checkpoints/{row.pk}/review/", {"kind": "comment", "text": "mine"})
    row.refresh_from_db()
    assert row.assignee is None
    assert not Operation.objects.exists()


def test_the_queue_pages_by_key_with_few_queries(
    at_console: Client, run: Run, django_assert_max_num_queries: Any
) -> None:
    for number in range(11, 71):
        rows.checkpoint(run, number, status="failed", reason="expired")
    with django_assert_max_num_queries(12):
        first = at_console.get("/reviews/").context["found"]
    with django_assert_max_num_queries(12):
        second = at_console.get("/reviews/", {"before": first.older}).context["found"]
    assert [row.number for row in (*first.rows, *second.rows)] == list(range(70, 10, -1))
    assert (len(first.rows), second.older) == (50, None)


@pytest.mark.django_db(transaction=True)
def test_the_queue_reads_no_more_rows_than_it_shows(run: Run) -> None:
    """Beside 5,000 checkpoints without a concern. Earlier tests leave empty pages in the indexes; FULL removes them."""
    for number in range(101, 301):
        rows.checkpoint(run, number, status="failed", reason="expired")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, triggered_at, duration_ms)"
            " SELECT %s, %s, 1, n, 'checkpoint', 'completed', now(), 300 FROM generate_series(1000, 6000) n",
            [run.job_id, run.pk],
        )
        cursor.execute("VACUUM (FULL, ANALYZE) weir_checkpoint")
    (explained,) = json.loads(review_queue()[:PAGE].explain(format="json", analyze=True))
    assert rows_read(explained["Plan"]) == PAGE, explained


def rows_read(node: dict[str, Any]) -> int:
    """The most rows that a node of the plan has read, with those that it dropped."""
    dropped = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    rows = int(node["Actual Rows"] * node["Actual Loops"] + dropped)
    return max([rows, *(rows_read(child) for child in node.get("Plans", ()))])
