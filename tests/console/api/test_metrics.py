"""The history of a run over REST."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from console.jobs.models import Run
from console.metrics import rollup
from console.metrics.models import Metrics, SubtaskMetrics
from console.metrics.selectors import OPERATOR_NUMBERS, RUN_NUMBERS
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeRun

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    run = make_run(RunState.RUNNING, token=1)
    add(run, 60)
    return run


def add(run: Run, intervals: int) -> None:
    now = rollup.floor(datetime.now(UTC), 10)
    numbers = {"records_in": 5, "records_out": 5, "bytes_in": 0, "bytes_out": 0, "span_ms": 5_000}
    Metrics.objects.bulk_create(
        Metrics(step_s=5, run_id=run.pk, at=now - timedelta(seconds=5 * n), operator=uid, token=1, **numbers)
        for n in range(1, intervals + 1)
        for uid in ("", "numbers", "sums")
    )


def metrics(api: APIClient, run: Run, **query: str | int) -> dict[str, Any]:
    answer = api.get(f"/api/v1/runs/{run.pk}/metrics/", query)
    assert answer.status_code == 200, answer.content
    body: dict[str, Any] = answer.json()
    return body


def test_the_default_is_the_last_hour(api: APIClient, run: Run) -> None:
    body = metrics(api, run)
    assert body["step"] == 10
    assert set(body["run"]) == set(RUN_NUMBERS)
    operators = body["operators"]
    assert isinstance(operators, dict)
    assert set(operators) == {"numbers", "sums"}
    for columns in operators.values():
        assert set(columns) == set(OPERATOR_NUMBERS)
        assert [value for value in columns["records_in_per_s"] if value] == pytest.approx([1.0] * 30)
    lengths = {len(column) for column in operators["sums"].values()}
    begin, end = (datetime.fromisoformat(str(body[name])) for name in ("begin", "end"))
    assert lengths == {(end - begin).total_seconds() / 10}


def test_a_time_of_the_run_without_numbers_is_a_gap(api: APIClient, make_run: MakeRun) -> None:
    now = rollup.floor(datetime.now(UTC), 10)
    run = make_run(RunState.RUNNING, token=1, started_at=now - timedelta(minutes=20))
    add(run, 60)
    for query in (dict[str, str](), {"operator": "sums"}):
        (gap,) = metrics(api, run, **query)["gaps"]
        begin, end = (datetime.fromisoformat(gap[name]) for name in ("begin", "end"))
        assert begin == run.started_at
        assert now - end == pytest.approx(timedelta(minutes=5), abs=timedelta(seconds=20))
    Run.objects.update(started_at=now - timedelta(minutes=4))
    assert metrics(api, run)["gaps"] == []


def test_a_step_and_an_operator_may_be_chosen(api: APIClient, run: Run) -> None:
    body = metrics(api, run, step=45, operator="sums")
    assert (body["step"], body["run"]) == (60, None)
    assert isinstance(body["operators"], dict)
    assert list(body["operators"]) == ["sums"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "0001-01-01T00:00:00+14:00"}, "to"),
        ({"to": "99999-01-01"}, "to"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "from"),
        ({"from": "1981-01-01T00:00:00Z", "to": "2999-01-01T00:00:00Z"}, "from"),
        ({"step": "-1"}, "step"),
        ({"step": "fine"}, "step"),
        ({"operator": "nope"}, "operator"),
        ({"until": "now"}, "until"),
    ],
)
def test_a_bad_query_is_a_problem_that_names_its_parameter(
    api: APIClient, run: Run, query: dict[str, str], field: str
) -> None:
    answer, code = api.get(f"/api/v1/runs/{run.pk}/metrics/", query), 400 if field == "until" else 422
    assert (answer.status_code, answer["Content-Type"]) == (code, "application/problem+json")
    assert answer.json()["errors"][0]["pointer"] == f"/{field}"


def test_a_run_without_numbers_has_empty_columns(api: APIClient, make_run: MakeRun) -> None:
    body = metrics(api, make_run(RunState.QUEUED))
    assert isinstance(body["run"], dict)
    assert set(body["run"]["busy"]) == {None}
    assert body["operators"] == {}
    assert api.get("/api/v1/runs/999999/metrics/").status_code == 404


def test_subtasks_are_those_of_the_last_hour(api: APIClient, run: Run) -> None:
    now = datetime.now(UTC)
    columns = {name: [1, 2] for name in ("index", "records_in", "records_out", "busy", "backpressured", "watermark")}
    for hours in (0, 2):
        SubtaskMetrics.objects.create(
            run_id=run.pk, at=now - timedelta(hours=hours), token=1,
            operators={"sums": {**columns, "in_flight_bytes": [0, 0]}},
        )  # fmt: skip
    answer = api.get(f"/api/v1/runs/{run.pk}/metrics/subtasks/", {"operator": "sums"})
    assert answer.json()["numbers"]["records_in"] == [[1, 2]]
    assert api.get(f"/api/v1/runs/{run.pk}/metrics/subtasks/").json()["errors"][0]["pointer"] == "/operator"


def test_the_number_of_queries_is_constant(api: APIClient, run: Run) -> None:
    counts = set()
    for intervals in (1, 100, 500):
        Metrics.objects.all().delete()
        add(run, intervals)
        with CaptureQueriesContext(connection) as captured:
            metrics(api, run)
        counts.add(len(captured))
    assert len(counts) == 1
    assert counts.pop() <= 8
