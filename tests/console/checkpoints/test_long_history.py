"""What is asked again and again, by pages that poll and by job masters, reads few rows of a long history."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.housekeeping import reconciler
from console.housekeeping.old_rows import BATCH_ROWS, old_checkpoints, remove_old_rows
from console.jobs.models import Run
from runtime.core.checkpoint.statistics import MAX_SUMMARIZED_CHECKPOINTS
from runtime.core.job.lifecycle import RunState
from runtime.io.postgres.queries import statement
from tests.console.conftest import MakeRun

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 20_000
FEW = 300  #: rows of a page, of what is retained, of what the strip draws, and the marks of these
SUMMED_UP = MAX_SUMMARIZED_CHECKPOINTS + FEW

_MANY = """
INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, triggered_at, completed_at, duration_ms,
                             size_bytes, written_bytes, path, operators, discarded_at)
SELECT job_id, id, 1, n, 'checkpoint', 'completed', now() - n * interval '5 s', now() - n * interval '5 s', 300, 9000,
       2000, 'checkpoint-' || n || '-1', '[{"uid": "sums", "max_alignment_ms": 1.5}]',
       CASE WHEN n <= %s THEN now() END
FROM weir_run, generate_series(1, %s) n WHERE id = %s
"""


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    """Of days: no savepoint, no failure, and all but the newest five discarded.

    The trigger that finds concerns is off: by statistics of the few rows of an earlier test, it would read all rows
    before each.
    """
    row = make_run(RunState.RUNNING, token=1)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")  # or the rows are not settled when they are looked through
        cursor.execute("ALTER TABLE weir_checkpoint DISABLE TRIGGER weir_checkpoint_concerns")
        cursor.execute(_MANY, [ROWS - 5, ROWS, row.pk])
        cursor.execute("ALTER TABLE weir_checkpoint ENABLE TRIGGER weir_checkpoint_concerns")
        cursor.execute("VACUUM (ANALYZE) weir_checkpoint")  # as Postgres does by itself, some time after
    return row


def test_old_rows_are_removed_batch_by_batch_without_reading_the_whole_history(run: Run, settings: Settings) -> None:
    settings.WEIR_CHECKPOINT_DAYS = 0
    Checkpoint.objects.filter(number__gt=ROWS - 5).update(discarded_at=None)
    Checkpoint.objects.update(triggered_at=F("triggered_at") - timedelta(hours=1))
    Checkpoint.objects.exclude(discarded_at=None).update(discarded_at=Now() - timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) weir_checkpoint, weir_run")
        cursor.execute("ANALYZE")  # the other tables have the statistics of earlier tests
    query, values = old_checkpoints().order_by("triggered_at").values("pk")[:BATCH_ROWS].query.sql_with_params()
    assert rows_read(query, values) < ROWS
    assert remove_old_rows() >= BATCH_ROWS


def rows_read(sql: str, values: Any = None) -> int:
    """How many checkpoint rows a statement looks at; an index that answers alone looks at none."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values)
        return sum(_read(cursor.fetchone()[0][0]["Plan"]))


def _read(plan: dict[str, Any]) -> Iterator[int]:
    if plan.get("Relation Name") == "weir_checkpoint" and plan["Node Type"] not in ("Index Only Scan", "ModifyTable"):
        removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for below in plan.get("Plans", ()):
        yield from _read(below)


def read_by(act: Callable[[], Any]) -> int:
    """How many checkpoint rows all statements of `act` look at."""
    with CaptureQueriesContext(connection) as capture:
        act()
    about = [query["sql"] for query in capture.captured_queries if "weir_checkpoint" in query["sql"]]
    assert about
    return sum(rows_read(sql) for sql in about)


#: Lists by the filters with conditions on rows: few rows match, none, or all.
LISTS = [
    f"checkpoints/?{query}"
    for query in (
        "", "before=10000", "kind=savepoint", "outcome=failed", "outcome=aborted", "reason=expired", "restorable=true",
        "review_state=reviewed", "name=upgrade", "pinned=true", "run=1", "version=1", "version=1&kind=drain",
    )
]  # fmt: skip


def test_pages(browser: Client, run: Run) -> None:
    for path in (
        "",
        "?before=10000",
        *LISTS,
        "checkpoints/statistics/",
        f"checkpoints/statistics/?run={run.pk}",
        "restore/",
        "stop/",
        "start/",
    ):
        bound = SUMMED_UP if path.startswith("checkpoints/statistics") else FEW
        assert read_by(partial(browser.get, f"/jobs/{run.job_id}/{path}")) <= bound, path
    assert read_by(partial(browser.get, "/jobs/")) <= FEW


def test_the_page_of_a_job_whose_checkpoints_fail_reads_few_of_them(browser: Client, run: Run) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE weir_checkpoint SET status = 'failed', reason = 'expired' WHERE number % 2 = 0")
        cursor.execute("VACUUM (ANALYZE) weir_checkpoint, weir_run")
    for query in ("", "?span=7d"):
        assert read_by(partial(browser.get, f"/jobs/{run.job_id}/{query}")) <= FEW, query


def test_the_admin_reads_few_of_the_checkpoints_of_a_moment(browser: Client, run: Run) -> None:
    """Checkpoints of many jobs begin together when a console starts them together."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE weir_checkpoint SET triggered_at = now()")
        cursor.execute("VACUUM (ANALYZE) weir_checkpoint, weir_run")
    assert read_by(partial(browser.get, "/admin/checkpoints/checkpoint/")) <= FEW


def test_the_api(api: APIClient, run: Run) -> None:
    for of in (f"jobs/{run.job_id}", f"runs/{run.pk}"):
        for query in ("", "?kind=savepoint", "?outcome=failed", "?outcome=in_progress", "?number=7"):
            path = f"/api/v1/{of}/checkpoints/{query}"
            assert read_by(partial(api.get, path)) <= FEW, path
    assert read_by(partial(api.get, f"/api/v1/jobs/{run.job_id}/checkpoints/statistics/")) <= SUMMED_UP


def test_the_reconciler(run: Run) -> None:
    assert read_by(reconciler.reconcile) <= FEW


def test_the_job_master(run: Run) -> None:
    """Retention is asked for after each completed checkpoint, where to go on from at each restart."""
    path = f"checkpoint-{ROWS}-1"
    values = {
        "run": run.pk, "token": 1, "numbers": [ROWS - 9, ROWS - 8], "number": ROWS - 3, "passed_over": [path],
        "path": path,
    }  # fmt: skip
    names = (
        "retained", "retention_candidates", "discard", "committed_since", "final_savepoint", "restore_point",
        "note_restored",
    )  # fmt: skip
    for name in names:
        assert rows_read(statement(name), values) <= FEW, name
