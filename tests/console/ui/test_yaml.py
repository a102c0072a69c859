"""A new version as a YAML document."""

import re

import pytest
import yaml
from django.test import Client

from console.jobs.models import Job, JobVersion, Pipeline
from tests.console.ui import blocks, rows


@pytest.fixture
def job(db: None) -> Job:
    return rows.job()


def document_of(client: Client, job: Job) -> dict[str, object]:
    page = client.get(f"/jobs/{job.pk}/versions/yaml/")
    document: dict[str, object] = yaml.safe_load(page.context["form"]["document"].value())
    return document


def test_the_document_has_the_newest_version_with_all_settings(at_console: Client, job: Job) -> None:
    newest = job.versions.get()
    document = document_of(at_console, job)
    assert list(document) == ["parallelism", "max_parallelism", "params", "settings"]
    assert (document["parallelism"], document["params"]) == (newest.parallelism, newest.params)
    assert "checkpoint_interval_ms" in str(document["settings"])


def test_a_document_becomes_a_version_once(at_console: Client, job: Job) -> None:
    """A double click is one request."""
    changed = {**document_of(at_console, job), "parallelism": 3}
    sent = {"document": yaml.safe_dump(changed), "message": "more slots", "key": "k1"}
    for _ in range(2):
        answer = at_console.post(f"/jobs/{job.pk}/versions/yaml/", sent)
        assert answer["Location"] == f"/jobs/{job.pk}/"
    version = JobVersion.objects.get(job=job, number=2)
    assert (version.parallelism, version.message) == (3, "more slots")
    assert not JobVersion.objects.filter(number=3).exists()


def test_a_document_shows_its_differences_before_it_becomes_a_version(at_console: Client, job: Job) -> None:
    path, document = f"/jobs/{job.pk}/versions/yaml/", document_of(at_console, job)
    sent = {"document": yaml.safe_dump({**document, "parallelism": 3}), "act": "compare", "key": "k1"}
    said = blocks.text(at_console.post(path, sent))
    assert re.search(rf"Differences from version 1 .*arallelism {document['parallelism']} 3 Create version", said)
    sent["document"] = yaml.safe_dump(document)
    assert "The values are those of version 1." in blocks.text(at_console.post(path, sent))
    assert JobVersion.objects.count() == 1
    refused = at_console.post(path, {**sent, "document": yaml.safe_dump({**document, "parallelism": 0})})
    assert (refused.status_code, "parallelism" in blocks.text(refused)) == (422, True)


def test_a_secret_is_masked_and_kept(at_console: Client, job: Job) -> None:
    pipeline = Pipeline.objects.get(pk=job.pipeline)
    pipeline.schema["properties"]["password"] = {"type": "string", "format": "password"}
    pipeline.save()
    first = job.versions.get()
    first.params["password"] = "a-river-runs"
    JobVersion.objects.filter(pk=first.pk).delete()
    first.save(force_insert=True)
    page = at_console.get(f"/jobs/{job.pk}/versions/yaml/")
    assert "a-river-runs" not in page.content.decode()
    at_console.post(f"/jobs/{job.pk}/versions/yaml/", {"document": page.context["form"]["document"].value()})
    assert JobVersion.objects.get(number=2).params["password"] == "a-river-runs"


def test_a_bad_document_names_the_field_and_makes_nothing(at_console: Client, job: Job) -> None:
    cases = [
        ("{parallelism: 2", "is not YAML"),
        ("[1]", "must have the fields parallelism"),
        ("parallelism: 2", "params: this field is required"),
        ("{parallelism: two, params: {}}", "parallelism: must be a whole number, not str"),
        ("{parallelism: 2, params: {day: 2024-13-45}}", "is not YAML"),
        ("{parallelism: 2, params: {a: &a [1], b: *a}}", "aliases (*name) are not allowed"),
        ("# " + 100_000 * "x", "must have 100000 characters at most"),
        ("{parallelism: 2, params: {}, colour: red}", "colour: there is no such field"),
        ("{parallelism: 2, params: {day: 2026-11-26}}", "has a value that JSON does not have"),
        ("{parallelism: 2, params: {unheard: 1}}", "unheard"),
        ("{parallelism: 2, params: {}, settings: {unheard: 1}}", "unheard"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ]
    for text, error in cases:
        answer = at_console.post(f"/jobs/{job.pk}/versions/yaml/", {"document": text})
        assert answer.status_code == 422, text
        assert error in blocks.text(answer), text
        assert text in answer.context["form"]["document"].value(), "the text is sent back"
    assert job.versions.count() == 1


def test_a_reader_makes_no_version(reading: Client, job: Job) -> None:
    changed = yaml.safe_dump({**document_of(reading, job), "parallelism": 3})
    assert reading.post(f"/jobs/{job.pk}/versions/yaml/", {"document": changed}).status_code == 403
    assert "disabled" in reading.get(f"/jobs/{job.pk}/versions/yaml/").content.decode()
    assert job.versions.count() == 1
