"""Jobs and versions: what is accepted, what is refused and by which name, what does not change any more."""

from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now
from pytest_django.fixtures import DjangoCaptureOnCommitCallbacks
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.jobs import pipelines, services
from console.jobs.models import Job, JobVersion, Pipeline
from tests.console.conftest import GRAPH


def test_a_job_is_created_for_a_known_pipeline(definer: User, pipeline: Pipeline) -> None:
    job = services.create_job(definer, name="  daily sums ", pipeline="sums", description=" of everything ")
    job.refresh_from_db()
    assert (job.name, job.pipeline, job.description, job.created_by) == ("daily sums", "sums", "of everything", definer)
    assert job.last_checkpoint_id == 0


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        ({"name": " ", "pipeline": "sums"}, "invalid-field", "name"),
        ({"name": "x" * 101, "pipeline": "sums"}, "invalid-field", "name"),
        ({"name": "two\nlines", "pipeline": "sums"}, "invalid-field", "name"),
        ({"name": "a", "pipeline": "os.system"}, "unknown-pipeline", "pipeline"),
    ],
)
def test_a_bad_job_is_refused_by_field(
    definer: User, pipeline: Pipeline, values: dict[str, str], code: str, field: str
) -> None:
    with pytest.raises(Refused) as refused:
        services.create_job(definer, **values)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert not Job.objects.exists()


def test_an_unknown_pipeline_makes_a_worker_read_the_registry_again(
    definer: User, pipeline: Pipeline, broker_url: str
) -> None:
    """Rows that were just written are current, so that repeated requests send nothing."""
    broker = redis.Redis.from_url(broker_url)
    broker.delete("stages")
    counts = []
    for age in (timedelta(0), timedelta(minutes=1)):
        Pipeline.objects.update(updated_at=Now() - age)
        with pytest.raises(Refused, match="installed packages are read again"):
            services.create_job(definer, name="a", pipeline="new")
        counts.append(broker.llen("stages"))
    assert counts == [0, 1]


def test_a_version_begins_compiling_with_all_settings_spelled_out(
    definer: User, job: Job, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        version = services.create_version(
            definer, job, parallelism=2, params={"path": "in"}, settings={"checkpoint_interval_ms": 1000}
        )
    version.refresh_from_db()
    assert (version.number, version.state, version.max_parallelism) == (1, "compiling", 128)
    assert version.settings == {
        "execution_mode": "streaming", "checkpoint_mode": "exactly_once",
        "checkpoint_interval_ms": 1000, "checkpoint_timeout_ms": 60000, "alignment_timeout_ms": 0,
        "min_pause_ms": 500, "max_concurrent_checkpoints": 1, "tolerable_failed_checkpoints": None,
        "retained_checkpoints": 5, "retained_hours": None,
        "restart_strategy": "exponential_delay", "restart_attempts": 10, "restart_delay_ms": 1000,
        "restart_initial_backoff_ms": 1000, "restart_max_backoff_ms": 60000, "restart_backoff_multiplier": 1.5,
        "restart_reset_after_ms": 3600000, "restart_jitter": 0.1,
        "on_corrupt_checkpoint": "fail", "fallback_limit_ms": None, "heartbeat_timeout_ms": 10000,
        "slot_request_timeout_ms": 300000,
        "slot_replacement_timeout_ms": None, "slot_start_timeout_ms": 120000, "slot_memory_mb": None,
        "spare_slots": 0, "spark": {},
    }  # fmt: skip
    assert [callback.args for callback in callbacks] == [("console.tasks.compile_version", version.pk)]  # type: ignore[attr-defined]


def test_key_groups_derive_from_the_parallelism_once(definer: User, job: Job) -> None:
    """S3-11: the first version stores the number, and later versions keep it, because checkpoints have it."""
    groups = [
        services.create_version(
            definer, job, parallelism=parallelism, max_parallelism=most, params={"path": "in"}
        ).max_parallelism
        for parallelism, most in ((100, None), (1, None), (1, 64), (1, None))
    ]
    assert groups == [256, 256, 64, 64]
    with pytest.raises(Refused, match=r"must lie between 1 and max_parallelism \(64\), not 65"):
        services.create_version(definer, job, parallelism=65, params={"path": "in"})


def test_a_bad_version_is_refused_by_field(definer: User, job: Job) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 129, "max_parallelism": 128}, "parallelism"),
        ({"parallelism": 32_769}, "parallelism"),
        ({"max_parallelism": 0}, "max_parallelism"),
        ({"max_parallelism": 32769}, "max_parallelism"),
        ({"params": {}}, "params"),
        ({"params": {"path": 3}}, "params.path"),
        ({"params": {"path": "in", "window_ms": 0}}, "params.window_ms"),
        ({"params": {"path": "in", "pth": "x"}}, "params"),
        ({"settings": {"checkpoint_interval_ms": 1}}, "settings.checkpoint_interval_ms"),
        ({"settings": {"restart_attempts": "many"}}, "settings.restart_attempts"),
        ({"settings": {"interval": 5}}, "settings.interval"),
        ({"settings": {"spark": {"spark.driver.extraJavaOptions=-XX:OnError=id -Dx": "1"}}}, "settings"),
        ({"settings": {"slot_memory_mb": 100}}, "settings.slot_memory_mb"),
        ({"settings": {"restart_strategy": "failure_rate"}}, "settings.restart_strategy"),
        (
            {"settings": {"restart_initial_backoff_ms": 9, "restart_max_backoff_ms": 1}},
            "settings.restart_max_backoff_ms",
        ),
    ]
    for values, field in cases:
        with pytest.raises(Refused) as refused:
            services.create_version(definer, job, **{"parallelism": 2, "params": {"path": "in"}, **values})
        assert refused.value.field == field
        assert refused.value.detail.startswith(f"{field}: ")
    assert not JobVersion.objects.exists()


@pytest.mark.parametrize(
    "change",
    ["parallelism = 3", "params = '{}'", "graph = NULL", "state = 'compiling'", "settings = '[]'", "package_id = 'x'"],
)
def test_a_ready_version_cannot_change_even_by_sql(version: JobVersion, change: str) -> None:
    with pytest.raises(IntegrityError, match="it cannot change"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE weir_job_version SET {change} WHERE id = %s", [version.pk])


def test_compiling_ends_once(job: Job) -> None:
    version = JobVersion.objects.create(job=job, number=1, parallelism=2)
    assert services.store_rejection(version.pk, {"code": "no-source", "field": "job", "detail": "has no source"})
    assert not services.store_graph(version.pk, GRAPH)
    version.refresh_from_db()
    assert version.state == "rejected"


def test_the_registry_replaces_the_rows(job: Job) -> None:
    pipelines.replace([pipelines.OfferedPipeline("words", "Counts words", {"type": "object"})])
    assert [row.name for row in Pipeline.objects.all()] == ["words"]
    assert Job.objects.get().pipeline == "sums", "a job keeps the name of a pipeline that is gone"


def test_a_broken_pipeline_is_listed_with_its_error_and_takes_no_job(definer: User) -> None:
    """The registry is refreshed as a whole: the others stay usable, and this one becomes so once it is mended."""
    why = "package acme (entry point torn = acme:PIPELINE) cannot be used: ImportError: x"
    pipelines.replace(
        [pipelines.OfferedPipeline("words", "Counts words"), pipelines.OfferedPipeline("torn", error=why)]
    )
    with pytest.raises(Refused, match="package acme") as refused:
        services.create_job(definer, name="torn job", pipeline="torn")
    assert (refused.value.code, refused.value.field) == ("broken-pipeline", "pipeline")
    assert services.create_job(definer, name="words job", pipeline="words").pk
    pipelines.replace([pipelines.OfferedPipeline("torn", "Mended")])
    assert services.create_job(definer, name="torn job", pipeline="torn").pk


def test_facts_of_a_job_are_changed_under_its_tag(api: APIClient, job: Job) -> None:
    path = f"/api/v1/jobs/{job.pk}/"
    tag = api.get(path).headers["ETag"]
    facts = {"owner": "Team Sums", "tags": ["nightly"], "runbook": "https://wiki.example/sums"}
    changed = api.patch(path, facts, format="json", headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["tags"]) == (200, ["nightly"])
    stale = api.patch(path, {"owner": "Another"}, format="json", headers={"If-Match": tag})
    assert stale.status_code == 412
    assert [row["id"] for row in api.get("/api/v1/jobs/?tag=nightly").json()["results"]] == [job.pk]
    assert api.patch(path, {"archived": True}, format="json", headers={"If-Match": "*"}).json()["archived_at"]
    assert api.get("/api/v1/jobs/?archived=false").json()["results"] == []


def test_a_rejected_version_is_deleted_and_another_is_not(api: APIClient, job: Job, version: JobVersion) -> None:
    rejected = JobVersion.objects.create(job=job, number=2, parallelism=2, state="rejected")
    assert api.delete(f"/api/v1/versions/{rejected.pk}/").status_code == 204
    assert api.delete(f"/api/v1/versions/{version.pk}/").json()["code"] == "cannot-delete"


def test_a_version_is_deleted_whose_compilation_is_repeated_without_success(api: APIClient, job: Job) -> None:
    compiling = JobVersion.objects.create(job=job, number=2, parallelism=2)
    assert api.delete(f"/api/v1/versions/{compiling.pk}/").json()["code"] == "cannot-delete"
    services.postpone_compilation(compiling.pk, {"code": "unavailable", "field": "", "detail": "no storage"})
    assert api.delete(f"/api/v1/versions/{compiling.pk}/").status_code == 204
    assert not services.postpone_compilation(compiling.pk, {"code": "unavailable", "field": "", "detail": "none"})
    assert not services.store_graph(compiling.pk, {})
