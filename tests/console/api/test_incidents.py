"""Incidents over REST: the list, an incident, and the acts of users."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.alerts.models import Channel, Silence
from console.incidents.following import WELL_FOR
from console.incidents.models import Incident
from console.jobs.models import Run
from tests.console.alerts.passes import watch
from tests.console.conftest import api_as
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import rows

pytestmark = pytest.mark.django_db
SLOW = finding("backpressure", "Backpressure from `sessions`.", "window")
LATE = finding("checkpoints-overdue", "No checkpoint for 5 min.")


def sick(name: str) -> Run:
    run, now = rows.run(rows.job(name)), timezone.now()
    store(run, now, SLOW, LATE)
    watch(now)
    return run


def test_open_incidents_are_listed_with_cause_operator_and_user(api: APIClient) -> None:
    ended, opened = sick("alpha"), sick("beta")
    for moment in (timezone.now(), timezone.now() + WELL_FOR):
        store(ended, moment)
        watch(moment)
    listed = api.get("/api/v1/incidents/").json()["results"]
    assert [row["job_name"] for row in listed] == ["beta", "alpha"]
    (row,) = api.get("/api/v1/incidents/?open=true").json()["results"]
    assert (row["job"], row["run"], row["level"], row["closed_at"]) == (opened.job_id, opened.pk, "attention", None)
    assert row["cause"]["sentence"] == "Backpressure from `sessions`."
    assert (row["cause"]["operator"], row["operator_name"], row["taken_by"]) == ("window", "sessions", None)
    of_job = api.get("/api/v1/incidents/", {"job": ended.job_id}).json()["results"]
    assert [row["job_name"] for row in of_job] == ["alpha"]
    assert api.get("/api/v1/incidents/?state=open").status_code == 400


def test_an_incident_has_its_findings_notes_and_alerts(api: APIClient) -> None:
    Channel.objects.create(name="night shift", address="https://hooks.example.com", signing_secret="${secret:HOOK}")
    sick("alpha")
    path = f"/api/v1/incidents/{Incident.objects.get().pk}/"
    taken = api.post(f"{path}take/").json()
    assert taken["taken_by"] == "operator"
    note = api.post(f"{path}notes/", {"text": "The disk is full."})
    assert (note.status_code, note.json()["text"], note.json()["created_by"]) == (201, "The disk is full.", "operator")
    silenced = api.post(f"{path}silence/", {"hours": 4})
    assert silenced.status_code == 201
    assert Silence.objects.get().until > timezone.now() + timedelta(hours=3)
    row = api.get(path).json()
    assert [(each["rule"], each["level"]) for each in row["findings"]] == [
        ("backpressure", "attention"), ("checkpoints-overdue", "attention"),
    ]  # fmt: skip
    assert [each["kind"] for each in row["notes"]] == ["silence", "note", "take"]
    assert [(each["channel"], each["event"], each["delivered_at"]) for each in row["alerts"]] == [
        ("night shift", "opened", None)
    ]
    assert api.delete(f"{path}take/").json()["taken_by"] is None
    assert api.get("/api/v1/incidents/999999/").status_code == 404


@pytest.mark.parametrize(("act", "body"), [
    ("notes", {"text": ""}), ("notes", {"text": "x" * 2001}), ("notes", {"text": "x", "by": "me"}),
    ("silence", {"hours": 0}), ("silence", {"hours": 1000}), ("silence", {}),
])  # fmt: skip
def test_a_malformed_request_is_refused(api: APIClient, act: str, body: Any) -> None:
    sick("alpha")
    path = f"/api/v1/incidents/{Incident.objects.get().pk}/{act}/"
    assert api.post(path, body, format="json").status_code in (400, 422)
    assert not Incident.objects.get().notes.exists()


def test_an_incident_that_has_ended_is_not_taken_and_a_viewer_takes_none(api: APIClient, viewer: User) -> None:
    sick("alpha")
    path = f"/api/v1/incidents/{Incident.objects.get().pk}/take/"
    assert api_as(viewer).post(path).status_code == 403
    Incident.objects.update(closed_at=timezone.now())
    refused = api.post(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "incident-ended")
