"""What strangers and users may take of the console: connections, tries, sizes, slots. Each test is the attack."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.api import health
from console.health.readiness import DATABASE, RECONCILER, Readiness
from console.jobs.models import Job, JobVersion
from console.jobs.services import MAX_DESCRIPTION_LENGTH
from console.operations.models import Operation
from tests.console.api.test_api import check_problem
from tests.waiting import until

# ---------------------------------------------------------------- readiness


def test_many_questions_about_readiness_are_one_probe(rf: RequestFactory) -> None:
    """200 anonymous requests held 200 connections, each for as long as the broker took to answer."""
    answer, probing, most = threading.Event(), 0, 0

    def probe() -> None:
        nonlocal probing, most
        probing += 1
        most = max(most, probing)
        answer.wait(30)
        probing -= 1

    readiness = Readiness({"broker": probe})
    with ThreadPoolExecutor(60) as strangers:
        probes = [strangers.submit(health.readyz, rf.get("/readyz"), readiness) for _ in range(60)]
        until(lambda: probing == 1)
        answer.set()
        assert [probe.result().status_code for probe in probes] == [200] * 60
    assert most == 1


def test_an_outage_is_seen_when_the_last_answer_is_old(rf: RequestFactory) -> None:
    outages: list[OSError] = []

    def probe() -> None:
        for outage in outages:
            raise outage

    readiness = Readiness({"broker": probe}, cache_s=0.0)
    assert health.readyz(rf.get("/readyz"), readiness).status_code == 200
    outages.append(OSError())
    assert health.readyz(rf.get("/readyz"), readiness).status_code == 503


def test_without_the_database_only_one_probe_waits_for_it(rf: RequestFactory) -> None:
    """Each would wait for it, as long as a connection may take."""
    waits: list[str] = []

    def away(name: str) -> None:
        waits.append(name)
        raise OperationalError

    probes = {name: partial(away, name) for name in (DATABASE, "broker", RECONCILER)}
    answer = json.loads(health.readyz(rf.get("/readyz"), Readiness(probes)).content)
    assert waits == [DATABASE, "broker"]
    assert answer["parts"][RECONCILER].startswith("unavailable")


# ---------------------------------------------------------------- signing in


def test_guesses_at_the_admin_are_counted_with_all_others(operator: User, client: Client) -> None:
    """41 of 41 guesses were answered there."""
    guess = {"username": "operator", "password": "guess"}
    answers = [client.post("/admin/login/", guess).status_code for _ in range(20)]
    answers += [client.post("/login/", guess).status_code for _ in range(10)]
    assert set(answers) == {200}
    credentials = {"username": "operator", "password": "a long enough one"}
    slowed = client.post("/admin/login/?next=/admin/", credentials)
    assert slowed.status_code == 429
    assert int(slowed["Retry-After"]) > 0
    assert client.get("/admin/").status_code == 302, "not signed in"
    assert client.get("/admin/login/").status_code == 200, "looking costs nothing"


def test_who_is_signed_in_without_rights_guesses_no_faster(operator: User, viewer: User, client: Client) -> None:
    client.force_login(viewer)
    guess = {"username": "operator", "password": "guess"}
    assert [client.post("/admin/login/", guess).status_code for _ in range(31)][-1] == 429


# ---------------------------------------------------------------- slots and sizes


@pytest.mark.parametrize("slots", [129, 32_768])
def test_no_version_and_no_run_asks_for_more_slots_than_the_installation_allows(
    api: APIClient, job: Job, version: JobVersion, slots: int
) -> None:
    """32,768 were accepted: as many processes, on one machine."""
    JobVersion.objects.create(
        job=job, number=2, parallelism=1, max_parallelism=32_768, state="ready", graph=version.graph
    )
    body = {"parallelism": slots, "max_parallelism": 32_768, "params": {"path": "in"}}
    refused = check_problem(api.post(f"/api/v1/jobs/{job.pk}/versions/", body), 422, "invalid-field", "/parallelism")
    assert "128 slots" in refused["detail"]
    assert "WEIR_MAX_SLOTS" in refused["detail"]
    start = {"kind": "start", "params": {"parallelism": slots}}
    answer = api.post(f"/api/v1/jobs/{job.pk}/operations/", start)
    check_problem(answer, 422, "invalid-field", "/params/parallelism")
    assert not Operation.objects.exists()
    assert JobVersion.objects.count() == 2


def test_the_limit_of_slots_is_a_setting(api: APIClient, job: Job, settings: Settings) -> None:
    body = {"parallelism": 200, "max_parallelism": 1024, "params": {"path": "in"}}
    settings.WEIR_MAX_SLOTS = 200
    assert api.post(f"/api/v1/jobs/{job.pk}/versions/", body).status_code == 202


def test_a_description_is_bounded_at_every_door(api: APIClient, browser: Client, job: Job) -> None:
    """Descriptions of 2 MB were stored, and drawn on every list."""
    long = "x" * (MAX_DESCRIPTION_LENGTH + 1)
    answer = api.post("/api/v1/jobs/", {"name": "big", "pipeline": "sums", "description": long})
    check_problem(answer, 400, "invalid-request", "/description")
    drawn = browser.post("/jobs/new/", {"name": "big", "pipeline": "sums", "description": long})
    assert Job.objects.count() == 1, drawn.content
    changed = browser.post(f"/admin/jobs/job/{job.pk}/change/", {"description": long})
    assert "at most" in changed.content.decode()
    job.refresh_from_db()
    assert job.description == ""


def test_parameters_are_bounded(api: APIClient, job: Job) -> None:
    body = {"parallelism": 1, "params": {"path": "x" * 70_000}}
    check_problem(api.post(f"/api/v1/jobs/{job.pk}/versions/", body), 422, "invalid-field", "/params")
    assert not JobVersion.objects.exists()
