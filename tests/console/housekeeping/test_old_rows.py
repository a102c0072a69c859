"""Retention of rows: checkpoints, attempts and operations go after their days, unless something needs them."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.alerts.models import Channel, Delivery
from console.celery import app
from console.checkpoints.models import Checkpoint, StateQuery
from console.housekeeping import old_rows
from console.housekeeping.old_rows import remove_old_rows
from console.incidents.models import Incident
from console.jobs.attempts import with_numbers
from console.jobs.models import Attempt, Run
from console.operations.models import Operation, Schedule, Verification
from console.operations.restores.effects import repeated_output
from tests.console.ui import rows

pytestmark = pytest.mark.django_db

LONG_AGO = timezone.now() - timedelta(days=500)
DAYS_AGO = timezone.now() - timedelta(days=20)


@pytest.fixture
def run() -> Run:
    return rows.run(rows.job(), began_ago=timedelta(days=600))


def failed(run: Run, number: int, **changes: Any) -> Checkpoint:
    columns = {"triggered_at": LONG_AGO, "completed_at": LONG_AGO, "reason": "expired", **changes}
    return rows.checkpoint(run, number, status="failed", **columns)


def discarded(run: Run, number: int, **changes: Any) -> Checkpoint:
    columns = {"triggered_at": LONG_AGO, "completed_at": LONG_AGO, "discarded_at": LONG_AGO, **changes}
    return rows.checkpoint(run, number, is_stored=False, **columns)


def numbers(run: Run) -> list[int]:
    return list(run.checkpoints.order_by("number").values_list("number", flat=True))


def test_old_failed_and_discarded_checkpoints_go(run: Run) -> None:
    for number in (1, 2):
        failed(run, number)
        discarded(run, number + 2)
    StateQuery.objects.create(checkpoint=run.checkpoints.get(number=3), request={}, state="failed", ended_at=LONG_AGO)
    rows.checkpoint(run, 5, is_stored=False)
    failed(run, 6, triggered_at=DAYS_AGO)
    discarded(run, 7, discarded_at=DAYS_AGO)
    assert remove_old_rows() == 4
    assert numbers(run) == [5, 6, 7]


def test_old_incidents_go_with_their_alerts(run: Run) -> None:
    channel = Channel.objects.create(name="night shift", address="https://hooks.example.com")
    for closed_at in (LONG_AGO, DAYS_AGO, None):
        incident = Incident.objects.create(
            job=run.job, run_id=run.pk, level=2, cause={}, opened_at=LONG_AGO, closed_at=closed_at
        )
        incident.deliveries.create(channel=channel, event="opened", message={})
    assert remove_old_rows() == 1
    assert {row.closed_at for row in Incident.objects.all()} == {DAYS_AGO, None}
    assert Delivery.objects.count() == 2


def test_sessions_that_have_ended_go(db: None) -> None:
    for key, days in (("ended", -1), ("present", 1)):
        Session.objects.create(session_key=key, session_data="", expire_date=timezone.now() + timedelta(days=days))
    assert remove_old_rows() == 1
    assert Session.objects.get().session_key == "present"


def test_the_days_are_a_setting(run: Run, settings: Settings) -> None:
    failed(run, 1, triggered_at=DAYS_AGO)
    assert remove_old_rows() == 0
    settings.WEIR_CHECKPOINT_DAYS = 19
    assert remove_old_rows() == 1


def test_checkpoints_that_anything_needs_stay(run: Run, operator: User) -> None:
    rows.checkpoint(run, 1, is_stored=False, triggered_at=LONG_AGO)
    rows.checkpoint(run, 2, kind="savepoint", is_stored=False, triggered_at=LONG_AGO)
    rows.checkpoint(run, 3, status="in_progress", triggered_at=LONG_AGO)
    discarded(run, 4, pinned_at=LONG_AGO)
    failed(run, 5, review_state="in_review")
    failed(run, 6, assignee=operator)
    discarded(run, 7, held_by="5b6a2d0e-3f0f-4f4f-9d6c-0d9f1f2a3b4c")
    restored, first, cloned, read = (discarded(run, number) for number in (8, 9, 10, 11))
    discarded(run, 12, kind="drain")
    Attempt.objects.create(run=run, token=run.token, restored_checkpoint=restored)
    rows.run(rows.job("other"), restore_checkpoint=first)
    other = rows.job("clone")
    other.cloned_from = cloned
    other.save()
    StateQuery.objects.create(checkpoint=read, request={})
    rows.checkpoint(run, 13, is_stored=False)
    assert remove_old_rows() == 0
    assert numbers(run) == list(range(1, 14))


def test_rows_of_a_job_with_an_operation_under_way_stay(run: Run) -> None:
    failed(run, 1)
    under_way = rows.operation(run.job, "discard", "running", created_at=LONG_AGO)
    assert remove_old_rows() == 0
    Operation.objects.filter(pk=under_way.pk).update(state="failed", ended_at=timezone.now())
    assert remove_old_rows() == 1


def test_a_restore_is_still_warned_of_output_that_it_repeats(run: Run) -> None:
    rows.checkpoint(run, 1, kind="savepoint", is_stored=False, triggered_at=LONG_AGO)
    for number in range(2, 9):
        discarded(run, number)
    assert remove_old_rows() == 5
    assert numbers(run) == [1, 2, 8]
    repeated = repeated_output(run.job_id, after=1)
    assert repeated is not None
    assert (repeated.first, repeated.last) == (2, 8)


def test_a_pass_is_bounded_and_the_next_one_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 8):
        failed(run, number)
    monkeypatch.setattr(old_rows, "BATCH_ROWS", 3)
    monkeypatch.setattr(old_rows, "MAX_PASS_S", -1.0)
    assert [remove_old_rows() for _ in range(4)] == [3, 3, 1, 0]


def test_attempts_keep_their_numbers_when_older_ones_go(run: Run, browser: Client) -> None:
    for token in range(run.token - 5, run.token + 1):
        Attempt.objects.create(run=run, token=token, started_at=LONG_AGO, ended_at=LONG_AGO, outcome="failed")
    Attempt.objects.filter(token=run.token).update(ended_at=None, outcome="")
    failed(run, 1, token=run.token - 2, triggered_at=timezone.now())
    assert remove_old_rows() == 3
    left = with_numbers(Attempt.objects.filter(run=run)).order_by("token").values_list("token", "number")
    assert list(left) == [(run.token - 2, 4), (run.token - 1, 5), (run.token, 6)]
    assert browser.get(f"/runs/{run.pk}/").status_code == 200
    run.checkpoints.all().delete()
    assert remove_old_rows() == 2
    assert with_numbers(Attempt.objects.filter(run=run)).get().number == 6


def test_old_operations_go_with_their_parts(run: Run, operator: User) -> None:
    ended: dict[str, Any] = {"created_at": LONG_AGO, "ended_at": LONG_AGO}
    parent = rows.operation(run.job, "savepoint", run=run, **ended)
    rows.operation(run.job, "copy", part_of=parent, **ended)
    rows.operation(run.job, "cancel", "unknown", **ended)
    start = rows.operation(run.job, "start", run=run, **ended)
    definition = rows.operation(run.job, "define", **ended)
    scheduled = rows.operation(run.job, "savepoint", **ended)
    Schedule.objects.create(
        job=run.job, operation="savepoint", every_hours=1, owner=operator, next_at=timezone.now(),
        last_operation=scheduled,
    )  # fmt: skip
    savepoint = rows.checkpoint(run, 1, kind="savepoint", is_stored=False, triggered_at=LONG_AGO)
    comment = rows.operation(run.job, "comment", params={"checkpoint": savepoint.pk}, **ended)
    check = rows.operation(run.job, "verify", params={"checkpoint": savepoint.pk}, **ended)
    Verification.objects.create(checkpoint=savepoint, operation=check, manifest_sha256="", files=[])
    orphan = rows.operation(run.job, "comment", params={"checkpoint": 0}, **ended)
    recent = rows.operation(run.job, "savepoint", created_at=LONG_AGO)
    assert remove_old_rows() == 4
    left = set(Operation.objects.values_list("pk", flat=True))
    assert left == {row.pk for row in (start, definition, scheduled, comment, check, recent)}
    assert orphan.pk not in left


def test_nothing_else_may_delete_an_entry_of_the_ledger(run: Run) -> None:
    """The removal ends with its transaction."""
    ended: dict[str, Any] = {"created_at": LONG_AGO, "ended_at": LONG_AGO}
    rows.operation(run.job, **ended)
    assert remove_old_rows() == 1
    entry = rows.operation(run.job)
    with pytest.raises(IntegrityError, match="cannot be changed or deleted"), transaction.atomic():
        entry.delete()


def test_beat_calls_the_removal_each_minute(run: Run, settings: Settings) -> None:
    failed(run, 1)
    entry = settings.CELERY_BEAT_SCHEDULE["remove-old-rows"]
    assert entry["schedule"].run_every == timedelta(minutes=1)
    app.loader.import_default_modules()
    app.tasks[entry["task"]]()
    assert numbers(run) == []
    with connection.cursor() as cursor:
        cursor.execute("SHOW weir.removes_old_entries")
        assert cursor.fetchone() == ("off",)
