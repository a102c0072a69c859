"""What the reconciler sees, and what it must not conclude from it. Time is moved in the rows, not waited for."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from console.accounts.models import User
from console.housekeeping import reconciler
from console.housekeeping.advance import advance_rows
from console.jobs.models import Job, JobVersion, Package, Run
from console.operations.models import Operation
from console.runs import lost_leases, run_store
from console.runs.lease import ago
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db


def claimed(make_run: MakeRun) -> Run:
    run = make_run(RunState.QUEUED)
    assert run_store.claim(run.pk, "worker-1") is not None
    return run


LONG_UP = ago(3600)  #: start of a Postgres that was up throughout


def earlier(run: Run, seconds: float, *fields: str) -> None:
    """Move what was noted about a run back in time."""
    Run.objects.filter(pk=run.pk).update(**{field: F(field) - timedelta(seconds=seconds) for field in fields})


def seen_silent(run: Run) -> None:
    """The reconciler saw the same beat for longer than a lease, with no gap in its passes and Postgres up."""
    lost_leases.observe_leases()
    earlier(run, 5.5, "observed_since")
    earlier(run, 1, "observed_at")


def test_a_claim_is_won_once(make_run: MakeRun) -> None:
    """S2-01."""
    run = make_run(RunState.QUEUED)
    token = run_store.claim(run.pk, "worker-1")
    assert token is not None
    assert run_store.claim(run.pk, "worker-2") is None
    run.refresh_from_db()
    assert (run.state, run.lease_owner, run.token) == ("starting", "worker-1", token)
    assert run.attempts.get().outcome == "running"


def test_a_step_that_fails_stops_no_other(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(reconciler, "_STEPS", (fail, *reconciler._STEPS))
    monkeypatch.setattr(lost_leases, "observe_leases", partial(lost_leases.observe_leases, LONG_UP))
    run = claimed(make_run)
    seen_silent(run)
    with pytest.raises(ExceptionGroup, match="steps of the reconciler failed"):
        reconciler.reconcile()
    run.refresh_from_db()
    assert run.state == "queued"


def test_a_pass_that_finds_no_work_is_short(
    make_run: MakeRun, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """There is one a second, for as long as the console runs."""
    claimed(make_run)
    leases, wake_ups, stages, remainder = 4, 4, 1, 3
    with django_assert_num_queries(leases + wake_ups + stages + remainder):
        reconciler.reconcile()


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.QUEUED])
def test_only_a_queued_run_is_claimed(make_run: MakeRun, state: RunState) -> None:
    assert run_store.claim(make_run(state).pk, "worker-1") is None


def test_a_lease_is_renewed_by_its_owner_until_the_run_ends(make_run: MakeRun) -> None:
    run = claimed(make_run)
    assert run_store.renew(run.pk, "worker-1")
    assert not run_store.renew(run.pk, "worker-2")
    Run.objects.update(state="finished")
    assert not run_store.renew(run.pk, "worker-1")


def test_a_silent_lease_is_lost_and_its_token_is_worth_nothing(make_run: MakeRun) -> None:
    """S1-12."""
    run = claimed(make_run)
    run.refresh_from_db()
    seen_silent(run)
    lost_leases.observe_leases(LONG_UP)
    assert lost_leases.release_lost_runs() == [run.pk]
    token = run.token
    run.refresh_from_db()
    assert (run.state, run.lease_owner, run.releases) == ("queued", "", 1)
    assert run.token > token, "the old master's writes are conditional on a token that is gone"
    assert run.attempts.get().outcome == "lost"


def test_a_run_that_was_being_cancelled_is_canceled_when_its_lease_is_lost(make_run: MakeRun) -> None:
    run = claimed(make_run)
    Run.objects.update(state="cancelling")
    seen_silent(run)
    lost_leases.observe_leases(LONG_UP)
    lost_leases.release_lost_runs()
    run.refresh_from_db()
    assert run.state == "canceled"
    assert run.ended_at is not None


def test_a_beat_keeps_the_lease(make_run: MakeRun) -> None:
    run = claimed(make_run)
    seen_silent(run)
    run_store.renew(run.pk, "worker-1")
    lost_leases.observe_leases(LONG_UP)
    assert lost_leases.release_lost_runs() == []


def test_a_beat_between_looking_and_taking_keeps_the_lease(make_run: MakeRun) -> None:
    run = claimed(make_run)
    seen_silent(run)
    lost_leases.observe_leases(LONG_UP)
    run_store.renew(run.pk, "worker-1")
    assert lost_leases.release_lost_runs() == []


def test_a_reconciler_that_was_away_starts_counting_anew(make_run: MakeRun) -> None:
    run = claimed(make_run)
    seen_silent(run)
    earlier(run, 60, "observed_since", "observed_at")
    lost_leases.observe_leases(LONG_UP)
    assert lost_leases.release_lost_runs() == []


def test_one_gap_as_long_as_a_lease_is_not_a_lost_lease(make_run: MakeRun) -> None:
    """Nobody looked for 5.5 s, and the owner may have been kept from beating by what kept the reconciler away."""
    run = claimed(make_run)
    lost_leases.observe_leases()
    earlier(run, 5.5, "observed_since", "observed_at")
    lost_leases.observe_leases(LONG_UP)
    assert lost_leases.release_lost_runs() == []


def test_time_without_postgres_does_not_count(make_run: MakeRun) -> None:
    run = claimed(make_run)
    seen_silent(run)
    lost_leases.observe_leases(ago(2))
    assert lost_leases.release_lost_runs() == []


def test_the_start_of_postgres_is_asked_of_postgres(make_run: MakeRun) -> None:
    """Without the stand-in above: an observation from before its start is not continued."""
    run = claimed(make_run)
    lost_leases.observe_leases()
    earlier(run, 10 * 365 * 86400, "observed_since")
    lost_leases.observe_leases()
    run.refresh_from_db()
    assert lost_leases.release_lost_runs() == []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | str]]:
    """The wake-ups that reach the broker's client."""
    from console.celery import app

    messages: list[tuple[str, int | str]] = []

    def note(task: str, args: tuple[int], **_: Any) -> None:
        messages.append((task.rpartition(".")[2], args[0]))

    monkeypatch.setattr(app, "send_task", note)
    return messages


def test_what_waits_is_woken_again_after_a_while(make_run: MakeRun, sent: list[tuple[str, int | str]]) -> None:
    run = make_run(RunState.QUEUED)
    lost_leases.resend_wake_ups()
    assert sent == [], "the first message is on its way"
    earlier(run, 6, "observed_at")
    lost_leases.resend_wake_ups()
    lost_leases.resend_wake_ups()
    assert sent == [("supervise_run", run.pk)]


def test_a_version_that_nobody_compiles_is_woken_again(job: Job, sent: list[tuple[str, int | str]]) -> None:
    version = JobVersion.objects.create(job=job, number=1, parallelism=1)
    lost_leases.resend_wake_ups()
    assert sent == []
    JobVersion.objects.update(woken_at=Now() - timedelta(minutes=1))
    lost_leases.resend_wake_ups()
    lost_leases.resend_wake_ups()
    assert sent == [("compile_version", version.pk)]


def test_a_package_that_nobody_describes_is_woken_again(db: None, sent: list[tuple[str, int | str]]) -> None:
    package = Package.objects.create(digest="0" * 64, size=1)
    reconciler.reconcile()
    assert sent == []
    Package.objects.update(woken_at=Now() - timedelta(minutes=1))
    reconciler.reconcile()
    reconciler.reconcile()
    assert sent == [("describe_package", package.pk)]


# ---------------------------------------------------------------- operations


@pytest.mark.parametrize(
    ("kind", "end", "expected"),
    [
        ("stop", "stopped", "succeeded"),
        ("drain", "finished", "succeeded"),
        ("cancel", "canceled", "succeeded"),
        ("savepoint", "stopped", "unknown"),
        ("savepoint", "failed", "unknown"),
        ("stop", "finished", "failed"),
        ("drain", "failed", "failed"),
        ("cancel", "finished", "failed"),
    ],
)
def test_what_a_master_left_open_is_settled_by_how_the_run_ended(
    make_run: MakeRun, kind: str, end: str, expected: str
) -> None:
    run = make_run(RunState(end), ended_at=Now() - timedelta(seconds=6))
    operation = Operation.objects.create(job=run.job, run=run, kind=kind, state="running")
    reconciler.reconcile()
    operation.refresh_from_db()
    assert operation.state == expected
    assert operation.ended_at is not None
    assert (operation.error is None) == (expected == "succeeded")


def test_a_savepoint_that_was_taken_has_succeeded_whatever_became_of_its_master(
    make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.FAILED, ended_at=Now() - timedelta(seconds=6))
    began = timezone.now() - timedelta(minutes=1)
    operation = Operation.objects.create(job=run.job, run=run, kind="savepoint", state="running", started_at=began)
    make_checkpoint(run, 3, "savepoint", triggered_at=began - timedelta(seconds=1))  # an earlier request's
    make_checkpoint(run, 4, "checkpoint", triggered_at=began + timedelta(seconds=1))
    make_checkpoint(run, 5, "savepoint", "failed", triggered_at=began + timedelta(seconds=2))
    savepoint = make_checkpoint(run, 6, "savepoint", triggered_at=began + timedelta(seconds=3))
    reconciler.reconcile()
    operation.refresh_from_db()
    assert (operation.state, operation.result, operation.error) == ("succeeded", {"checkpoint": 6}, None)
    another = Operation.objects.create(job=run.job, run=run, kind="savepoint", state="running", started_at=began)
    reconciler.reconcile()
    another.refresh_from_db()
    assert another.state == "unknown", "that savepoint was taken for the other request"
    savepoint.delete()
    last = Operation.objects.create(job=run.job, run=run, kind="savepoint", state="running", started_at=began)
    reconciler.reconcile()
    last.refresh_from_db()
    assert last.state == "unknown"
    assert last.error is not None
    assert "no savepoint of it is on record" in last.error["message"]


RAN = {"operators": {"sums": {"state": "running"}}}
DEPLOYED_NEVER = {"operators": {"sums": {"state": "deploying"}, "files": {"state": "running"}}}


@pytest.mark.parametrize("end", [RunState.FAILED, RunState.CANCELED])
@pytest.mark.parametrize(
    ("live", "checkpoints", "expected"),
    [(RAN, 0, "succeeded"), (DEPLOYED_NEVER, 1, "succeeded"), (DEPLOYED_NEVER, 0, "failed"), (None, 0, "failed")],
)
def test_a_start_counts_as_begun_when_its_run_ran_and_ended_between_two_passes(
    make_run: MakeRun,
    make_checkpoint: MakeCheckpoint,
    end: RunState,
    live: dict[str, Any] | None,
    checkpoints: int,
    expected: str,
) -> None:
    run = make_run(end, live=live, ended_at=Now())
    for number in range(checkpoints):
        make_checkpoint(run, number + 1, status="in_progress")
    operation = Operation.objects.create(job=run.job, run=run, kind="start")
    advance_rows()
    operation.refresh_from_db()
    assert operation.state == expected


def test_a_master_has_a_moment_to_record_its_operations(make_run: MakeRun) -> None:
    run = make_run(RunState.STOPPED, ended_at=Now())
    operation = Operation.objects.create(job=run.job, run=run, kind="stop", state="running")
    advance_rows()
    operation.refresh_from_db()
    assert operation.state == "running"


def test_a_start_follows_its_run(make_run: MakeRun) -> None:
    run = make_run(RunState.STARTING)
    operation = Operation.objects.create(job=run.job, run=run, kind="start")
    advance_rows()
    operation.refresh_from_db()
    assert (operation.state, operation.phase) == ("running", "starting")
    assert operation.started_at is not None


def test_cancelling_a_queued_run_ends_its_start_as_failed(operator: User, make_run: MakeRun) -> None:
    from console.operations.services import OperationRequestContext, request

    run = make_run(RunState.QUEUED)
    start = Operation.objects.create(job=run.job, run=run, kind="start")
    request(OperationRequestContext(user=operator), run.job, "cancel")
    advance_rows()
    start.refresh_from_db()
    assert start.error is not None
    assert (start.state, start.error["code"]) == ("failed", "run-canceled")
