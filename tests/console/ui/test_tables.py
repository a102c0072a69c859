"""Tables as CSV."""

import csv
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import User
from console.health.findings import Level
from console.metrics.models import Metrics
from tests.console.ui import rows


def read(client: Client, path: str) -> list[dict[str, str]]:
    response = client.get(path)
    assert response.headers["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(response.getvalue().decode().splitlines()))


def test_jobs_have_the_filters_of_their_page(at_console: Client) -> None:
    run = rows.run(rows.job("alpha"), "failed")
    rows.job("beta")
    assert 'href="/jobs.csv?q=alp"' in at_console.get("/jobs/?q=alp").content.decode()
    (line,) = read(at_console, "/jobs.csv?q=alp")
    assert (line["name"], line["state"], line["run"]) == ("alpha", "failed", str(run.pk))
    assert [row["name"] for row in read(at_console, "/jobs.csv?state=new")] == ["beta"]
    assert [row["name"] for row in read(at_console, "/jobs.csv")] == ["alpha", "beta"]


def test_jobs_have_their_health_newest_checkpoint_and_rates(at_console: Client) -> None:
    run = rows.run(rows.job("alpha"), live=rows.live())
    rows.checkpoint(run, 7)
    rows.health(run, Level.ATTENTION, "Checkpoints take 38 s.", recovery_at=run.created_at)
    rows.job("beta")
    alpha, beta = read(at_console, "/jobs.csv")
    assert (alpha["health"], alpha["finding"]) == ("attention", "Checkpoints take 38 s.")
    assert datetime.fromisoformat(alpha["recovery_point"]) == run.created_at
    assert alpha["checkpoint"] == "7"
    assert datetime.fromisoformat(alpha["checkpoint_triggered_at"]) == run.checkpoints.get().triggered_at
    line = at_console.get("/jobs/").context["lines"][0]
    rates = line.flow.rate_in, line.flow.rate_out
    assert (float(alpha["records_in_per_s"]), float(alpha["records_out_per_s"])) == rates
    assert all(rates)
    assert alpha["lag_ms"] == ""
    assert line.lag_ms is None
    Metrics.objects.create(
        step_s=5, run_id=run.pk, at=timezone.now(), operator="", token=run.token, span_ms=5_000,
        processing_lag_ms=1_900,
        records_in=0, records_out=0, bytes_in=0, bytes_out=0,
    )  # fmt: skip
    assert read(at_console, "/jobs.csv")[0]["lag_ms"] == "1900"
    assert (beta["state"], beta["run"], beta["checkpoint"], beta["records_in_per_s"], beta["restarts"]) == ("",) * 5


def test_a_table_of_several_pages_is_whole(at_console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files ended after 10,000 rows. Several operations may have the same time."""
    job, same = rows.job("1"), timezone.now()
    for number in range(2, 6):
        rows.job(str(number))
    for state in ("failed", "stopped", "canceled", "finished", "running"):
        run = rows.run(job, state)
    for number in range(1, 6):
        rows.checkpoint(run, number)
        rows.operation(job, reason=str(number), created_at=same - timedelta(seconds=number // 3))
    for first_rows, rows_at_once in ((1, 1), (1, 2), (2, 3), (3, 5), (5, 5), (6, 6)):
        monkeypatch.setattr("console.ui.paging.FIRST_ROWS", first_rows)
        monkeypatch.setattr("console.ui.paging.ROWS_AT_ONCE", rows_at_once)
        for path, column, expected in (
            ("/jobs.csv", "name", list("12345")),
            (f"/jobs/{job.pk}/checkpoints.csv", "number", list("54321")),
            (f"/jobs/{job.pk}/runs.csv", "state", ["running", "finished", "canceled", "stopped", "failed"]),
        ):
            assert [row[column] for row in read(at_console, path)] == expected
        reasons = [row["reason"] for row in read(at_console, "/operations/?format=csv")]
        assert (sorted(reasons[:2]), sorted(reasons[2:])) == (["1", "2"], ["3", "4", "5"])


def test_a_table_is_read_while_it_is_sent(
    at_console: Client, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    """The memory of a download does not depend on its rows."""
    monkeypatch.setattr("console.ui.paging.FIRST_ROWS", 1)
    monkeypatch.setattr("console.ui.paging.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("console.csv_files._PART_CHARACTERS", 1)
    run = rows.run(rows.job())
    for number in (1, 2, 3):
        rows.checkpoint(run, number)
    answer: Any = at_console.get(f"/jobs/{run.job_id}/checkpoints.csv")
    parts = iter(answer.streaming_content)
    next(parts)  # the names of the columns
    for number in (3, 2, 1):
        with django_assert_num_queries(1):
            assert f",{number},checkpoint," in next(parts).decode()


def test_runs_and_checkpoints_of_a_job(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1)
    rows.checkpoint(run, 2, kind="savepoint", name="before the upgrade")
    job = f"/jobs/{run.job_id}"
    assert f'href="{job}/runs.csv"' in at_console.get(f"{job}/").content.decode()
    assert [(row["id"], row["version"]) for row in read(at_console, f"{job}/runs.csv")] == [(str(run.pk), "1")]
    assert (
        f'href="{job}/checkpoints.csv?kind=savepoint"'
        in at_console.get(f"{job}/checkpoints/?kind=savepoint").content.decode()
    )
    (line,) = read(at_console, f"{job}/checkpoints.csv?kind=savepoint")
    assert (line["number"], line["name"], line["duration_ms"]) == ("2", "before the upgrade", "312")
    assert [row["number"] for row in read(at_console, f"{job}/checkpoints.csv")] == ["2", "1"]


def test_operations_have_their_job_run_user_and_error(at_console: Client, operator: User) -> None:
    run = rows.run(rows.job("alpha"), "stopped")
    rows.operation(run.job, "savepoint", "failed", run=run, requested_by=operator, error={"message": "It expired."})
    rows.operation(run.job, "edit", result={"changes": {"owner": ["", "ada"]}}, created_at=timezone.now())
    edit, savepoint = read(at_console, "/operations/?format=csv")
    assert (savepoint["job"], savepoint["run"], savepoint["run_state"]) == ("alpha", str(run.pk), "stopped")
    assert (savepoint["requested_by"], savepoint["error"], savepoint["changes"]) == ("operator", "It expired.", "")
    assert (edit["run"], edit["run_state"], edit["requested_by"], edit["error"]) == ("",) * 4
    assert edit["changes"] == '{"owner": ["", "ada"]}'


@pytest.mark.parametrize("table", ["checkpoints.csv?larger_than=many", "checkpoints.csv?kind=none"])
def test_an_invalid_filter_is_not_found(at_console: Client, table: str) -> None:
    assert at_console.get(f"/jobs/{rows.job().pk}/{table}").status_code == 404


def test_no_table_has_a_formula(at_console: Client) -> None:
    formula = '=HYPERLINK("x")'
    job = rows.job(formula)
    run = rows.run(job)
    rows.checkpoint(run, 1, name=formula)
    rows.operation(job, reason=formula)
    table = rows.table(rows.JUNE_2013_MS)
    rows.state_query(run.checkpoints.get(), result={**table, "rows": [[formula] * len(table["columns"])]})
    tables = ("/jobs.csv", f"/jobs/{job.pk}/checkpoints.csv", "/operations/?format=csv",
              f"/state-queries/{run.checkpoints.get().state_queries.get().pk}/csv/")  # fmt: skip
    for path in tables:
        values = [value for row in read(at_console, path) for value in row.values()]
        assert f"'{formula}" in values, path
        assert formula not in values, path
