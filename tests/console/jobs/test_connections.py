"""Named connections: only an administrator makes them, and no literal secret is stored."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from console.accounts.models import User
from console.jobs.models import Connection

FORM = {
    "name": "shop",
    "description": "Orders of the shop",
    "address": "postgresql://app:${secret:shop-password}@db.example.org/shop",
    "options": '{"sslmode": "verify-full"}',
    "pipelines": "enrichment",
}


def test_an_administrator_makes_a_connection(client: Client, operator: User) -> None:
    client.force_login(operator)
    answer = client.post(reverse("admin:jobs_connection_add"), FORM)
    assert answer.status_code == 302, answer.content.decode()
    row = Connection.objects.get()
    assert (row.name, row.options, row.pipelines) == ("shop", {"sslmode": "verify-full"}, "enrichment")


@pytest.mark.parametrize("is_staff", [False, True])
def test_a_definer_makes_no_connection(client: Client, definer: User, is_staff: bool) -> None:
    """Neither a user of the console, nor a user of the admin without the permission of its own."""
    User.objects.filter(pk=definer.pk).update(is_staff=is_staff)
    definer.user_permissions.add(Permission.objects.get(codename="change_job"))
    client.force_login(definer)
    assert client.post(reverse("admin:jobs_connection_add"), FORM).status_code == (403 if is_staff else 302)
    assert not Connection.objects.exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "9"}, "valid value"),
        ({"name": "a b"}, "valid value"),
        ({"address": "postgresql://app:hunter2@db/shop"}, "contains a password"),
        ({"address": "${connection:other}"}, "no connection"),
        ({"options": {"sasl.password": "hunter2"}}, "sasl.password is a secret"),
        ({"options": {"port": 5432}}, "must be an object of texts"),
        ({"options": []}, "must be an object of texts"),
        ({"pipelines": ""}, "cannot be blank"),
    ],
)
def test_a_bad_connection_is_refused(db: None, fields: dict[str, Any], message: str) -> None:
    good = {"name": "shop", "address": "db:9092", "options": {"sasl.password": "${secret:p}"}, "pipelines": "*"}
    Connection(**good).full_clean()
    with pytest.raises(ValidationError, match=message) as refused:
        Connection(**{**good, **fields}).full_clean()
    assert "hunter2" not in str(refused.value)


def test_the_api_lists_connections(api: APIClient, operator: User) -> None:
    Connection.objects.create(name="shop", address=FORM["address"], options={"a": "b"}, pipelines="enrichment x")
    (connection,) = api.get("/api/v1/connections/").json()["results"]
    del connection["updated_at"]
    assert connection == {
        "name": "shop", "description": "", "address": FORM["address"], "options": {"a": "b"},
        "pipelines": ["enrichment", "x"],
    }  # fmt: skip
    assert api.post("/api/v1/connections/", FORM).status_code == 405


def test_the_command_makes_a_connection_once(db: None) -> None:
    for address in ("${secret:examples-url}", "postgresql://other/db"):
        call_command("ensure_connection", "examples", address, "enrichment", "change_capture")
    row = Connection.objects.get()
    assert (row.address, row.pipelines) == ("${secret:examples-url}", "enrichment change_capture")
