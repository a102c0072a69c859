"""Migrations of operations that must be reversible with rows of later kinds."""

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from console.operations.models import Schedule
from tests.console.ui import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def _newest_afterwards() -> Iterator[None]:
    yield
    call_command("migrate", "operations", verbosity=0)


def indexes() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'weir_operation'")
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.usefixtures("_newest_afterwards")
def test_a_reversal_of_the_schedules_of_drills_keeps_those_of_savepoints() -> None:
    job, owner = rows.job(), rows.operator_user()
    facts = {"job": job, "owner": owner, "every_hours": 1, "next_at": timezone.now()}
    Schedule.objects.create(operation="savepoint", name="hourly", keep=3, **facts)
    Schedule.objects.create(operation="drill", **facts)
    by_kind = {"weir_operation_drills", "weir_operation_copies"}
    assert by_kind <= indexes()
    call_command("migrate", "operations", "0009", verbosity=0)
    assert not by_kind & indexes()
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, keep FROM weir_savepoint_schedule")
        assert cursor.fetchall() == [("hourly", 3)]
    call_command("migrate", "operations", verbosity=0)
    assert Schedule.objects.get().operation == "savepoint"
    assert by_kind <= indexes()
