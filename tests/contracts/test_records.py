"""One contract for a run's records: the twin in memory and the real thing in Postgres, fenced by the attempt token."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection
from django.utils import timezone
from msgspec import structs

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.checkpoints.services import fail_orphaned_checkpoints
from console.jobs.models import Attempt, Job, JobVersion, Run
from console.operations.models import Operation
from runtime.access.redaction import redact_json
from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.job.code_identity import CodeIdentity
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.lifecycle import RunEvent, RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SnapshotTimings, SubtaskSnapshot
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.postgres.queries import load_statements
from runtime.io.postgres.store import PostgresRunStore, connect, load_run
from runtime.run_store import CompletedCheckpoint, LaunchTimes, RunStore
from tests.core.builders import subtask

pytestmark = pytest.mark.django_db(transaction=True)


def url() -> str:
    """How a process of its own reaches the test database."""
    params = connection.get_connection_params()
    keys = ("host", "port", "user", "password", "dbname")
    return psycopg.conninfo.make_conninfo(**{key: params[key] for key in keys if params.get(key)})


class World(Protocol):
    @property
    def records(self) -> RunStore: ...
    def supersede(self) -> None: ...
    def ask(self, id: str, kind: str, request_id: str = "") -> None: ...
    def answer(self, id: str) -> tuple[str, Any]: ...


@dataclass
class MemoryWorld:
    records: MemoryRunStore

    def supersede(self) -> None:
        self.records.superseded = True

    def ask(self, id: str, kind: str, request_id: str = "") -> None:
        self.records.operations.append(OperationRequest(id, kind, request_id))

    def answer(self, id: str) -> tuple[str, Any]:
        result, error = self.records.settled[id]
        return ("failed", error) if error else ("succeeded", result)


@dataclass
class PostgresWorld:
    records: PostgresRunStore
    run: Run

    def supersede(self) -> None:
        Run.objects.filter(pk=self.run.pk).update(token=self.run.token + 99)

    def ask(self, id: str, kind: str, request_id: str = "") -> None:
        facts = {"requested_by": User.objects.get(), "request_id": request_id}
        Operation.objects.create(pk=id, job=self.run.job, run=self.run, kind=kind, **facts)

    def answer(self, id: str) -> tuple[str, Any]:
        operation = Operation.objects.get(pk=id)
        return operation.state, operation.error or operation.result


def make_run() -> Run:
    user = User.objects.create_user("somebody")
    job = Job.objects.create(name="a job", pipeline="flights", created_by=user)
    version = JobVersion.objects.create(job=job, number=1, parallelism=2, params={}, state="ready")
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('weir_token_seq')")
        (token,) = cursor.fetchone()
    return Run.objects.create(job=job, version=version, parallelism=2, state="starting", token=token)


@pytest.fixture(params=["memory", "postgres"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld(MemoryRunStore())
        return
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    yield PostgresWorld(records, run)
    records.close()


def completed(number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT, token: int = 1) -> CompletedCheckpoint:
    operator = OperatorSnapshot(parallelism=1, finished=FinishedState.FINISHED, subtasks={0: SubtaskSnapshot()})
    manifest = Manifest(
        job="1",
        checkpoint=number,
        kind=kind,
        token=token,
        triggered_at=1_000,
        max_parallelism=128,
        operators={"source": operator},
    )
    return CompletedCheckpoint(
        manifest=manifest, folder=f"{kind}-{number}", size_bytes=10, written_bytes=5, at=1_500, operators=[]
    )


def test_ids_increase_and_stop_when_superseded(world: World) -> None:
    first, second = world.records.next_checkpoint_id(), world.records.next_checkpoint_id()
    assert first is not None
    assert second is not None
    assert second > first
    world.supersede()
    assert world.records.next_checkpoint_id() is None


def test_a_completed_checkpoint_is_what_is_restored_next_and_may_be_recorded_twice(world: World) -> None:
    assert world.records.restore_point() is None
    assert world.records.record_checkpoint(completed(1))
    assert world.records.record_checkpoint(completed(1))
    assert world.records.record_checkpoint(completed(2, CheckpointKind.SAVEPOINT))
    assert world.records.restore_point() == "checkpoint-1"
    assert world.records.retained_folders() == ["checkpoint-1", "savepoint-2"]
    assert world.records.final_savepoint() is None


def test_a_superseded_master_records_nothing(world: World) -> None:
    """S1-12, S4-51: only the larger token's rows count."""
    world.supersede()
    assert not world.records.record_checkpoint(completed(1))
    assert world.records.change_state(RunEvent.DEPLOYED) is None
    assert world.records.next_attempt("late", {}) is None
    assert world.records.take_operations(only_cancel=False) is None
    assert world.records.retained_folders() == []


def test_states_follow_the_transition_table(world: World) -> None:
    assert world.records.change_state(RunEvent.DEPLOYED) is RunState.RUNNING
    assert world.records.change_state(RunEvent.CLAIMED) is RunState.RUNNING
    assert world.records.change_state(RunEvent.GAVE_UP, {"message": "it broke"}) is RunState.FAILED


def test_a_new_attempt_has_a_newer_token_and_the_records_follow_it(world: World) -> None:
    first = world.records.next_attempt("a slot died", {"message": "a slot died"})
    token = world.records.next_attempt("another slot died", {"message": "another slot died"})
    assert first is not None
    assert token is not None
    assert token > first
    assert world.records.record_checkpoint(completed(1, token=token))


def test_requests_are_told_until_settled_and_given_back_to_the_next_attempt(world: World) -> None:
    """An answer of the database may be lost, so what was taken is told again."""
    savepoint, cancel = "0" * 31 + "1", "0" * 31 + "2"
    ids = [f"{i[:8]}-{i[8:12]}-{i[12:16]}-{i[16:20]}-{i[20:]}" for i in (savepoint, cancel)]
    world.ask(ids[0], "savepoint", "f00d")
    assert world.records.take_operations(only_cancel=True) == []
    assert world.records.take_operations(only_cancel=False) == [OperationRequest(ids[0], "savepoint", "f00d")]
    assert world.records.take_operations(only_cancel=False) == [OperationRequest(ids[0], "savepoint", "f00d")]
    world.records.next_attempt("the master died", {})
    world.records.requeue_operations()
    world.ask(ids[1], "cancel")
    requests = world.records.take_operations(only_cancel=False)
    assert requests is not None
    assert [request.id for request in requests] == ids
    world.records.complete_operation(ids[0], {"checkpoint": 4}, None)
    world.records.complete_operation(ids[1], None, {"code": "late", "message": "too late"})
    assert world.records.take_operations(only_cancel=False) == []
    assert world.answer(ids[0]) == ("succeeded", {"checkpoint": 4})
    assert world.answer(ids[1]) == ("failed", {"code": "late", "message": "too late"})


def test_whoever_asked_for_a_stop_is_told_when_the_run_has_ended(world: World) -> None:
    stop = "00000000-0000-0000-0000-000000000001"
    world.ask(stop, "stop")
    world.records.take_operations(only_cancel=False)
    for event in (RunEvent.DEPLOYED, RunEvent.STOP_REQUESTED):
        world.records.change_state(event)
    assert world.records.change_state(RunEvent.ENDED, None, 7) is RunState.STOPPED
    assert world.answer(stop) == ("succeeded", {"checkpoint": 7})


def test_discarding_keeps_the_newest_and_every_savepoint(world: World) -> None:
    for number in (1, 2, 3, 5):
        world.records.record_checkpoint(completed(number))
    world.records.record_checkpoint(completed(4, CheckpointKind.SAVEPOINT))
    assert sorted(world.records.discard_older(RetentionPolicy(2))) == ["checkpoint-1", "checkpoint-2"]
    assert world.records.discard_older(RetentionPolicy(2)) == []
    assert sorted(world.records.retained_folders()) == ["checkpoint-3", "checkpoint-5", "savepoint-4"]
    assert world.records.restore_point() == "checkpoint-5"


def test_checkpoints_of_the_last_hours_are_kept(world: World) -> None:
    for number, hour in ((1, 1), (2, 2), (3, 9)):
        checkpoint = completed(number)
        triggered = structs.replace(checkpoint.manifest, triggered_at=hour * 3_600_000)
        world.records.record_checkpoint(replace(checkpoint, manifest=triggered))
    assert world.records.discard_older(RetentionPolicy(1, hours=8)) == ["checkpoint-1"]
    assert world.records.discard_older(RetentionPolicy(1)) == ["checkpoint-2"]


def test_a_pin_and_a_review_under_way_keep_a_checkpoint_that_retention_would_discard() -> None:
    """They count as no recovery point: the newest two stay besides."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    for number in range(1, 7):
        records.record_checkpoint(completed(number))
    Checkpoint.objects.filter(number=1).update(pinned_at=timezone.now())
    Checkpoint.objects.filter(number=2).update(review_state="in_review")
    assert sorted(records.discard_older(RetentionPolicy(2))) == ["checkpoint-3", "checkpoint-4"]
    Checkpoint.objects.update(pinned_at=None, review_state="reviewed")
    assert sorted(records.discard_older(RetentionPolicy(2))) == ["checkpoint-1", "checkpoint-2"]
    records.close()


def test_only_the_current_attempt_records_the_code_of_the_run() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records.record_code(CodeIdentity(package="shop", version="1.3", graph="ab"))
    run.refresh_from_db()
    assert run.code == {"package": "shop", "version": "1.3", "graph": "ab", "digest": ""}
    Run.objects.update(token=run.token + 1)
    records.record_code(CodeIdentity(package="shop", version="1.2", graph="ab"))
    run.refresh_from_db()
    assert run.code["version"] == "1.3"
    records.close()


def test_the_times_of_a_launch_are_recorded_with_its_attempt() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    second = records.next_attempt("the slot is gone", {})
    assert second is not None
    records.record_launch(LaunchTimes(listed=1_000, opened=2_000, connected=2_500, deployed=9_000))
    times = {"listed": 1_000, "opened": 2_000, "connected": 2_500, "deployed": 9_000}
    assert Attempt.objects.get(token=second).launch == times
    records.next_attempt("again", {})
    assert Attempt.objects.get(run=run, token__gt=second).launch is None
    records.close()


def test_a_checkpoint_that_a_rollback_chooses_during_retention_is_kept() -> None:
    """Retention has planned to discard it and waits for the row, which the rollback has updated."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    for number in (1, 2, 3):
        records.record_checkpoint(completed(number))
    with psycopg.connect(url()) as rollback, ThreadPoolExecutor(1) as pool:
        rollback.execute("UPDATE weir_checkpoint SET held_by = gen_random_uuid() WHERE number = 1")
        discarded = pool.submit(records.discard_older, RetentionPolicy(1))
        with psycopg.connect(url(), autocommit=True) as observer:
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            while observer.execute(waiting).fetchone() is None:
                assert not discarded.done()
                time.sleep(0.01)
        rollback.commit()
        assert discarded.result(10) == ["checkpoint-2"]
    assert records.discard_older(RetentionPolicy(1)) == []
    records.close()


def test_the_checkpoint_that_a_run_began_with_stays_until_the_run_has_completed_its_own() -> None:
    """A savepoint completes first, and a new version keeps fewer checkpoints than the version before."""
    first = make_run()
    records = PostgresRunStore(url(), first.pk, Token(first.token), 128)
    for number in (1, 2, 3):
        records.record_checkpoint(completed(number))
    records.close()
    Run.objects.update(state="canceled")
    oldest = Checkpoint.objects.get(number=1)
    second = Run.objects.create(
        job=first.job, version=first.version, parallelism=2, state="running", token=first.token + 1,
        restore_checkpoint=oldest,
    )  # fmt: skip
    records = PostgresRunStore(url(), second.pk, Token(second.token), 128)
    records.record_checkpoint(completed(4, CheckpointKind.SAVEPOINT))
    assert records.discard_older(RetentionPolicy(1)) == ["checkpoint-2"]
    assert records.restore_point() == "checkpoint-1"
    records.record_checkpoint(completed(5))
    assert sorted(records.discard_older(RetentionPolicy(1))) == ["checkpoint-1", "checkpoint-3"]
    records.close()


def test_a_savepoint_gets_the_name_note_and_pin_of_its_operation() -> None:
    """The job master only ends the operation; a failed savepoint labels nothing."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    user, pinned = User.objects.get(), {"name": " before the upgrade ", "note": "asked by Ada", "pin": True}
    for at, params in enumerate([pinned, {}, {"name": "never taken"}], start=1):
        records.record_checkpoint(completed(at, CheckpointKind.SAVEPOINT))
        row = Operation.objects.create(
            job=run.job, run=run, kind="savepoint", params=params, requested_by=user,
        )  # fmt: skip
        records.take_operations(only_cancel=False)
        error = {"code": "expired", "message": "too slow"} if at == 3 else None
        records.complete_operation(str(row.pk), None if error else {"checkpoint": at}, error)
    records.close()
    checkpoints = Checkpoint.objects.order_by("number")
    assert [(row.name, row.note, row.pinned_by, row.is_pinned) for row in checkpoints] == [
        ("before the upgrade", "asked by Ada", user, True), ("", "", None, False), ("", "", None, False),
    ]  # fmt: skip


def test_what_cannot_be_restored_is_passed_over_and_newer_ones_are_taken_again(world: World) -> None:
    """S0-11: back from checkpoint to checkpoint, never to a savepoint that told nobody or to a discarded one."""
    for number in (1, 2, 4):
        world.records.record_checkpoint(completed(number))
    world.records.record_checkpoint(completed(3, CheckpointKind.SAVEPOINT))
    assert world.records.restore_point(["checkpoint-4"]) == "checkpoint-2"
    assert world.records.restore_point(["checkpoint-4", "checkpoint-2"]) == "checkpoint-1"
    assert world.records.restore_point(["checkpoint-4", "checkpoint-2", "checkpoint-1"]) is None
    world.records.record_checkpoint(completed(5))
    assert world.records.restore_point(["checkpoint-4", "checkpoint-2"]) == "checkpoint-5"
    world.records.discard_older(RetentionPolicy(2))
    assert world.records.restore_point(["checkpoint-5", "checkpoint-4"]) is None


def test_output_committed_since_a_checkpoint_is_that_of_all_but_plain_savepoints(world: World) -> None:
    world.records.record_checkpoint(completed(1))
    world.records.record_checkpoint(completed(2, CheckpointKind.SAVEPOINT))
    world.records.record_checkpoint(completed(3))
    world.records.record_checkpoint(completed(4, CheckpointKind.STOP))
    assert world.records.checkpoints_since(1) == [3, 4]
    assert world.records.checkpoints_since(4) == []


def test_a_completed_stop_is_found_again(world: World) -> None:
    world.records.record_checkpoint(completed(7, CheckpointKind.STOP))
    assert world.records.final_savepoint() == "stop-7"
    assert world.records.restore_point() is None


# ---------------------------------------------------------------- Postgres only


def progress(*times_ms: int | None) -> tuple[SubtaskProgress, ...]:
    """Subtasks of operator a, by the times of their acknowledgements."""
    timings = SnapshotTimings(start_delay_ms=1.04, async_ms=2)
    return tuple(SubtaskProgress(subtask(f"a/{i}"), at_ms, timings, 7) for i, at_ms in enumerate(times_ms))


def report(reason: FailureReason | None = None) -> ReportCheckpoint:
    checkpoint_progress = progress(400, None, None, None)
    return ReportCheckpoint(
        CheckpointId(3), CheckpointKind.CHECKPOINT, 1_000, 2_000, 1, 4, reason, "", checkpoint_progress
    )


def test_a_checkpoint_row_tells_how_it_stands() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records.report_checkpoint(report())
    assert run.checkpoints.get().status == "in_progress"
    records.report_checkpoint(report(FailureReason.EXPIRED))
    row = run.checkpoints.get()
    assert (row.status, row.reason, row.duration_ms) == ("failed", "expired", 1_000)
    assert row.acknowledgements["a"]["at_ms"] == [400, None, None, None]
    records.record_checkpoint(completed(4))
    assert run.checkpoints.get(number=4).finished_operators == ["source"]
    records.close()


def test_acknowledgements_of_the_checkpoint_under_way_stand_in_its_row() -> None:
    """What the graph shows and what lists, API and admin show is one number; also after its master has died."""

    def shown() -> tuple[int, list[int | None]]:
        row = Checkpoint.objects.get()
        return row.acknowledged, row.acknowledgements["a"]["at_ms"]

    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    begun = report()
    records.report_checkpoint(begun)
    assert Checkpoint.objects.get().acknowledgements["a"] == {
        "index": [0, 1, 2, 3], "at_ms": [400, None, None, None], "start_delay_ms": [1.0, None, None, None],
        "alignment_ms": [0, None, None, None], "pre_barrier_ms": [0, None, None, None],
        "sync_ms": [0, None, None, None], "async_ms": [2, None, None, None],
        "written_bytes": [0, None, None, None], "state_bytes": [7, None, None, None],
    }  # fmt: skip
    records.write_live({}, {CheckpointId(begun.checkpoint + 1): progress(1, 1, 1, 1)})
    assert shown() == (1, [400, None, None, None])
    records.write_live({}, {begun.checkpoint: progress(400, 500, None, None)})
    records.write_live({}, {})
    records.write_live({})
    assert shown() == (2, [400, 500, None, None])
    Run.objects.filter(pk=run.pk).update(token=run.token + 1)
    records.write_live({}, {begun.checkpoint: progress(400, 500, 600, None)})
    assert shown() == (2, [400, 500, None, None])
    assert fail_orphaned_checkpoints() == 1
    assert shown() == (2, [400, 500, None, None])


def test_a_report_that_comes_after_the_end_of_a_run_is_left_out() -> None:
    """The report waited for the row of the run, which the end of the run had locked."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records.change_state(RunEvent.DEPLOYED)
    records.write_live({"records": 1})
    records.change_state(RunEvent.ENDED)
    records.write_live({"records": 1, "ending": {"phase": "commit"}})
    run.refresh_from_db()
    assert run.live == {"records": 1}


def test_behind_what_a_run_was_started_from_comes_what_that_was_built_on() -> None:
    """S0-11: not the newest of the job, since a run may have been started from an older one."""
    first = make_run()
    for number in (1, 2, 3):
        complete(first, number)
    second = restored_from(first, "checkpoint-2")
    complete(second, 4)
    complete(second, 5, CheckpointKind.STOP)
    third = restored_from(second, "stop-5")
    records = PostgresRunStore(url(), third.pk, Token(third.token), 128)
    line = ["stop-5", "checkpoint-4", "checkpoint-2", "checkpoint-1"]
    for passed in range(len(line)):
        assert records.restore_point(line[:passed]) == line[passed]
    assert records.restore_point(line) is None
    records.close()


def test_a_savepoint_that_was_given_by_its_path_comes_before_the_row_that_knows_of_it() -> None:
    first = make_run()
    complete(first, 1, CheckpointKind.STOP)
    second = restored_from(first, "stop-1")
    Run.objects.filter(pk=second.pk).update(restore_path="/moved/away")
    records = PostgresRunStore(url(), second.pk, Token(second.token), 128)
    assert records.restore_point() == "/moved/away"
    assert records.restore_point(["/moved/away"]) == "stop-1"
    complete(second, 2)
    assert records.restore_point() == "checkpoint-2"
    records.close()


def test_a_job_master_is_told_whether_state_may_go() -> None:
    run = make_run()
    assert not load_run(url(), run.pk).allow_unmapped
    Run.objects.filter(pk=run.pk).update(allow_unmapped=True)
    assert load_run(url(), run.pk).allow_unmapped


def complete(run: Run, number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> None:
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    assert records.record_checkpoint(completed(number, kind, run.token))
    records.close()


def restored_from(run: Run, path: str) -> Run:
    """A later run of the same job."""
    Run.objects.filter(pk=run.pk).update(state="canceled")
    return Run.objects.create(
        job=run.job,
        version=run.version,
        parallelism=2,
        state="starting",
        token=run.token + 10,
        restore_checkpoint=run.checkpoints.get(path=path),
    )


def test_a_superseded_master_settles_nothing_of_its_successor() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    world = PostgresWorld(records, run)
    stop = "00000000-0000-0000-0000-000000000001"
    world.ask(stop, "stop")
    assert records.take_operations(only_cancel=False) == [OperationRequest(stop, "stop")]
    world.supersede()
    Operation.objects.filter(pk=stop).update(token=run.token + 99)
    records.complete_operation(stop, None, {"code": "suspended", "message": "the attempt ended"})
    assert Operation.objects.get(pk=stop).state == "running"
    records.close()


def test_a_token_is_taken_even_if_the_answer_was_lost() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records._drawn_token = Token(run.token + 50)
    Run.objects.filter(pk=run.pk).update(token=run.token + 50)  # the commit went through, its answer did not
    assert records.next_attempt("a slot died", {}) == run.token + 50
    records.close()


def test_what_postgres_cannot_store_does_not_hide_a_failure() -> None:
    """A NUL in a row; a byte of a file name that is no UTF-8, which Python has as half of a surrogate pair."""
    run = make_run()
    attempt = Attempt.objects.create(run=run, token=run.token)
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records.change_state(RunEvent.GAVE_UP, {"code": "final", "message": "row 3: '1\x002', é😀, a\udce9.csv"})
    run.refresh_from_db()
    assert run.failure == {"code": "final", "message": "row 3: '1\ufffd2', é😀, a?.csv"}
    records.end_attempt("failed", "a\udce9.csv")
    attempt.refresh_from_db()
    assert attempt.reason == "a?.csv"
    records.close()


def test_a_lost_connection_is_an_error_to_retry_and_the_next_call_connects_again() -> None:
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    assert records.next_checkpoint_id() == 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND usename = current_user"
        )
    with pytest.raises(EnvironmentFailure):
        records.next_checkpoint_id()
    assert records.next_checkpoint_id() == 2
    records.close()


def test_what_a_checkpoint_has_of_all_subtasks_is_never_more_than_all() -> None:
    """It began without those that had ended, and names them all the same."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    begun = ReportCheckpoint(
        checkpoint=CheckpointId(1),
        kind=CheckpointKind.CHECKPOINT,
        triggered_at=1_000,
        acknowledged=0,
        subtasks=0,
        at=1_000,
    )
    records.report_checkpoint(begun)
    assert records.record_checkpoint(completed(1, token=run.token))
    row = Checkpoint.objects.get()
    assert (row.acknowledged, row.subtasks) == (1, 1)
    records.close()


def test_text_is_text_in_a_database_without_an_encoding(database_url: str) -> None:
    """Postgres makes databases in SQL_ASCII where its machine names no locale, as containers often do."""
    parts = urlsplit(database_url)
    with connect(database_url) as admin:
        admin.execute("create database ascii encoding 'SQL_ASCII' locale 'C' template template0")
        try:
            with connect(parts._replace(path="/ascii").geturl()) as plain:
                assert plain.execute("select 'Zürich'::text as name").fetchone() == {"name": "Zürich"}
        finally:
            admin.execute("drop database ascii with (force)")


def test_an_unknown_run_and_an_unreachable_server_are_named() -> None:
    with pytest.raises(JobRejected, match="there is no run 12345"):
        load_run(url(), 12345)
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        load_run("postgresql://nobody@127.0.0.1:1/none", 1)


@pytest.mark.parametrize("name", sorted(load_statements()))
def test_every_statement_is_described_and_prepares_against_the_migrated_schema(name: str) -> None:
    described, sql = load_statements()[name]
    assert described.endswith(".")
    prepared = re.sub(r"%\(\w+\)s", "NULL", sql)
    with connection.cursor() as cursor:
        cursor.execute("PREPARE probe AS " + prepared)
        cursor.execute("DEALLOCATE probe")


def test_no_reason_in_the_records_shows_a_secret() -> None:
    """Exceptions of an author's function may carry any parameter: attempts, failures, declines, operations."""
    run = make_run()
    secret = {"db_password": "hunter22"}
    records = PostgresRunStore(
        url(), run.pk, Token(run.token), 128, redact=lambda value: redact_json(value, secret, {})
    )
    message = "login with 'hunter22' failed"
    records.report_checkpoint(replace(report(FailureReason.ASYNC_FAILED), detail=message))
    operation = Operation.objects.create(job=run.job, run=run, kind="savepoint", state="running", token=run.token)
    run.attempts.create(token=run.token)
    records.complete_operation(str(operation.pk), None, {"code": "declined", "message": message})
    records.next_attempt(message, {"message": message, "story": [message]})
    records.end_attempt("failed", message)
    failure = {"code": "x", "operator": "hunter22", "message": message, "detail": {"log": [message]}}
    records.change_state(RunEvent.GAVE_UP, failure)
    records.close()
    run.refresh_from_db()
    operation.refresh_from_db()
    assert run.failure is not None
    assert run.failure.pop("operator") == "hunter22", "the name of an operator is no secret"
    stored = [run.failure, operation.error, run.checkpoints.get().detail]
    stored += [value for attempt in run.attempts.all() for value in (attempt.reason, attempt.detail)]
    assert "hunter22" not in repr(stored)
    assert repr(stored).count("login with '********' failed") >= 8
