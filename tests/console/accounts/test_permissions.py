"""Permissions of a user and of the user's groups."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission

from console.accounts.models import User
from console.jobs.models import Pipeline
from tests.console.conftest import api_as

pytestmark = pytest.mark.django_db


def test_own_permissions_and_those_of_groups_take_a_query(viewer: User, django_assert_num_queries: Any) -> None:
    """They took two."""
    define, operate = (Permission.objects.get(codename=name) for name in ("add_job", "add_operation"))
    group = Group.objects.create(name="on call")
    group.permissions.add(operate)
    viewer.groups.add(group)
    viewer.user_permissions.add(define, operate)
    user = User.objects.get(pk=viewer.pk)
    with django_assert_num_queries(1):
        assert user.has_perm("jobs.add_job")
        assert user.has_perm("operations.add_operation")
        assert not user.has_perm("operations.add_maintenance")
        assert not user.has_perm("jobs.add_operation")


def test_an_inactive_user_has_no_permission(definer: User) -> None:
    assert definer.has_perm("jobs.add_job")
    User.objects.filter(pk=definer.pk).update(is_active=False)
    assert not User.objects.get(pk=definer.pk).has_perm("jobs.add_job")


def test_a_definer_operates_nothing(definer: User, pipeline: Pipeline) -> None:
    api = api_as(definer)
    answer = api.post("/api/v1/jobs/", {"name": "daily sums", "pipeline": pipeline.name})
    assert answer.status_code == 201
    operations = f"/api/v1/jobs/{answer.json()['id']}/operations/"
    refused = api.post(
        operations, {"kind": "start"}, headers={"Idempotency-Key": "11111111-1111-4111-8111-111111111111"}
    )
    assert refused.status_code == 403, refused.content
    assert "operations.add_operation" in refused.json()["detail"]
    assert "start" not in [row["kind"] for row in api.get(operations).json()["results"]]
