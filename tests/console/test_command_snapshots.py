"""Savepoints, restores, drills, schedules and reviews by `weir`."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from console.jobs.models import Job, JobVersion, VersionState
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import Commands, MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("act", [("savepoint",), ("stop",), ("drain", "--yes")])
def test_a_savepoint_is_copied_to_a_target_folder(
    weir: Commands, make_run: MakeRun, settings: Settings, tmp_path: Path, act: tuple[str, ...]
) -> None:
    settings.WEIR_SAVEPOINT_ROOTS = (tmp_path,)
    make_run(RunState.RUNNING)
    kind, *options = act
    command = (kind, "daily sums", *options, "--no-wait")
    assert "not in /elsewhere" in weir(*command, "--target", "/elsewhere", code=3).stderr
    assert weir.json(*command, "--target", str(tmp_path))["params"]["target"] == str(tmp_path)
    assert Operation.objects.get(kind="copy").part_of == Operation.objects.get(kind=kind)


def test_a_restore_shows_its_effects_and_is_bound_to_them(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.STOPPED), 4, kind="stop")
    weir("restore", "daily sums", code=2)
    plan = weir.json("restore", "daily sums", "--from", "4", "--parallelism", "3", "--dry-run")
    assert (plan["parallelism"], plan["restorable"]) == (3, True)
    assert not Operation.objects.exists()
    answer = weir("restore", "daily sums", "--from", "4", "--version", "1", "--yes", "--no-wait")
    assert "sums: new, it is not in the checkpoint and starts empty" in answer.stderr
    assert "--path" not in weir("restore", "daily sums", "--path", "/nowhere", "--yes", code=3).stderr
    operation = Operation.objects.get()
    assert (operation.params["checkpoint"], operation.params["version"]) == (checkpoint.pk, version.pk)
    assert operation.params["plan_hash"]


def test_a_restore_waits_for_the_newest_version_and_takes_it(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    """A restore right after `apply` took the version before, in silence."""
    make_checkpoint(make_run(RunState.STOPPED), 4, kind="stop")
    newest, after = (
        JobVersion.objects.create(
            job=version.job, number=number, parallelism=version.parallelism, max_parallelism=version.max_parallelism,
            params=version.params, settings=version.settings, graph=version.graph, state=VersionState.COMPILING,
        )
        for number in (2, 3)
    )  # fmt: skip
    refused = weir("restore", "daily sums", "--from", "4", "--yes", "--timeout", "0", code=3)
    assert "version 3 of daily sums is not compiled yet" in refused.stderr
    JobVersion.objects.filter(pk=newest.pk).update(state=VersionState.READY)
    JobVersion.objects.filter(pk=after.pk).update(state=VersionState.REJECTED)
    assert "version 3 is rejected" in weir("restore", "daily sums", "--from", "4", "--dry-run").stderr
    JobVersion.objects.filter(pk=after.pk).delete()
    weir("restore", "daily sums", "--from", "4", "--yes", "--no-wait")
    assert Operation.objects.get().params["version"] == newest.pk


def test_a_running_job_is_stopped_and_restored_as_one_operation(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.RUNNING), 4)
    weir("restore", "daily sums", "--path", "/nowhere", "--end-run", "stop", code=2)
    plan = weir.json("restore", "daily sums", "--from", "4", "--dry-run")
    args = ("restore", "daily sums", "--from", "4", "--end-run", "cancel", "--yes", "--no-wait")
    refusal = weir(*args, code=3).stderr.splitlines()[-1]
    assert refusal.startswith("weir: The run may commit output until it ends")
    assert refusal.endswith("Accept repeated output. (--accept-repeated-output)")
    weir(*args, "--accept-repeated-output")
    operation = Operation.objects.get(kind="rollback")
    assert (operation.params["checkpoint"], operation.params["end_run"]) == (checkpoint.pk, "cancel")
    assert operation.params["plan_hash"] == plan["plan_hash"]
    assert operation.parts.get().kind == "cancel"


def test_a_snapshot_is_pinned_named_reviewed_and_discarded(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    row = make_checkpoint(make_run(RunState.RUNNING), 4, kind="savepoint")
    weir("pin", "daily sums", "4", "--reason", "audit")
    weir("label", "daily sums", "4", "--name", "before 2.0", "--note", "kept")
    weir("assign", "daily sums", "4", "operator")
    weir("comment", "daily sums", "4", "sizes are plausible")
    weir("review", "daily sums", "4", "reviewed", "--note", "well")
    row.refresh_from_db()
    assert (row.is_pinned, row.name, row.note, row.review_state) == (True, "before 2.0", "kept", "reviewed")
    assert "is pinned. Unpin it first." in weir("discard", "daily sums", "4", "--yes", code=3).stderr
    weir("unpin", "daily sums", "4")
    assert "--yes accepts" in weir("discard", "daily sums", "4", code=2).stderr
    assert weir.json("discard", "daily sums", "4", "--yes", "--no-wait")["kind"] == "discard"
    assert "daily sums has no checkpoint or savepoint 5" in weir("pin", "daily sums", "5", code=3).stderr
    weir("label", "daily sums", "4", code=2)
    reasons = Operation.objects.order_by("created_at").values_list("kind", "reason")
    assert reasons[0] == ("pin", "audit")


def test_a_snapshot_is_cloned_drilled_and_verified(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, version: JobVersion
) -> None:
    savepoint = make_checkpoint(make_run(RunState.RUNNING), 4, kind="savepoint")
    clone = weir.json("clone", "daily sums", "4", "--name", "copy", "--parallelism", "1")
    assert (clone["state"], Job.objects.get(name="copy").cloned_from) == ("succeeded", savepoint)
    drill = weir.json("drill", "daily sums", "4", "--version", "1", "--no-wait")
    assert (drill["kind"], drill["params"]["version"]) == ("drill", version.pk)
    check = weir.json("verify", "daily sums", "4", "--no-wait")
    assert (check["kind"], check["params"]) == ("verify", {"checkpoint": savepoint.pk})


def test_a_schedule_is_set_shown_and_removed(weir: Commands, job: Job) -> None:
    assert weir("schedule", "daily sums", code=3)
    weir("schedule", "daily sums", "--daily-at", "02:30", "--keep", "3")
    assert (weir.json("schedule", "daily sums")["keep"], "02:30" in weir("schedule", "daily sums").stdout) == (
        3,
        True,
    )
    weir("schedule", "daily sums", "--operation", "drill", "--every-hours", "24")
    weir("unschedule", "daily sums")
    assert weir.json("schedule", "daily sums", "--operation", "drill")["every_hours"] == 24
    assert weir("schedule", "daily sums", code=3)


def test_an_evidence_pack_is_written_and_checked(
    weir: Commands, make_run: MakeRun, make_checkpoint: MakeCheckpoint, settings: Settings, tmp_path: Path
) -> None:
    settings.WEIR_MANIFEST_KEYS = (b"a key of thirty-two bytes or more",)
    make_checkpoint(make_run(RunState.RUNNING), 4)
    pack = tmp_path / "pack.json"
    written = weir("evidence", "daily sums", "4").stdout
    pack.write_text(written)
    assert "is as a console with a key" in weir("evidence", "--verify", str(pack)).stdout
    pack.write_text(pack.read_text().replace('"unreviewed"', '"reviewed"'))
    assert "was changed" in weir("evidence", "--verify", str(pack), code=1).stdout
    pack.write_text(written.replace('"review":', '"review": {"state": "reviewed"}, "review":', 1))
    assert "the name 'review' occurs twice" in weir("evidence", "--verify", str(pack), code=3).stderr
    pack.write_text("{")
    assert "JSON parse error" in weir("evidence", "--verify", str(pack), code=3).stderr
    weir("evidence", "daily sums", code=2)
