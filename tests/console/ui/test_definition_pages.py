"""New jobs and new versions, through forms drawn from the pipeline's schema."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from console.accounts.models import User
from console.jobs import pipelines
from console.jobs.models import Job, JobVersion, Package, Pipeline
from tests.console.ui import blocks, rows

FILLED = {"pipeline": "flights", "name": "delays", "description": "", "parallelism": "2", "max_parallelism": "128",
          "params-input": "/data/in", "params-output": "/data/out", "params-max_disorder_ms": "1000",
          "params-on_malformed": '"skip"', "settings-checkpoint_interval_ms": "2000",
          "settings-restart_strategy": '"exponential_delay"', "settings-restart_backoff_multiplier": "2",
          "settings-checkpoint_mode": '"at_least_once"'}  # fmt: skip


def test_first_a_pipeline_is_chosen(at_console: Client) -> None:
    rows.pipeline()
    response = at_console.get("/jobs/new/")
    assert 'href="?pipeline=flights"' in response.content.decode()
    assert "Delays by carrier and flight. A session ends 15 min after its last report." in blocks.text(response)


def test_without_pipelines_the_page_says_where_they_come_from(at_console: Client) -> None:
    assert "No pipelines are known yet" in blocks.text(at_console.get("/jobs/new/"))


def test_an_unknown_pipeline_is_named(at_console: Client) -> None:
    rows.pipeline()
    assert "There is no pipeline <script>." in blocks.text(at_console.get("/jobs/new/?pipeline=%3Cscript%3E"))


def test_the_form_is_drawn_from_the_schema(at_console: Client) -> None:
    rows.pipeline()
    page = at_console.get("/jobs/new/?pipeline=flights").content.decode()
    assert 'name="params-input"' in page
    assert "Folder that is watched for flight files." in page
    assert 'name="params-max_disorder_ms" value="500" min="0"' in page
    assert '<option value="&quot;fail&quot;" selected>fail</option>' in page
    assert 'name="settings-checkpoint_interval_ms" value="5000" min="100"' in page
    assert '<option value="&quot;exponential_delay&quot;" selected>exponential_delay</option>' in page
    assert '<option value="&quot;fail&quot;" selected>fail</option>' in page[page.index("settings-on_corrupt") :]
    assert "no longer exactly once" in page


def test_a_new_version_begins_with_the_choices_of_the_one_before(at_console: Client) -> None:
    """A select without a chosen option shows its first one, which nobody chose."""
    settings = {"checkpoint_mode": "exactly_once", "restart_strategy": "none"}
    job = rows.job(version={"params": {**rows.PARAMS, "on_malformed": "skip"}, "settings": settings})
    page = at_console.get(f"/jobs/{job.pk}/versions/new/").content.decode()
    for value in ("skip", "exactly_once", "none"):
        assert f'<option value="&quot;{value}&quot;" selected>{value}</option>' in page


def test_a_job_is_defined_with_its_first_version(at_console: Client, operator: User) -> None:
    rows.pipeline()
    response = at_console.post("/jobs/new/", FILLED, follow=True)
    job, version = Job.objects.get(), JobVersion.objects.get()
    assert (job.name, job.created_by) == ("delays", operator)
    assert version.params == {
        "input": "/data/in", "output": "/data/out", "max_disorder_ms": 1000, "on_malformed": "skip"
    }  # fmt: skip
    assert version.settings["checkpoint_interval_ms"] == 2000
    assert version.settings["checkpoint_mode"] == "at_least_once"
    assert version.settings["retained_checkpoints"] == 5
    assert version.settings["restart_strategy"] == "exponential_delay"
    assert version.settings["restart_backoff_multiplier"] == 2
    assert version.settings["on_corrupt_checkpoint"] == "fail"
    assert version.state == "compiling"
    assert "Job delays was created." in blocks.text(response)
    assert "Version 1 is being compiled" in blocks.text(response)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "This field is required."),
        ({"parallelism": "0"}, "greater than or equal to 1"),
        ({"parallelism": "200"}, "must lie between 1 and max_parallelism (128), not 200"),
        ({"params-max_disorder_ms": "-1"}, "greater than or equal to 0"),
        ({"params-on_malformed": '"guess"'}, "Select a valid choice"),
        ({"params-input": ""}, "This field is required."),
        ({"settings-checkpoint_interval_ms": "1"}, "greater than or equal to 100"),
        ({"settings-restart_backoff_multiplier": "0.5"}, "greater than or equal to 1"),
        ({"settings-restart_max_backoff_ms": "10"}, "must not be below `restart_initial_backoff_ms`"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(at_console: Client, changes: dict[str, str], said: str) -> None:
    rows.pipeline()
    response = at_console.post("/jobs/new/", {**FILLED, **changes})
    assert response.status_code == 422
    assert said in blocks.text(response)
    assert not Job.objects.exists()
    assert not JobVersion.objects.exists()


def test_a_name_that_is_taken_is_said_at_the_name(at_console: Client) -> None:
    rows.job("delays")
    response = at_console.post("/jobs/new/", FILLED)
    assert "another job is called 'delays'" in response.context["form"].errors["name"][0]
    assert Job.objects.count() == 1


def test_a_rule_that_only_the_schema_knows_is_said_at_its_parameter(at_console: Client) -> None:
    schema = {"type": "object", "properties": {"input": {"type": "string", "not": {"const": "/data/in"}}}}
    Pipeline.objects.create(name="flights", schema=schema)
    response = at_console.post("/jobs/new/", FILLED)
    assert "should not be valid under" in response.context["version"].params.errors["input"][0]
    assert not Job.objects.exists()


def test_a_broken_pipeline_shows_its_error_in_place_of_its_form(at_console: Client) -> None:
    Pipeline.objects.create(name="torn", error="package acme cannot be used: ImportError: x")
    page = at_console.get("/jobs/new/")
    assert "torn This pipeline cannot be used: package acme" in blocks.text(page)
    assert "?pipeline=torn" not in page.content.decode()
    assert "torn: package acme cannot be used" in blocks.text(at_console.get("/jobs/new/?pipeline=torn"))


def test_a_reader_may_not_define(reading: Client) -> None:
    rows.pipeline()
    response = reading.post("/jobs/new/", FILLED)
    assert response.status_code == 403
    assert "You may not define jobs" in blocks.text(response)
    assert not Job.objects.exists()


def test_a_new_version_starts_from_the_newest_one(at_console: Client) -> None:
    job = rows.job()
    page = at_console.get(f"/jobs/{job.pk}/versions/new/").content.decode()
    assert 'name="params-input" value="/data/flights"' in page
    assert 'name="parallelism" value="2"' in page


def test_the_key_groups_of_a_job_with_state_are_fixed_with_the_reason(at_console: Client) -> None:
    """The help said "Fixed once a run has state", the field took another number, and the restore was refused."""
    run = rows.run(rows.job(), "stopped")
    path = f"/jobs/{run.job_id}/versions/new/"
    key_groups = re.compile(r'<input[^>]* name="max_parallelism"[^>]*>')
    assert "disabled" not in key_groups.findall(at_console.get(path).content.decode())[0]
    rows.checkpoint(run, 7, "stop")
    page = at_console.get(path)
    assert "disabled" in key_groups.findall(page.content.decode())[0]
    assert "It stays 128: savepoint 7 could not be restored with another number." in blocks.text(page)
    at_console.post(path, {**FILLED, "parallelism": "3", "max_parallelism": "256"})
    version = run.job.versions.get(number=2)
    assert (version.parallelism, version.max_parallelism) == (3, 128)


def test_the_differences_of_a_version_are_shown_before_it_is_created(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    form = {**FILLED, "parallelism": "3", "message": "more", "act": "compare"}
    page = at_console.post(path, form)
    assert page.status_code == 200
    assert "Parallelism parallelism 2 3" in blocks.text(page)
    assert "Version to be created" in blocks.text(page)
    assert 'value="3"' in page.content.decode(), "the form keeps what was filled in"
    assert job.versions.count() == 1
    refused = at_console.post(path, {**form, "parallelism": "200"})
    assert (refused.status_code, job.versions.count()) == (422, 1)
    assert "must lie between 1 and max_parallelism (128), not 200" in blocks.text(refused)


def test_a_new_version_is_made_beside_the_old_one(at_console: Client) -> None:
    job = rows.job()
    response = at_console.post(f"/jobs/{job.pk}/versions/new/", {**FILLED, "parallelism": "3"}, follow=True)
    assert list(job.versions.order_by("number").values_list("number", "parallelism")) == [(1, 2), (2, 3)]
    assert "Version 2 is being compiled" in blocks.text(response)


def test_a_pipeline_that_is_gone_is_said(at_console: Client) -> None:
    job = rows.job()
    Pipeline.objects.all().delete()
    assert "is no longer installed" in blocks.text(at_console.get(f"/jobs/{job.pk}/versions/new/"))


# ---------------------------------------------------------------- the same form twice


def key_of(page: Any) -> str:
    """What makes the form, sent twice, one request."""
    return str(re.findall(r'name="key" value="(\w+)"', page.content.decode())[0])


def test_a_version_form_that_is_sent_twice_makes_one_version(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    form = {**FILLED, "key": key_of(at_console.get(path))}
    for _ in range(2):
        response = at_console.post(path, form, follow=True)
    assert response.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert "This form has already created version 2 of flights-delays." in blocks.text(response)
    assert job.versions.count() == 2


def test_a_job_form_that_is_sent_twice_leads_to_the_job_that_was_made(at_console: Client) -> None:
    rows.pipeline()
    path = "/jobs/new/"
    form = {**FILLED, "key": key_of(at_console.get(f"{path}?pipeline=flights"))}
    for _ in range(2):
        response = at_console.post(path, form, follow=True)
    assert response.redirect_chain == [(f"/jobs/{Job.objects.get().pk}/", 302)]
    assert "This form has already created version 1 of delays." in blocks.text(response)
    assert JobVersion.objects.count() == 1


def test_a_form_that_was_changed_after_going_back_makes_another_version(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    form = {**FILLED, "key": key_of(at_console.get(path))}
    at_console.post(path, form)
    at_console.post(path, {**form, "params-output": "/data/elsewhere"})
    assert [version.params["output"] for version in job.versions.order_by("number")[1:]] == [
        "/data/out", "/data/elsewhere"
    ]  # fmt: skip


def test_the_same_values_from_another_page_make_another_version(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    for _ in range(2):
        at_console.post(path, {**FILLED, "key": key_of(at_console.get(path))})
    assert job.versions.count() == 3


def test_a_key_counts_for_the_user_who_sent_it(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    other = Client()
    other.force_login(User.objects.create_superuser("colleague", password="a-river-runs"))
    form = {**FILLED, "key": key_of(at_console.get(path))}
    for client in (at_console, other):
        client.post(path, form)
    assert job.versions.count() == 3


@pytest.mark.parametrize("path", ["/jobs/new/", "/jobs/{}/versions/new/"])
def test_a_form_that_overtakes_itself_makes_one_version(at_console: Client, operator: User, path: str) -> None:
    """A double click: the second request is done between the first one's look for an earlier one and its insert."""
    where = path.format(rows.job("another").pk)
    overtaking = Client()
    overtaking.force_login(operator)
    answers: list[Any] = []

    def overtake(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if '"request_key" = ' in sql and not answers:
            answers.append(None)
            answers[0] = overtaking.post(where, {**FILLED, "key": "once"})
        return result

    with connection.execute_wrapper(overtake):
        answers.append(at_console.post(where, {**FILLED, "key": "once"}))
    assert [(answer.status_code, answer.headers["Location"]) for answer in answers] == [
        (302, f"/jobs/{Job.objects.latest('pk').pk}/")
    ] * 2
    assert JobVersion.objects.count() == 2


# ---------------------------------------------------------------- what a form says


def test_parameters_stand_in_the_order_of_their_author(at_console: Client) -> None:
    """Postgres does not keep the order of an object's members."""
    names = ["where_from_and_how", "b", "destination", "a"]
    root = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    schema = {"$ref": "#/$defs/Params", "$defs": {"Params": root}}
    pipelines.replace([pipelines.OfferedPipeline("flights", "", schema)])
    page = at_console.get("/jobs/new/?pipeline=flights").content.decode()
    assert re.findall(r'name="params-(\w+)"', page) == names


def test_a_form_that_is_sent_back_says_so_at_its_top(at_console: Client) -> None:
    rows.pipeline()
    said = "was not created. Each error is shown at its field."
    assert said in blocks.text(at_console.post("/jobs/new/", {**FILLED, "parallelism": "0"}))
    assert said not in blocks.text(at_console.get("/jobs/new/?pipeline=flights"))
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/new/"
    assert said in blocks.text(at_console.post(path, {**FILLED, "parallelism": "0"}))
    assert said not in blocks.text(at_console.get(path))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("^/", "This must be an absolute path: begin it with /."),
        ("^[a-z]+$", "This must match the pattern ^[a-z]+$."),
    ],
)
def test_a_pattern_is_said_in_words_where_it_means_a_path(at_console: Client, pattern: str, said: str) -> None:
    Pipeline.objects.create(
        name="flights", schema={"type": "object", "properties": {"input": {"type": "string", "pattern": pattern}}}
    )
    response = at_console.post("/jobs/new/", {**FILLED, "params-input": "Here"})
    assert response.context["version"].params.errors["input"] == [said]


def test_rows_are_sent_as_inputs_of_the_same_name(at_console: Client) -> None:
    parts = {"regions": {"type": "array", "items": {"type": "string"}, "minItems": 1},
             "limits": {"type": "object", "additionalProperties": {"type": "integer"}}}  # fmt: skip
    schema = {"type": "object", "properties": parts, "required": ["regions"], "additionalProperties": False}
    Pipeline.objects.create(name="regional", schema=schema)
    page = at_console.get("/jobs/new/?pipeline=regional").content.decode()
    assert page.count('name="params-regions"') == page.count('name="params-limits-name"') == 3
    sent = {"pipeline": "regional", "name": "regions", "parallelism": "1", "params-regions": ["eu", "", "us"],
            "params-limits-name": ["eu", "", ""], "params-limits": ["x", "", ""]}  # fmt: skip
    refused = at_console.post("/jobs/new/", sent)
    assert "Row 1: Enter a whole number." in blocks.text(refused)
    assert at_console.post("/jobs/new/", {**sent, "params-limits": ["7", "", ""]}).status_code == 302
    assert JobVersion.objects.get().params == {"regions": ["eu", "us"], "limits": {"eu": 7}}
    none = {**sent, "name": "none", "params-regions": ["", ""], "params-limits-name": [""], "params-limits": [""]}
    assert "should be non-empty" in blocks.text(at_console.post("/jobs/new/", none))


def test_a_new_version_has_the_parameters_of_the_package_that_it_keeps(at_console: Client) -> None:
    """The newest package of the pipeline may have others."""
    schema = {"type": "object", "properties": {"shop": {"type": "string"}}, "required": ["shop"]}
    offered = {"name": "flights", "schema": schema}
    package = Package.objects.create(digest="a" * 64, size=1, state="ready", description={"pipelines": [offered]})
    newer = Package.objects.create(digest="b" * 64, size=1, state="ready", description={"pipelines": []})
    job = rows.job(version={"package": package, "params": {"shop": "north"}})
    Pipeline.objects.filter(pk=job.pipeline).update(package=newer)
    for address in (f"/jobs/{job.pk}/versions/new/", f"/jobs/new/?duplicate={job.versions.get().pk}"):
        page = at_console.get(address).content.decode()
        assert 'name="params-shop" value="north"' in page
        assert "params-input" not in page
    assert "shop: north" in at_console.get(f"/jobs/{job.pk}/versions/yaml/").content.decode()
