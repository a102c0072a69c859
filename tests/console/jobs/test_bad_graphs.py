"""Invalid graphs and configurations, by API and real compile stage: refused by name, before anything starts."""

import os
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from console.jobs.compilation import compile_version
from console.jobs.models import Job, Pipeline
from tests.console import programs
from tests.console.api.test_api import check_problem

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bad(db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job of a pipeline that is installed for the stage, as any package would install it."""
    installed = tmp_path / "bad-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[weir.pipelines]\nbad = {programs.__name__}.bad_graphs:PIPELINE\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    Pipeline.objects.create(name="bad", description="Refused.", schema={"type": "object"})
    return Job.objects.create(name="bad", pipeline="bad")


def asked(api: APIClient, job: Job, how: str, **changes: Any) -> Any:
    return api.post(f"/api/v1/jobs/{job.pk}/versions/", {"parallelism": 2, "params": {"how": how}, **changes})


@pytest.mark.parametrize(
    ("how", "code", "field"),
    [
        ("duplicate-uid", "duplicate-uid", "numbers"),
        ("parallelism", "bad-parallelism", "narrow"),
        ("no-sink", "dangling-output", "two"),
        ("cycle", "cycle", "one"),
        ("open-loop", "open-loop", "loop"),
        ("no such thing", "bad-params", "how"),
    ],
)
def test_an_invalid_graph_rejects_the_version_by_operator(
    api: APIClient, bad: Job, how: str, code: str, field: str
) -> None:
    accepted = asked(api, bad, how)
    assert accepted.status_code == 202
    compile_version(accepted.json()["id"])
    version = api.get(accepted["Location"]).json()
    assert (version["state"], version["graph"]) == ("rejected", None)
    assert (version["error"]["code"], version["error"]["field"]) == (code, field)
    started = api.post(f"/api/v1/jobs/{bad.pk}/operations/", {"kind": "start"})
    check_problem(started, 409, "no-ready-version", "/params/version")


def test_a_source_without_an_end_is_refused_in_batch_before_anything_starts(api: APIClient, bad: Job) -> None:
    """S0-05: the version is rejected by the source, and a start is refused with that reason."""
    accepted = asked(api, bad, "endless", settings={"execution_mode": "batch"})
    compile_version(accepted.json()["id"])
    rejection = {
        "code": "unbounded-in-batch",
        "field": "numbers",
        "detail": "BATCH reads bounded sources: this one has no end",
    }
    assert api.get(accepted["Location"]).json()["error"] == rejection
    for params, code in (({}, "no-ready-version"), ({"version": accepted.json()["id"]}, "version-not-ready")):
        started = api.post(f"/api/v1/jobs/{bad.pk}/operations/", {"kind": "start", "params": params})
        body = check_problem(started, 409, code, "/params/version")
        assert body["rejection"] == rejection
        assert "was rejected with unbounded-in-batch, numbers: BATCH reads bounded sources" in body["detail"]
    assert not bad.runs.exists()


def test_the_same_pipeline_without_fault_is_ready(api: APIClient, bad: Job) -> None:
    accepted = asked(api, bad, "nothing")
    compile_version(accepted.json()["id"])
    assert api.get(accepted["Location"]).json()["state"] == "ready"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"parallelism": 129}, "/parallelism"),
        ({"parallelism": 3, "max_parallelism": 2}, "/parallelism"),
        ({"settings": {"checkpoint_interval_ms": 0}}, "/settings/checkpoint_interval_ms"),
        ({"settings": {"on_corrupt_checkpoint": "guess"}}, "/settings/on_corrupt_checkpoint"),
        ({"settings": {"chekpoint_interval_ms": 5000}}, "/settings/chekpoint_interval_ms"),
    ],
)
def test_a_bad_configuration_is_refused_at_once_by_field(
    api: APIClient, bad: Job, changes: dict[str, Any], pointer: str
) -> None:
    check_problem(asked(api, bad, "nothing", **changes), 422, "invalid-field", pointer)
    assert asked(api, bad, "nothing", max_parallelism=40_000).status_code == 400, "the document has the limit"
    assert not bad.versions.exists()
