"""Packages by REST: uploaded, described by a stage of their own, and named by versions."""

import json
import stat
import sys
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.api.parsing import PackageArchive
from console.jobs import compilation, pipelines
from console.jobs.code import code_of_version
from console.jobs.models import JobVersion, Package, Pipeline
from console.jobs.pipelines import OfferedPipeline
from runtime.io.package_archive import MAX_ARCHIVE_BYTES
from runtime.io.package_cache import package_path
from tests.console.api.test_api import check_problem
from tests.console.conftest import api_as
from tests.packages import word_files, word_job, write_project
from weir.control.package import build

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folders(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("VAR", "STORAGE", "INPUTS", "LOGS"):
        (tmp_path / name).mkdir()
        setattr(settings, f"WEIR_{name}", tmp_path / name)
    settings.WEIR_DATA_ROOTS = [tmp_path / "data"]
    settings.WEIR_STAGES_COMMAND = [sys.executable, "-m", "spark_jobs"]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """Packages of one pipeline that differ in a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        root = tmp_path_factory.mktemp("projects")
        yield {word: build(write_project(root / word, "wordjob", word_files(word)))[0] for word in ("hey", "there")}


def _upload(api: APIClient, archive: bytes, **headers: Any) -> Any:
    return api.generic("POST", "/api/v1/packages/", archive, "application/zip", **headers)  # type: ignore[arg-type]


def _described(api: APIClient, archive: bytes) -> dict[str, Any]:
    digest = _upload(api, archive).json()["digest"]
    pipelines.describe_package(digest)
    row: dict[str, Any] = api.get(f"/api/v1/packages/{digest}/").json()
    return row


def _changed(archive: bytes, job: str) -> bytes:
    """The package with another module of its job."""
    data = BytesIO()
    with zipfile.ZipFile(BytesIO(archive)) as source, zipfile.ZipFile(data, "w") as target:
        for name in source.namelist():
            target.writestr(name, job if name == "wordjob/job.py" else source.read(name))
    return data.getvalue()


def _params(tmp_path: Path) -> dict[str, str]:
    return {"lines_dir": str(tmp_path / "data" / "in"), "output_dir": str(tmp_path / "data" / "out")}


def _version(api: APIClient, job: int, **values: Any) -> JobVersion:
    answer = api.post(f"/api/v1/jobs/{job}/versions/", {"parallelism": 1, **values}, format="json")
    assert answer.status_code == 202, answer.content
    compilation.compile_version(answer.json()["id"])
    version = JobVersion.objects.get(pk=answer.json()["id"])
    assert version.state == "ready", version.error
    return version


def test_an_uploaded_package_is_stored_by_its_digest_and_offers_its_pipelines(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    answer = _upload(api, archives["hey"])
    assert (answer.status_code, answer.json()["state"]) == (202, "describing")
    row = _described(api, archives["hey"])
    assert (row["state"], row["error"]) == ("ready", None)
    assert row["digest"] in answer["Location"]
    assert (tmp_path / "STORAGE" / package_path(row["digest"])).read_bytes() == archives["hey"]
    assert row["description"]["distributions"] == {"wordjob": "1.0"}
    offered = Pipeline.objects.get(pk="wordjob")
    assert (offered.package_id, offered.description) == (row["digest"], "Marks lines with hey.")
    assert list(offered.schema["x-order"]) == ["lines_dir", "output_dir", "bounded"]
    assert "wordjob" not in sys.modules, "the console imports no code of a package"
    assert _upload(api, archives["hey"]).json()["state"] == "ready"


def test_each_upload_with_an_effect_is_in_the_history_of_the_admin(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    answers = [_upload(api, archives["hey"]) for _ in range(2)]
    (tmp_path / "STORAGE" / package_path(answers[0].json()["digest"])).write_bytes(b"damaged")
    answers.append(_upload(api, archives["hey"]))
    entries = LogEntry.objects.order_by("pk").values_list(
        "user__username", "action_flag", "object_id", "change_message"
    )
    digest, user = answers[0].json()["digest"], User.objects.get().username
    assert list(entries) == [
        (user, action, digest, f"Uploaded by request {answers[number]['X-Request-Id']}.")
        for number, action in ((0, ADDITION), (2, CHANGE))
    ]


def test_versions_keep_their_packages_and_a_new_one_has_that_of_the_newest(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    first, second = (_described(api, archive)["digest"] for archive in archives.values())
    job = api.post("/api/v1/jobs/", {"name": "words", "pipeline": "wordjob"}, format="json").json()["id"]
    params = _params(tmp_path)
    (tmp_path / "data" / "in").mkdir(parents=True)
    assert _version(api, job, params=params, package=first).package_id == first
    version = _version(api, job, params=params, parallelism=2)
    assert version.package_id == first, "another parallelism does not change the code"
    assert version.graph is not None
    assert {name: version.graph["code"][name] for name in ("package", "version", "digest")} == {
        "package": "wordjob", "version": "1.0", "digest": first,
    }  # fmt: skip
    version_of_second = _version(api, job, params=params, package=second)
    assert version_of_second.package_id == second
    assert str(code_of_version(version)) == f"wordjob 1.0 ({first[:12]})"
    assert str(code_of_version(version_of_second)) == f"wordjob 1.0 ({second[:12]})"
    changes = api.get(f"/api/v1/jobs/{job}/versions/difference/?base=1&other=3").json()["differences"]
    assert {"part": "version", "name": "package", "before": first, "after": second} in changes
    equal = api.post(f"/api/v1/versions/{version.pk}/equal/").json()
    assert equal["package"] == first


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        ("0" * 64, "there is no package 0000"),
        ("", "wordjob is not installed: name a package"),
    ],
)
def test_a_version_with_a_package_that_is_not_there_is_refused(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path, package: str, problem: str
) -> None:
    _described(api, archives["hey"])
    job = api.post("/api/v1/jobs/", {"name": "words", "pipeline": "wordjob"}, format="json").json()["id"]
    body = {"parallelism": 1, "params": _params(tmp_path), "package": package}
    answer = api.post(f"/api/v1/jobs/{job}/versions/", body, format="json")
    assert problem in check_problem(answer, 422, "invalid-field", "/package")["detail"]


def test_a_package_that_does_not_offer_the_pipeline_of_the_job_is_refused(
    api: APIClient, archives: dict[str, bytes]
) -> None:
    digest = _described(api, archives["hey"])["digest"]
    Pipeline.objects.create(name="sums", schema={"type": "object"})
    job = api.post("/api/v1/jobs/", {"name": "words", "pipeline": "sums"}, format="json").json()["id"]
    body = {"parallelism": 1, "params": {}, "package": digest}
    answer = api.post(f"/api/v1/jobs/{job}/versions/", body, format="json")
    assert (
        "does not offer 'sums'; it offers wordjob" in check_problem(answer, 422, "invalid-field", "/package")["detail"]
    )


def test_a_package_that_cannot_be_imported_is_rejected_with_its_traceback(
    api: APIClient, archives: dict[str, bytes]
) -> None:
    archive = _changed(archives["hey"], "def load():\n    return 1 / 0\n\nload()\n")
    row = _described(api, archive)
    assert (row["state"], row["error"]["code"]) == ("rejected", "broken-package")
    assert 'wordjob/job.py", line 2, in load' in row["error"]["detail"]
    assert "ZeroDivisionError" in row["error"]["detail"]
    assert not Pipeline.objects.filter(pk="wordjob").exists()
    assert _upload(api, archive).json()["state"] == "describing", "an upload describes it again"


def test_texts_that_postgres_cannot_store_are_stored_without_these_characters(
    api: APIClient, archives: dict[str, bytes]
) -> None:
    row = _described(api, _changed(archives["hey"], "raise ValueError('a\\0b\\ud800c')\n"))
    assert (row["state"], row["error"]["code"]) == ("rejected", "broken-package")
    assert "ValueError: a\ufffdb" in row["error"]["detail"]
    row = _described(api, _changed(archives["hey"], word_job("hey").replace("Marks", "Marks\\0 \\ud800")))
    assert row["state"] == "ready", row["error"]
    assert Pipeline.objects.get(pk="wordjob").description.startswith("Marks\ufffd ")


def test_a_description_has_a_limit_and_is_no_part_of_the_list(api: APIClient, archives: dict[str, bytes]) -> None:
    row = _described(api, _changed(archives["hey"], word_job("hey").replace("Marks", "Marks" * 300_000)))
    assert row["state"] == "rejected"
    assert "bytes, and a package may have 1,048,576" in row["error"]["detail"]
    _described(api, archives["hey"])
    rows = api.get("/api/v1/packages/").json()["results"]
    assert [(row["state"], "description" in row) for row in rows] == [("ready", False), ("rejected", False)]


def test_an_outage_of_the_storage_rejects_no_package(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    digest = _upload(api, archives["hey"]).json()["digest"]
    (tmp_path / "STORAGE").rename(tmp_path / "gone")
    for attempt in range(1, 8):
        pipelines.describe_package(digest)
        package = Package.objects.get(pk=digest)
        assert (package.state, package.failed_attempts) == ("describing", attempt), package.error
    assert package.woken_at > timezone.now() + timedelta(minutes=14), "pauses grow"
    pipelines.describe_package(digest)
    package.refresh_from_db()
    assert (package.state, package.failed_attempts) == ("describing", 8), "an outage has no limit"
    (tmp_path / "gone").rename(tmp_path / "STORAGE")
    pipelines.describe_package(digest)
    package.refresh_from_db()
    assert (package.state, package.error) == ("ready", None)


def test_an_outage_of_the_storage_during_a_compilation_rejects_no_version(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    """On a host that has not unpacked the package yet."""
    digest = _described(api, archives["hey"])["digest"]
    job = api.post("/api/v1/jobs/", {"name": "words", "pipeline": "wordjob"}, format="json").json()["id"]
    (tmp_path / "data" / "in").mkdir(parents=True)
    body = {"parallelism": 1, "params": _params(tmp_path), "package": digest}
    pk = api.post(f"/api/v1/jobs/{job}/versions/", body, format="json").json()["id"]
    (tmp_path / "VAR" / "packages").rename(tmp_path / "cached")
    (tmp_path / "STORAGE").rename(tmp_path / "gone")
    for attempt in (1, 2):
        compilation.compile_version(pk)
        version = JobVersion.objects.get(pk=pk)
        assert (version.state, version.failed_attempts) == ("compiling", attempt), version.error
    assert version.error is not None
    assert version.error["code"] == "unavailable"
    assert str(tmp_path / "STORAGE") in version.error["detail"]
    assert version.woken_at > timezone.now(), "the reconciler waits before it sends a wake-up"
    (tmp_path / "gone").rename(tmp_path / "STORAGE")
    compilation.compile_version(pk)
    version.refresh_from_db()
    assert (version.state, version.error) == ("ready", None)


def test_a_fault_of_the_host_that_no_wait_heals_is_no_outage(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    digest = _upload(api, archives["hey"]).json()["digest"]
    (tmp_path / "VAR" / "packages").mkdir()
    (tmp_path / "VAR" / "packages").chmod(0o777)
    pipelines.describe_package(digest)
    package = Package.objects.get(pk=digest)
    assert package.error is not None
    assert (package.state, package.error["code"]) == ("describing", "stage-failed"), "repeated eight times"
    assert "another user may write to it" in package.error["log"]


def test_a_package_whose_description_fails_each_time_is_rejected(
    api: APIClient, archives: dict[str, bytes], settings: Settings
) -> None:
    """A time-out is such a failure too: no stage has judged the package."""
    digest = _upload(api, archives["hey"]).json()["digest"]
    settings.WEIR_STAGES_COMMAND = ["sh", "-c", "sleep 60"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "_TIMEOUT_S", 0)
        pipelines.describe_package(digest)
    package = Package.objects.get(pk=digest)
    assert package.error is not None
    assert (package.state, package.error["code"]) == ("describing", "stage-timeout")
    settings.WEIR_STAGES_COMMAND = ["false"]
    for _ in range(7):
        pipelines.describe_package(digest)
    row = api.get(f"/api/v1/packages/{digest}/").json()
    assert (row["state"], row["error"]["code"]) == ("rejected", "stage-failed")
    assert _upload(api, archives["hey"]).json()["state"] == "describing"
    assert Package.objects.get(pk=digest).failed_attempts == 0


def test_a_package_for_another_python_is_rejected_in_a_sentence(api: APIClient, archives: dict[str, bytes]) -> None:
    data = BytesIO()
    with zipfile.ZipFile(BytesIO(archives["hey"])) as source, zipfile.ZipFile(data, "w") as archive:
        for name in source.namelist():
            content = source.read(name)
            if name == "weir-package.json":
                content = json.dumps({**json.loads(content), "Python": "3.2"}).encode()
            archive.writestr(name, content)
    error = _described(api, data.getvalue())["error"]
    assert error["code"] == "package-conflict"
    assert error["detail"].startswith("it was built for Python 3.2, and Python 3.")


def test_a_pipeline_that_is_installed_is_not_replaced_by_a_package(api: APIClient, archives: dict[str, bytes]) -> None:
    pipelines.replace([OfferedPipeline("wordjob")])
    error = _described(api, archives["hey"])["error"]
    assert "wordjob is installed beside Weir too" in error["detail"]
    assert Pipeline.objects.get(pk="wordjob").package is None


def test_another_distribution_does_not_take_over_the_name_of_a_pipeline(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    digest = _described(api, archives["hey"])["digest"]
    files = {**word_files("hi", "other"), "job.py": word_job("hi", "other").replace('name="other"', 'name="wordjob"')}
    project = write_project(tmp_path / "project", "other", files, pipelines={"wordjob": "other.job:PIPELINE"})
    row = _described(api, build(project)[0])
    assert (row["state"], row["error"]["code"]) == ("rejected", "package-conflict")
    assert row["error"]["detail"] == "wordjob belongs to packages of wordjob, not of other: rename it."
    assert Pipeline.objects.get(pk="wordjob").package_id == digest


def test_a_sync_of_installed_pipelines_keeps_those_of_packages(api: APIClient, archives: dict[str, bytes]) -> None:
    digest = _described(api, archives["hey"])["digest"]
    pipelines.replace([OfferedPipeline("sums"), OfferedPipeline("wordjob", "installed")])
    assert dict(Pipeline.objects.values_list("name", "package")) == {"sums": None, "wordjob": digest}
    assert Pipeline.objects.get(pk="wordjob").description == "Marks lines with hey."


def test_a_damaged_file_of_the_storage_is_replaced_by_an_upload(
    api: APIClient, archives: dict[str, bytes], tmp_path: Path
) -> None:
    digest = _upload(api, archives["hey"]).json()["digest"]
    stored = tmp_path / "STORAGE" / package_path(digest)
    stored.write_bytes(archives["hey"][:-9])
    pipelines.describe_package(digest)
    error = Package.objects.get(pk=digest).error
    assert error is not None
    assert f"{stored}: its archive is damaged" in error["detail"]
    assert _described(api, archives["hey"])["state"] == "ready"


def _link() -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        entry = zipfile.ZipInfo("wordjob/link")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return data.getvalue()


@pytest.mark.parametrize(
    ("archive", "problem"), [(b"no zip", "its archive is damaged"), (b"", "damaged"), (_link(), "no plain file")]
)
def test_a_body_that_is_no_package_is_refused_and_not_stored(
    api: APIClient, tmp_path: Path, archive: bytes, problem: str
) -> None:
    assert problem in check_problem(_upload(api, archive), 422, "bad-package", "/package")["detail"]
    assert not Package.objects.exists()
    assert not list((tmp_path / "STORAGE").iterdir())


def test_a_repetition_with_the_key_of_a_request_has_its_answer(api: APIClient, archives: dict[str, bytes]) -> None:
    first, again = (_upload(api, archives["hey"], HTTP_IDEMPOTENCY_KEY="once") for _ in range(2))
    assert (first.status_code, again.status_code, again["Idempotent-Replay"]) == (202, 202, "true")
    assert first.json() == again.json()
    other = _upload(api, archives["there"], HTTP_IDEMPOTENCY_KEY="once")
    check_problem(other, 422, "idempotency-key-reused", "/Idempotency-Key")
    assert Package.objects.count() == 1


@pytest.mark.parametrize("headers", [{}, {"HTTP_IDEMPOTENCY_KEY": "once"}])
def test_a_definer_without_the_permission_uploads_nothing(
    definer: User, archives: dict[str, bytes], tmp_path: Path, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[object] = []
    monkeypatch.setattr(PackageArchive, "parse", lambda _, stream, *__: bodies.append(stream))
    answer = _upload(api_as(definer), archives["hey"], **headers)
    assert "the permission jobs.add_package is required" in check_problem(answer, 403, "not-permitted")["detail"]
    assert not list((tmp_path / "STORAGE").iterdir())
    assert bodies == [], "the body is not read"


def test_a_body_above_the_limit_is_refused(api: APIClient) -> None:
    problem = check_problem(_upload(api, b" " * (MAX_ARCHIVE_BYTES + 1)), 413, "too-large")
    assert problem["detail"] == f"The request body exceeds {MAX_ARCHIVE_BYTES} bytes."


def test_a_body_of_another_type_is_refused(api: APIClient) -> None:
    check_problem(api.post("/api/v1/packages/", {"archive": "x"}, format="json"), 415, "unsupported-media-type")
