"""The page of a run: why it ended, attempts with whole reasons, phases of the start, and the restore."""

import re
from datetime import datetime, timedelta
from pathlib import Path
from shutil import rmtree
from threading import Event

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.checkpoints import timed_reads
from console.checkpoints.storage import load_savepoint
from console.jobs.models import Attempt
from console.metrics.models import WHOLE_RUN, Metrics
from console.pages.start_phases import StartMoments, start_moments, start_phases
from console.ui import run_page
from runtime.core.snapshot.manifest import Manifest
from tests.console.stored import job_root
from tests.console.ui import blocks, rows
from tests.waiting import until

WAIT_S = 30
NOW = datetime.fromisoformat("2026-11-23T12:00:00Z")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_phases_follow_each_other_and_expect_the_median() -> None:
    earlier = [StartMoments(NOW, after(s), working=after(s + 10)) for s in (1.0, 3.0, 50.0)]
    moments = StartMoments(NOW, after(5), working=after(20), completed=after(25))
    queue, deploy, first = start_phases(moments, [*earlier, StartMoments(NOW, None)])
    assert (queue.left, queue.width, str(queue.took), str(queue.expected)) == (0.0, 20.0, "5.0 s", "3.0 s")
    assert (deploy.left, deploy.width, str(deploy.took), str(deploy.expected)) == (20.0, 60.0, "15 s", "10 s")
    assert (first.left, first.width, first.expected) == (80.0, 20.0, None)
    blank = start_phases(StartMoments(NOW, NOW, working=NOW, completed=NOW), [])
    assert [(phase.width, str(phase.took)) for phase in blank] == [(0.0, "0 ms")] * 3, "no time, no bar"
    assert [phase.key for phase in start_phases(StartMoments(NOW, after(5), completed=after(9)), [])] == ["queue"]


LAUNCHED = StartMoments(NOW, after(1), after(3), after(9), after(10), after(250), working=after(255))


def test_recorded_times_of_the_launch_divide_the_start() -> None:
    earlier = [
        StartMoments(NOW, after(1), working=after(61)),
        StartMoments(NOW, after(1), after(2), after(4), after(5), after(9), working=after(9)),
    ]
    phases = start_phases(LAUNCHED, earlier)
    assert [(phase.key, str(phase.took), phase.expected and str(phase.expected)) for phase in phases] == [
        ("queue", "1.0 s", "1.0 s"), ("inputs", "2.0 s", "1.0 s"), ("spark", "6.0 s", "2.0 s"),
        ("slots", "1.0 s", "1.0 s"), ("restore", "4 min", "4.0 s"), ("records", "5.0 s", "0 ms"),
    ]  # fmt: skip
    assert sum(phase.width for phase in phases) == pytest.approx(100, abs=0.1)
    under_way = start_phases(LAUNCHED._replace(working=None), earlier)
    assert [phase.key for phase in under_way][-1] == "restore"
    at_once = start_phases(LAUNCHED._replace(working=after(250), completed=after(260)), earlier)
    assert [phase.key for phase in at_once][-2:] == ["restore", "first"], "its records came within 5 s"


@pytest.mark.django_db
def test_the_launch_of_the_first_attempt_is_part_of_the_start() -> None:
    now = timezone.now().replace(microsecond=0)
    run = rows.run(rows.job(), created_at=now - timedelta(minutes=9), started_at=now - timedelta(minutes=8))
    ends = [now - timedelta(minutes=8 - m) for m in (1, 2, 3, 4)]
    steps = ("listed", "opened", "connected", "deployed")
    launch = {step: int(end.timestamp() * 1000) for step, end in zip(steps, ends, strict=True)}
    Attempt.objects.create(run=run, token=run.token, outcome="failed", ended_at=now, launch=launch)
    Attempt.objects.create(run=run, token=run.token + 1, launch=dict.fromkeys(launch, 0))
    checkpoint = rows.checkpoint(run, 1, triggered_at=now - timedelta(minutes=1), is_stored=False)
    moments, _ = start_moments(run)
    listed, opened, connected, deployed = ends
    assert moments == StartMoments(
        run.created_at,
        run.started_at,
        listed,
        opened,
        connected,
        deployed,
        working=deployed,
        completed=checkpoint.completed_at,
    )
    numbers = {"records_out": 0, "bytes_in": 0, "bytes_out": 0, "span_ms": 5_000, "token": 1, "step_s": 5}
    for at, working in ((now - timedelta(minutes=3), now - timedelta(minutes=3)), (ends[-2], ends[-1])):
        Metrics.objects.create(run_id=run.pk, operator=WHOLE_RUN, at=at, records_in=1, **numbers)
        assert start_moments(run)[0].working == working, "an interval begins up to 5 s before its first record"


def test_the_page_shows_each_step_of_a_launch(at_console: Client) -> None:
    run = rows.run(rows.job())
    assert run.started_at
    began = run.started_at.timestamp()
    launch = {"listed": began + 2, "opened": began + 9, "connected": began + 10, "deployed": began + 250}
    Attempt.objects.create(run=run, token=1, launch={step: int(at * 1000) for step, at in launch.items()})
    said = blocks.text(at_console.get(f"/runs/{run.pk}/"))
    assert "Waiting for a worker 1.2 s Job master and inputs 2.0 s Spark 7.0 s Slots 1.0 s" in said
    assert "Operators and restore 4 min" in said


def test_a_restart_has_the_phases_of_its_launch(at_console: Client) -> None:
    """The page had those of the start three hours ago, not those of the restart a minute ago."""
    run, began = rows.run(rows.job()), timezone.now().replace(microsecond=0) - timedelta(minutes=1)
    ends = {"listed": 0.1, "opened": 0.1, "connected": 4.4, "deployed": 5.4}
    launch = {step: int((began.timestamp() + end_s) * 1000) for step, end_s in ends.items()}
    Attempt.objects.create(run=run, token=1, outcome="failed")
    Attempt.objects.create(run=run, token=2, started_at=began, launch=launch)
    said = blocks.text(at_console.get(f"/runs/{run.pk}/"))
    expected = "Restart: Job master and inputs 0.10 s · Spark 0 ms · Slots 4.3 s · Operators and restore 1.0 s"
    assert expected in said
    Attempt.objects.filter(token=2).update(launch=None)
    assert "Restart:" not in blocks.text(at_console.get(f"/runs/{run.pk}/"))


@pytest.mark.django_db
def test_moments_of_a_start_come_from_the_history() -> None:
    now = timezone.now().replace(microsecond=0)
    run = rows.run(rows.job(), "stopped", created_at=now - timedelta(minutes=9), started_at=now - timedelta(minutes=8))
    numbers = {"records_out": 0, "bytes_in": 0, "bytes_out": 0, "span_ms": 5_000, "token": 1, "step_s": 5}
    for minutes, records in ((7, 0), (6, 20), (5, 30)):
        Metrics.objects.create(run_id=run.pk, operator=WHOLE_RUN, at=now - timedelta(minutes=minutes),
                               records_in=records, **numbers)  # fmt: skip
    checkpoint = rows.checkpoint(run, 1, triggered_at=now - timedelta(minutes=3), is_stored=False)
    rows.checkpoint(run, 2, triggered_at=now - timedelta(minutes=2), is_stored=False)
    working = now - timedelta(minutes=6)
    moments = StartMoments(run.created_at, run.started_at, working=working, completed=checkpoint.completed_at)
    assert start_moments(run) == (moments, [])


@pytest.mark.django_db
def test_a_checkpoint_before_the_first_record_ends_the_start() -> None:
    """A job whose input comes later works nevertheless."""
    now = timezone.now().replace(microsecond=0)
    run = rows.run(rows.job(), "running", created_at=now - timedelta(minutes=9), started_at=now - timedelta(minutes=8))
    checkpoint = rows.checkpoint(run, 1, triggered_at=now - timedelta(minutes=6), is_stored=False)
    moments, _ = start_moments(run)
    assert (moments.working, moments.completed) == (checkpoint.completed_at, checkpoint.completed_at)


def test_a_run_that_failed_shows_whole_reasons_and_the_restore(at_console: Client) -> None:
    first = rows.run(rows.job(), "stopped")
    snapshot = rows.checkpoint(first, 7, "stop")
    long = "no partition of topic orders has an offset " + "x" * 300
    failure = {"code": "final", "message": long, "operator": "flights", "slot": 1, "traceback": "File x, line 1"}
    run = rows.run(first.job, "failed", restore_checkpoint=snapshot, failure=failure, token=77)
    Attempt.objects.create(run=run, token=77, outcome="failed", reason=long, restored_checkpoint=snapshot)
    with CaptureQueriesContext(connection) as queries:
        page = at_console.get(f"/runs/{run.pk}/")
    said = blocks.text(page)
    assert f"The run failed: {long}" in said
    assert "flights, subtask 1, slot 1" in said
    assert "File x, line 1" in said
    assert "Next step Start or restore the job…" in said
    assert "Next step" not in blocks.text(at_console.get(f"/runs/{first.pk}/")), "a later run has followed"
    assert "Restored from savepoint 7" in said
    assert "airlines had finished, and was not started again" in said
    assert "sessions restored 1.2 MiB" in said
    assert "hx-get" in page.content.decode(), "another user may restore it"
    assert len(queries) <= 12


def test_a_lost_slot_is_named_with_its_log(at_console: Client) -> None:
    """Its process was replaced: the slots of the run have other logs."""
    run = rows.run(rows.job())
    Attempt.objects.create(run=run, token=9, ended_at=timezone.now(), outcome="failed", detail=rows.LOST_SLOT)
    assert f"Log of slot 1: {rows.LOST_SLOT['slot_log']}" in blocks.text(at_console.get(f"/runs/{run.pk}/"))


def test_an_attempt_names_the_slots_that_ran_on(at_console: Client) -> None:
    run = rows.run(rows.job())
    detail = {**rows.LOST_SLOT, "kept_slots": [0, 2]}
    Attempt.objects.create(run=run, token=9, ended_at=timezone.now(), outcome="failed", detail=detail)
    in_part = {**detail, "kept_slots": [1, 3], "restarted_operators": ["numbers", "words"]}
    Attempt.objects.create(run=run, token=10, ended_at=timezone.now(), outcome="failed", detail=in_part)
    text = blocks.text(at_console.get(f"/runs/{run.pk}/"))
    assert "Ran on meanwhile: slots 0, 2" in text
    assert "Ran on meanwhile: slots 1, 3, but for numbers, words" in text
    assert "slots 0, 2, but for" not in text


@pytest.mark.parametrize("outcome", ["", "running"])
def test_an_open_attempt_ends_with_its_run(at_console: Client, outcome: str) -> None:
    job = rows.job()
    begun = timezone.now() - timedelta(hours=3)
    ended = rows.run(job, "failed", ended_at=begun + timedelta(hours=1))
    Attempt.objects.create(run=ended, token=77, started_at=begun, outcome=outcome)
    said = blocks.text(at_console.get(f"/runs/{ended.pk}/"))
    assert re.search(r"1 \(token 77\) Ended – – .* ago 1 h", said)
    running = rows.run(job)
    Attempt.objects.create(run=running, token=78, outcome="running")
    assert "1 (token 78) Running" in blocks.text(at_console.get(f"/runs/{running.pk}/"))


def test_an_attempt_has_its_number_within_the_run_and_its_token_on_all_pages(at_console: Client) -> None:
    """A run with two attempts had "attempt 9201": the token, which counts over all runs."""
    run = rows.run(rows.job())
    rows.attempts(run)
    for token, of in ((run.token - 100, run), (run.token - 50, rows.run(rows.job("other"))), (run.token + 100, run)):
        Attempt.objects.create(run=of, token=token, outcome="failed", reason="slot 1 was lost", detail=rows.LOST_SLOT)
    tokens = [run.token + 100, run.token, run.token - 1, run.token - 100]
    numbered = [f"{4 - place} (token {token})" for place, token in enumerate(tokens)]
    said = blocks.text(at_console.get(f"/runs/{run.pk}/"))
    assert re.findall(r"\d+ \(token \d+\)", said[said.index("Attempt Outcome") :])[:4] == numbered
    job = at_console.get(f"/jobs/{run.job_id}/")
    titled = re.findall(r'title="(token \d+)">(\d+)</span>', job.content.decode())
    assert [f"{number} ({token})" for token, number in titled] == numbered
    assert f"attempt {numbered[0]} of run {run.pk}" in blocks.text(job), "the newest failure of its cause"
    checkpoint = rows.checkpoint(run, 7, token=run.token)
    assert f"Attempt {numbered[1]} Key groups" in blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/"))
    admin = at_console.get(f"/admin/jobs/run/{run.pk}/change/").content.decode()
    assert re.findall(r'field-number">\s*<p>(?:<[^>]+>)*(\d)', admin) == ["4", "3", "2", "1"]
    Attempt.objects.all().delete()
    assert f"Attempt token {run.token} Key" in blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/"))


def test_a_run_that_was_stopped_names_the_operation(at_console: Client) -> None:
    run = rows.run(rows.job(), "stopped")
    user = rows.operator_user("ada")
    rows.operation(run.job, "stop", run=run, requested_by=user, reason="new version", result={"checkpoint": 12})
    said = blocks.text(at_console.get(f"/runs/{run.pk}/"))
    assert "A stop that ada requested ended the run with savepoint 12. Reason given: new version" in said


def test_a_running_run_is_polled_and_unknown_runs_are_not_found(at_console: Client, stranger: Client) -> None:
    run = rows.run(rows.job())
    assert f'hx-get="/runs/{run.pk}/"' in at_console.get(f"/runs/{run.pk}/").content.decode()
    assert at_console.get("/runs/99999/").status_code == 404
    assert stranger.get(f"/runs/{run.pk}/").status_code == 302


def test_a_poll_brings_the_new_lines_of_the_log(at_console: Client, settings: Settings, tmp_path: Path) -> None:
    """The log follows its file, and the rest of the page is not sent again."""
    settings.WEIR_LOGS = tmp_path
    run = rows.run(rows.job())
    log = tmp_path / f"run-{run.pk}.log"
    log.write_text("first line\n")
    path, poll = f"/runs/{run.pk}/", {"HX-Request": "true"}
    page = at_console.get(path)
    assert "first line" in blocks.live(page)["log"]
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    tag = at_console.get(path, headers=poll)["ETag"]
    assert at_console.get(path, headers={**poll, "If-None-Match": tag}).status_code == 304
    log.write_text("first line\nsecond line\n")
    answer = at_console.get(path, headers={**poll, "If-None-Match": tag, "X-Blocks": digests})
    assert blocks.swapped(answer) == {"log"}
    assert "second line" in blocks.live(answer)["log"]


def test_the_page_names_the_code_and_its_difference_from_the_version(at_console: Client) -> None:
    defined = {"package": "shop", "version": "1.2", "graph": "a"}
    job = rows.job(version={"graph": {**rows.GRAPH, "code": defined}})
    same, other = rows.run(job, "stopped", code=defined), rows.run(job, "stopped", code=defined | {"version": "1.3"})
    assert "Code shop 1.2 Restored from" in blocks.text(at_console.get(f"/runs/{same.pk}/"))
    said = blocks.text(at_console.get(f"/runs/{other.pk}/"))
    sentence = f"Run {other.pk} executed code of shop 1.3; version 1 was defined with 1.2."
    assert f"Code shop 1.3 {sentence} Restored from" in said
    unknown = rows.run(job, "stopped")
    assert "Code shop" not in blocks.text(at_console.get(f"/runs/{unknown.pk}/"))


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_run_that_was_restored_by_folder_shows_its_operators(
    at_console: Client, settings: Settings, is_absolute: bool
) -> None:
    """The section was missing. The folder is read once, and may be gone later."""
    job = rows.job()
    savepoint = rows.checkpoint(rows.run(job, "stopped"), 7, kind="savepoint")
    folder = job_root(job.pk) / savepoint.path
    settings.WEIR_SAVEPOINT_ROOTS = [folder.parent]
    run = rows.run(job, restore_path=str(folder) if is_absolute else folder.name)
    path = f"/runs/{run.pk}/"
    said = blocks.text(at_console.get(path))
    assert "Restored from a folder" in said
    assert "sessions restored 1.2 MiB" in said
    assert "airlines had finished, and was not started again –" in said
    rmtree(folder)
    assert "sessions restored 1.2 MiB" in blocks.text(at_console.get(path))
    other = rows.run(rows.job("other"), restore_path=str(folder))
    said = blocks.text(at_console.get(f"/runs/{other.pk}/"))
    assert f"Restored from savepoint in {folder}" in said
    assert "Restored from a folder" not in said


def test_the_page_of_a_run_is_shown_while_the_storage_of_its_folder_hangs(
    at_console: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request waited for the storage. The read goes on, and a later request shows its result."""
    job = rows.job()
    savepoint = rows.checkpoint(rows.run(job, "stopped"), 7, kind="savepoint")
    folder = job_root(job.pk) / savepoint.path
    settings.WEIR_SAVEPOINT_ROOTS = [folder.parent]
    path = f"/runs/{rows.run(job, restore_path=folder.name).pk}/"
    answers = Event()

    def hang(name: str) -> tuple[str, Manifest]:
        assert answers.wait(WAIT_S)
        return load_savepoint(name)

    monkeypatch.setattr(timed_reads, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(run_page, "load_savepoint", hang)
    for _ in range(2):
        said = blocks.text(at_console.get(path))
        assert f"Restored from savepoint in {folder.name}" in said
        assert "Restored from a folder" not in said
    answers.set()
    until(lambda: "sessions restored 1.2 MiB" in blocks.text(at_console.get(path)))
    assert not timed_reads._reads
