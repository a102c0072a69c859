"""Secrets among parameters: masked on pages, over REST and in the admin, kept for the job, sent back as masks."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.health.collection import collect
from console.jobs import services
from console.jobs.editing import make_equal
from console.jobs.masking import require_references, unmask
from console.jobs.models import Job, JobVersion, Package, Pipeline
from console.runs.logs import LogSecrets
from runtime.access.redaction import MASK, is_secret, mask, redact
from tests.console.ui import rows

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "db_password": {"type": "string", "minLength": 4},
        "pin": {"type": "string", "format": "password"},
        "url": {"type": "string"},
        "sink": {"$ref": "#/$defs/Sink"},
    },
    "$defs": {"Sink": {"properties": {"opener": {"type": "string", "writeOnly": True}}}},
}
NESTED: dict[str, Any] = {
    "properties": {
        "mirror": {"anyOf": [{"$ref": "#/$defs/Sink"}, {"type": "null"}]},
        "doors": {"type": "object", "additionalProperties": {"type": ["string", "integer"], "format": "password"}},
        "sinks": {"type": "object", "additionalProperties": {"oneOf": [{"$ref": "#/$defs/Sink"}, {"type": "null"}]}},
        "openers": {"type": "array", "items": {"type": "string", "writeOnly": True}},
        "rings": {"additionalProperties": {"type": "array", "items": {"$ref": "#/$defs/Sink"}}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "string", "format": "password"}]},
        "marked": {"type": "object", "writeOnly": True},
    },
    "$defs": SCHEMA["$defs"],
}
PARAMS: dict[str, Any] = {
    "path": "/data",
    "db_password": "hunter22",
    "pin": "4711-0815",
    "url": "postgresql://weir:s3cr3t@db/flights",
    "sink": {"opener": "sesame", "apiKey": "k-1234", "rows": 5},
}
SECRETS = ("hunter22", "4711-0815", "s3cr3t", "sesame", "k-1234")


@pytest.mark.parametrize(
    "name", ["password", "db_password", "apiKey", "api-key", "AUTH_TOKEN", "secret", "private_key"]
)
def test_names_that_say_secret(name: str) -> None:
    assert is_secret(name, {})


@pytest.mark.parametrize("name", ["path", "key", "tokens_per_second", "password_file", "keys", "monkey"])
def test_names_that_do_not(name: str) -> None:
    assert not is_secret(name, {})


def test_what_is_masked_comes_back_whole() -> None:
    masked = mask(PARAMS, SCHEMA)
    assert masked == {
        "path": "/data",
        "db_password": MASK,
        "pin": MASK,
        "url": f"postgresql://weir:{MASK}@db/flights",
        "sink": {"opener": MASK, "apiKey": MASK, "rows": 5},
    }
    assert unmask(masked, PARAMS, SCHEMA) == PARAMS
    changed = {**masked, "path": "/other", "pin": "0815", "sink": {**masked["sink"], "rows": 6}}
    expected = {**PARAMS, "path": "/other", "pin": "0815", "sink": {**PARAMS["sink"], "rows": 6}}
    assert unmask(changed, PARAMS, SCHEMA) == expected


def test_a_connection_string_hides_its_password() -> None:
    masked = mask({"dsn": "host=db password='two words' dbname=x", "q": "jdbc:x?user=a&password=b;c=d"}, {})
    assert masked == {"dsn": f"host=db password={MASK} dbname=x", "q": f"jdbc:x?user=a&password={MASK};c=d"}


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"mirror": {"opener": "sesame"}}, "mirror.opener"),
        ({"doors": {"north": "sesame"}}, "doors.north"),
        ({"doors": {"south": 4711}}, "doors.south"),
        ({"sinks": {"a": {"opener": "sesame"}}}, "sinks.a.opener"),
        ({"openers": ["${secret:first}", "sesame"]}, "openers.1"),
        ({"rings": {"a": [{"opener": "sesame"}]}}, "rings.a.0.opener"),
        ({"pair": ["host", "sesame"]}, "pair.1"),
        ({"marked": {"a": ["sesame"]}}, "marked.a.0"),
    ],
)
def test_secrets_in_objects_maps_and_lists_are_masked_and_refused(params: dict[str, Any], path: str) -> None:
    assert MASK in str(mask(params, NESTED))
    assert "sesame" not in str(mask(params, NESTED))
    with pytest.raises(Refused, match=rf"params\.{path}: a secret must be a reference"):
        require_references(params, NESTED)


def test_what_is_no_secret_in_optional_objects_and_maps_is_shown() -> None:
    params: dict[str, Any] = {
        "mirror": None,
        "doors": {"north": "", "south": "${secret:south}"},
        "sinks": {"a": {"rows": 5}, "b": None},
        "openers": ["${secret:first}"],
        "pair": ["host", "${secret:second}"],
    }
    assert mask(params, NESTED) == params
    require_references(params, NESTED)


def test_a_schema_that_contains_itself_is_followed_to_the_end() -> None:
    tree = {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Fork"}, {"$ref": "#/$defs/Tree"}]}
    member = {"properties": {"next": {"$ref": "#/$defs/Tree"}}}
    leaf = {"properties": {**member["properties"], "opener": {"type": "string", "writeOnly": True}}}
    schema: dict[str, Any] = {"properties": {"tree": tree}, "$defs": {"Tree": tree, "Leaf": leaf, "Fork": member}}
    value: dict[str, Any] = {"opener": "sesame"}
    for _ in range(40):  # 2 to the power of 40 paths, if each alternative were followed for itself
        value = {"next": value}
    assert "sesame" not in str(mask({"tree": value}, schema))


@pytest.mark.parametrize(
    "text",
    [
        "postgres://u:${secret:X}@h/db", "postgres://${secret:U}:${secret:P}@h", "postgres://${secret:U}@h",
        "host=db password=${secret:X} dbname=x", "host=db password='${secret:X}'",
    ],
)  # fmt: skip
def test_a_reference_within_a_text_is_shown(text: str) -> None:
    assert mask({"url": text}, {}) == {"url": text}
    assert unmask({"url": text}, {}, {}) == {"url": text}, "another console accepts it"


def test_a_reference_hides_no_password_beside_it() -> None:
    url = "postgres://u:${secret:X}@h postgres://u:s3cr3t@h"
    assert mask({"url": url}, {}) == {"url": f"postgres://u:${{secret:X}}@h postgres://u:{MASK}@h"}
    assert redact("no way in with s3cr3t", {"url": url}, {}) == f"no way in with {MASK}"
    assert redact("the secret ${secret:X} is not set", {"url": url}, {}) == "the secret ${secret:X} is not set"


def test_a_mask_without_a_value_is_refused() -> None:
    with pytest.raises(Refused, match=r"params\.pin: .* stands for a secret that is not stored"):
        unmask({"pin": MASK}, {}, SCHEMA)


def test_texts_lose_their_secrets() -> None:
    assert redact("cannot log in with hunter22 at s3cr3t", PARAMS, SCHEMA) == f"cannot log in with {MASK} at {MASK}"


@pytest.fixture
def secretive(job: Job, pipeline: Pipeline, version: JobVersion, operator: Any) -> JobVersion:
    """A version from the time when literal secrets were accepted."""
    Pipeline.objects.filter(pk=pipeline.pk).update(schema=SCHEMA)
    return JobVersion.objects.create(job=job, number=2, parallelism=1, params=PARAMS, created_by=operator)


def test_no_answer_page_or_admin_shows_a_secret(secretive: JobVersion, api: APIClient, browser: Client) -> None:
    services.store_rejection(secretive.pk, {"code": "bad", "field": "", "detail": "no way in with hunter22"})
    job = secretive.job_id
    paths = [
        *(f"/api/v1/{path}" for path in (f"versions/{secretive.pk}/", f"jobs/{job}/versions/", f"jobs/{job}/")),
        *(f"/jobs/{job}/{path}" for path in ("", "versions/new/", "restore/")),
        "/admin/jobs/jobversion/", f"/admin/jobs/jobversion/{secretive.pk}/change/",
    ]  # fmt: skip
    for path in paths:
        answer = (api if path.startswith("/api") else browser).get(path)
        assert answer.status_code == 200, path
        text = answer.content.decode()
        assert [secret for secret in SECRETS if secret in text] == [], path
    assert secretive.params == PARAMS, "the job needs them"


def test_a_secret_is_masked_by_the_package_of_its_version(api: APIClient, browser: Client) -> None:
    """The newest package no longer declares it."""
    packages = []
    for number, entry in enumerate(({"type": "string", "format": "password"}, {"type": "string"})):
        schema = {**rows.SCHEMA, "properties": {**rows.SCHEMA["properties"], "entry": entry}}
        description = {"pipelines": [{"name": "flights", "schema": schema, "distribution": "flights"}]}
        packages.append(Package(digest=f"{number}" * 64, size=1, state="ready", description=description))
    Package.objects.bulk_create(packages)
    job = rows.job(version={"params": {**rows.PARAMS, "entry": "hunter22"}, "package": packages[0]})
    rows.add_version(job, 2, params={**rows.PARAMS, "entry": "open"}, package=packages[1])
    schema = packages[1].pipelines["flights"]["schema"]
    Pipeline.objects.filter(pk="flights").update(schema=schema, package=packages[1])
    rows.run(job, "stopped")
    page = browser.get(f"/jobs/{job.pk}/").content.decode()
    assert "hunter22" not in page
    assert MASK in page
    failure = {"code": "operator-failed", "message": "no way in with hunter22", "detail": {}}
    run = rows.run(job, "failed", failure=failure)
    rows.attempts(run)
    paths = [
        f"/api/v1/jobs/{job.pk}/versions/difference/?base=1&other=2", f"/api/v1/jobs/{job.pk}/failures/",
        f"/jobs/{job.pk}/versions/?base=1&other=2", f"/runs/{run.pk}/",
    ]  # fmt: skip
    for path in paths:
        answer = (api if path.startswith("/api") else browser).get(path)
        assert answer.status_code == 200, path
        assert "hunter22" not in answer.content.decode(), path
        assert MASK in answer.content.decode(), path
    assert LogSecrets.of(run).redact("hunter22") == MASK
    assert "hunter22" not in str(collect([run], timezone.now()))


def test_a_version_read_over_rest_can_be_sent_back(secretive: JobVersion, api: APIClient) -> None:
    read = api.get(f"/api/v1/versions/{secretive.pk}/").json()
    assert read["params"]["db_password"] == MASK
    body = {"parallelism": 1, "params": {**read["params"], "path": "/new"}}
    answer = api.post(f"/api/v1/jobs/{secretive.job_id}/versions/", body)
    assert answer.status_code == 202, answer.content
    assert JobVersion.objects.get(pk=answer.json()["id"]).params == {**PARAMS, "path": "/new"}


def test_the_form_of_a_version_keeps_what_is_not_typed_anew(secretive: JobVersion, browser: Client) -> None:
    path = f"/jobs/{secretive.job_id}/versions/new/"
    form = browser.get(path).context["version"]
    sent = {f"params-{name}": field.value() for name, field in ((f.name, f) for f in form.params)}
    answer = browser.post(path, {"parallelism": 1, "max_parallelism": 128, **sent, "params-path": "/new"})
    assert answer.status_code == 302, answer.context["version"].params.errors
    assert JobVersion.objects.latest("pk").params == {**PARAMS, "path": "/new"}


def test_a_refusal_does_not_repeat_the_secret(secretive: JobVersion, api: APIClient) -> None:
    body = {"parallelism": 1, "params": {**mask(PARAMS, SCHEMA), "db_password": "abc"}}
    answer = api.post(f"/api/v1/jobs/{secretive.job_id}/versions/", body)
    assert answer.status_code == 422
    assert "params.db_password" in answer.json()["detail"]
    assert "'abc'" not in answer.content.decode()


@pytest.mark.parametrize(
    ("changes", "field"), [({"pin": "4712"}, "params.pin"), ({"sink": {"opener": "sesame2"}}, "params.sink.opener")]
)
def test_a_literal_secret_is_refused_by_field_and_form(
    secretive: JobVersion, api: APIClient, changes: dict[str, Any], field: str
) -> None:
    body = {"parallelism": 1, "params": {**mask(PARAMS, SCHEMA), **changes}}
    answer = api.post(f"/api/v1/jobs/{secretive.job_id}/versions/", body)
    assert (answer.status_code, answer.json()["code"]) == (422, "literal-secret")
    assert f"{field}: a secret must be a reference, such as ${{secret:NAME}}" in answer.json()["detail"]
    assert "4712" not in answer.content.decode()


def test_a_reference_is_accepted_and_shown(secretive: JobVersion, api: APIClient, browser: Client) -> None:
    body = {"parallelism": 1, "params": {**mask(PARAMS, SCHEMA), "pin": "${secret:pin}"}}
    answer = api.post(f"/api/v1/jobs/{secretive.job_id}/versions/", body).json()
    assert answer["params"]["pin"] == "${secret:pin}"
    assert JobVersion.objects.get(pk=answer["id"]).params == {**PARAMS, "pin": "${secret:pin}"}
    page = browser.get(f"/jobs/{secretive.job_id}/versions/new/").content.decode()
    assert 'placeholder="${secret:NAME}"' in page
    assert 'value="${secret:pin}"' in page


def test_an_earlier_version_with_a_literal_secret_can_be_had_again(secretive: JobVersion, operator: User) -> None:
    services.create_version(
        operator, secretive.job, parallelism=1, params={**mask(PARAMS, SCHEMA), "pin": "${secret:p}"}
    )
    assert make_equal(operator, secretive).params == PARAMS


def test_a_duplicate_of_a_definition_has_its_secrets_and_facts(
    secretive: JobVersion, api: APIClient, browser: Client
) -> None:
    Job.objects.filter(pk=secretive.job_id).update(owner="ops", tags=["night"], runbook="https://example.org/run")
    answer = api.post("/api/v1/jobs/", {"name": "twin", "duplicate_of": secretive.pk})
    assert answer.status_code == 201, answer.content
    twin = Job.objects.get(name="twin")
    assert (twin.owner, twin.tags, twin.runbook) == ("ops", ["night"], "https://example.org/run")
    assert twin.cloned_from is None, "it has no state"
    version = twin.versions.get()
    assert (version.params, version.message) == (PARAMS, f"Duplicate of version 2 of {secretive.job.name}")
    page = browser.get("/jobs/new/", {"duplicate": secretive.pk})
    sent = {f"params-{field.name}": field.value() for field in page.context["version"].params}
    assert page.context["form"]["name"].value() == f"{secretive.job.name}, duplicate"
    form = {"duplicate": secretive.pk, "name": "by page", "parallelism": 1, **sent, "params-path": "/new"}
    assert browser.post("/jobs/new/", form).status_code == 302
    assert JobVersion.objects.get(job__name="by page").params == {**PARAMS, "path": "/new"}
    assert Job.objects.get(name="by page").owner == "ops"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"name": "twin"}, 400, "pipeline"),
        ({"name": "twin", "duplicate_of": 999_999}, 422, "duplicate_of"),
        ({"name": "twin", "duplicate_of": 1, "pipeline": "sums"}, 400, "pipeline"),
        ({"name": "twin", "duplicate_of": 1, "version": {"parallelism": 1, "params": {}}}, 400, "version"),
    ],
)
def test_a_duplicate_with_other_values_is_refused(
    pipeline: Pipeline, api: APIClient, body: dict[str, Any], status: int, field: str
) -> None:
    refused = api.post("/api/v1/jobs/", body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (status, f"/{field}")
    assert not Job.objects.exists()
