"""Clones and restore drills: a snapshot restored beside its job, with its output discarded."""

from datetime import timedelta
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from msgspec.structs import replace
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint
from console.health.collection import collect
from console.housekeeping.advance import advance_operations, advance_rows
from console.jobs.models import Job, JobVersion, Package, Run
from console.operations.console_work import WorkWithdrawn
from console.operations.kinds.snapshot import drill
from console.operations.kinds.snapshot.drill import Drill
from console.operations.models import Operation, OperationKind
from console.operations.registry import operation_type
from console.operations.restores.clones import create_clone
from console.operations.services import OperationRequestContext, request, withdraw_operation
from console.pages.restore_proof import latest_proof, proof_of
from console.runs import run_store
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, encode_manifest
from tests.console.stored import job_root, store
from tests.console.ui import rows


def refusal_of(row: Operation) -> str:
    """Of a withdrawal."""
    return operation_type(row.kind).withdrawal_refusal(row)


def effect_of(row: Operation) -> str:
    """Of a withdrawal."""
    return operation_type(row.kind).withdrawal_effect(row)


@pytest.fixture
def snapshot(db: None) -> Checkpoint:
    """A checkpoint of a running job, whose sink has state and prepared output."""
    run = rows.run(rows.job())
    checkpoint = rows.checkpoint(run, 7)
    store(checkpoint)
    return checkpoint


def ask(user: User, snapshot: Checkpoint, kind: str = "clone", **params: Any) -> Operation:
    context = OperationRequestContext(user=user, reason="a trial")
    return request(context, snapshot.job, kind, {"checkpoint": snapshot.pk, **params}).operation


def ask_drill(user: User, snapshot: Checkpoint, **params: Any) -> Operation:
    """A drill whose clone a worker has created."""
    row = ask(user, snapshot, "drill", **params)
    advance_operations()
    row.refresh_from_db()
    return row


def folder_of_clone(snapshot: Checkpoint) -> str:
    return f"savepoint-7-{snapshot.token}"


def test_a_clone_is_a_job_of_its_own_that_discards_its_output(operator: User, snapshot: Checkpoint) -> None:
    row = ask(operator, snapshot, name="trial of flights", parallelism=1)
    clone, run = Job.objects.get(name="trial of flights"), Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    assert (row.state, row.result) == ("succeeded", {"job": clone.pk, "run": run.pk})
    assert (clone.discards_output, clone.cloned_from, clone.pipeline) == (True, snapshot, "flights")
    assert (run.job, run.parallelism, run.state, run.restore_path) == (clone, 1, "queued", folder_of_clone(snapshot))
    assert (run.version.params, run.version.graph) == (rows.PARAMS, rows.GRAPH)
    assert clone.operations.get().kind == "restore"
    clone.refresh_from_db()
    assert clone.last_checkpoint_id >= snapshot.number
    assert snapshot.run.state == "running", "the job goes on"


def test_a_clone_runs_the_package_of_its_version(operator: User) -> None:
    package = Package.objects.create(
        digest="0" * 64, size=1, state="ready", description={"pipelines": [{"name": "flights", "schema": {}}]}
    )
    snapshot = rows.checkpoint(rows.run(rows.job(version={"package": package})), 7)
    store(snapshot)
    row = ask(operator, snapshot)
    assert Run.objects.get(pk=row.result["run"]).version.package == package  # type: ignore[index]


def test_its_savepoint_has_the_state_of_all_operators_but_sinks(operator: User, snapshot: Checkpoint) -> None:
    row = ask(operator, snapshot)
    folder = job_root(row.result["job"]) / folder_of_clone(snapshot)  # type: ignore[index]
    manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes(), "manifest")
    assert manifest.job == str(row.result["job"])  # type: ignore[index]
    folders = {segment.path.split("/")[-2] for segment in manifest.segments()}
    assert folders == {f"{uid}-{index}" for uid in ("join", "window") for index in (0, 1)}
    assert manifest.operators["flights"].subtasks[0].lists, "positions are in the manifest itself"
    assert manifest.operators["airlines"].finished == "finished"
    assert not any(subtask.keyed or subtask.committables for subtask in manifest.operators["parquet"].subtasks.values())
    root, home = job_root(snapshot.job_id), f"{folder_of_clone(snapshot)}/"
    for segment in manifest.segments():
        assert segment.path.startswith(home), "nothing of the job's own checkpoint is needed"
        origin = root / segment.path.removeprefix(home)
        assert origin.samefile(root.parent / manifest.job / segment.path), "a hard link takes no space"


def test_what_cannot_be_isolated_or_named_is_refused_and_leaves_nothing(operator: User, snapshot: Checkpoint) -> None:
    with pytest.raises(Conflict, match="another job is called"):
        ask(operator, snapshot, name=snapshot.job.name)
    graph = {**rows.GRAPH, "operators": [{**o, "stage": "feed"} for o in rows.GRAPH["operators"]]}
    staged = JobVersion.objects.create(job=snapshot.job, number=2, parallelism=2, state="ready", graph=graph)
    with pytest.raises(Conflict, match="has PySpark stages"):
        ask(operator, snapshot, version=staged.pk)
    assert Job.objects.count() == 1
    assert not Operation.objects.exists()


@pytest.mark.parametrize("kind", ["clone", "drill"])
def test_a_source_with_a_single_reader_is_not_read_by_a_clone(operator: User, snapshot: Checkpoint, kind: str) -> None:
    """A clone peeked into the replication slot of the job, whose run ended with an error then."""
    first, *operators = rows.GRAPH["operators"]
    graph = {**rows.GRAPH, "operators": [{**first, "exclusive": True}, *operators]}
    version = JobVersion.objects.create(job=snapshot.job, number=2, parallelism=2, state="ready", graph=graph)
    with pytest.raises(Conflict, match=r"The input of flights may have a single reader.*Version 2 cannot be cloned"):
        ask(operator, snapshot, kind, version=version.pk)
    assert Job.objects.count() == 1
    assert not Operation.objects.exists()


def advance(run: Run, state: str) -> Operation:
    """The drill after the passes, with its clone in `state`."""
    Run.objects.filter(pk=run.pk).update(state=state, started_at=timezone.now())
    advance_rows()
    advance_operations()
    return Operation.objects.get(kind=OperationKind.DRILL)


def test_a_drill_is_measured_to_its_first_checkpoint_and_removed(operator: User, snapshot: Checkpoint) -> None:
    row = ask_drill(operator, snapshot)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    with pytest.raises(Conflict, match="Another restore drill"):
        ask(operator, snapshot, "drill")
    assert advance(run, "running").phase == "running"
    Checkpoint.objects.create(
        job=run.job, run=run, number=8, token=2, kind="checkpoint", status="completed", size_bytes=1_000,
        completed_at=timezone.now(),
    )  # fmt: skip
    under_way = advance(run, "running")
    assert (under_way.state, under_way.phase) == ("running", "ending the clone")
    advance_rows()  # the clone is still ending: it is not cancelled twice
    assert Operation.objects.get(kind="cancel").run == run
    ended = advance(run, "canceled")
    assert (ended.state, ended.phase, ended.ended_at is not None) == ("succeeded", "", True)
    result = ended.result or {}
    assert result["restored_bytes"] == 1_904 + 1_254_112
    assert result["checkpoint_bytes"] == 1_000
    assert min(result["first_checkpoint_ms"], result["start_ms"]) >= 0
    assert Checkpoint.objects.get(pk=snapshot.pk).verified_at is not None
    assert not job_root(run.job_id).exists()
    assert Job.objects.get(pk=run.job_id).archived_at is not None
    assert not Checkpoint.objects.filter(job=run.job, discarded_at=None).exists()
    assert (job_root(snapshot.job_id) / snapshot.path / MANIFEST_FILE).exists()


def test_a_drill_that_drops_state_verifies_nothing(operator: User, snapshot: Checkpoint) -> None:
    row = ask_drill(operator, snapshot, allow_unmapped=True)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    Checkpoint.objects.create(
        job=run.job, run=run, number=8, token=2, kind="checkpoint", status="completed", size_bytes=1_000,
        completed_at=timezone.now(),
    )  # fmt: skip
    advance(run, "running")
    assert advance(run, "canceled").state == "succeeded"
    assert Checkpoint.objects.get(pk=snapshot.pk).verified_at is None
    assert proof_of(snapshot, Operation.objects.filter(kind="drill")) is None
    (found_by_job,) = Job.objects.filter(pk=snapshot.job_id).annotate(proof=latest_proof("pk")).values_list("proof")
    assert found_by_job == (None,)


def test_a_drill_takes_a_name_that_no_other_job_has(operator: User, snapshot: Checkpoint) -> None:
    name = f"{snapshot.job.name}, drill 1"
    rows.job(name)
    row = ask_drill(operator, snapshot)
    assert Run.objects.get(pk=row.result["run"]).job.name == f"{snapshot.job.name}, drill 2"  # type: ignore[index]


def test_a_drill_whose_clone_fails_says_why(operator: User, snapshot: Checkpoint) -> None:
    row = ask_drill(operator, snapshot)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    Run.objects.filter(pk=run.pk).update(failure={"message": "the folder /data/flights is missing"})
    ended = advance(run, "failed")
    assert ended.state == "failed"
    assert ended.error == {
        "code": "drill-failed",
        "message": "The clone ended (failed) before its first checkpoint: the folder /data/flights is missing",
    }
    assert not job_root(run.job_id).exists()


@pytest.mark.parametrize(
    ("state", "failure", "code"),
    [("canceled", None, "drill-canceled"), ("failed", {"code": "no-slots", "message": "no slots"}, "drill-no-slots")],
)
def test_a_drill_whose_clone_is_cancelled_or_gets_no_slots_is_no_finding(
    operator: User, snapshot: Checkpoint, state: str, failure: dict[str, str] | None, code: str
) -> None:
    """The job needed attention for eight days, although its snapshot was not read."""
    row = ask_drill(operator, snapshot)
    run = Run.objects.filter(pk=row.result["run"])  # type: ignore[index]
    run.update(failure=failure)
    ended = advance(run.get(), state)
    assert (ended.state, (ended.error or {})["code"]) == ("failed", code)
    assert collect([snapshot.run], timezone.now())[snapshot.run_id].failed_drill is None
    proofs = Job.objects.filter(pk=snapshot.job_id).annotate(proof=latest_proof("pk")).values_list("proof", flat=True)
    assert (list(proofs), proof_of(snapshot, [ended])) == ([None], None)


@pytest.mark.parametrize(("state", "code"), [("waiting", "drill-no-slots"), ("starting", "drill-timeout")])
def test_a_drill_at_its_time_limit_names_the_limit(operator: User, snapshot: Checkpoint, state: str, code: str) -> None:
    row = ask_drill(operator, snapshot)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    Operation.objects.filter(pk=row.pk).update(started_at=timezone.now() - timedelta(minutes=31))
    assert advance(run, state).phase == "ending the clone"
    ended = advance(run, "canceled")
    message = f"The clone was {state}, without a checkpoint, at the time limit of 30 min."
    assert (ended.state, ended.error) == ("failed", {"code": code, "message": message})
    failed = collect([snapshot.run], timezone.now())[snapshot.run_id].failed_drill
    assert (failed is not None) == (code == "drill-timeout")


def test_a_clone_runs_no_version_that_writes_beside_it(operator: User, snapshot: Checkpoint) -> None:
    row = ask(operator, snapshot)
    run = Run.objects.select_related("job").get(pk=row.result["run"])  # type: ignore[index]
    run_store.cancel_in_queue(run.pk)
    batch = {**rows.GRAPH, "mode": "batch"}
    JobVersion.objects.create(job=run.job, number=2, parallelism=2, state="ready", graph=batch)
    with pytest.raises(Conflict, match="cannot run with its output discarded"):
        request(OperationRequestContext(user=operator), run.job, "start", {"accept_repeated_output": True})


def test_small_state_in_the_manifest_becomes_files_of_the_savepoint(operator: User, snapshot: Checkpoint) -> None:
    """A savepoint has files only, as it may be moved."""
    file = job_root(snapshot.job_id) / snapshot.path / MANIFEST_FILE
    manifest_before = decode_manifest(file.read_bytes(), "manifest")
    inline = manifest_before.with_segments(lambda segment: replace(segment, content=b"12345", nbytes=5))
    file.write_bytes(encode_manifest(inline))
    row = ask(operator, snapshot)
    root = job_root(row.result["job"])  # type: ignore[index]
    manifest = decode_manifest((root / folder_of_clone(snapshot) / MANIFEST_FILE).read_bytes(), "manifest")
    assert manifest.segments() == manifest.files() != ()
    assert {(root / segment.path).read_bytes() for segment in manifest.segments()} == {b"12345"}


def test_the_storage_of_a_clone_stays_while_a_user_runs_it_again(operator: User, snapshot: Checkpoint) -> None:
    """The drill would delete the files of the other run."""
    row = ask_drill(operator, snapshot)
    first = Run.objects.select_related("job").get(pk=row.result["run"])  # type: ignore[index]
    Run.objects.filter(pk=first.pk).update(state="failed")
    other = rows.run(first.job)
    advance_rows()
    advance_operations()
    row.refresh_from_db()
    assert (row.state, row.phase) == ("running", f"waiting for the end of run {other.pk}")
    assert job_root(first.job_id).exists()
    Run.objects.filter(pk=other.pk).update(state="canceled")
    assert advance(first, "failed").state == "failed"
    assert not job_root(first.job_id).exists()


def test_the_storage_of_a_clone_is_not_deleted_while_it_is_not_mounted(
    operator: User, snapshot: Checkpoint, settings: Settings, tmp_path: Path
) -> None:
    """The drill ended, and the files of its clone stayed."""
    row = ask_drill(operator, snapshot)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    mounted, settings.WEIR_STORAGE = settings.WEIR_STORAGE, tmp_path
    waiting = advance(run, "failed")
    assert (waiting.state, waiting.phase.startswith("waiting for storage: [Errno 2]")) == ("running", True)
    settings.WEIR_STORAGE = mounted
    assert advance(run, "failed").state == "failed"
    assert not job_root(run.job_id).exists()


def test_a_drill_ends_with_the_reason_if_its_clone_cannot_be_created(operator: User, snapshot: Checkpoint) -> None:
    (job_root(snapshot.job_id) / snapshot.path / MANIFEST_FILE).write_bytes(b"damaged")
    row = ask_drill(operator, snapshot)
    assert (row.state, (row.error or {})["code"]) == ("failed", "corrupt-checkpoint")
    snapshot.refresh_from_db()
    assert (snapshot.held_by, Job.objects.count()) == (None, 1)


def test_a_clone_without_room_is_refused_and_leaves_nothing(
    operator: User, snapshot: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    folders = {*job_root(snapshot.job_id).parent.iterdir()}
    monkeypatch.setattr("os.link", fail)
    monkeypatch.setattr("runtime.io.filesystem._chunks", fail)
    with pytest.raises(Refused, match="No space left on device") as refused:
        ask(operator, snapshot)
    assert (refused.value.code, refused.value.status) == ("not-cloned", 503)
    assert ({*job_root(snapshot.job_id).parent.iterdir()}, Job.objects.count()) == (folders, 1)


def test_a_drill_is_withdrawn_and_its_clone_is_removed(operator: User, snapshot: Checkpoint) -> None:
    """B11: its clone held its slots until the limit of the drill."""
    row = ask_drill(operator, snapshot)
    run = Run.objects.get(pk=row.result["run"])  # type: ignore[index]
    advance(run, "running")
    assert effect_of(row).startswith("The clone is cancelled")
    withdraw_operation(operator, row)
    assert advance(run, "running").phase == "ending the clone"
    assert Operation.objects.get(kind="cancel").run == run
    ended = advance(run, "canceled")
    assert (ended.state, (ended.error or {})["code"], ended.phase) == ("failed", "withdrawn", "")
    assert not job_root(run.job_id).exists()
    assert Checkpoint.objects.get(pk=snapshot.pk).verified_at is None
    proofs = Job.objects.filter(pk=snapshot.job_id).annotate(proof=latest_proof("pk")).values_list("proof", flat=True)
    assert (list(proofs), proof_of(snapshot, [ended])) == ([None], None)
    facts = collect([snapshot.run], timezone.now())
    assert facts[snapshot.run_id].failed_drill is None, "it is no finding"


def test_a_queued_drill_is_withdrawn_at_once(
    operator: User, snapshot: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = ask(operator, snapshot, "drill")
    withdraw_operation(operator, operation)
    snapshot.refresh_from_db()
    operation.refresh_from_db()
    assert (operation.state, snapshot.held_by) == ("failed", None)
    advance_operations()
    assert Job.objects.count() == 1, "no clone begins"

    begun, create = ask(operator, snapshot, "drill"), create_clone

    def withdraw_and_create(row: Operation, *args: Any) -> Run:
        withdraw_operation(operator, begun)
        return create(row, *args)

    monkeypatch.setattr("console.operations.kinds.snapshot.drill.create_clone", withdraw_and_create)
    folders = set(job_root(snapshot.job_id).parent.iterdir())
    with pytest.raises(WorkWithdrawn):
        drill._start(begun, Drill().parse(begun.params))
    assert set(job_root(snapshot.job_id).parent.iterdir()) == folders, "the files of the clone are deleted"


def test_a_drill_that_has_its_result_is_not_withdrawn(operator: User, snapshot: Checkpoint) -> None:
    row = rows.operation(snapshot.job, "drill", "running", result={"run": 1, "first_checkpoint_ms": 5}, ended_at=None)
    assert refusal_of(row) == "The restore drill has its result, and its clone is being removed."
    with pytest.raises(Conflict, match="has its result"):
        withdraw_operation(operator, row)
