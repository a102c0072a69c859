"""Definitions: versions and their differences, versions made equal or deleted, facts about jobs, the archive."""

import re
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from console.jobs.models import Job, JobVersion
from console.operations.models import Operation
from tests.console.ui import blocks, rows


def version(job: Job, number: int, **changes: Any) -> JobVersion:
    fields = {"parallelism": 2, "params": rows.PARAMS, "settings": {}, "state": "ready", "graph": rows.GRAPH}
    return JobVersion.objects.create(job=job, number=number, **{**fields, **changes})


@pytest.fixture
def job(db: None) -> Job:
    """Version 2 changes a parameter, a setting, the parallelism and an operator; version 3 was rejected."""
    row = rows.job()
    graph = {**rows.GRAPH, "operators": [*rows.GRAPH["operators"][1:], {**rows.GRAPH["operators"][0], "uid": "more"}]}
    params = {**rows.PARAMS, "max_disorder_ms": 5}
    version(
        row,
        2,
        params=params,
        parallelism=3,
        graph=graph,
        message="less disorder",
        settings={"retained_checkpoints": 4},
    )
    error = {"code": "bad-folder", "field": "params.input", "detail": "there is no such folder"}
    version(row, 3, state="rejected", graph=None, error=error)
    return row


def differences(client: Client, job: Job, **query: int) -> list[tuple[str, str]]:
    return [(row.part, row.name) for row in client.get(f"/jobs/{job.pk}/versions/", query).context["differences"]]


def test_versions_are_listed_with_message_and_what_changed(at_console: Client, job: Job) -> None:
    rows.run(job)
    said = blocks.text(at_console.get(f"/jobs/{job.pk}/versions/", {"base": 1, "other": 2}))
    assert re.search(r"2 Ready less disorder 3 0 ", said)
    assert re.search(r"1 Ready runs now – 2 1 ", said)
    assert "params.input: there is no such folder" in said
    assert "Parameter max_disorder_ms 500 5" in said
    assert "Operator more absent source flights" in said
    changes = differences(at_console, job, base=1, other=2)
    assert ("parallelism", "parallelism") in changes
    settings = [name for part, name in changes if part == "setting"]
    assert settings == ["retained_checkpoints"], "a setting that a version lacks has its default"
    assert {name for part, name in changes if part == "operator"} == {"flights", "more"}
    newest = at_console.get(f"/jobs/{job.pk}/versions/").context
    assert (newest["base"].number, newest["other"].number) == (2, 3)
    assert differences(at_console, job, base=1, other=1) == []


def test_a_secret_that_changed_is_named_but_not_shown(at_console: Client, job: Job) -> None:
    first = version(job, 4, params={**rows.PARAMS, "password": "of-the-first"})
    version(job, 5, params={**rows.PARAMS, "password": "of-the-second"})
    page = at_console.get(f"/jobs/{job.pk}/versions/", {"base": first.number, "other": 5})
    assert "another value, which is secret" in blocks.text(page)
    assert "of-the-" not in page.content.decode()


def test_a_version_is_made_equal_to_an_earlier_one(at_console: Client, job: Job) -> None:
    first = job.versions.get(number=1)
    JobVersion.objects.filter(pk=first.pk).update(request_key=None)
    path, form = f"/versions/{first.pk}/", {"act": "equal", "key": "once"}
    for _ in range(2):
        at_console.post(path, form)
    version = job.versions.get(number=4)
    assert (version.params, version.settings, version.parallelism) == (first.params, first.settings, first.parallelism)
    assert (version.message, version.state) == ("Equal to version 1", "compiling")
    assert job.versions.count() == 4


def test_only_a_rejected_version_that_never_ran_is_deleted_and_its_number_is_not_used_again(
    at_console: Client, job: Job
) -> None:
    rejected, ready = job.versions.get(number=3), job.versions.get(number=2)
    page = at_console.get(f"/jobs/{job.pk}/versions/").content.decode()
    assert re.findall(r'aria-label="Delete version (\d)"', page) == ["3"]
    said = blocks.text(at_console.post(f"/versions/{ready.pk}/", {"act": "delete"}, follow=True))
    assert "Version 2 is ready; only a rejected version can be deleted." in said
    at_console.post(f"/versions/{rejected.pk}/", {"act": "delete"})
    assert list(job.versions.values_list("number", flat=True)) == [2, 1]
    at_console.post(f"/versions/{job.versions.get(number=1).pk}/", {"act": "equal", "key": "again"})
    assert job.versions.first().number == 4  # type: ignore[union-attr]


def test_the_message_of_a_version_cannot_change(job: Job) -> None:
    with pytest.raises(IntegrityError, match="cannot change"), transaction.atomic():
        job.versions.filter(number=2).update(message="something else")


def test_facts_about_a_job_are_edited_and_found_in_the_list(at_console: Client, job: Job) -> None:
    rows.job("another")
    form = {"name": "delays of flights", "description": "", "owner": "Team Air", "tags": "nightly, Air ,nightly",
            "runbook": "https://wiki.example/flights", "review_policy": "warn"}  # fmt: skip
    said = blocks.text(at_console.post(f"/jobs/{job.pk}/edit/", form, follow=True))
    job.refresh_from_db()
    assert (job.name, job.tags) == ("delays of flights", ["air", "nightly"])
    assert "owner Team Air air nightly" in said
    assert "Runbook" in said

    def listed(**query: str) -> list[str]:
        return [line.job.name for line in at_console.get("/jobs/", query).context["lines"]]

    assert listed(tag="air") == listed(owner="Team Air") == listed(q="team") == listed(q="nightly") == [job.name]
    assert listed(tag="ai") == []
    assert "tag air all tags" in blocks.text(at_console.get("/jobs/?tag=air"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "another"}, "another job is called"),
        ({"runbook": "javascript:alert(1)"}, "must be an address that begins with http"),
        ({"tags": "x" * 41}, "must have 40 characters at most"),
        ({"owner": "a\tb"}, "must be one line"),
    ],
)
def test_a_fact_that_cannot_be_stored_is_named(
    at_console: Client, job: Job, changes: dict[str, str], said: str
) -> None:
    rows.job("another")
    form = {
        "name": job.name,
        "description": "",
        "owner": "",
        "tags": "",
        "runbook": "",
        "review_policy": "off",
        **changes,
    }
    response = at_console.post(f"/jobs/{job.pk}/edit/", form)
    assert response.status_code in (409, 422)
    assert said in blocks.text(response)


def test_an_archived_job_is_out_of_the_list_and_cannot_be_started(at_console: Client, job: Job) -> None:
    run = rows.run(job)
    archive = f"/jobs/{job.pk}/archive/"
    assert "end it before the job is archived" in blocks.text(at_console.post(archive, follow=True))
    run.state = "stopped"
    run.save()
    at_console.post(archive)
    assert "No jobs yet." in blocks.text(at_console.get("/jobs/"))
    assert job.name in blocks.text(at_console.get("/jobs/?archived=1"))
    said = blocks.text(at_console.post(f"/jobs/{job.pk}/start/", follow=True))
    assert f"Job {job.name} is archived. Bring it back first." in said
    assert not Operation.objects.filter(kind="start").exists()
    at_console.post(archive, {"act": "bring_back"})
    assert job.name in blocks.text(at_console.get("/jobs/"))


def test_a_reader_changes_no_definition(reading: Client, job: Job) -> None:
    first = job.versions.get(number=3)
    page = reading.get(f"/jobs/{job.pk}/versions/").content.decode()
    assert "You may not define jobs" in page
    assert 'value="delete"' not in page
    reading.post(f"/versions/{first.pk}/", {"act": "delete"})
    reading.post(f"/jobs/{job.pk}/archive/")
    refused = reading.post(f"/jobs/{job.pk}/edit/", {"name": "mine", "description": "", "review_policy": "off"})
    assert refused.status_code == 403
    job.refresh_from_db()
    assert (job.versions.count(), job.archived_at, job.name) == (3, None, "flights-delays")
