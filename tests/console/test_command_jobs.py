"""Jobs and their operations by `weir`: what it prints, what it asks for, and its exit codes."""

import pytest

from console.accounts.models import User
from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, Segment, SubtaskSnapshot
from tests.console.conftest import Commands, MakeCheckpoint, MakeRun
from tests.console.stored import store
from tests.console.ui import rows
from weir.control import console as client

pytestmark = pytest.mark.django_db(transaction=True)


def test_jobs_checkpoints_and_the_state_of_a_job(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.RUNNING)
    for number in range(1, 4):
        make_checkpoint(run, number, kind="savepoint" if number == 2 else "checkpoint")
    assert "daily sums  Running" in weir("jobs").stdout
    assert [row["name"] for row in weir.json("jobs")] == ["daily sums"]
    sums = {"state": "running", "records_in": 20, "records_out": 3, "rate_in": 1.5, "rate_out": 0.2}
    Run.objects.filter(pk=run.pk).update(live={"restarts": 2, "operators": {"sums": sums}})
    lines = weir("status", "daily sums").stdout.splitlines()
    assert lines[0] == f"daily sums: Running, run {run.pk}, version 1, parallelism 2, restarts 2"
    assert ["sums", "running", "20", "1.5", "3", "0.2"] in [line.split() for line in lines]
    possible = weir("status", "daily sums").stdout.splitlines()[-1]
    assert possible == "possible: rescale, restore --end-run, savepoint, stop, drain, cancel"
    assert [row["number"] for row in weir.json("checkpoints", "daily sums", "--limit", "2")] == [3, 2]
    assert [row["number"] for row in weir.json("checkpoints", "daily sums", "--kind", "savepoint")] == [2]


def test_lists_go_on_over_pages(weir: Commands, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)
    Job.objects.bulk_create(Job(name=f"job {n}", pipeline="sums", created_by=operator) for n in range(5))
    assert len(weir.json("jobs")) == 5
    assert len(weir.json("jobs", "--limit", "3")) == 3


def test_an_operation_is_requested_once_and_awaited(weir: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    command = ("savepoint", "daily sums", "--name", "before 2.0", "--reason", "upgrade")
    pk = weir(*command, "--no-wait").stdout.strip()
    operation = Operation.objects.get()
    assert (str(operation.pk), operation.kind, operation.reason) == (pk, "savepoint", "upgrade")
    assert operation.params == {"name": "before 2.0", "note": "", "pin": False}
    assert operation.idempotency_key
    late = weir("wait", pk, "--timeout", "0", code=5)
    assert f"`weir wait {pk}`" in late.stderr
    Operation.objects.update(state="failed", error={"code": "expired", "detail": "The savepoint expired."})
    assert "The savepoint expired." in weir("wait", pk, code=1).stderr
    second = weir(*command, "--no-wait").stdout.strip()
    Operation.objects.filter(pk=second).update(state="succeeded", result={"checkpoint": 42})
    assert weir.json("wait", second)["state"] == "succeeded"
    assert weir("wait", second).stdout == "42\n", "as `weir restore --from` takes it"


def test_a_refusal_has_its_reason_and_exit_code(weir: Commands, job: Job, make_run: MakeRun) -> None:
    assert "no job has the name 'nobody'" in weir("stop", "nobody", code=3).stderr
    make_run(RunState.FINISHED)
    assert "weir: " in weir("stop", "daily sums", code=3).stderr
    assert "daily sums has no checkpoint or savepoint 9" in weir("restore", "daily sums", "--from", "9", code=3).stderr
    assert not Operation.objects.exists()


def test_what_cannot_be_undone_asks_first(weir: Commands, make_run: MakeRun) -> None:
    """The answer is for the run that was there at the question."""
    run = make_run(RunState.RUNNING)
    for act in ("drain", "cancel"):
        refusal = weir(act, "daily sums", code=2).stderr
        assert refusal.startswith("weir: ")
        assert refusal.endswith("? There is no terminal to answer on: --yes accepts.\n")
    assert not Operation.objects.exists()
    for act in ("drain", "cancel"):
        weir(act, "daily sums", "--yes", "--no-wait")
        assert Operation.objects.get(kind=act).params == {"run": run.pk}


def test_a_queued_request_is_withdrawn(weir: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    pk = weir("savepoint", "daily sums", "--no-wait").stdout.strip()
    assert weir.json("withdraw", pk)["state"] == "failed"
    assert "operator withdrew the request" in weir("wait", pk, code=1).stderr
    assert "can be withdrawn" in weir("withdraw", pk, code=3).stderr
    another = weir("savepoint", "daily sums", "--no-wait").stdout.strip()
    assert "withdrew the request before a job master had begun it." in weir("withdraw", another).stderr


def test_a_job_is_archived_and_brought_back(weir: Commands, job: Job, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert "end it before the job is archived" in weir("archive", "daily sums", code=3).stderr
    Run.objects.update(state="stopped")
    assert weir("archive", "daily sums").stdout == "daily sums: archived\n"
    assert weir("unarchive", "daily sums").stdout == "daily sums: in the list\n"


def test_a_restore_of_an_active_run_is_refused_before_its_effects_are_shown(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    """They were shown and confirmed; then the console refused the restore, and no text named the option."""
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    refusal = weir("restore", "daily sums", "--from", "1", code=3)
    assert refusal.stderr == f"weir: run {run.pk} is running; `--end-run stop` ends it first, with a savepoint\n"


def test_maintenance_is_begun_and_ended(weir: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert weir("maintenance").stdout == "no maintenance\n"
    assert weir.json("maintenance", "--begin", "the storage moves")["ended_at"] is None
    assert "by operator, under way: the storage moves." in weir("maintenance").stdout
    assert "operator began maintenance" in weir("drain", "daily sums", "--yes", code=3).stderr
    assert "ended at" in weir("maintenance", "--end").stdout


def test_a_start_waits_for_its_version(weir: Commands, job: Job) -> None:
    JobVersion.objects.create(job=job, number=1, parallelism=1)
    assert weir.json("start", "daily sums", "--when-ready", "--no-wait")["phase"] == "waiting for the compilation"


def test_a_rescale_is_shown_before(weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    text = weir("rescale", "daily sums", "--parallelism", "5", "--dry-run").stdout
    assert "parallelism 2 to 5" in text
    assert "slots of other jobs: 0" in text
    assert weir.json("rescale", "daily sums", "--parallelism", "5", "--dry-run")["parallelism"] == 5
    of_version = weir.json("rescale", "daily sums", "--version", "1", "--parallelism", "5", "--dry-run")
    assert of_version["version"] == run.version_id
    assert "either --parallelism or --version" in weir("rescale", "daily sums", code=2).stderr
    refused = weir("rescale", "daily sums", "--parallelism", "2", "--dry-run", code=3)
    assert "The run has this parallelism and version already." in refused.stderr
    assert not Operation.objects.exists()


def test_a_rescale_may_drop_state(weir: Commands, make_run: MakeRun) -> None:
    """Over REST it could. The newest checkpoint has an operator that the version lacks."""
    checkpoint = rows.checkpoint(make_run(RunState.RUNNING), 1, is_stored=False)
    segment = Segment(path="gone", rows=1, nbytes=4, checksum="", first_group=0, last_group=127, content=b"rows")
    subtask = SubtaskSnapshot(keyed={"state": (segment,)})
    operator = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: subtask})
    store(checkpoint, operators={"gone": operator})
    command = ("rescale", "daily sums", "--parallelism", "5")
    assert "holds state for an operator that the job lacks" in weir(*command, "--dry-run", code=3).stderr
    assert weir.json(*command, "--dry-run", "--allow-unmapped")["refusal"] is None
    weir(*command, "--allow-unmapped", "--no-wait")
    assert Operation.objects.get(kind="rescale").params["allow_unmapped"] is True


def test_operations_of_all_jobs_or_of_one(weir: Commands, make_run: MakeRun, operator: User) -> None:
    run = make_run(RunState.RUNNING)
    other = Job.objects.create(name="other", pipeline="sums", created_by=operator)
    columns = {"kind": "savepoint", "state": "succeeded"}
    Operation.objects.create(job=run.job, run=run, **columns)
    Operation.objects.create(job=other, requested_by=operator, **columns)
    assert [row["job"] for row in weir.json("operations")] == [other.pk, run.job_id]
    assert [row["job"] for row in weir.json("operations", "daily sums")] == [run.job_id]
    assert [row["job"] for row in weir.json("operations", "--user", "operator")] == [other.pk]
    assert weir("operations").stdout.startswith("JOB")
    assert weir("operations", "other").stdout.startswith("ID")
