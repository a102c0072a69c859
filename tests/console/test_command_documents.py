"""Definitions as YAML documents, and their versions, by `weir`."""

from importlib import metadata
from pathlib import Path

import pytest

from console.jobs.models import Job, JobVersion, Package, Pipeline
from console.jobs.services import store_graph
from tests.console.conftest import GRAPH, Commands

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_definition_is_exported_and_applied_twice(weir: Commands, job: Job, tmp_path: Path) -> None:
    """The second time changes nothing. A changed value is a version, a changed fact is none."""
    file = tmp_path / "job.yaml"
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {path: in}, tags: [night]}")
    assert weir("apply", "-f", str(file)).stdout == "nightly: created, with version 1\nnightly: tags changed\n"
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n"
    exported = weir("export", "nightly").stdout
    file.write_text(exported)
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n"
    file.write_text(exported.replace("parallelism: 2", "parallelism: 3").replace("owner: ''", "owner: ops"))
    changed = weir("apply", "-f", str(file), "--message", "more slots").stdout
    assert changed == "nightly: version 2 created\nnightly: owner changed\n"
    newest = JobVersion.objects.get(job__name="nightly", number=2)
    assert (newest.parallelism, newest.message, newest.params) == (3, "more slots", {"path": "in"})
    assert "parallelism: 2" in weir("export", "nightly", "--version", "1").stdout


def test_a_difference_is_shown_without_a_change(weir: Commands, job: Job, tmp_path: Path) -> None:
    """`diff` and `apply --dry-run` are equal; a refused value is refused by both."""
    file = tmp_path / "job.yaml"
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {path: in}}")
    assert weir("diff", "-f", str(file), code=1).stdout == 'job nightly: null -> "sums"\n'
    weir("apply", "-f", str(file))
    assert weir("diff", "-f", str(file)).stdout == ""
    assert weir.json("diff", "-f", str(file)) == []
    settings = "settings: {checkpoint_interval_ms: 700}"
    file.write_text(f"{{name: nightly, pipeline: sums, parallelism: 3, params: {{path: out}}, owner: ops, {settings}}}")
    lines = [
        "parallelism parallelism: 2 -> 3",
        'parameter path: "in" -> "out"',
        "setting checkpoint_interval_ms: 5000 -> 700",
        'fact owner: "" -> "ops"',
    ]
    assert weir("diff", "-f", str(file), code=1).stdout.splitlines() == lines
    assert weir("apply", "-f", str(file), "--dry-run", code=1).stdout.splitlines() == lines
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {paths: in}}")
    assert "params" in weir("diff", "-f", str(file), code=3).stderr
    assert JobVersion.objects.count() == 1


def test_a_version_that_would_be_created_is_a_difference(
    weir: Commands, job: Job, pipeline: Pipeline, tmp_path: Path
) -> None:
    """`apply` creates one with equal values if the newest was rejected, or if the job has none."""
    pipeline.schema = {"type": "object"}
    pipeline.save()
    file = tmp_path / "job.yaml"
    file.write_text("{name: daily sums, pipeline: sums, parallelism: 2, params: {}}")
    assert weir("diff", "-f", str(file), code=1).stdout == 'version state: null -> "compiling"\n'
    weir("apply", "-f", str(file))
    assert weir("diff", "-f", str(file)).stdout == ""
    JobVersion.objects.update(state="rejected")
    assert weir("diff", "-f", str(file), code=1).stdout == 'version state: "rejected" -> "compiling"\n'
    assert weir("apply", "-f", str(file)).stdout == "daily sums: version 2 created\n"


def test_a_definition_names_a_package_and_keeps_it(
    weir: Commands, job: Job, pipeline: Pipeline, tmp_path: Path
) -> None:
    """A package is a difference as a parameter is. A document without a package keeps that of the newest version."""
    description = {"pipelines": [{"name": "sums", "schema": pipeline.schema}]}
    first, second = (
        Package.objects.create(digest=digit * 64, size=1, state="ready", description=description) for digit in "12"
    )
    Pipeline.objects.update(package=first)
    file = tmp_path / "job.yaml"
    text = "name: nightly\npipeline: sums\nparallelism: 2\nparams: {path: in}\n"
    file.write_text(text)
    weir("apply", "-f", str(file))
    assert f"package: '{first.pk}'" in weir("export", "nightly").stdout
    file.write_text(f"{text}package: '{second.pk}'\n")
    line = f'version package: "{first.pk}" -> "{second.pk}"\n'
    assert weir("diff", "-f", str(file), code=1).stdout == line
    assert weir("apply", "-f", str(file)).stdout == "nightly: version 2 created\n"
    file.write_text(text)
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n"
    file.write_text(f"{text}package: 7\n")
    assert "package: must be a text, not 7" in weir("apply", "-f", str(file), code=3).stderr


@pytest.mark.parametrize("message", ["", "new rates"])
def test_a_package_that_is_installed_in_another_version_is_a_new_version(
    weir: Commands, job: Job, tmp_path: Path, message: str
) -> None:
    """`apply` said that there was nothing to change, and the job kept the graph of the old code."""
    installed = metadata.version("click")

    def compiled(number: int, version: str) -> None:
        row = JobVersion.objects.get(job__name="nightly", number=number)
        store_graph(row.pk, {**GRAPH, "code": {"package": "click", "version": version, "graph": "a"}})

    file = tmp_path / "job.yaml"
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {path: in}}")
    weir("apply", "-f", str(file))
    compiled(1, "0.1")
    difference = f'version package: "click 0.1" -> "click {installed}"\n'
    assert weir("diff", "-f", str(file), code=1).stdout == difference
    cause = f"Installed package: click {installed}, before click 0.1"
    output = weir("apply", "-f", str(file), "--message", message).stdout
    assert output == f"nightly: version 2 created{'' if message else f': {cause}'}\n"
    assert JobVersion.objects.get(job__name="nightly", number=2).message == (message or cause)
    compiled(2, installed)
    assert weir("diff", "-f", str(file)).stdout == ""
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n"
    row = JobVersion.objects.get(job__name="nightly", number=2)
    store_graph(row.pk, {**GRAPH, "code": {"package": "on-other-hosts", "version": "1", "graph": "a"}})
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n", "this host need not have the package"


def test_a_mask_in_a_document_keeps_the_secret(weir: Commands, pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.schema["properties"] |= {"password": {"type": "string", "format": "password"}, "token": {"type": "string"}}
    pipeline.save()
    file = tmp_path / "job.yaml"
    document = (
        "{name: nightly, pipeline: sums, parallelism: 2, params: {path: in, password: SECRET, token: a-river-runs}}"
    )
    file.write_text(document.replace("SECRET", "a-literal"))
    assert "params.password: a secret must be a reference" in weir("apply", "-f", str(file), code=3).stderr
    file.write_text(document.replace("SECRET", "'${secret:sums}'"))
    weir("apply", "-f", str(file))
    exported = weir("export", "nightly").stdout
    assert "a-river-runs" not in exported
    assert "password: ${secret:sums}" in exported
    file.write_text(exported)
    assert weir("apply", "-f", str(file)).stdout == "nothing to change\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{name: x", "is not YAML"),
        ("[1]", "a definition has the fields name"),
        ("{name: x, pipeline: sums, params: {}}", "parallelism: this field is required"),
        ("{name: x, pipeline: sums, parallelism: two, params: {}}", "parallelism: must be a whole number, not 'two'"),
        (
            "{name: x, pipeline: sums, parallelism: 2, params: {}, colour: red}",
            "colour: a definition has no such field",
        ),
        ("{name: x, pipeline: sums, parallelism: 2, params: {day: 2026-11-26}}", "has a value that JSON does not have"),
        ("{name: x, pipeline: sums, parallelism: 2, params: {day: 2024-13-45}}", "is not YAML"),
        ("{name: x, pipeline: gone, parallelism: 2, params: {}}", "there is no pipeline 'gone'"),
        ("{name: x, pipeline: sums, parallelism: 999999, params: {}}", "parallelism"),
        ("{name: daily sums, pipeline: other, parallelism: 2, params: {}}", "which cannot change"),
    ],
)
def test_a_bad_document_is_refused_and_leaves_nothing(
    weir: Commands, job: Job, tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert error in weir("apply", "-f", str(file), code=3).stderr
    assert list(Job.objects.values_list("name", flat=True)) == ["daily sums"]
    assert not JobVersion.objects.exists()


def test_a_definition_is_duplicated_as_another_job(weir: Commands, job: Job, version: JobVersion) -> None:
    assert weir("duplicate", "daily sums", "hourly sums").stdout == "hourly sums: created, with version 1\n"
    assert Job.objects.get(name="hourly sums").versions.get().params == version.params
    assert "another job is called" in weir("duplicate", "daily sums", "hourly sums", code=3).stderr


def test_versions_are_made_equal_and_deleted(weir: Commands, job: Job, version: JobVersion) -> None:
    JobVersion.objects.create(job=job, number=2, parallelism=5, params=version.params, state="rejected")
    for _ in range(2):  # the second time it is equal already
        assert weir.json("equal", "daily sums", "1")["number"] == 3
    assert job.versions.get(number=3).parallelism == version.parallelism
    assert "--yes accepts" in weir("delete-version", "daily sums", "2", code=2).stderr
    assert "only a rejected version" in weir("delete-version", "daily sums", "1", "--yes", code=3).stderr
    weir("delete-version", "daily sums", "2", "--yes")
    assert not job.versions.filter(number=2).exists()
