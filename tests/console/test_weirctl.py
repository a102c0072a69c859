"""`weirctl` at a real server: what it prints, what it asks for, and its exit codes."""

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import User
from console.jobs.models import Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun
from weir.control import console as client
from weir.control.__main__ import main
from weir.control.login import credentials_path

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(client, "_RETRY_AFTER_S", 0.0)
    return tmp_path


class Commands:
    """`weirctl` with the address of the console and a token in its environment."""

    def __init__(self, url: str, token: str) -> None:
        self._env = {"WEIR_URL": url, "WEIR_TOKEN": token}

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=self._env)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def weirctl(home: Path, live_server: LiveServer, operator: User) -> Commands:
    return Commands(live_server.url, tokens.issue(operator))


def test_a_login_stores_a_token_that_only_the_user_can_read(
    home: Path, live_server: LiveServer, operator: User
) -> None:
    asked = ["login", live_server.url, "--user", "operator"]
    refused = CliRunner().invoke(main, asked, input="guess\n")
    assert (refused.exit_code, credentials_path().exists()) == (3, False)
    assert "The user name or password is wrong." in refused.stderr
    assert CliRunner().invoke(main, asked, input="a long enough one\n").exit_code == 0
    assert credentials_path().stat().st_mode & 0o777 == 0o600
    assert CliRunner().invoke(main, ["jobs"]).exit_code == 0
    CliRunner().invoke(main, ["logout"])
    without = CliRunner().invoke(main, ["jobs"])
    assert (without.exit_code, "run `weirctl login URL`" in without.stderr) == (3, True)


def test_the_token_of_the_login_is_sent_to_its_console_only(
    home: Path, live_server: LiveServer, operator: User
) -> None:
    credentials_path().parent.mkdir(parents=True)
    credentials_path().write_text(json.dumps({"url": "http://127.0.0.1:1", "token": tokens.issue(operator)}))
    elsewhere = CliRunner().invoke(main, ["--url", live_server.url, "jobs"])
    assert (elsewhere.exit_code, "`weirctl login` stores a token." in elsewhere.stderr) == (3, True)


def test_a_damaged_file_of_the_login_is_named(home: Path) -> None:
    credentials_path().parent.mkdir(parents=True)
    credentials_path().write_text("{")
    damaged = CliRunner().invoke(main, ["jobs"])
    assert (damaged.exit_code, str(credentials_path()) in damaged.stderr) == (3, True)


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


@pytest.mark.parametrize("act", [("savepoint",), ("stop",), ("drain", "--yes")])
def test_a_savepoint_is_copied_to_a_target_folder(
    weirctl: Commands, make_run: MakeRun, settings: Settings, tmp_path: Path, act: tuple[str, ...]
) -> None:
    settings.WEIR_SAVEPOINT_ROOTS = (tmp_path,)
    make_run(RunState.RUNNING)
    kind, *options = act
    asked = (kind, "daily sums", *options, "--no-wait")
    assert "not in /elsewhere" in weirctl(*asked, "--target", "/elsewhere", code=3).stderr
    assert weirctl.json(*asked, "--target", str(tmp_path))["params"]["target"] == str(tmp_path)
    assert Operation.objects.get(kind="copy").part_of == Operation.objects.get(kind=kind)


def test_an_existing_savepoint_is_copied(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, settings: Settings, tmp_path: Path
) -> None:
    settings.WEIR_SAVEPOINT_ROOTS = (tmp_path,)
    savepoint = make_checkpoint(make_run(RunState.STOPPED), 4, kind="stop")
    asked = weirctl.json("copy", "daily sums", "4", str(tmp_path), "--reason", "audit", "--no-wait")
    assert (asked["kind"], asked["reason"]) == ("copy", "audit")
    assert asked["params"] == {"checkpoint": savepoint.pk, "target": str(tmp_path)}


def test_a_refusal_has_its_reason_and_exit_code(weirctl: Commands, job: Job, make_run: MakeRun) -> None:
    assert "no job has the name 'nobody'" in weirctl("stop", "nobody", code=3).stderr
    make_run(RunState.FINISHED)
    assert "weirctl: " in weirctl("stop", "daily sums", code=3).stderr
    assert (
        "daily sums has no checkpoint or savepoint 9" in weirctl("restore", "daily sums", "--from", "9", code=3).stderr
    )
    assert not Operation.objects.exists()


def test_what_cannot_be_undone_asks_first(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    for act in ("drain", "cancel"):
        assert "Nobody can answer here: --yes accepts." in weirctl(act, "daily sums", code=2).stderr
    assert not Operation.objects.exists()
    weirctl("cancel", "daily sums", "--yes", "--no-wait")
    assert Operation.objects.get().kind == "cancel"


def test_a_definition_is_exported_and_applied_twice(weirctl: Commands, job: Job, tmp_path: Path) -> None:
    """The second time changes nothing. A changed value is a version, a changed fact is none."""
    file = tmp_path / "job.yaml"
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {path: in}, tags: [night]}")
    assert weirctl("apply", "-f", str(file)).stdout == "nightly: created, with version 1\nnightly: tags changed\n"
    assert weirctl("apply", "-f", str(file)).stdout == "nothing to change\n"
    exported = weirctl("export", "nightly").stdout
    file.write_text(exported)
    assert weirctl("apply", "-f", str(file)).stdout == "nothing to change\n"
    file.write_text(exported.replace("parallelism: 2", "parallelism: 3").replace("owner: ''", "owner: ops"))
    changed = weirctl("apply", "-f", str(file), "--message", "more slots").stdout
    assert changed == "nightly: version 2 created\nnightly: owner changed\n"
    newest = JobVersion.objects.get(job__name="nightly", number=2)
    assert (newest.parallelism, newest.message, newest.params) == (3, "more slots", {"path": "in"})
    assert "parallelism: 2" in weirctl("export", "nightly", "--version", "1").stdout


def test_a_difference_is_shown_without_a_change(weirctl: Commands, job: Job, tmp_path: Path) -> None:
    """`diff` and `apply --dry-run` are equal; a refused value is refused by both."""
    file = tmp_path / "job.yaml"
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {path: in}}")
    assert weirctl("diff", "-f", str(file), code=1).stdout == 'job nightly: null -> "sums"\n'
    weirctl("apply", "-f", str(file))
    assert weirctl("diff", "-f", str(file)).stdout == ""
    assert weirctl.json("diff", "-f", str(file)) == []
    settings = "settings: {checkpoint_interval_ms: 700}"
    file.write_text(f"{{name: nightly, pipeline: sums, parallelism: 3, params: {{path: out}}, owner: ops, {settings}}}")
    shown = [
        "parallelism parallelism: 2 -> 3",
        'parameter path: "in" -> "out"',
        "setting checkpoint_interval_ms: 5000 -> 700",
        'fact owner: "" -> "ops"',
    ]
    assert weirctl("diff", "-f", str(file), code=1).stdout.splitlines() == shown
    assert weirctl("apply", "-f", str(file), "--dry-run", code=1).stdout.splitlines() == shown
    file.write_text("{name: nightly, pipeline: sums, parallelism: 2, params: {paths: in}}")
    assert "params" in weirctl("diff", "-f", str(file), code=3).stderr
    assert JobVersion.objects.count() == 1


def test_a_version_that_would_be_created_is_a_difference(
    weirctl: Commands, job: Job, pipeline: Pipeline, tmp_path: Path
) -> None:
    """`apply` creates one with equal values if the newest was rejected, or if the job has none."""
    pipeline.schema = {"type": "object"}
    pipeline.save()
    file = tmp_path / "job.yaml"
    file.write_text("{name: daily sums, pipeline: sums, parallelism: 2, params: {}}")
    assert weirctl("diff", "-f", str(file), code=1).stdout == 'version state: null -> "compiling"\n'
    weirctl("apply", "-f", str(file))
    assert weirctl("diff", "-f", str(file)).stdout == ""
    JobVersion.objects.update(state="rejected")
    assert weirctl("diff", "-f", str(file), code=1).stdout == 'version state: "rejected" -> "compiling"\n'
    assert weirctl("apply", "-f", str(file)).stdout == "daily sums: version 2 created\n"


def test_a_mask_in_a_document_keeps_the_secret(weirctl: Commands, pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.schema["properties"] |= {"password": {"type": "string", "format": "password"}, "token": {"type": "string"}}
    pipeline.save()
    file = tmp_path / "job.yaml"
    document = (
        "{name: nightly, pipeline: sums, parallelism: 2, params: {path: in, password: SECRET, token: a-river-runs}}"
    )
    file.write_text(document.replace("SECRET", "a-literal"))
    assert "params.password: a secret must be a reference" in weirctl("apply", "-f", str(file), code=3).stderr
    file.write_text(document.replace("SECRET", "'${secret:sums}'"))
    weirctl("apply", "-f", str(file))
    exported = weirctl("export", "nightly").stdout
    assert "a-river-runs" not in exported
    assert "password: ${secret:sums}" in exported
    file.write_text(exported)
    assert weirctl("apply", "-f", str(file)).stdout == "nothing to change\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{name: x", "is not YAML"),
        ("[1]", "a definition has the fields name"),
        ("{name: x, pipeline: sums, params: {}}", "parallelism: this field is required"),
        ("{name: x, pipeline: sums, parallelism: two, params: {}}", "parallelism: must be a whole number, not 'two'"),
        (
            "{name: x, pipeline: sums, parallelism: 2, params: {}, colour: red}",
            "colour: a definition has no such field",
        ),
        ("{name: x, pipeline: sums, parallelism: 2, params: {day: 2026-11-26}}", "has a value that JSON does not have"),
        ("{name: x, pipeline: sums, parallelism: 2, params: {day: 2024-13-45}}", "is not YAML"),
        ("{name: x, pipeline: gone, parallelism: 2, params: {}}", "there is no pipeline 'gone'"),
        ("{name: x, pipeline: sums, parallelism: 999999, params: {}}", "parallelism"),
        ("{name: daily sums, pipeline: other, parallelism: 2, params: {}}", "which cannot change"),
    ],
)
def test_a_bad_document_is_refused_and_leaves_nothing(
    weirctl: Commands, job: Job, tmp_path: Path, text: str, error: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert error in weirctl("apply", "-f", str(file), code=3).stderr
    assert list(Job.objects.values_list("name", flat=True)) == ["daily sums"]
    assert not JobVersion.objects.exists()


def test_a_restore_shows_its_effects_and_is_bound_to_them(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    made = make_checkpoint(make_run(RunState.STOPPED), 4, kind="stop")
    weirctl("restore", "daily sums", code=2)
    plan = weirctl.json("restore", "daily sums", "--from", "4", "--parallelism", "3", "--dry-run")
    assert (plan["parallelism"], plan["restorable"]) == (3, True)
    assert not Operation.objects.exists()
    shown = weirctl("restore", "daily sums", "--from", "4", "--version", "1", "--yes", "--no-wait")
    assert "sums: new, it is not in the checkpoint and starts empty" in shown.stderr
    assert "--path" not in weirctl("restore", "daily sums", "--path", "/nowhere", "--yes", code=3).stderr
    operation = Operation.objects.get()
    assert (operation.params["checkpoint"], operation.params["version"]) == (made.pk, version.pk)
    assert operation.params["plan_hash"]


def test_a_running_job_is_stopped_and_restored_as_one_operation(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    made = make_checkpoint(make_run(RunState.RUNNING), 4)
    weirctl("restore", "daily sums", "--path", "/nowhere", "--end-run", "stop", code=2)
    shown = weirctl.json("restore", "daily sums", "--from", "4", "--dry-run")
    args = ("restore", "daily sums", "--from", "4", "--end-run", "cancel", "--yes", "--no-wait")
    assert "The run may commit output until it ends" in weirctl(*args, code=3).stderr
    weirctl(*args, "--accept-repeated-output")
    operation = Operation.objects.get(kind="rollback")
    assert (operation.params["checkpoint"], operation.params["end_run"]) == (made.pk, "cancel")
    assert operation.params["plan_hash"] == shown["plan_hash"]
    assert operation.parts.get().kind == "cancel"


def test_a_snapshot_is_pinned_named_reviewed_and_discarded(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    made = make_checkpoint(make_run(RunState.RUNNING), 4, kind="savepoint")
    weirctl("pin", "daily sums", "4", "--reason", "audit")
    weirctl("label", "daily sums", "4", "--name", "before 2.0", "--note", "kept")
    weirctl("assign", "daily sums", "4", "operator")
    weirctl("comment", "daily sums", "4", "sizes are plausible")
    weirctl("review", "daily sums", "4", "reviewed", "--note", "well")
    made.refresh_from_db()
    assert (made.is_pinned, made.name, made.note, made.review_state) == (True, "before 2.0", "kept", "reviewed")
    assert "is pinned. Unpin it first." in weirctl("discard", "daily sums", "4", "--yes", code=3).stderr
    weirctl("unpin", "daily sums", "4")
    assert "--yes accepts" in weirctl("discard", "daily sums", "4", code=2).stderr
    assert weirctl.json("discard", "daily sums", "4", "--yes", "--no-wait")["kind"] == "discard"
    assert "daily sums has no checkpoint or savepoint 5" in weirctl("pin", "daily sums", "5", code=3).stderr
    weirctl("label", "daily sums", "4", code=2)
    reasons = Operation.objects.order_by("created_at").values_list("kind", "reason")
    assert reasons[0] == ("pin", "audit")


def test_a_snapshot_is_cloned_drilled_and_verified(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    made = make_checkpoint(make_run(RunState.RUNNING), 4, kind="savepoint")
    found = weirctl.json("clone", "daily sums", "4", "--name", "copy", "--parallelism", "1")
    assert (found["state"], Job.objects.get(name="copy").cloned_from) == ("succeeded", made)
    drill = weirctl.json("drill", "daily sums", "4", "--version", "1", "--no-wait")
    assert (drill["kind"], drill["params"]["version"]) == ("drill", version.pk)
    check = weirctl.json("verify", "daily sums", "4", "--no-wait")
    assert (check["kind"], check["params"]) == ("verify", {"checkpoint": made.pk})


def test_a_schedule_is_set_shown_and_removed(weirctl: Commands, job: Job) -> None:
    assert weirctl("schedule", "daily sums", code=3)
    weirctl("schedule", "daily sums", "--daily-at", "02:30", "--keep", "3")
    assert (weirctl.json("schedule", "daily sums")["keep"], "02:30" in weirctl("schedule", "daily sums").stdout) == (
        3,
        True,
    )
    weirctl("schedule", "daily sums", "--operation", "drill", "--every-hours", "24")
    weirctl("unschedule", "daily sums")
    assert weirctl.json("schedule", "daily sums", "--operation", "drill")["every_hours"] == 24
    assert weirctl("schedule", "daily sums", code=3)


def test_a_queued_request_is_withdrawn(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    asked = weirctl("savepoint", "daily sums", "--no-wait").stdout.strip()
    assert weirctl.json("withdraw", asked)["state"] == "failed"
    assert "operator withdrew the request" in weirctl("wait", asked, code=1).stderr
    assert "can be withdrawn" in weirctl("withdraw", asked, code=3).stderr


def test_a_bulk_has_a_result_for_each_job(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert "--yes accepts" in weirctl("bulk", "stop", "daily sums", code=2).stderr
    rows = weirctl.json("bulk", "savepoint", "daily sums", "nobody", "--no-wait", "--reason", "upgrade", code=1)
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "accepted"), ("nobody", "refused")]
    assert "no job has the name 'nobody'" in rows[1]["detail"]
    late = weirctl("bulk", "stop", "daily sums", "--yes", "--timeout", "0", code=5)
    assert "daily sums" in late.stdout
    assert Operation.objects.get(kind="savepoint").reason == "upgrade"


def test_a_bulk_keeps_its_results_if_the_console_is_away(
    weirctl: Commands, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection fails for the wait, after the request was accepted."""
    make_run(RunState.RUNNING)
    send = httpx.Client.request

    def fail(self: httpx.Client, method: str, path: str, **request: Any) -> httpx.Response:
        if path.startswith("operations/"):
            raise httpx.ConnectError("the connection is refused")
        return send(self, method, path, **request)

    monkeypatch.setattr(httpx.Client, "request", fail)
    rows = weirctl.json("bulk", "savepoint", "daily sums", "nobody", code=1)
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "unknown"), ("nobody", "refused")]
    assert "no console answers" in rows[0]["detail"]
    assert [row["operation"] for row in rows] == [str(Operation.objects.get().pk), None]


def test_a_bulk_writes_what_rest_answers(weirctl: Commands, make_run: MakeRun, api: APIClient) -> None:
    """A script reads one shape, whichever of the two it uses."""
    run = make_run(RunState.RUNNING)
    for kind, body in (("untag", {"tags": ["eu"]}), ("cancel", {})):
        rest = api.post("/api/v1/jobs/bulk/", {"kind": kind, "jobs": [run.job_id], **body}).json()["results"]
        names = ("untag", "eu", "daily sums") if kind == "untag" else ("bulk", "cancel", "daily sums", "--yes")
        if kind == "cancel":
            Operation.objects.all().delete()
            names = (*names, "--no-wait")
        (own,) = weirctl.json(*names)
        assert {**own, "operation": None} == {**rest[0], "operation": None}


def test_a_definition_is_duplicated_as_another_job(weirctl: Commands, job: Job, version: JobVersion) -> None:
    assert weirctl("duplicate", "daily sums", "hourly sums").stdout == "hourly sums: created, with version 1\n"
    assert Job.objects.get(name="hourly sums").versions.get().params == version.params
    assert "another job is called" in weirctl("duplicate", "daily sums", "hourly sums", code=3).stderr


def test_a_job_is_archived_and_brought_back(weirctl: Commands, job: Job, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert "end it before the job is archived" in weirctl("archive", "daily sums", code=3).stderr
    Run.objects.update(state="stopped")
    assert weirctl("archive", "daily sums").stdout == "daily sums: archived\n"
    assert weirctl("unarchive", "daily sums").stdout == "daily sums: in the list\n"


def test_versions_are_made_equal_and_deleted(weirctl: Commands, job: Job, version: JobVersion) -> None:
    JobVersion.objects.create(job=job, number=2, parallelism=5, params=version.params, state="rejected")
    for _ in range(2):  # the second time it is equal already
        assert weirctl.json("equal", "daily sums", "1")["number"] == 3
    assert job.versions.get(number=3).parallelism == version.parallelism
    assert "--yes accepts" in weirctl("delete-version", "daily sums", "2", code=2).stderr
    assert "only a rejected version" in weirctl("delete-version", "daily sums", "1", "--yes", code=3).stderr
    weirctl("delete-version", "daily sums", "2", "--yes")
    assert not job.versions.filter(number=2).exists()


def test_tags_of_jobs(weirctl: Commands, job: Job) -> None:
    asked = ("tag", "eu,nightly", "daily sums", "--reason", "a new region")
    assert [row["state"] for row in weirctl.json(*asked)] == ["changed"]
    assert [row["state"] for row in weirctl.json(*asked)] == ["unchanged"]
    assert Operation.objects.get(kind="edit").reason == "a new region"
    weirctl("untag", "eu", "daily sums")
    job.refresh_from_db()
    assert job.tags == ["nightly"]
    assert "must have 40 characters at most" in weirctl("tag", "x" * 41, "daily sums", code=3).stderr


def test_maintenance_is_begun_and_ended(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    assert weirctl("maintenance").stdout == "no maintenance\n"
    assert weirctl.json("maintenance", "--begin", "the storage moves")["ended_at"] is None
    assert "by operator, under way: the storage moves." in weirctl("maintenance").stdout
    assert "operator began maintenance" in weirctl("drain", "daily sums", "--yes", code=3).stderr
    assert "ended at" in weirctl("maintenance", "--end").stdout


def test_a_bulk_cancels(weirctl: Commands, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    rows = weirctl.json("bulk", "cancel", "daily sums", "--yes", "--no-wait")
    assert [(row["name"], row["state"]) for row in rows] == [("daily sums", "accepted")]


def test_a_start_waits_for_its_version(weirctl: Commands, job: Job) -> None:
    JobVersion.objects.create(job=job, number=1, parallelism=1)
    assert weirctl.json("start", "daily sums", "--when-ready", "--no-wait")["phase"] == "waiting for the compilation"


def test_a_console_that_does_not_answer_is_named(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = Commands(f"http://127.0.0.1:{taken.getsockname()[1]}", "none")
        assert "no console answers at http://127.0.0.1:" in nobody("jobs", code=4).stderr
    assert "no console answers at ftp://x" in Commands("ftp://x", "none")("jobs", code=4).stderr


def test_a_server_that_is_no_console_is_named(live_server: LiveServer, home: Path) -> None:
    other = Commands(f"{live_server.url}/elsewhere", "none")
    assert "not as a console of Weir" in other("jobs", code=4).stderr


def test_a_rescale_is_shown_before(weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    run = make_run(RunState.RUNNING)
    make_checkpoint(run, 1)
    shown = weirctl("rescale", "daily sums", "--parallelism", "5", "--dry-run").stdout
    assert "parallelism 2 to 5" in shown
    assert "slots of other jobs: 0" in shown
    assert weirctl.json("rescale", "daily sums", "--parallelism", "5", "--dry-run")["parallelism"] == 5
    refused = weirctl("rescale", "daily sums", "--parallelism", "2", "--dry-run", code=3)
    assert "The run has this parallelism and version already." in refused.stderr
    assert not Operation.objects.exists()


def test_a_login_limits_its_token(home: Path, live_server: LiveServer, operator: User, make_run: MakeRun) -> None:
    make_run(RunState.RUNNING)
    asked = ["login", live_server.url, "--user", "operator", "--password", "a long enough one", "--scope", "read"]
    assert CliRunner().invoke(main, asked).exit_code == 0
    assert CliRunner().invoke(main, ["jobs"]).exit_code == 0
    refused = CliRunner().invoke(main, ["savepoint", "daily sums"])
    assert (refused.exit_code, "it needs the scope operate" in refused.stderr) == (3, True)


def test_an_evidence_pack_is_written_and_checked(
    weirctl: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, settings: Settings, tmp_path: Path
) -> None:
    settings.WEIR_MANIFEST_KEYS = (b"a key of thirty-two bytes or more",)
    make_checkpoint(make_run(RunState.RUNNING), 4)
    pack = tmp_path / "pack.json"
    written = weirctl("evidence", "daily sums", "4").stdout
    pack.write_text(written)
    assert "is as a console with a key" in weirctl("evidence", "--verify", str(pack)).stdout
    pack.write_text(pack.read_text().replace('"unreviewed"', '"reviewed"'))
    assert "was changed" in weirctl("evidence", "--verify", str(pack), code=1).stdout
    pack.write_text(written.replace('"review":', '"review": {"state": "reviewed"}, "review":', 1))
    assert "the name 'review' occurs twice" in weirctl("evidence", "--verify", str(pack), code=3).stderr
    pack.write_text("{")
    assert "JSON parse error" in weirctl("evidence", "--verify", str(pack), code=3).stderr
    weirctl("evidence", "daily sums", code=2)
