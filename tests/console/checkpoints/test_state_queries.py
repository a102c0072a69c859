"""Queries of a checkpoint's state, over REST and as rows: who may ask, what is refused, leases, cancel, CSV."""

import csv
import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints import state_queries, state_stage
from console.checkpoints.models import Checkpoint, StateQuery
from console.checkpoints.storage import delete_savepoint
from console.housekeeping import reconciler
from console.jobs import pipelines, stages
from console.jobs.models import JobVersion, Pipeline, Run
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.pins import decode_pin, pinned_folders
from tests.console.api.test_api import check_problem
from tests.console.conftest import MakeCheckpoint, MakeRun, api_as
from tests.console.stored import job_root

pytestmark = pytest.mark.django_db

OPERATORS = [
    {"uid": "sums", "state_bytes": 2_048, "subtasks": 2, "has_state": True},
    {"uid": "numbers", "state_bytes": 0, "subtasks": 2, "has_state": True},
]
ROWS = {"operator": "sums", "state": "state"}
TABLE = {
    "columns": [{"name": "carrier", "type": "string", "is_key": True}, {"name": "n", "type": "bigint"}],
    "rows": [["AA, the first", 3], [None, 4]],
    "is_cut": False,
}


@pytest.fixture
def savepoint(make_run: MakeRun, make_checkpoint: MakeCheckpoint, pipeline: Pipeline) -> Checkpoint:
    Pipeline.objects.filter(pk=pipeline.pk).update(queries={"all sums": "SELECT * FROM sums_state"})
    return make_checkpoint(make_run(RunState.FINISHED), 3, "savepoint", operators=OPERATORS)


def path(checkpoint: Checkpoint) -> str:
    return f"/api/v1/checkpoints/{checkpoint.pk}/state-queries/"


def asked(user: User, checkpoint: Checkpoint) -> StateQuery:
    return state_queries.request_saved_query(user, checkpoint, "all sums")


# ---------------------------------------------------------------- what is in a checkpoint


def test_states_and_queries_are_listed_without_spark(api: APIClient, savepoint: Checkpoint) -> None:
    body = api.get(f"/api/v1/checkpoints/{savepoint.pk}/state/").json()
    assert body["queries"] == {"all sums": "SELECT * FROM sums_state"}
    kinds = {(state["operator"], state["state"]): (state["kind"], state["view"]) for state in body["states"]}
    assert kinds == {("sums", "state"): ("keyed", "sums_state"), ("numbers", "list"): ("list", "")}
    assert {state["size_bytes"] for state in body["states"]} == {2_048, 0}


def test_a_periodic_checkpoint_is_pinned_before_it_is_read(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.RUNNING), 4)
    for _ in range(2):
        assert api.get(f"/api/v1/checkpoints/{checkpoint.pk}/state/").status_code == 200
    (pin,) = (job_root(checkpoint.job_id) / "pins").iterdir()
    now_ms = int(timezone.now().timestamp() * 1000)
    assert pinned_folders([decode_pin(pin.read_bytes())], now_ms) == {checkpoint.path}
    assert not pinned_folders([decode_pin(pin.read_bytes())], now_ms + 601_000)


def test_a_checkpoint_without_files_is_named(api: APIClient, savepoint: Checkpoint) -> None:
    delete_savepoint(savepoint)
    answer = api.post(path(savepoint), ROWS)
    assert "there is no such file" in check_problem(answer, 422, "corrupt-checkpoint")["detail"]
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at=timezone.now())
    discarded = check_problem(api.post(path(savepoint), {"query": "all sums"}), 409, "no-state")
    assert discarded["detail"] == "Savepoint 3 was discarded: there is no state to read."
    assert not StateQuery.objects.exists()


# ---------------------------------------------------------------- asking


def test_a_query_is_accepted_and_polled(viewer: User, savepoint: Checkpoint) -> None:
    """Reading needs no more than a login."""
    api = api_as(viewer)
    accepted = api.post(path(savepoint), {**ROWS, "key": {"k": 5}, "cursor": {"group": 3, "skip": 7}})
    assert accepted.status_code == 202
    query = api.get(accepted["Location"])
    assert (query.json()["state"], query["Retry-After"]) == ("queued", "1")
    assert query.json()["request"] == {"kind": "rows", **ROWS, "key": {"k": 5}, "cursor": {"group": 3, "skip": 7}}
    saved = api.post(path(savepoint), {"query": "all sums"}).json()
    assert saved["request"] == {"kind": "sql", "name": "all sums", "sql": "SELECT * FROM sums_state"}
    listed = api.get(path(savepoint)).json()["results"]
    assert [row["id"] for row in listed] == [saved["id"], query.json()["id"]]
    assert "result" not in listed[0]


def test_a_wrong_request_is_refused_by_name(api: APIClient, savepoint: Checkpoint) -> None:
    cases: list[tuple[dict[str, Any], str, str | None, str]] = [
        ({"operator": "sum", "state": "state"}, "unknown-operator", "/operator", "known: numbers, sums"),
        ({"operator": "sums", "state": "panes"}, "unknown-state", "/state", "known: state"),
        ({"operator": "numbers", "state": "list"}, "unknown-state", "/state", "known: none"),
        ({"query": "some sums"}, "unknown-query", "/query", "known: 'all sums'"),
        ({**ROWS, "key": {"k": [1]}}, "invalid-field", "/key/k", "must be a text, number, boolean or null"),
        ({"operator": "sums"}, "invalid", "/state", ""),
        ({"query": "all sums", **ROWS}, "invalid", None, ""),
        ({"sql": "DROP TABLE jobs"}, "invalid", None, ""),
        ({**ROWS, "cursor": {"group": -1, "skip": 0}}, "invalid", None, ""),
    ]
    for body, code, pointer, words in cases:
        response = api.post(path(savepoint), body)
        problem = check_problem(response, response.status_code, response.json()["code"], pointer)
        assert response.status_code in (400, 422)
        if code != "invalid":
            assert (problem["code"], words in problem["detail"]) == (code, True), problem
    assert not StateQuery.objects.exists()


def test_a_user_waits_for_a_few_queries_at_a_time(api: APIClient, savepoint: Checkpoint) -> None:
    for _ in range(state_queries.MAX_ACTIVE_PER_USER):
        assert api.post(path(savepoint), ROWS).status_code == 202
    check_problem(api.post(path(savepoint), ROWS), 409, "too-many-queries")
    newest = StateQuery.objects.latest("pk")
    assert api.delete(f"/api/v1/state-queries/{newest.pk}/").status_code == 204
    assert api.post(path(savepoint), ROWS).status_code == 202


# ---------------------------------------------------------------- the task


def test_a_query_is_claimed_once_and_one_runs_at_a_time(operator: User, savepoint: Checkpoint) -> None:
    first, second = asked(operator, savepoint), asked(operator, savepoint)
    assert state_queries.claim(first.pk, "a") is not None
    assert state_queries.claim(first.pk, "b") is None
    assert state_queries.claim(second.pk, "b") is None, "compiling shares the queue"
    assert state_queries.renew(first.pk, "a", {"phase": "reading"})
    assert not state_queries.renew(first.pk, "b", None)
    state_queries.succeed(first.pk, "a", TABLE)
    assert state_queries.claim(second.pk, "b") is not None
    state_queries.release(second.pk, "b")
    second.refresh_from_db()
    assert (second.state, second.owner) == ("queued", "")


def test_the_table_and_its_errors_hold_no_secret(
    operator: User, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = JobVersion.objects.create(
        job=savepoint.job, number=2, parallelism=2, params={"path": "in", "api_key": "s3cr3t-key"}, state="ready"
    )
    Run.objects.filter(pk=savepoint.run_id).update(version=version)
    table = {**TABLE, "rows": [["the s3cr3t-key of it", 1]]}
    commands: list[stages.StageCommand] = []

    def run(stage: stages.StageCommand, still_wanted: Any) -> Any:
        commands.append(stage)
        assert still_wanted({"phase": "reading"})
        if "fails" in stage.stdin["name"]:
            raise stages.StageFailed("bad-sql", "no column s3cr3t-key", "a query")
        return table

    monkeypatch.setattr(stages, "run", run)
    query = asked(operator, savepoint)
    state_stage.answer(query.pk)
    query.refresh_from_db()
    assert (query.state, (query.result or {})["rows"]) == ("succeeded", [["the ******** of it", 1]])
    assert commands[0].arguments == ["state", "--checkpoint", str(job_root(savepoint.job_id) / savepoint.path)]
    failing = StateQuery.objects.create(checkpoint=savepoint, request={"kind": "sql", "name": "fails", "sql": ""})
    state_stage.answer(failing.pk)
    failing.refresh_from_db()
    assert (failing.state, (failing.error or {})["detail"]) == ("failed", "no column ********")
    state_stage.answer(failing.pk)
    assert len(commands) == 2, "a repeated message asks nothing again"


def test_a_savepoint_that_was_discarded_meanwhile_is_named(
    operator: User, savepoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(stage: stages.StageCommand, still_wanted: Any) -> Any:
        Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at=timezone.now())
        raise stages.StageFailed("corrupt-checkpoint", "state.arrow: there is no such file", "checkpoint")

    monkeypatch.setattr(stages, "run", run)
    query = asked(operator, savepoint)
    state_stage.answer(query.pk)
    query.refresh_from_db()
    assert (query.error or {})["detail"] == "Savepoint 3 was discarded before its state was read."


# ---------------------------------------------------------------- nothing hangs


def earlier(query: StateQuery, seconds: float, *fields: str) -> None:
    moved = {field: F(field) - timedelta(seconds=seconds) for field in fields}
    StateQuery.objects.filter(pk=query.pk).update(**moved)


def test_a_query_whose_worker_died_is_given_to_another_and_given_up_in_the_end(
    operator: User, savepoint: Checkpoint
) -> None:
    query = asked(operator, savepoint)
    for lost in range(1, state_queries.MAX_LOSSES):
        assert state_queries.claim(query.pk, f"worker-{lost}") is not None
        reconciler.reconcile()
        query.refresh_from_db()
        assert query.state == "running", "its lease is fresh"
        earlier(query, state_queries.LEASE_S + 1, "beat_at")
        reconciler.reconcile()
        query.refresh_from_db()
        assert (query.state, query.losses) == ("queued", lost)
        assert not state_queries.renew(query.pk, f"worker-{lost}", None)
    assert state_queries.claim(query.pk, "last") is not None
    earlier(query, state_queries.LEASE_S + 1, "beat_at")
    reconciler.reconcile()
    query.refresh_from_db()
    assert (query.state, (query.error or {})["code"]) == ("failed", "stage-lost")


def test_a_query_that_no_worker_takes_fails_and_old_answers_are_deleted(operator: User, savepoint: Checkpoint) -> None:
    query = asked(operator, savepoint)
    earlier(query, state_queries.MAX_QUEUED_S + 1, "created_at")
    reconciler.reconcile()
    query.refresh_from_db()
    assert (query.state, (query.error or {})["code"]) == ("failed", "no-worker")
    earlier(query, state_queries.RETENTION_S + 1, "ended_at")
    reconciler.reconcile()
    assert not StateQuery.objects.exists()


def test_only_its_user_or_an_operator_cancels_a_query(viewer: User, operator: User, savepoint: Checkpoint) -> None:
    foreign, viewer_query = asked(operator, savepoint), asked(viewer, savepoint)
    api = api_as(viewer)
    check_problem(api.delete(f"/api/v1/state-queries/{foreign.pk}/"), 403, "not-permitted")
    assert api.delete(f"/api/v1/state-queries/{viewer_query.pk}/").status_code == 204
    assert api_as(operator).delete(f"/api/v1/state-queries/{foreign.pk}/").status_code == 204
    assert {query.state for query in StateQuery.objects.all()} == {"canceled"}
    assert not state_queries.renew(viewer_query.pk, "", None)


# ---------------------------------------------------------------- CSV


def test_the_table_is_a_csv_file(api: APIClient, operator: User, savepoint: Checkpoint) -> None:
    query = asked(operator, savepoint)
    check_problem(api.get(f"/api/v1/state-queries/{query.pk}/csv/"), 409, "no-table")
    state_queries.claim(query.pk, "a")
    state_queries.succeed(query.pk, "a", TABLE)
    response = api.get(f"/api/v1/state-queries/{query.pk}/csv/")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"] == f'attachment; filename="all-sums-{query.pk}.csv"'
    assert list(csv.reader(StringIO(response.getvalue().decode()))) == [
        ["carrier", "n"],
        ["AA, the first", "3"],
        ["", "4"],
    ]
    assert api.get(f"/api/v1/state-queries/{query.pk}/").json()["result"] == json.loads(json.dumps(TABLE))


def test_queries_come_with_the_registry(db: None) -> None:
    pipelines.replace([pipelines.OfferedPipeline("sums", queries={"all": "SELECT 1"})])
    assert Pipeline.objects.get(pk="sums").queries == {"all": "SELECT 1"}
