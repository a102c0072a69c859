"""Tables as CSV."""

import csv

import pytest
from django.test import Client

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
