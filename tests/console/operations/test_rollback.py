"""A rollback: the end of the run, the hold on the chosen snapshot, the restore, and what ends it early."""

from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint
from console.housekeeping import reconciler
from console.housekeeping.advance import advance_rows
from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from console.operations.registry import operation_type
from console.operations.services import OperationRequestContext, request, withdraw_operation
from console.pages.retention import preview_retention
from console.runs.lease import ago
from runtime.core.job.lifecycle import RunState
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from tests.console.conftest import GRAPH, MakeCheckpoint, MakeRun
from tests.console.stored import job_root

pytestmark = pytest.mark.django_db


def effect_of(row: Operation) -> str:
    """Of a withdrawal."""
    return operation_type(row.kind).withdrawal_effect(row)


@pytest.fixture
def running(make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> Run:
    run = make_run(RunState.RUNNING)
    for number in (1, 2, 3):
        make_checkpoint(run, number)
    return run


def chosen() -> Checkpoint:
    return Checkpoint.objects.get(number=1)


def ask(user: User, run: Run, **params: Any) -> Operation:
    values = {"checkpoint": chosen().pk, "accept_repeated_output": True, **params}
    return request(OperationRequestContext(user=user, reason="wrong rows"), run.job, "rollback", values).operation


def end(run: Run, kind: str, state: str) -> None:
    """As the run's master does."""
    Operation.objects.filter(run=run, kind=kind).update(state="succeeded", ended_at=Now())
    Run.objects.filter(pk=run.pk).update(state=state, ended_at=Now())


@pytest.mark.parametrize(("way", "state"), [("stop", "stopped"), ("cancel", "canceled")])
def test_a_rollback_ends_the_run_and_restores_the_chosen_snapshot(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint, way: str, state: str
) -> None:
    """Every step is taken from rows alone. The savepoint of the stop is newer, and not the one that is restored."""
    rollback = ask(operator, running, parallelism=5, **({} if way == "stop" else {"end_run": way}))
    assert (rollback.state, rollback.phase, [part.kind for part in rollback.parts.all()]) == ("running", way, [way])
    assert rollback.parts.get().reason == "wrong rows"
    assert chosen().held_by == rollback.pk
    reconciler.reconcile()
    assert [part.kind for part in rollback.parts.all()] == [way], "the run has not ended yet"

    make_checkpoint(running, 4, kind="stop" if way == "stop" else "checkpoint")
    end(running, way, state)
    reconciler.reconcile()
    reconciler.reconcile()
    restored = rollback.parts.get(kind="restore").run
    assert restored is not None
    assert (restored.restore_checkpoint, restored.parallelism, restored.state) == (chosen(), 5, "queued")
    assert chosen().held_by == rollback.pk, "a restart of the new run may need it"

    Run.objects.filter(pk=restored.pk).update(state="running", started_at=Now())
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert (rollback.state, rollback.result, chosen().held_by) == ("succeeded", {"run": restored.pk}, None)


def test_a_plan_that_changed_restores_nothing_and_leaves_the_job_stopped(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    rollback = ask(operator, running)
    Job.objects.update(review_policy="warn")
    savepoint = make_checkpoint(running, 4, kind="stop")
    end(running, "stop", "stopped")
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert rollback.error == {
        "code": "plan-changed",
        "message": f"Run {running.pk} has stopped with {savepoint}, and checkpoint 1 was not restored: its effects are "
        "no longer those that were shown.",
    }
    assert (rollback.state, chosen().held_by) == ("failed", None)
    assert Run.objects.get() == running


def test_the_plan_that_was_read_stays_valid_while_the_run_commits_output(
    api: APIClient, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    path = f"/api/v1/checkpoints/{chosen().pk}/mapping/"
    plan = api.get(path).json()
    make_checkpoint(running, 4)
    later = api.get(path).json()
    assert (plan["repeats"]["last"], later["repeats"]["last"]) == (3, 4)
    assert (later["plan_hash"], later["restorable"]) == (plan["plan_hash"], False)
    params = {"checkpoint": chosen().pk, "accept_repeated_output": True, "plan_hash": plan["plan_hash"]}
    body = {"kind": "rollback", "params": params}
    accepted = api.post(f"/api/v1/jobs/{running.job_id}/operations/", body, format="json")
    assert (accepted.status_code, accepted.json()["state"]) == (202, "running")


def test_a_plan_that_was_read_before_another_rollback_does_not_end_the_restored_run(
    api: APIClient, running: Run
) -> None:
    plan = api.get(f"/api/v1/checkpoints/{chosen().pk}/mapping/").json()["plan_hash"]
    params = {"checkpoint": chosen().pk, "accept_repeated_output": True, "plan_hash": plan}
    path, body = f"/api/v1/jobs/{running.job_id}/operations/", {"kind": "rollback", "params": params}
    assert api.post(path, body, format="json").status_code == 202
    end(running, "stop", "stopped")
    reconciler.reconcile()
    restored = Operation.objects.get(kind="restore").run
    assert restored is not None
    assert restored != running
    Run.objects.filter(pk=restored.pk).update(state="running", started_at=Now())
    reconciler.reconcile()
    assert Operation.objects.get(kind="rollback").state == "succeeded"

    refused = api.post(path, body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (409, "plan-changed")
    assert Operation.objects.filter(kind="rollback").count() == 1


def test_a_snapshot_that_a_rollback_holds_is_not_chosen_for_another(
    operator: User, running: Run, make_run: MakeRun
) -> None:
    first = ask(operator, running)
    end(running, "stop", "stopped")
    later = make_run(RunState.RUNNING)
    with pytest.raises(Conflict, match=f"restored by a rollback that is under way, operation {first.pk}"):
        ask(operator, later)
    assert chosen().held_by == first.pk


def test_another_run_that_has_ended_meanwhile_prevents_the_restore(
    operator: User, running: Run, make_run: MakeRun
) -> None:
    rollback = ask(operator, running)
    end(running, "stop", "stopped")
    later = make_run(RunState.CANCELED)
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert rollback.error is not None
    assert (rollback.state, rollback.error["code"], chosen().held_by) == ("failed", "run-changed", None)
    changed = f"The request is for run {running.pk}, but the latest run of the job is run {later.pk}."
    assert rollback.error["message"] == f"Run {running.pk} has ended, and checkpoint 1 was not restored: {changed}"


def test_a_restore_waits_for_storage_that_is_away(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    stored = make_checkpoint(running, 4, operators=[{"uid": "sums", "state_bytes": 10, "subtasks": 1}])
    rollback = ask(operator, running, checkpoint=stored.pk)
    file = job_root(running.job_id) / stored.path / "sums-0" / "state.arrow"
    aside = file.rename(file.with_suffix(".aside"))
    file.symlink_to(file)
    end(running, "stop", "stopped")
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert (rollback.state, rollback.error) == ("running", None)
    assert rollback.phase.startswith(f"waiting for storage: {file} cannot be ")
    assert Checkpoint.objects.get(number=4).held_by == rollback.pk

    aside.replace(file)
    reconciler.reconcile()
    assert rollback.parts.get(kind="restore").run is not None


@pytest.mark.parametrize("below", ["", "missing"])
def test_a_restore_waits_for_storage_that_is_not_mounted(
    operator: User, running: Run, settings: Settings, tmp_path: Path, below: str
) -> None:
    """The mount point is empty or missing. The snapshot was reported as corrupt, and the job stayed down."""
    rollback = ask(operator, running)
    end(running, "stop", "stopped")
    mounted, settings.WEIR_STORAGE = settings.WEIR_STORAGE, tmp_path / below
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert (rollback.state, rollback.error) == ("running", None)
    assert rollback.phase.startswith("waiting for storage: [Errno 2] No such file or directory")
    assert chosen().held_by == rollback.pk

    settings.WEIR_STORAGE = mounted
    reconciler.reconcile()
    restored = rollback.parts.get(kind="restore").run
    assert restored is not None
    assert restored.restore_checkpoint == chosen()


def test_a_rollback_is_withdrawn_while_the_run_ends(operator: User, running: Run) -> None:
    """The stop goes on, and nothing is restored after it."""
    rollback = ask(operator, running)
    Operation.objects.filter(kind="stop").update(state="running")
    assert effect_of(rollback) == f"The stop of run {running.pk} goes on, and nothing is restored after it."
    withdraw_operation(operator, rollback)
    rollback.refresh_from_db()
    when = f"before run {running.pk} had ended. Its end goes on, and nothing is restored."
    assert (rollback.state, rollback.error) == (
        "failed", {"code": "withdrawn", "message": f"operator withdrew the rollback {when}"},
    )  # fmt: skip
    assert chosen().held_by is None
    end(running, "stop", "stopped")
    reconciler.reconcile()
    assert [part.kind for part in rollback.parts.all()] == ["stop"]
    assert Run.objects.get().state == "stopped"


def test_a_rollback_that_waits_for_storage_is_withdrawn(
    operator: User, running: Run, settings: Settings, tmp_path: Path
) -> None:
    row = ask(operator, running)
    end(running, "stop", "stopped")
    mounted, settings.WEIR_STORAGE = settings.WEIR_STORAGE, tmp_path
    reconciler.reconcile()
    effect = f"Run {running.pk} has ended: the job stays stopped, and nothing is restored."
    assert effect_of(row) == effect
    withdraw_operation(operator, row)
    settings.WEIR_STORAGE = mounted
    reconciler.reconcile()
    row.refresh_from_db()
    assert (row.state, row.error and row.error["code"], chosen().held_by) == ("failed", "withdrawn", None)
    assert Run.objects.get() == running


def test_a_rollback_whose_restore_has_begun_is_not_withdrawn(operator: User, running: Run) -> None:
    rollback = ask(operator, running)
    end(running, "stop", "stopped")
    reconciler.reconcile()
    with pytest.raises(Conflict, match="has begun the restore: cancel the new run instead"):
        withdraw_operation(operator, rollback)
    rollback.refresh_from_db()
    assert (rollback.state, chosen().held_by) == ("running", rollback.pk)


def test_the_withdrawal_of_a_queued_stop_keeps_the_run(operator: User, running: Run) -> None:
    row = ask(operator, running)
    assert effect_of(row).endswith("To keep the run, withdraw the stop instead.")
    withdraw_operation(operator, row.parts.get())
    reconciler.reconcile()
    row.refresh_from_db()
    assert (row.state, row.error and row.error["code"], chosen().held_by) == ("failed", "withdrawn", None)
    assert Run.objects.get().state == "running"


def test_a_snapshot_that_is_damaged_meanwhile_ends_the_rollback_with_its_file(operator: User, running: Run) -> None:
    rollback = ask(operator, running)
    end(running, "stop", "stopped")
    manifest = job_root(running.job_id) / chosen().path / MANIFEST_FILE
    manifest.unlink()
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert rollback.error is not None
    assert (rollback.state, rollback.error["code"]) == ("failed", "corrupt-checkpoint")
    assert f"{manifest}: there is no such file" in rollback.error["message"]


def test_a_clone_is_not_ended_for_a_version_that_cannot_discard_its_output(operator: User, running: Run) -> None:
    running.job.discards_output = True
    staged = {**GRAPH, "operators": [{**each, "stage": "feed"} for each in GRAPH["operators"]]}  # type: ignore[attr-defined]
    JobVersion.objects.create(job=running.job, number=2, parallelism=2, state="ready", graph=staged)
    with pytest.raises(Conflict, match="has PySpark stages"):
        ask(operator, running)
    assert not Operation.objects.exists()


@pytest.mark.parametrize("way", ["stop", "cancel"])
@pytest.mark.parametrize("state", ["failed", "stopped", "canceled"])
def test_a_run_that_ends_before_its_stop_or_cancel_is_restored_too(
    operator: User, running: Run, way: str, state: str
) -> None:
    rollback = ask(operator, running, end_run=way)
    Run.objects.filter(pk=running.pk).update(state=state, ended_at=ago(60))
    reconciler.reconcile()
    assert rollback.parts.get(kind="restore").run is not None


def test_a_run_that_finishes_before_its_cancel_fails_the_rollback(operator: User, running: Run) -> None:
    rollback = ask(operator, running, end_run="cancel")
    Run.objects.filter(pk=running.pk).update(state="finished", ended_at=ago(60))
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert rollback.error == {
        "code": "run-finished",
        "message": "The run ended (finished) before the cancel was done.",
    }
    assert (rollback.state, chosen().held_by) == ("failed", None)


def test_a_snapshot_that_is_held_is_neither_discarded_nor_proposed_by_retention(
    operator: User, running: Run, make_checkpoint: MakeCheckpoint
) -> None:
    savepoint = make_checkpoint(running, 4, kind="savepoint")
    rollback = ask(operator, running, checkpoint=savepoint.pk)
    with pytest.raises(Conflict, match=f"restored by a rollback that is under way, operation {rollback.pk}"):
        request(OperationRequestContext(user=operator), running.job, "discard", {"checkpoint": savepoint.pk})
    Checkpoint.objects.filter(number=1).update(held_by=rollback.pk)
    preview = preview_retention(running.job, RetentionPolicy(1))
    assert [line.checkpoint.number for line in preview.discarded] == [2]
    assert next(line.reasons for line in preview.kept if line.checkpoint.number == 1) == (
        "A rollback or drill that is under way restores it.",
    )


def test_a_snapshot_whose_files_are_gone_ends_no_run(operator: User, running: Run) -> None:
    Checkpoint.objects.filter(number=1).update(discarded_at=Now())
    with pytest.raises(Conflict, match="files of Checkpoint 1 have been removed"):
        ask(operator, running)
    assert not Operation.objects.exists()


def test_a_bad_parameter_ends_no_run(operator: User, running: Run) -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"accept_repeated_output": False}, {"parallelism": 129}, {"checkpoint": None, "path": "/savepoints/1"},
        {"end_run": "drain"}, {"plan_hash": "other"},
    )  # fmt: skip
    for params in cases:
        with pytest.raises(Refused) as refused:
            ask(operator, running, **params)
        assert refused.value.field == f"params.{next(iter(params))}"
    assert not Operation.objects.exists()
    assert chosen().held_by is None


def test_the_newest_checkpoint_repeats_output_too(operator: User, running: Run) -> None:
    newest = Checkpoint.objects.get(number=3)
    with pytest.raises(Conflict, match="The run may commit output until it ends"):
        ask(operator, running, checkpoint=newest.pk, accept_repeated_output=False)


def test_a_stop_that_fails_releases_the_snapshot_and_the_run_continues(operator: User, running: Run) -> None:
    rollback = ask(operator, running)
    Operation.objects.filter(kind="stop").update(state="failed", error={"code": "expired", "message": "It took long."})
    reconciler.reconcile()
    rollback.refresh_from_db()
    assert (rollback.state, rollback.error) == ("failed", {"code": "expired", "message": "It took long."})
    assert (chosen().held_by, Run.objects.get().state) == (None, "running")


def test_a_restarting_run_can_only_be_cancelled(operator: User, running: Run) -> None:
    Run.objects.update(state="restarting")
    with pytest.raises(Conflict):
        ask(operator, running)
    assert ask(operator, running, end_run="cancel").phase == "cancel"


def test_a_run_that_waits_for_a_worker_is_cancelled_at_once(operator: User, running: Run) -> None:
    Run.objects.update(state="queued")
    rollback = ask(operator, running, end_run="cancel")
    assert Run.objects.get().state == "canceled"
    advance_rows()
    assert rollback.parts.get(kind="restore").run is not None
