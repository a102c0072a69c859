"""Asking for acts: what is accepted, what is refused and in which words, what is written."""

import re
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django.fixtures import DjangoCaptureOnCommitCallbacks

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.jobs.models import Job, JobVersion, Run
from console.operations.legality import allowed_operations
from console.operations.models import Operation
from console.operations.services import AcceptedOperation, OperationRequestContext, request
from runtime.core.job.lifecycle import RunAct, RunState, refusal
from tests.console import graphs
from tests.console.conftest import GRAPH, MakeCheckpoint, MakeRun

RUN_ACTS = [act.value for act in RunAct]


def ask(user: User, job: Job, kind: str, params: dict[str, Any] | None = None, **context: Any) -> AcceptedOperation:
    return request(OperationRequestContext(user=user, **context), job, kind, params)


def test_a_start_makes_a_queued_run_of_the_newest_ready_version(operator: User, job: Job, version: JobVersion) -> None:
    JobVersion.objects.create(job=job, number=2, parallelism=4, state="compiling")
    operation = ask(operator, job, "start", reason="first", request_id="r-1").operation
    run = Run.objects.get(operations=operation)
    assert (run.state, run.version, run.parallelism, run.token) == ("queued", version, 2, 0)
    operation.refresh_from_db()
    assert (operation.state, operation.reason, operation.request_id) == ("queued", "first", "r-1")
    assert operation.requested_by == operator


def test_a_start_makes_the_standing_stages_that_the_graph_asks_for(operator: User, job: Job) -> None:
    source = graphs.operator("airlines", "airlines", "source", 1, stage="tables")
    graph = {**GRAPH, "operators": [source, graphs.operator("out", "out", "sink", 1)]}
    JobVersion.objects.create(job=job, number=1, parallelism=2, state="ready", graph=graph)
    operation = ask(operator, job, "start").operation
    assert operation.run is not None
    assert operation.run.state == "queued"
    (stage,) = operation.run.standing_stages.all()
    assert (stage.operator, stage.verb, stage.state) == ("airlines", "tables", "waiting")


def test_a_start_takes_the_version_and_parallelism_it_is_given(operator: User, job: Job, version: JobVersion) -> None:
    newer = JobVersion.objects.create(job=job, number=2, parallelism=4, state="ready", graph=GRAPH)
    operation = ask(operator, job, "start", {"version": version.pk, "parallelism": 3}).operation
    assert operation.run is not None
    assert (operation.run.version, operation.run.parallelism) == (version, 3)
    assert newer.number == 2


def test_a_bad_parameter_is_refused_by_name(operator: User, job: Job, version: JobVersion) -> None:
    for name, value in (
        ("parallelism", 0), ("parallelism", 129), ("parallelism", "2"), ("parallelism", True), ("paralelism", 2),
        ("version", 10**6), ("version", 2**80),
    ):  # fmt: skip
        with pytest.raises(Refused) as refused:
            ask(operator, job, "start", {name: value})
        assert refused.value.field == f"params.{name}"
    assert not Operation.objects.exists()
    assert not Run.objects.exists()


def test_an_unknown_kind_is_refused_with_the_known_ones(operator: User, job: Job) -> None:
    with pytest.raises(Refused, match="must be one of start, restore, rescale, rollback, savepoint"):
        ask(operator, job, "explode")


def test_a_job_without_a_ready_version_does_not_start(operator: User, job: Job) -> None:
    JobVersion.objects.create(job=job, number=1, parallelism=2, state="rejected", error={"code": "x"})
    with pytest.raises(Conflict) as refused:
        ask(operator, job, "start")
    assert refused.value.code == "no-ready-version"


def test_postgres_itself_allows_one_active_run_a_job(make_run: MakeRun) -> None:
    make_run(RunState.FAILED)
    make_run(RunState.RUNNING)
    with pytest.raises(IntegrityError), transaction.atomic():
        make_run(RunState.QUEUED)


@pytest.mark.parametrize("state", list(RunState))
def test_an_act_is_accepted_exactly_where_the_lifecycle_allows_it(
    operator: User, job: Job, make_run: MakeRun, state: RunState
) -> None:
    run = make_run(state)
    for kind in RUN_ACTS:
        reason = refusal(state, RunAct(kind))
        operation = next(act for act in allowed_operations(job, run, operator) if act.act == kind)
        assert (operation.enabled, operation.reason) == (reason is None, reason or "")
        with transaction.atomic():
            if reason is None:
                assert ask(operator, job, kind).operation.run == run
            else:
                with pytest.raises(Conflict, match=re.escape(reason)):
                    ask(operator, job, kind)
            transaction.set_rollback(True)


def test_cancelling_what_no_master_has_is_done_at_once(operator: User, job: Job, make_run: MakeRun) -> None:
    run = make_run(RunState.QUEUED)
    operation = ask(operator, job, "cancel").operation
    run.refresh_from_db()
    assert (run.state, operation.state) == ("canceled", "succeeded")
    assert run.ended_at is not None
    assert operation.ended_at is not None


def test_cancelling_a_running_run_is_left_to_its_master(operator: User, job: Job, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    operation = ask(operator, job, "cancel").operation
    run.refresh_from_db()
    assert (run.state, operation.state) == ("running", "queued")


@pytest.mark.parametrize("second", ["stop", "drain"])
def test_one_stop_or_drain_at_a_time(operator: User, job: Job, make_run: MakeRun, second: str) -> None:
    run = make_run(RunState.RUNNING)
    first = ask(operator, job, "drain").operation
    operation = next(act for act in allowed_operations(job, run, operator) if act.act == second)
    assert not operation.enabled
    with pytest.raises(Conflict) as refused:
        ask(operator, job, second)
    assert refused.value.facts["operation"] == str(first.pk)


def test_a_cancel_is_possible_while_a_drain_is_under_way(operator: User, job: Job, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    ask(operator, job, "drain")
    Run.objects.filter(pk=run.pk).update(state="draining")
    assert ask(operator, job, "cancel").operation.state == "queued"


@pytest.mark.parametrize("kind", ["start", "cancel"])
def test_a_second_click_that_comes_while_the_first_is_accepted_is_a_replay(
    operator: User, job: Job, version: JobVersion, make_run: MakeRun, kind: str
) -> None:
    """Between the look at the key and the look at the run the act has become illegal, by the same request."""
    if kind == "cancel":
        make_run(RunState.QUEUED)
    first: list[AcceptedOperation] = []

    def overtaken(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if "idempotency_key" in sql and not first:
            first.append(AcceptedOperation(Operation()))
            first[0] = ask(operator, job, kind, idempotency_key="k")
        return result

    with connection.execute_wrapper(overtaken):
        repetition = ask(operator, job, kind, idempotency_key="k")
    assert repetition.replayed
    assert repetition.operation.pk == first[0].operation.pk
    assert Operation.objects.count() == 1


def test_keys_of_two_users_do_not_meet(operator: User, job: Job, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    other = User.objects.create_superuser("other")
    first = ask(operator, job, "savepoint", idempotency_key="k")
    assert ask(other, job, "savepoint", idempotency_key="k").operation.pk != first.operation.pk


@pytest.mark.parametrize(
    ("context", "field"), [({"idempotency_key": ""}, "Idempotency-Key"), ({"reason": "x" * 1001}, "reason")]
)
def test_words_have_limits(operator: User, job: Job, version: JobVersion, context: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        ask(operator, job, "start", **context)
    assert refused.value.field == field


def test_the_wake_up_is_sent_after_the_commit_only(
    operator: User, job: Job, version: JobVersion, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        operation = ask(operator, job, "start").operation
    assert [callback.args for callback in callbacks] == [("console.tasks.supervise_run", operation.run_id)]  # type: ignore[attr-defined]


@pytest.mark.django_db(transaction=True)
def test_an_operation_wakes_the_master_of_its_run(operator: User, job: Job, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING)
    parameters = connection.get_connection_params()
    listening = {
        name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters
    }
    with psycopg.connect(**listening, autocommit=True) as listener:
        listener.execute("LISTEN weir_operation")
        ask(operator, job, "savepoint")
        payloads = [notice.payload for notice in listener.notifies(timeout=60, stop_after=1)]
    assert payloads == [str(run.pk)]


# ---------------------------------------------------------------- restore


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"status": "failed"}, "not-completed"),
        ({"status": "in_progress"}, "not-completed"),
        ({"max_parallelism": 64}, "max-parallelism-changed"),
        ({"discarded_at": "2026-01-01T00:00:00Z"}, "discarded"),
    ],
)
def test_what_cannot_be_restored_is_refused(
    operator: User, job: Job, make_run: MakeRun, make_checkpoint: MakeCheckpoint, facts: dict[str, Any], code: str
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.FAILED), 7, **facts)
    with pytest.raises(Refused) as refused:
        ask(operator, job, "restore", {"checkpoint": checkpoint.pk})
    assert refused.value.code == code
    assert Run.objects.count() == 1


def test_another_jobs_checkpoint_is_refused(
    operator: User, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.STOPPED), 1)
    other = Job.objects.create(name="other", pipeline="sums")
    JobVersion.objects.create(job=other, number=1, parallelism=2, state="ready", graph=GRAPH)
    with pytest.raises(Refused, match="Checkpoint 1 belongs to another job, daily sums") as refused:
        ask(operator, other, "restore", {"checkpoint": checkpoint.pk})
    assert (refused.value.code, refused.value.field) == ("other-job", "params.checkpoint")
    assert Run.objects.count() == 1


def test_repeated_output_has_to_be_accepted_and_is_named(
    operator: User, job: Job, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.FAILED)
    checkpoint = make_checkpoint(run, 3)
    for number, kind, status in [(4, "checkpoint", "completed"), (5, "checkpoint", "failed"), (6, "stop", "completed")]:
        make_checkpoint(run, number, kind, status)
    with pytest.raises(Conflict, match="2 of the checkpoints 4 to 6 were committed") as refused:
        ask(operator, job, "restore", {"checkpoint": checkpoint.pk})
    assert refused.value.facts == {"first": 4, "last": 6}
    accepted = ask(operator, job, "restore", {"checkpoint": checkpoint.pk, "accept_repeated_output": True})
    assert accepted.operation.run is not None


@pytest.mark.parametrize("kind", ["checkpoint", "stop", "drain"])
def test_a_start_over_committed_output_has_to_accept_that_it_is_repeated(
    operator: User, job: Job, make_run: MakeRun, make_checkpoint: MakeCheckpoint, kind: str
) -> None:
    run = make_run(RunState.FAILED)
    make_checkpoint(run, 3, discarded_at="2026-01-01T00:00:00Z")
    make_checkpoint(run, 4, kind)
    with pytest.raises(Conflict, match="Checkpoints 3 to 4 were committed") as refused:
        ask(operator, job, "start")
    assert (refused.value.code, refused.value.facts) == ("repeats-output", {"first": 3, "last": 4})
    assert refused.value.field == "params.accept_repeated_output"
    assert Run.objects.count() == 1
    assert ask(operator, job, "start", {"accept_repeated_output": True}).operation.run is not None


def test_a_start_over_savepoints_and_failures_repeats_nothing(
    operator: User, job: Job, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.FAILED)
    make_checkpoint(run, 3, "savepoint")
    make_checkpoint(run, 4, "checkpoint", "failed")
    assert ask(operator, job, "start").operation.state == "queued"
