"""The phases of an operation with their times: a trigger records them, whoever writes a phase."""

from datetime import datetime
from typing import Any

import pytest
from django.db.models.functions import Now
from rest_framework.test import APIClient

from console.accounts.models import User
from console.housekeeping import reconciler
from console.jobs.models import Run
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> Run:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    return run


def entered(row: Operation) -> list[str]:
    row.refresh_from_db()
    times = [datetime.fromisoformat(phase["at"]) for phase in row.phases]
    assert times == sorted(times)
    return [phase["phase"] for phase in row.phases]


def write(row: Operation, **facts: Any) -> None:
    Operation.objects.filter(pk=row.pk).update(**facts)


def test_phases_are_kept_after_the_end_without_their_progress(running: Run) -> None:
    row = Operation.objects.create(job=running.job, kind="copy", phase="waiting for a worker")
    assert [phase["phase"] for phase in row.phases] == ["waiting for a worker"], "without another query"
    for phase in ("copying", "copying: 1 MiB of 9 MiB", "copying: 2 MiB of 9 MiB", "waiting for storage: [Errno 2]"):
        write(row, state="running", phase=phase)
    write(row, state="succeeded", phase="", ended_at=Now())
    assert entered(row) == ["waiting for a worker", "copying", "waiting for storage"]


def test_an_operation_whose_master_died_is_queued_again(running: Run) -> None:
    row = Operation.objects.create(job=running.job, run=running, kind="savepoint")
    for state, phase in (("running", "asked"), ("queued", ""), ("running", "asked")):
        write(row, state=state, phase=phase)
    assert entered(row) == ["asked", "queued again", "asked"]


def test_a_phase_that_alternates_does_not_grow_without_end(running: Run) -> None:
    row = Operation.objects.create(job=running.job, kind="copy")
    for number in range(60):
        write(row, state="running", phase=f"phase {number}")
    assert entered(row) == [f"phase {number}" for number in range(50)]


def test_a_rollback_keeps_its_steps(api: APIClient, operator: User, running: Run) -> None:
    params = {"checkpoint": running.checkpoints.get().pk, "accept_repeated_output": True}
    rollback = request(OperationRequestContext(user=operator), running.job, "rollback", params).operation
    Operation.objects.filter(kind="stop").update(state="running", phase="asked")
    reconciler.reconcile()
    Operation.objects.filter(kind="stop").update(state="succeeded", phase="", ended_at=Now())
    Run.objects.update(state="stopped", ended_at=Now())
    for _ in range(2):
        reconciler.reconcile()
    Run.objects.filter(state="queued").update(state="running", started_at=Now())
    reconciler.reconcile()
    assert entered(rollback) == ["stop", "restore"]
    answer = api.get(f"/api/v1/operations/{rollback.pk}/").json()
    assert (answer["state"], [phase["phase"] for phase in answer["phases"]]) == ("succeeded", ["stop", "restore"])
