"""Jobs and their operations by `weirctl`: what it prints, what it asks for, and its exit codes."""

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
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.RUNNING)
    for number in range(1, 4):
        make_checkpoint(run, number, kind="savepoint" if number == 2 else "checkpoint")
    assert "daily sums  running" in weirctl("jobs").stdout
    assert [row["name"] for row in weirctl.json("jobs")] == ["daily sums"]
    assert f"run {run.pk}, version 1, running, parallelism 2" in weirctl("status", "daily sums").stdout
    assert "savepoint, stop, drain, cancel" in weirctl("status", "daily sums").stdout
    assert [row["number"] for row in weirctl.json("checkpoints", "daily sums", "--limit", "2")] == [3, 2]
    assert [row["number"] for row in weirctl.json("checkpoints", "daily sums", "--kind", "savepoint")] == [2]


def test_lists_go_on_over_pages(weirctl: Commands, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAGE", 2)
    Job.objects.bulk_create(Job(name=f"job {n}", pipeline="sums", created_by=operator) for n in range(5))
    assert len(weirctl.json("jobs")) == 5
    assert len(weirctl.json("jobs", "--limit", "3")) == 3


def test_an_operation_is_requested_once_and_awaited(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    asked = ("savepoint", "daily sums", "--name", "before 2.0", "--reason", "upgrade")
    found = weirctl(*asked, "--no-wait").stdout.strip()
    operation = Operation.objects.get()
    assert (str(operation.pk), operation.kind, operation.reason) == (found, "savepoint", "upgrade")
    assert operation.params == {"name": "before 2.0", "note": "", "pin": False}
    assert operation.idempotency_key
    late = weirctl("wait", found, "--timeout", "0", code=5)
    assert f"`weirctl wait {found}`" in late.stderr
    Operation.objects.update(state="failed", error={"code": "expired", "detail": "The savepoint expired."})
    assert "The savepoint expired." in weirctl("wait", found, code=1).stderr
    again = weirctl(*asked, "--no-wait").stdout.strip()
    Operation.objects.filter(pk=again).update(state="succeeded")
    assert weirctl.json("wait", again)["state"] == "succeeded"


def test_a_refusal_has_its_reason_and_exit_code(weirctl: Commands, job: Job, make_run: MakeRun) -> None:
    assert "no job has the name 'nobody'" in weirctl("stop", "nobody", code=3).stderr
    make_run(RunState.FINISHED)
    assert "weirctl: " in weirctl("stop", "daily sums", code=3).stderr
    assert (
        "daily sums has no checkpoint or savepoint 9" in weirctl("restore", "daily sums", "--from", "9", code=3).stderr
    )
    assert not Operation.objects.exists()


def test_what_cannot_be_undone_asks_first(weirctl: Commands, make_run: MakeRun) -> None:
    """The answer is for the run that was there at the question."""
    run = make_run(RunState.RUNNING)
    for act in ("drain", "cancel"):
        assert "Nobody can answer here: --yes accepts." in weirctl(act, "daily sums", code=2).stderr
    assert not Operation.objects.exists()
    for act in ("drain", "cancel"):
        weirctl(act, "daily sums", "--yes", "--no-wait")
        assert Operation.objects.get(kind=act).params == {"run": run.pk}


def test_a_queued_request_is_withdrawn(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    asked = weirctl("savepoint", "daily sums", "--no-wait").stdout.strip()
    assert weirctl.json("withdraw", asked)["state"] == "failed"
    assert "operator withdrew the request" in weirctl("wait", asked, code=1).stderr
    assert "can be withdrawn" in weirctl("withdraw", asked, code=3).stderr
    another = weirctl("savepoint", "daily sums", "--no-wait").stdout.strip()
    assert "withdrew the request before a job master had begun it." in weirctl("withdraw", another).stderr


def test_a_job_is_archived_and_brought_back(weirctl: Commands, job: Job, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert "end it before the job is archived" in weirctl("archive", "daily sums", code=3).stderr
    Run.objects.update(state="stopped")
    assert weirctl("archive", "daily sums").stdout == "daily sums: archived\n"
    assert weirctl("unarchive", "daily sums").stdout == "daily sums: in the list\n"


def test_maintenance_is_begun_and_ended(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert weirctl("maintenance").stdout == "no maintenance\n"
    assert weirctl.json("maintenance", "--begin", "the storage moves")["ended_at"] is None
    assert "by operator, under way: the storage moves." in weirctl("maintenance").stdout
    assert "operator began maintenance" in weirctl("drain", "daily sums", "--yes", code=3).stderr
    assert "ended at" in weirctl("maintenance", "--end").stdout


def test_a_start_waits_for_its_version(weirctl: Commands, job: Job) -> None:
    JobVersion.objects.create(job=job, number=1, parallelism=1)
    assert weirctl.json("start", "daily sums", "--when-ready", "--no-wait")["phase"] == "waiting for the compilation"


def test_a_rescale_is_shown_before(weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    shown = weirctl("rescale", "daily sums", "--parallelism", "5", "--dry-run").stdout
    assert "parallelism 2 to 5" in shown
    assert "slots of other jobs: 0" in shown
    assert weirctl.json("rescale", "daily sums", "--parallelism", "5", "--dry-run")["parallelism"] == 5
    of_version = weirctl.json("rescale", "daily sums", "--version", "1", "--parallelism", "5", "--dry-run")
    assert of_version["version"] == run.version_id
    assert "either --parallelism or --version" in weirctl("rescale", "daily sums", code=2).stderr
    refused = weirctl("rescale", "daily sums", "--parallelism", "2", "--dry-run", code=3)
    assert "The run has this parallelism and version already." in refused.stderr
    assert not Operation.objects.exists()


def test_a_rescale_may_drop_state(weirctl: Commands, make_run: MakeRun) -> None:
    """Over REST it could. The newest checkpoint has an operator that the version lacks."""
    taken = rows.checkpoint(make_run(RunState.RUNNING), 1, is_stored=False)
    segment = Segment(path="gone", rows=1, nbytes=4, checksum="", first_group=0, last_group=127, content=b"rows")
    kept = SubtaskSnapshot(keyed={"state": (segment,)})
    gone = OperatorSnapshot(parallelism=1, finished=FinishedState.RUNNING, subtasks={0: kept})
    store(taken, operators={"gone": gone})
    wanted = ("rescale", "daily sums", "--parallelism", "5")
    assert "holds state for an operator that the job lacks" in weirctl(*wanted, "--dry-run", code=3).stderr
    assert weirctl.json(*wanted, "--dry-run", "--allow-unmapped")["refusal"] is None
    weirctl(*wanted, "--allow-unmapped", "--no-wait")
    assert Operation.objects.get(kind="rescale").params["allow_unmapped"] is True


def test_operations_of_all_jobs_or_of_one(weirctl: Commands, make_run: MakeRun, operator: User) -> None:
    run = make_run(RunState.RUNNING)
    other = Job.objects.create(name="other", pipeline="sums", created_by=operator)
    done = {"kind": "savepoint", "state": "succeeded"}
    Operation.objects.create(job=run.job, run=run, **done)
    Operation.objects.create(job=other, requested_by=operator, **done)
    assert [row["job"] for row in weirctl.json("operations")] == [other.pk, run.job_id]
    assert [row["job"] for row in weirctl.json("operations", "daily sums")] == [run.job_id]
    assert [row["job"] for row in weirctl.json("operations", "--user", "operator")] == [other.pk]
    assert weirctl("operations").stdout.startswith("JOB")
    assert weirctl("operations", "other").stdout.startswith("ID")
