"""A rescale: its stop and its restore, and what ends it early."""

from datetime import timedelta
from itertools import count
from threading import Event
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.checkpoints import timed_reads
from console.checkpoints.models import Checkpoint
from console.housekeeping import reconciler
from console.housekeeping.advance import advance_rows
from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from console.runs.lease import ago
from runtime.core.job.lifecycle import RunState
from runtime.io.filesystem import FileStore
from tests.console.conftest import GRAPH, MakeCheckpoint, MakeRun
from tests.waiting import until

WAIT_S = 30

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> Run:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    return run


def ask(user: User, run: Run, **params: Any) -> Operation:
    return request(OperationRequestContext(user=user, reason="more load"), run.job, "rescale", params).operation


def part(rescale: Operation, kind: str) -> Operation:
    return Operation.objects.get(part_of=rescale, kind=kind)


def is_restored_by_a_pass(rescale: Operation) -> bool:
    reconciler.reconcile()
    return Operation.objects.filter(part_of=rescale, kind="restore").exists()


def stop(run: Run, make_checkpoint: MakeCheckpoint, state: str = "succeeded") -> Checkpoint:
    """As the run's master does."""
    savepoint = make_checkpoint(run, 2, kind="stop")
    Operation.objects.filter(run=run, kind="stop").update(state=state, result={"checkpoint": 2}, ended_at=Now())
    Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=Now())
    return savepoint


def test_a_rescale_stops_the_run_and_restores_its_savepoint(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    """The rescale ends when the new run is running; a pass that is repeated changes nothing."""
    rescale = ask(operator, running, parallelism=5)
    assert (rescale.state, rescale.run, part(rescale, "stop").state) == ("running", running, "queued")
    assert part(rescale, "stop").reason == "more load"
    Operation.objects.filter(kind="stop").update(state="running", phase="acknowledging")
    reconciler.reconcile()
    rescale.refresh_from_db()
    assert (rescale.state, rescale.phase) == ("running", "stop: acknowledging")

    savepoint = stop(running, make_checkpoint)
    advance_rows()
    advance_rows()
    restored = part(rescale, "restore").run
    assert restored is not None
    assert (restored.restore_checkpoint, restored.parallelism, restored.version) == (savepoint, 5, running.version)
    assert (restored.state, restored.created_by) == ("queued", operator)

    Run.objects.filter(pk=restored.pk).update(state="running", started_at=Now())
    reconciler.reconcile()
    rescale.refresh_from_db()
    assert (rescale.state, rescale.result) == ("succeeded", {"run": restored.pk})
    assert rescale.ended_at is not None


def test_the_reconciler_goes_on_while_storage_hangs(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the manifest of the savepoint itself, so it watched no job any more."""
    rescale = ask(operator, running, parallelism=5)
    stop(running, make_checkpoint)
    read, answers, reads = FileStore.get, Event(), count()

    def hang(store: FileStore, path: str) -> bytes:
        next(reads)
        assert answers.wait(WAIT_S)
        return read(store, path)

    monkeypatch.setattr(timed_reads, "TIMEOUT_S", 0.1)
    with monkeypatch.context() as storage:
        storage.setattr(FileStore, "get", hang)
        for _ in range(2):
            reconciler.reconcile()
            rescale.refresh_from_db()
            assert (rescale.state, rescale.phase) == ("running", "waiting for storage: it does not answer")
        answers.set()
        until(lambda: is_restored_by_a_pass(rescale))
    assert next(reads) == 1, "the read that hung was not repeated"
    assert part(rescale, "restore").run is not None


def test_another_version_goes_on_at_its_own_parallelism(
    operator: User, job: Job, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    newer = JobVersion.objects.create(job=job, number=2, parallelism=4, state="ready", graph=GRAPH)
    rescale = ask(operator, running, version=newer.pk)
    stop(running, make_checkpoint)
    advance_rows()
    restored = part(rescale, "restore").run
    assert restored is not None
    assert (restored.version, restored.parallelism) == (newer, 4)


def test_a_bad_parameter_stops_nothing(operator: User, running: Run) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"parallelism": 129}, "parallelism"), ({"parallelism": 0}, "parallelism"), ({"version": 10**6}, "version"),
        ({"parallelism": 3, "checkpoint": 1}, "checkpoint"), ({}, "parallelism"),
    ]  # fmt: skip
    for params, field in cases:
        with pytest.raises(Refused) as refused:
            ask(operator, running, **params)
        assert refused.value.field == f"params.{field}"
    assert not Operation.objects.exists()


@pytest.mark.parametrize("names_version", [True, False])
def test_the_parallelism_and_version_of_the_run_stop_nothing(operator: User, running: Run, names_version: bool) -> None:
    same = {"version": running.version_id} if names_version else {}
    with pytest.raises(Refused, match="has this parallelism and version already") as refused:
        ask(operator, running, parallelism=running.parallelism, **same)
    assert (refused.value.code, refused.value.field) == ("nothing-to-rescale", "params.parallelism")
    assert not Operation.objects.exists()


def test_a_version_that_would_lose_state_stops_nothing(
    operator: User, job: Job, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1, operators=[{"uid": "gone", "state_bytes": 10, "subtasks": 2}])
    with pytest.raises(Refused, match="gone"):
        ask(operator, run, parallelism=3)
    assert not Operation.objects.exists()
    assert ask(operator, run, parallelism=3, allow_unmapped=True).state == "running"


def test_a_clone_is_not_stopped_for_a_version_that_cannot_discard_its_output(
    operator: User, job: Job, running: Run
) -> None:
    running.job.discards_output = True
    staged = {**GRAPH, "operators": [{**each, "stage": "feed"} for each in GRAPH["operators"]]}  # type: ignore[attr-defined]
    version = JobVersion.objects.create(job=job, number=2, parallelism=2, state="ready", graph=staged)
    with pytest.raises(Conflict, match="has PySpark stages"):
        ask(operator, running, version=version.pk)
    assert not Operation.objects.exists()


def test_a_second_rescale_is_refused_while_the_first_stops_the_run(operator: User, running: Run) -> None:
    ask(operator, running, parallelism=3)
    with pytest.raises(Conflict, match="A stop is already queued"):
        ask(operator, running, parallelism=4)


@pytest.mark.parametrize("state", ["failed", "unknown"])
def test_a_stop_without_success_ends_the_rescale(operator: User, running: Run, state: str) -> None:
    rescale = ask(operator, running, parallelism=3)
    Operation.objects.filter(kind="stop").update(state=state, error={"code": "expired", "message": "It took too long."})
    advance_rows()
    rescale.refresh_from_db()
    assert (rescale.state, rescale.error) == (state, {"code": "expired", "message": "It took too long."})


def test_a_run_that_was_started_meanwhile_ends_the_rescale_and_names_the_savepoint(
    operator: User, running: Run, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    rescale = ask(operator, running, parallelism=3)
    stop(running, make_checkpoint)
    make_run(RunState.QUEUED)
    advance_rows()
    rescale.refresh_from_db()
    assert rescale.state == "failed"
    assert rescale.error is not None
    assert "has stopped with savepoint 2, which was not restored" in rescale.error["message"]
    assert not Operation.objects.filter(kind="restore").exists()


def test_a_run_that_was_started_and_ended_meanwhile_ends_the_rescale(
    operator: User, running: Run, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    """The rescale is of the run that was the latest at its request. It restored over the later run."""
    rescale = ask(operator, running, parallelism=3)
    stop(running, make_checkpoint)
    later = make_run(RunState.CANCELED)
    advance_rows()
    rescale.refresh_from_db()
    assert (rescale.state, rescale.error and rescale.error["code"]) == ("failed", "run-changed")
    changed = f"The request is for run {running.pk}, but the latest run of the job is run {later.pk}."
    assert changed in (rescale.error or {})["message"]
    assert Run.objects.count() == 2


def test_a_run_that_ended_otherwise_fails_the_rescale(operator: User, running: Run) -> None:
    """The master died while it took the savepoint, and the run was cancelled."""
    rescale = ask(operator, running, parallelism=3)
    Run.objects.filter(pk=running.pk).update(state="canceled", ended_at=ago(60))
    reconciler.reconcile()
    rescale.refresh_from_db()
    assert rescale.state == "failed"
    assert rescale.error is not None
    assert "before the stop was done" in rescale.error["message"]


def test_the_effects_are_shown_before_and_change_nothing(
    api: APIClient, operator: User, running: Run, make_run: MakeRun
) -> None:
    """Over REST, with the numbers of the page; a target that cannot be is refused in words."""
    other = Job.objects.create(name="other", pipeline="sums", created_by=operator)
    version = JobVersion.objects.create(job=other, number=1, parallelism=3, state="ready", graph=GRAPH)
    Run.objects.create(job=other, version=version, parallelism=3, state="running")
    now = timezone.now()
    same_as_now = "The run has this parallelism and version already. Choose another: a rescale stops the run."
    for seconds in (2, 6, 4):
        Operation.objects.create(
            job=running.job, kind="stop", state="succeeded", created_at=now - timedelta(seconds=seconds), ended_at=now
        )
    path = f"/api/v1/jobs/{running.job_id}/rescale/"
    plan = api.get(path, {"parallelism": 5}).json()
    assert (plan["run"], plan["version"], plan["parallelism_before"], plan["parallelism"]) == (
        running.pk, running.version_id, 2, 5,
    )  # fmt: skip
    assert (plan["slots_elsewhere"], plan["restore"], plan["refusal"]) == (3, None, None)
    assert plan["stop"] == {"median_ms": 4000.0, "longest_ms": 6000.0, "count": 3}
    assert plan["state_bytes"] == Checkpoint.objects.get(run=running).size_bytes
    same = api.get(path, {"parallelism": 2}).json()
    assert (same["parallelism"], same["refusal"]) == (
        None,
        same_as_now,
    )
    assert api.get(path, {"parallelism": 999}).json()["refusal"].startswith("params.parallelism")
    assert (api.get(path).status_code, api.get(path, {"parallelism": "x"}).status_code) == (400, 400)
    assert not Operation.objects.filter(kind="rescale").exists()
    Run.objects.filter(pk=running.pk).update(state="stopped")
    assert "stopped" in api.get(path, {"parallelism": 5}).json()["refusal"]


def test_a_rescale_is_bound_to_the_plan_that_was_read(
    api: APIClient, running: Run, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    """The restore behind the stop has a plan of its own."""
    job = f"/api/v1/jobs/{running.job_id}"
    plan = api.get(f"{job}/rescale/?parallelism=5").json()["plan_hash"]
    Run.objects.filter(pk=running.pk).update(state="stopped", ended_at=Now())
    other = make_run(RunState.RUNNING)

    def rescale(plan_hash: str) -> Any:
        body = {"kind": "rescale", "params": {"parallelism": 5, "plan_hash": plan_hash}}
        return api.post(f"{job}/operations/", body, format="json")

    refused = rescale(plan).json()
    assert (refused["code"], refused["errors"][0]["pointer"]) == ("plan-changed", "/params/plan_hash")
    assert not Operation.objects.exists()
    renewed = api.get(f"{job}/rescale/?parallelism=5").json()["plan_hash"]
    assert refused["plan_hash"] == renewed
    operation = Operation.objects.get(pk=rescale(renewed).json()["id"])
    assert operation.run == other
    stop(other, make_checkpoint)
    reconciler.reconcile()
    assert "plan_hash" not in part(operation, "restore").params
