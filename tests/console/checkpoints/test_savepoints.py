"""What is asked of checkpoint storage before anything starts: the mapping report, folders elsewhere, damage."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, JobVersion, Run
from console.operations.models import Operation
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.manifest import FORMAT_VERSION, Manifest
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, encode_manifest
from tests.console.api.test_api import check_problem
from tests.console.conftest import GRAPH, MakeCheckpoint, MakeRun
from tests.console.stored import job_root, store

HELD: list[dict[str, Any]] = [
    {"uid": "numbers", "finished": "partly", "subtasks": 2, "state_bytes": 10},
    {"uid": "sums", "finished": "running", "subtasks": 2, "state_bytes": 1000},
    {"uid": "files", "finished": "running", "subtasks": 2, "state_bytes": 0},
]
GONE = {"uid": "gone", "finished": "running", "subtasks": 1, "state_bytes": 7}


@pytest.fixture
def savepoint(make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> Checkpoint:
    """That of a stopped run."""
    return make_checkpoint(make_run(RunState.STOPPED), 7, "stop", operators=HELD)


@pytest.fixture
def elsewhere(savepoint: Checkpoint, tmp_path: Path, settings: Settings) -> Path:
    """The savepoint's folder, moved away to where savepoints may be."""
    settings.WEIR_SAVEPOINT_ROOTS = [tmp_path / "allowed"]
    return Path(shutil.move(folder_of(savepoint), tmp_path / "allowed" / "backups" / "of today"))


def folder_of(row: Checkpoint) -> Path:
    return job_root(row.job_id) / row.path


def restore(api: APIClient, job: Job, **params: Any) -> Any:
    return api.post(f"/api/v1/jobs/{job.pk}/operations/", {"kind": "restore", "params": params})


def nothing_started() -> bool:
    return Run.objects.count() == 1 and not Operation.objects.exists()


# ---------------------------------------------------------------- the mapping


def test_the_mapping_says_what_a_restore_would_mean(api: APIClient, savepoint: Checkpoint) -> None:
    mapping = api.get(f"/api/v1/checkpoints/{savepoint.pk}/mapping/", {"parallelism": "3"}).json()
    assert (mapping["restorable"], mapping["problems"], mapping["loses"], mapping["repeats"]) == (True, [], [], None)
    assert (mapping["version"], mapping["parallelism"]) == (savepoint.run.version_id, 3)
    assert [(o["uid"], o["fate"], o["partly_finished"], o["state_bytes"]) for o in mapping["operators"]] == [
        ("numbers", "matched", True, 10),
        ("sums", "matched", False, 1000),
        ("files", "matched", False, 0),
    ]
    assert {(o["parallelism_before"], o["parallelism_after"]) for o in mapping["operators"]} == {(2, 3)}


def test_operators_have_as_many_subtasks_as_their_author_lets_them(api: APIClient, savepoint: Checkpoint) -> None:
    """The version had room for fewer than its author allows."""
    most = {"numbers": 128, "sums": 4, "files": 2}
    operators = [{**o, "parallelism": 2, "most": most[o["uid"]]} for o in GRAPH["operators"]]  # type: ignore[attr-defined]
    version = JobVersion.objects.create(
        job=savepoint.job, number=2, parallelism=2, state="ready", graph={**GRAPH, "operators": operators}
    )
    path = f"/api/v1/checkpoints/{savepoint.pk}/mapping/"
    mapping = api.get(path, {"version": str(version.pk), "parallelism": "8"}).json()
    assert [o["parallelism_after"] for o in mapping["operators"]] == [8, 4, 2]


def test_a_mapping_with_problems_is_shown_with_each(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.STOPPED)
    operators = [{**HELD[0], "finished": "running"}, {**HELD[1], "finished": "finished"}, GONE]
    checkpoint = make_checkpoint(run, 3, "stop", operators=operators)
    make_checkpoint(run, 4)
    mapping = api.get(f"/api/v1/checkpoints/{checkpoint.pk}/mapping/").json()
    assert [(p["code"], p["field"], p["waivable"]) for p in mapping["problems"]] == [
        ("operator-before-finished", "numbers", False),
        ("unmapped-state", "gone", True),
    ]
    assert {o["uid"]: (o["fate"], o["problem"]) for o in mapping["operators"]} == {
        "numbers": ("incompatible", "operator-before-finished"),
        "sums": ("finished", None),
        "files": ("new", None),
        "gone": ("dropped", "unmapped-state"),
    }
    assert (mapping["restorable"], mapping["loses"], mapping["repeats"]) == (False, ["gone"], {"first": 4, "last": 4})


def test_a_bad_question_is_refused(api: APIClient, savepoint: Checkpoint) -> None:
    for field, value, status, code in (
        ("parallelism", "0", 400, "invalid-request"), ("parallelism", "129", 422, "invalid-field"),
        ("version", "x", 400, "invalid-request"), ("version", "999999", 422, "unknown-version"),
        ("sort", "1", 400, "invalid-request"),
    ):  # fmt: skip
        answer = api.get(f"/api/v1/checkpoints/{savepoint.pk}/mapping/", {field: value})
        check_problem(answer, status, code, f"/params/{field}" if status == 422 else f"/{field}")


# ---------------------------------------------------------------- letting state go


def test_state_is_let_go_only_where_that_is_asked_for(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.STOPPED)
    checkpoint = make_checkpoint(run, 3, "stop", operators=[*HELD, GONE])
    body = check_problem(restore(api, run.job, checkpoint=checkpoint.pk), 422, "unmapped-state", "/params/version")
    assert body["operator"] == "gone"
    assert nothing_started()
    accepted = restore(api, run.job, checkpoint=checkpoint.pk, allow_unmapped=True)
    assert accepted.status_code == 202
    row = api.get(f"/api/v1/runs/{accepted.json()['run']}/").json()
    assert (row["allow_unmapped"], row["restore_checkpoint"], row["restore_path"]) == (True, checkpoint.pk, "")


# ---------------------------------------------------------------- damage


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def alter(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"parallelism":2', b'"parallelism":3'))


def swap(file: Path) -> None:
    """The whole manifest of another attempt."""
    file.write_bytes(encode_manifest(msgspec.structs.replace(decode_manifest(file.read_bytes(), ""), token=99)))


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        (MANIFEST_FILE, Path.unlink, "there is no such file"),
        (MANIFEST_FILE, shorten, "not a readable manifest"),
        (MANIFEST_FILE, alter, "the file was altered or damaged"),
        (MANIFEST_FILE, swap, "it is of checkpoint 7, attempt token 99"),
        ("sums-0/state.arrow", Path.unlink, "there is no such file"),
        ("sums-0/state.arrow", shorten, "it has 499 bytes; its manifest names 500"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_file_before_anything_starts(
    api: APIClient, savepoint: Checkpoint, name: str, harm: Callable[[Path], None], said: str
) -> None:
    file = folder_of(savepoint) / name
    harm(file)
    answer = restore(api, savepoint.job, checkpoint=savepoint.pk)
    body = check_problem(answer, 422, "corrupt-checkpoint", "/params/checkpoint")
    assert body["detail"].startswith(f"{file}: ")
    assert said in body["detail"]
    assert nothing_started()
    mapping = api.get(f"/api/v1/checkpoints/{savepoint.pk}/mapping/")
    check_problem(mapping, 422, "corrupt-checkpoint", "/params/checkpoint")


@pytest.mark.parametrize("by_path", [False, True])
def test_a_newer_format_is_refused(api: APIClient, savepoint: Checkpoint, by_path: bool) -> None:
    store(savepoint, format=FORMAT_VERSION + 1)
    params = {"path": str(folder_of(savepoint))} if by_path else {"checkpoint": savepoint.pk}
    answer = restore(api, savepoint.job, **params)
    body = check_problem(answer, 422, "other-format", f"/params/{'path' if by_path else 'checkpoint'}")
    assert MANIFEST_FILE in body["detail"]
    assert nothing_started()


# ---------------------------------------------------------------- folders


def test_a_savepoint_that_was_moved_is_restored_by_its_folder(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path
) -> None:
    check_problem(restore(api, savepoint.job, checkpoint=savepoint.pk), 422, "corrupt-checkpoint", "/params/checkpoint")
    mapping = api.get(f"/api/v1/jobs/{savepoint.job_id}/mapping/", {"path": str(elsewhere)}).json()
    assert mapping["restorable"]
    run = Run.objects.get(pk=restore(api, savepoint.job, path=str(elsewhere)).json()["run"])
    assert (run.restore_path, run.restore_checkpoint) == (str(elsewhere), savepoint)


def test_a_savepoint_that_no_row_knows_is_restored_and_numbers_go_on_above_it(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path
) -> None:
    job, run_before = savepoint.job, savepoint.run
    file = elsewhere / MANIFEST_FILE
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('weir_token_seq')")
        token = cursor.fetchone()[0] + 500
    manifest = msgspec.json.decode(msgspec.json.encode(decode_manifest(file.read_bytes(), "")))
    text = msgspec.json.encode(manifest | {"token": token}).replace(b"savepoint-7-1/", b"savepoint-7-%d/" % token)
    file.write_bytes(encode_manifest(msgspec.json.decode(text, type=type(decode_manifest(file.read_bytes(), "")))))
    savepoint.delete()
    accepted = restore(api, job, path=str(elsewhere))
    run = Run.objects.get(pk=accepted.json()["run"])
    assert (run.restore_path, run.restore_checkpoint) == (str(elsewhere), None)
    job.refresh_from_db()
    assert job.last_checkpoint_id == 7
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('weir_token_seq')")
        assert cursor.fetchone()[0] > token
    assert run_before.pk != run.pk


def test_a_savepoint_written_outside_of_a_job_is_restored_and_the_report_says_how_it_was_made(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path
) -> None:
    """It may have the number of a savepoint that the job has, and is another one."""
    manifest = decode_manifest((elsewhere / MANIFEST_FILE).read_bytes(), "")
    operators = {uid: msgspec.structs.replace(state, origin="re-keyed") for uid, state in manifest.operators.items()}
    variant = msgspec.structs.replace(manifest, token=0, variant="1f0c", operators=operators)
    text = msgspec.json.encode(variant).replace(b"savepoint-7-1/", b"savepoint-7-0-1f0c/")
    (elsewhere / MANIFEST_FILE).write_bytes(encode_manifest(msgspec.json.decode(text, type=Manifest)))
    mapping = api.get(f"/api/v1/jobs/{savepoint.job_id}/mapping/", {"path": str(elsewhere)}).json()
    assert mapping["restorable"]
    assert all("(re-keyed)" in operator["reason"] for operator in mapping["operators"] if operator["fate"] == "matched")
    run = Run.objects.get(pk=restore(api, savepoint.job, path=str(elsewhere)).json()["run"])
    assert (run.restore_path, run.restore_checkpoint) == (str(elsewhere), None)


@pytest.mark.parametrize(
    ("changes", "code"), [({"token": 10**9}, "unlikely-attempt"), ({"checkpoint": 2**63}, "unlikely-number")]
)
def test_numbers_that_no_job_comes_to_are_not_gone_on_above(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path, changes: dict[str, int], code: str
) -> None:
    """They would use up what is left of the numbers for good."""
    manifest = msgspec.structs.replace(decode_manifest((elsewhere / MANIFEST_FILE).read_bytes(), ""), **changes)
    home = f"savepoint-{manifest.checkpoint}-{manifest.token}/".encode()
    text = msgspec.json.encode(manifest).replace(b"savepoint-7-1/", home)
    (elsewhere / MANIFEST_FILE).write_bytes(encode_manifest(msgspec.json.decode(text, type=Manifest)))
    check_problem(restore(api, savepoint.job, path=str(elsewhere)), 422, code, "/params/path")
    assert nothing_started()
    savepoint.job.refresh_from_db()
    assert savepoint.job.last_checkpoint_id < 100


def test_a_folder_in_its_place_is_named_as_the_job_master_knows_it(api: APIClient, savepoint: Checkpoint) -> None:
    run = Run.objects.get(pk=restore(api, savepoint.job, path=str(folder_of(savepoint))).json()["run"])
    assert run.restore_path == savepoint.path


def test_a_savepoint_of_another_job_is_refused(api: APIClient, savepoint: Checkpoint, elsewhere: Path) -> None:
    other = Job.objects.create(name="other", pipeline="sums")
    JobVersion.objects.create(job=other, number=1, parallelism=2, state="ready", graph=GRAPH)
    check_problem(restore(api, other, path=str(elsewhere)), 422, "other-job", "/params/path")
    check_problem(restore(api, other, checkpoint=savepoint.pk), 422, "other-job", "/params/checkpoint")
    assert nothing_started()


def test_committed_output_after_it_is_repeated_also_by_path(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path, make_checkpoint: MakeCheckpoint
) -> None:
    make_checkpoint(savepoint.run, 8)
    answer = restore(api, savepoint.job, path=str(elsewhere))
    check_problem(answer, 409, "repeats-output", "/params/accept_repeated_output")


def test_a_periodic_checkpoint_is_not_restored_by_its_folder(
    api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint(make_run(RunState.STOPPED), 3, operators=HELD)
    answer = restore(api, checkpoint.job, path=str(folder_of(checkpoint)))
    check_problem(answer, 422, "not-a-savepoint", "/params/path")


def test_the_place_of_another_savepoint_is_not_taken(api: APIClient, savepoint: Checkpoint, elsewhere: Path) -> None:
    store(savepoint, triggered_at=1)
    answer = restore(api, savepoint.job, path=str(elsewhere))
    body = check_problem(answer, 422, "savepoint-clash", "/params/path")
    assert savepoint.path in body["detail"]


def test_a_copy_from_before_its_output_was_committed_is_the_same_savepoint(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path
) -> None:
    """The end of a run removes committed output from the savepoint of the job, not from copies elsewhere."""
    shutil.copytree(elsewhere, folder_of(savepoint))
    manifest = decode_manifest((elsewhere / MANIFEST_FILE).read_bytes(), "")
    files = manifest.operators["files"]
    prepared = {**files.subtasks, 0: msgspec.structs.replace(files.subtasks[0], committables=("part-1",))}
    operators = {**manifest.operators, "files": msgspec.structs.replace(files, subtasks=prepared)}
    earlier = msgspec.structs.replace(manifest, operators=operators)
    (elsewhere / MANIFEST_FILE).write_bytes(encode_manifest(earlier))
    assert restore(api, savepoint.job, path=str(elsewhere)).status_code == 202


@pytest.mark.parametrize(
    "lead",
    [
        lambda inside, outside: outside,
        lambda inside, outside: inside / ".." / ".." / ".." / "outside",
        lambda inside, outside: linked(inside.parent / "link", outside),
    ],
    ids=["plain", "dots", "link"],
)
def test_no_folder_outside_the_allowed_roots_is_read(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path, tmp_path: Path, lead: Callable[[Path, Path], Path]
) -> None:
    """Not even whether it is there is told."""
    outside = shutil.copytree(elsewhere, tmp_path / "outside")
    path = lead(elsewhere, outside)
    assert (path / MANIFEST_FILE).is_file()
    answer = restore(api, savepoint.job, path=str(path))
    there = check_problem(answer, 422, "path-not-allowed", "/params/path")["detail"]
    shutil.rmtree(outside)
    problem = check_problem(restore(api, savepoint.job, path=str(path)), 422, "path-not-allowed", "/params/path")
    assert problem["detail"] == there


@pytest.mark.parametrize("name", [MANIFEST_FILE, "sums-0/state.arrow"])
def test_a_link_out_of_the_folder_is_not_followed(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path, tmp_path: Path, name: str
) -> None:
    outside = Path(shutil.move(elsewhere / name, tmp_path / "outside"))
    linked(elsewhere / name, outside)
    check_problem(restore(api, savepoint.job, path=str(elsewhere)), 422, "path-not-allowed", "/params/path")


def linked(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link


def test_a_bad_parameter_is_refused_by_name(api: APIClient, savepoint: Checkpoint) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "invalid-field", "checkpoint"),
        ({"checkpoint": 1, "path": "/x"}, "invalid-field", "path"),
        ({"path": "savepoint-7-1"}, "invalid-field", "path"),
        ({"path": "/a\0b"}, "invalid-field", "path"),
        ({"path": 7}, "invalid-field", "path"),
        ({"checkpoint": 2**62}, "unknown-checkpoint", "checkpoint"),
        ({"checkpoint": 1, "allow_unmapped": "yes"}, "invalid-field", "allow_unmapped"),
    ]
    for params, code, field in cases:
        check_problem(restore(api, savepoint.job, **params), 422, code, f"/params/{field}")
    assert nothing_started()


def test_where_there_is_a_key_a_savepoint_from_elsewhere_must_be_signed(
    api: APIClient, savepoint: Checkpoint, elsewhere: Path, settings: Settings
) -> None:
    """Whoever can write below a shared root can make a savepoint with a right checksum, not one with our signature."""
    settings.WEIR_MANIFEST_KEYS = (b"k" * 32,)
    file = elsewhere / MANIFEST_FILE
    check_problem(restore(api, savepoint.job, path=str(elsewhere)), 422, "not-signed", "/params/path")
    file.write_bytes(encode_manifest(decode_manifest(file.read_bytes(), ""), (b"x" * 32,)))
    check_problem(restore(api, savepoint.job, path=str(elsewhere)), 422, "not-signed", "/params/path")
    assert nothing_started()
    file.write_bytes(encode_manifest(decode_manifest(file.read_bytes(), ""), (b"k" * 32,)))
    assert restore(api, savepoint.job, path=str(elsewhere)).status_code == 202
