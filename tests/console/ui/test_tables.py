"""Tables as CSV."""

import csv
from datetime import datetime

import pytest
from django.test import Client
from django.utils import timezone

from console.health.findings import Level
from console.health.models import JobHealth
from tests.console.ui import rows


def read(client: Client, path: str) -> list[dict[str, str]]:
    response = client.get(path)
    assert response.headers["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(response.content.decode().splitlines()))


def test_jobs_have_the_filters_of_their_page(at_console: Client) -> None:
    run = rows.run(rows.job("alpha"), "failed")
    rows.job("beta")
    assert 'href="/jobs.csv?q=alp"' in at_console.get("/jobs/?q=alp").content.decode()
    (found,) = read(at_console, "/jobs.csv?q=alp")
    assert (found["name"], found["state"], found["run"]) == ("alpha", "failed", str(run.pk))
    assert [row["name"] for row in read(at_console, "/jobs.csv?state=new")] == ["beta"]
    assert [row["name"] for row in read(at_console, "/jobs.csv")] == ["alpha", "beta"]


def test_jobs_have_their_health_newest_checkpoint_and_rates(at_console: Client) -> None:
    run = rows.run(rows.job("alpha"), live=rows.live())
    rows.checkpoint(run, 7)
    JobHealth.objects.create(
        job=run.job, run_id=run.pk, level=Level.ATTENTION, findings=[{"rule": "slow"}],
        sentence="Checkpoints take 38 s.", recovery_at=run.created_at, checked_at=timezone.now(),
    )  # fmt: skip
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
    assert (beta["state"], beta["run"], beta["checkpoint"], beta["records_in_per_s"], beta["restarts"]) == ("",) * 5


@pytest.mark.parametrize("path", ["/jobs.csv", "/operations/?format=csv", "/jobs/{job}/checkpoints.csv"])
def test_a_table_that_is_cut_says_so(at_console: Client, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    for module in ("console.csv_files", "console.ui.operationlist", "console.ui.views.tables"):
        monkeypatch.setattr(f"{module}.MAX_ROWS", 1)
    run = rows.run(rows.job("alpha"))
    rows.job("beta")
    for number in (1, 2):
        rows.checkpoint(run, number)
        rows.operation(run.job)
    cut = at_console.get(path.format(job=run.job_id))
    assert "-first-1-rows.csv" in cut.headers["Content-Disposition"]
    assert len(list(csv.DictReader(cut.content.decode().splitlines()))) == 1


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
    (found,) = read(at_console, f"{job}/checkpoints.csv?kind=savepoint")
    assert (found["number"], found["name"], found["duration_ms"]) == ("2", "before the upgrade", "312")
    assert [row["number"] for row in read(at_console, f"{job}/checkpoints.csv")] == ["2", "1"]


@pytest.mark.parametrize("table", ["checkpoints.csv?larger_than=many", "checkpoints.csv?kind=none"])
def test_an_invalid_filter_is_not_found(at_console: Client, table: str) -> None:
    assert at_console.get(f"/jobs/{rows.job().pk}/{table}").status_code == 404


def test_no_table_has_a_formula(at_console: Client) -> None:
    formula = '=HYPERLINK("x")'
    job = rows.job(formula)
    run = rows.run(job)
    rows.checkpoint(run, 1, name=formula)
    rows.operation(job, reason=formula)
    rows.state_query(run.checkpoints.get(), result={**rows.TABLE, "rows": [[formula] * 7]})
    tables = ("/jobs.csv", f"/jobs/{job.pk}/checkpoints.csv", "/operations/?format=csv",
              f"/state-queries/{run.checkpoints.get().state_queries.get().pk}/csv/")  # fmt: skip
    for path in tables:
        values = [value for row in read(at_console, path) for value in row.values()]
        assert f"'{formula}" in values, path
        assert formula not in values, path
