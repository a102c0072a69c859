"""Spark settings outside the list may hold credentials: no page shows their values, and a mask keeps them."""

from typing import Any

import pytest
import yaml
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import InvalidField
from console.jobs.documents import read_document
from console.jobs.models import Job, JobVersion
from console.jobs.services import create_version
from runtime.access.redaction import MASK
from runtime.access.spark_settings import set_added_settings
from runtime.yaml_text import MAX_DEPTH

NAME = "spark.hadoop.fs.s3a.secret.key"
SPARK = {NAME: "hunter2", "spark.executor.memory": "2g", "spark.driver.extraJavaOptions": "-Dpassword=hunter2"}


@pytest.fixture
def version(job: Job) -> JobVersion:
    return stored(job, 1, SPARK)


def stored(job: Job, number: int, spark: dict[str, str]) -> JobVersion:
    """A version as it is stored, whatever its administrator allowed then."""
    settings = {"spark": spark}
    return JobVersion.objects.create(
        job=job, number=number, parallelism=1, settings=settings, params={"path": "in"}, state="ready"
    )


def test_no_page_and_no_answer_shows_them(client: Client, operator: User, version: JobVersion, api: APIClient) -> None:
    other = stored(version.job, 2, {**SPARK, NAME: "hunter3"})
    client.force_login(operator)
    pages = [
        reverse("admin:jobs_jobversion_change", args=(version.pk,)),
        reverse("ui:new_version", args=(version.job_id,)),
        reverse("ui:version_as_yaml", args=(version.job_id,)),
        reverse("ui:versions", args=(version.job_id,)) + f"?base={version.number}&other={other.number}",
    ]
    answers: list[Any] = [client.get(page) for page in pages]
    answers += [api.get(f"/api/v1/versions/{version.pk}/"), api.get(f"/api/v1/jobs/{version.job_id}/versions/")]
    for answer in answers:
        assert answer.status_code == 200, answer.content.decode()[:500]
        assert "hunter" not in answer.content.decode()
    assert api.get(f"/api/v1/versions/{version.pk}/").json()["settings"]["spark"] == {
        name: value if name == "spark.executor.memory" else MASK for name, value in SPARK.items()
    }


def test_a_mask_keeps_the_value_of_a_setting_that_an_administrator_has_added(definer: User, job: Job) -> None:
    set_added_settings(NAME)
    try:
        fields: dict[str, Any] = {"parallelism": 1, "params": {"path": "in"}}
        create_version(definer, job, **fields, settings={"spark": {NAME: "hunter2"}})
        version = create_version(definer, job, **fields, settings={"spark": {NAME: MASK, "spark.task.cpus": "2"}})
    finally:
        set_added_settings("")
    assert version.settings["spark"] == {NAME: "hunter2", "spark.task.cpus": "2"}


@pytest.mark.parametrize(
    "document",
    [
        "params: " + "[" * 99_000,
        "params: " + "{a: " * 9_000,
        "params:\n " + "- " * 49_000,
        "params: " + "[" * 200 + "]" * 200,
        yaml.safe_dump({"params": {"a": {"b": {}}}}).replace("{}", "[" * MAX_DEPTH + "]" * MAX_DEPTH),
    ],
)
def test_the_nesting_of_a_document_is_bounded(document: str) -> None:
    """Reading time grows with the square of the depth."""
    with pytest.raises(InvalidField, match=f"nested deeper than {MAX_DEPTH} levels"):
        read_document(document)


@pytest.mark.parametrize("document", ["parallelism: 2\nparams: {}\nparallelism: 3", "params: {a: 1, a: 2}"])
def test_a_repeated_key_is_refused(document: str) -> None:
    """The last value counted, in silence."""
    with pytest.raises(InvalidField, match=r"the key '(parallelism|a)' repeats"):
        read_document(document)


def test_a_document_of_usual_depth_is_read() -> None:
    inner = "[" * 20 + "]" * 20
    assert read_document(f"parallelism: 1\nparams: {{a: {inner}}}")["parallelism"] == 1
