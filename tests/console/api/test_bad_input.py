"""Input that no honest client sends: each gets a refusal that names the field, and none a 500."""

import itertools
import json
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.jobs.models import Job, JobVersion, Pipeline
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.api.test_api import check_problem
from tests.console.conftest import MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db

HALF = "\ud800"  #: of a surrogate pair: JSON can spell it, no text holds it
DIGITS = "9" * 5000  #: more than Python turns into a number


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def post(api: APIClient, path: str, body: Any) -> Any:
    return api.post(f"/api/v1/{path}", json.dumps(body).encode(), content_type="application/json")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"params": {"path": "a\0b"}}, "/params/path"),
        ({"params": {"path": HALF}}, "/params/path"),
        ({"params": {"path": "in", "more": [{"x": ["\0"]}]}}, "/params/more/0/x/0"),
        ({"params": {"path": "in", f"a{HALF}": 1}}, "/params"),
        ({"params": {"path": deep(100)}}, "/params/path"),
        ({"settings": {"checkpoint_mode": HALF}}, "/settings/checkpoint_mode"),
        ({"settings": {HALF: 1}}, "/settings"),
    ],
)
def test_a_version_that_no_row_can_hold(api: APIClient, job: Job, values: dict[str, Any], field: str) -> None:
    body = {"parallelism": 2, "params": {"path": "in"}, **values}
    answer = post(api, f"jobs/{job.pk}/versions/", body)
    check_problem(answer, 422, "invalid-field")
    assert answer.json()["errors"][0]["pointer"].startswith(field)
    assert not JobVersion.objects.exists()


def test_a_number_that_is_none(api: APIClient, job: Job) -> None:
    body = b'{"parallelism": 2, "params": {"path": "in", "window_ms": 1e999}}'
    answer = api.post(f"/api/v1/jobs/{job.pk}/versions/", body, content_type="application/json")
    check_problem(answer, 422, "invalid-field", "/params/window_ms")


def test_a_name_that_occurs_twice(api: APIClient, job: Job) -> None:
    """Readers of JSON differ in the value that they take."""
    for body in (b'{"parallelism": 2, "parallelism": 3}', b'{"params": {"path": "a", "path": "a"}}'):
        answer = api.post(f"/api/v1/jobs/{job.pk}/versions/", body, content_type="application/json")
        assert (answer.status_code, "occurs twice in an object" in answer.json()["detail"]) == (400, True)
    assert not JobVersion.objects.exists()


def test_a_body_beyond_the_limit(api: APIClient, job: Job, settings: Settings) -> None:
    """Nobody has to sign in to send one."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    for path in ("auth/token/", "jobs/"):
        assert post(api, path, {"username": "x" * 900}).status_code == 400
        check_problem(post(api, path, {"username": "x" * 1000}), 413, "too-large")


@pytest.mark.parametrize("params", [{"path": f"/{HALF}"}, {HALF: 1}, {"checkpoint": HALF}])
def test_an_operation_that_no_row_can_hold(api: APIClient, version: JobVersion, params: dict[str, Any]) -> None:
    answer = post(api, f"jobs/{version.job_id}/operations/", {"kind": "restore", "params": params})
    check_problem(answer, 422, "invalid-field")
    assert not Operation.objects.exists()


@pytest.mark.parametrize("path", ["auth/token/", "jobs/", "jobs/{job}/versions/", "jobs/{job}/operations/"])
def test_a_body_that_is_nested_without_end(api: APIClient, job: Job, path: str) -> None:
    body = b"[" * 100_000
    answer = api.post(f"/api/v1/{path.format(job=job.pk)}", body, content_type="application/json")
    check_problem(answer, 400, "parse-error")


def test_a_member_that_no_answer_can_spell(api: APIClient, job: Job) -> None:
    answer = post(api, "jobs/", {"name": "n", "pipeline": job.pipeline, HALF: 1})
    check_problem(answer, 422, "invalid-field")


# ---------------------------------------------------------------- lists


def cursor(position: str) -> str:
    return b64encode(urlencode({"p": position}).encode()).decode()


def test_a_cursor_that_no_page_gave(api: APIClient, job: Job) -> None:
    paths = ("jobs/", *(f"jobs/{job.pk}/{rows}/" for rows in ("versions", "runs", "checkpoints", "operations")))
    positions = ("\0", DIGITS, "yesterday", "1.5")
    for path, position in [("pipelines/", "\0"), *itertools.product(paths, positions)]:
        check_problem(api.get(f"/api/v1/{path}", {"cursor": cursor(position)}), 404, "not-found")


@pytest.mark.parametrize("limit", ["", "0", "-1", "all", "1.5", DIGITS])
def test_a_limit_that_is_none(api: APIClient, job: Job, limit: str) -> None:
    """A parameter that means nothing is an error, not silence."""
    answer = api.get("/api/v1/jobs/", {"limit": limit})
    if limit == DIGITS:
        assert len(answer.json()["results"]) == 1, "more than the most is cut to the most"
    else:
        check_problem(answer, 422, "invalid-field", "/limit")


def test_a_number_of_many_digits(api: APIClient, job: Job, make_run: MakeRun) -> None:
    assert api.get(f"/api/v1/jobs/{job.pk}/checkpoints/statistics/", {"run": DIGITS}).status_code == 404
    operation = Operation.objects.create(job=job, kind="savepoint", state="succeeded")
    assert api.get(f"/api/v1/operations/{operation.pk}/", {"wait": DIGITS}).status_code == 200


def test_a_part_of_a_number(api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    """1.5 is not 1."""
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    for path in (f"jobs/{run.job_id}/checkpoints/", f"jobs/{run.job_id}/versions/"):
        check_problem(api.get(f"/api/v1/{path}", {"number": "1.5"}), 400, "invalid-request", "/number")
        assert len(api.get(f"/api/v1/{path}", {"number": "1"}).json()["results"]) == 1


# ---------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("jobs/", {"name": 7, "pipeline": "sums"}, "/name"),
        ("jobs/", {"name": "n", "pipeline": "sums", "start": "yes"}, "/start"),
        ("jobs/{job}/versions/", {"parallelism": "2", "params": {"path": "in"}}, "/parallelism"),
        ("jobs/{job}/versions/", {"parallelism": True, "params": {"path": "in"}}, "/parallelism"),
        ("jobs/bulk/", {"kind": "tag", "jobs": ["1"], "tags": ["eu"]}, "/jobs"),
        ("saved-views/", {"name": "n", "query": False}, "/query"),
    ],
)
def test_a_value_of_another_json_type(api: APIClient, job: Job, path: str, body: dict[str, Any], field: str) -> None:
    """A number became a name, and a text a number, although the document has one type."""
    check_problem(post(api, path.format(job=job.pk), body), 400, "invalid-request", field)


@pytest.mark.parametrize("query", ["archived=maybe", "archived="])
def test_a_filter_that_means_nothing(api: APIClient, job: Job, query: str) -> None:
    """It was ignored, and the list had all jobs."""
    check_problem(api.get(f"/api/v1/jobs/?{query}"), 400, "invalid-request", "/archived")


# ---------------------------------------------------------------- folders


def test_folders_that_cannot_be(api: APIClient, version: JobVersion, tmp_path: Path, settings: Settings) -> None:
    """Neither is an outage of the storage: to try again would not help."""
    settings.WEIR_SAVEPOINT_ROOTS = [tmp_path]
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for folder in (tmp_path / "round", tmp_path / ("a" * 300)):
        body = {"kind": "restore", "params": {"path": str(folder)}}
        answer = post(api, f"jobs/{version.job_id}/operations/", body)
        check_problem(answer, 422, answer.json()["code"], "/params/path")
        assert answer.json()["code"] in ("corrupt-checkpoint", "invalid-field")


# ---------------------------------------------------------------- pages


def test_a_pipeline_with_a_name_that_no_row_can_hold(browser: Client, pipeline: Pipeline) -> None:
    assert browser.get("/jobs/new/", {"pipeline": "\0"}).status_code == 200
    assert browser.post("/jobs/new/", {"pipeline": "\0"}).status_code == 200


def test_a_reason_that_no_row_can_hold(browser: Client, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    answer = browser.post(f"/jobs/{run.job_id}/stop/", {"reason": "a\0b"}, follow=True)
    assert "reason: must not hold" in answer.content.decode()
    assert not Operation.objects.exists()


def test_json_text_that_no_row_can_hold(browser: Client, pipeline: Pipeline) -> None:
    Pipeline.objects.update(schema={"type": "object", "properties": {"tags": {"type": "array"}}})
    form = {"pipeline": pipeline.name, "name": "n", "parallelism": "1", "max_parallelism": "1"}
    for text in (json.dumps(["\0"]), json.dumps([HALF]), "[" * 100_000, json.dumps(deep(100)), "[1e999]"):
        answer = browser.post("/jobs/new/", {**form, "params-tags": text})
        assert answer.status_code == 422
        assert 'id="id_params-tags_error"' in answer.content.decode()
    assert not Job.objects.exists()
