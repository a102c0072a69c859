"""Pages of packages, and the choice of a package where a version is made."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.jobs.models import Job, JobVersion, Package, Pipeline, Run
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import Open
from tests.console.ui.test_every_page import faults

pytestmark = pytest.mark.django_db

FIRST, SECOND = "1" * 64, "2" * 64
SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
LATER_SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["word", "limit"],
}


@pytest.fixture(autouse=True)
def storage(settings: Settings, tmp_path: Any) -> None:
    settings.WEIR_STORAGE = tmp_path / "storage"
    settings.WEIR_STORAGE.mkdir()


def package(digest: str, schema: dict[str, Any] = SCHEMA, *, days: int = 0, **changes: Any) -> Package:
    pipelines = [{"name": "words", "schema": schema, "distribution": "words"}]
    description = {"pipelines": pipelines, "distributions": {"words": "1.0", "six": "1.17"}}
    columns = {"state": "ready", "size": 2_000_000, "description": description, "created_by": User.objects.first()}
    at = timezone.now() - timedelta(days=days)
    return Package.objects.create(digest=digest, created_at=at, **{**columns, **changes})


@pytest.fixture
def packages(operator: User) -> tuple[Package, Package]:
    """Two packages of a pipeline; the newer one needs a further parameter."""
    first, second = package(FIRST, days=3), package(SECOND, LATER_SCHEMA)
    Pipeline.objects.create(name="words", package=second, schema=LATER_SCHEMA)
    return first, second


@pytest.fixture
def job(packages: tuple[Package, Package]) -> Job:
    row = Job.objects.create(name="counted words", pipeline="words")
    JobVersion.objects.create(
        job=row, number=1, parallelism=1, params={"word": "hey"}, package=packages[0], state="ready", graph=rows.GRAPH
    )
    return row


def choices(client: Client, path: str) -> tuple[list[str], list[str]]:
    """The texts of the choices of a package, and those that are chosen."""
    options = re.findall(r'<option value="([^"]*)"( selected)?>([^<]*)</option>', client.get(path).content.decode())
    of_package = [(text, selected) for value, selected, text in options if value in ("", FIRST, SECOND)]
    return [text for text, _ in of_package], [text for text, selected in of_package if selected]


def test_the_list_shows_sizes_uses_and_faults(at_console: Client, job: Job) -> None:
    error = {"code": "broken-package", "field": "package", "detail": "it has no entry point"}
    package("3" * 64, state="rejected", error=error, description=None)
    text = blocks.text(at_console.get("/packages/"))
    assert "3 in all, 5.7 MiB in the storage; no version names 2" in text
    assert "A package that no version names is deleted 30 days after its last upload or version." in text
    for words in ("111111111111", "222222222222", "words", "1.9 MiB", "Ready", "Rejected", "it has no entry point"):
        assert words in text
    cluster = blocks.text(at_console.get("/cluster/"))
    assert "3 packages, 5.7 MiB" in cluster


def test_the_page_of_a_package_names_its_versions_and_refuses_a_deletion_in_use(at_console: Client, job: Job) -> None:
    answer = at_console.get(f"/packages/{FIRST}/")
    text = blocks.text(answer)
    for words in ("six 1.17, words 1.0", FIRST, "counted words", "by operator"):
        assert words in text
    assert "The package is in use by version 1 of counted words." in text
    answer = at_console.post(f"/packages/{FIRST}/delete/", follow=True)
    assert "The package is in use by version 1 of counted words." in blocks.text(answer)
    assert Package.objects.filter(pk=FIRST).exists()
    assert at_console.get(f"/packages/{'0' * 64}/").status_code == 404


def test_a_package_is_deleted_by_its_button(at_console: Client, job: Job) -> None:
    answer = at_console.post(f"/packages/{SECOND}/delete/", follow=True)
    assert f"The package {SECOND} is deleted." in blocks.text(answer)
    assert LogEntry.objects.get().object_id == SECOND
    assert Pipeline.objects.get().package_id == FIRST


def test_a_package_whose_file_is_not_deleted_yet_is_not_called_deleted(
    at_console: Client, job: Job, settings: Settings
) -> None:
    settings.WEIR_STORAGE.rmdir()
    text = blocks.text(at_console.post(f"/packages/{SECOND}/delete/", follow=True))
    assert f"The package {SECOND} is being deleted: its file stays until the storage answers." in text
    assert Package.objects.get(pk=SECOND).state == "deleting"


def test_a_user_without_the_right_sees_why_there_is_no_deletion(client: Client, job: Job) -> None:
    user = User.objects.create_user("author")
    client.force_login(user)
    assert "the permission jobs.delete_package is required" in blocks.text(client.get(f"/packages/{SECOND}/"))
    client.post(f"/packages/{SECOND}/delete/")
    assert Package.objects.filter(pk=SECOND).exists()
    user.user_permissions.add(Permission.objects.get(codename="delete_package"))
    client.post(f"/packages/{SECOND}/delete/")
    assert not Package.objects.filter(pk=SECOND).exists()


def test_a_version_shows_its_package_with_a_link(at_console: Client, job: Job) -> None:
    for path in (f"/jobs/{job.pk}/", f"/jobs/{job.pk}/versions/"):
        assert f'href="/packages/{FIRST}/"' in at_console.get(path).content.decode(), path


def test_a_new_version_offers_the_packages_and_has_that_of_the_newest(at_console: Client, job: Job) -> None:
    texts, chosen = choices(at_console, f"/jobs/{job.pk}/versions/new/")
    assert [text[:15] for text in texts] == ["222222222222, o", "111111111111, o"]
    assert all(" by operator: words" in text for text in texts)
    assert [text[:12] for text in chosen] == ["1" * 12]


def test_a_package_older_than_the_offered_ones_stays_chosen(
    at_console: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.pages.packages.MAX_LINES", 1)
    texts, chosen = choices(at_console, f"/jobs/{job.pk}/versions/new/")
    assert [text[:12] for text in texts] == ["2" * 12, "1" * 12]
    assert [text[:12] for text in chosen] == ["1" * 12]
    data = {"parallelism": "1", "package": FIRST, "params-word": "there"}
    at_console.post(f"/jobs/{job.pk}/versions/new/", data)
    assert job.versions.get(number=2).package_id == FIRST


def test_another_package_asks_for_its_parameters(at_console: Client, job: Job) -> None:
    """The first answer shows the fields of the chosen package, and what was entered stays."""
    path = f"/jobs/{job.pk}/versions/new/"
    data = {"parallelism": "1", "package": SECOND, "params-word": "there", "message": "newer code"}
    answer = at_console.post(path, data)
    assert (job.versions.count(), 'name="params-limit"' in answer.content.decode()) == (1, True)
    assert 'value="there"' in answer.content.decode()
    assert f'value="{SECOND}" selected' in answer.content.decode()
    at_console.post(path, {**data, "params-limit": "7"})
    version = job.versions.get(number=2)
    assert (version.package_id, version.params) == (SECOND, {"word": "there", "limit": 7})
    planned = at_console.post(path, {**data, "params-limit": "7", "package": FIRST, "act": "compare"})
    assert job.versions.count() == 2
    assert FIRST in blocks.text(planned)


def test_a_new_job_has_the_chosen_package(at_console: Client, packages: tuple[Package, Package]) -> None:
    _, chosen = choices(at_console, "/jobs/new/?pipeline=words")
    assert [text[:12] for text in chosen] == ["2" * 12], "the newest"
    data = {"pipeline": "words", "name": "old code", "parallelism": "1", "package": FIRST, "params-word": "hey"}
    at_console.post("/jobs/new/", data)
    assert JobVersion.objects.get(job__name="old code").package_id == FIRST


def test_a_package_that_was_deleted_meanwhile_is_named_at_its_field(at_console: Client, job: Job) -> None:
    data = {"parallelism": "1", "package": "4" * 64, "params-word": "hey"}
    text = blocks.text(at_console.post(f"/jobs/{job.pk}/versions/new/", data))
    assert "Select a valid choice" in text
    assert job.versions.count() == 1


def test_a_pipeline_that_is_installed_has_no_choice(at_console: Client, operator: User) -> None:
    rows.pipeline()
    assert 'name="package"' not in at_console.get("/jobs/new/?pipeline=flights").content.decode()


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(400)
@pytest.mark.django_db(transaction=True)
def test_every_page_of_a_job_with_packages(signed_in: Open, running: Run) -> None:
    """Names, keys, widths and the rules of axe, by day and night."""
    Pipeline.objects.filter(pk="flights").delete()
    described = [{"name": "flights", "schema": rows.SCHEMA}]
    for digest in (FIRST, SECOND):
        package(digest, description={"pipelines": described, "distributions": {"flights": "2.1"}})
    Pipeline.objects.create(name="flights", package_id=SECOND, schema=rows.SCHEMA)
    job = running.job
    rows.add_version(job, 2, package_id=FIRST)
    rows.add_version(job, 3, package_id=FIRST, state="rejected", error={"field": "", "detail": "no folder"})
    paths = {
        "job": f"/jobs/{job.pk}/",
        "versions": f"/jobs/{job.pk}/versions/",
        "new-version": f"/jobs/{job.pk}/versions/new/",
        "new-job": "/jobs/new/?pipeline=flights",
        "packages": "/packages/",
        "package": f"/packages/{FIRST}/",
        "unused-package": f"/packages/{SECOND}/",
    }
    with signed_in() as page:
        assert faults(page, paths) == []
