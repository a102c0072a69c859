"""Restoring: what is offered, what is shown before, what is refused, what happens."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import run_progress
from console.jobs.models import Attempt, Job, JobVersion, Run
from console.metrics.models import WHOLE_RUN, Metrics, SubtaskMetrics
from console.operations.models import Operation, Verification
from console.pages.restore_points import oldest_restorable, read_restore_point
from console.ui.live import job_rows
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from tests.console import graphs
from tests.console.stored import job_root, store
from tests.console.ui import blocks, rows

PLAN = {"HX-Request": "true", "HX-Target": "plan"}  #: a script asks for the plan of another choice


@pytest.fixture
def stopped(db: None) -> Run:
    run = rows.run(rows.job(), "stopped")
    for number in range(1, 12):
        rows.checkpoint(run, number)
    rows.checkpoint(run, 12, kind="stop")
    rows.checkpoint(run, 13, status="failed", reason="expired")
    return run


def number(n: int) -> Checkpoint:
    return Checkpoint.objects.get(number=n)


def choice(n: int, version: JobVersion, parallelism: int = 2, **fields: str) -> dict[str, str | int]:
    return {"checkpoint": number(n).pk, "version": version.pk, "parallelism": parallelism, **fields}


def test_the_newest_completed_one_is_chosen_and_described(at_console: Client, stopped: Run) -> None:
    response = at_console.get(f"/jobs/{stopped.job_id}/restore/")
    said = blocks.text(response)
    assert f'id="from-{number(12).pk}" value="{number(12).pk}" checked' in response.content.decode()
    assert "State is restored from savepoint 12, 1.2 MiB" in said
    assert "A new run of version 1 starts at parallelism 2." in said
    assert "No output is repeated" in said
    assert "airlines finished it had finished and is skipped 1 0 B" in said
    assert "window matched its state is restored 2 1.2 MiB" in said
    assert "Restore savepoint 12 at parallelism 2" in said


def check(checkpoint: Checkpoint, state: str) -> None:
    """The last check of its files, which ended in `state`."""
    operation = rows.operation(checkpoint.job, "verify", state, params={"checkpoint": checkpoint.pk})
    values = {"operation": operation, "manifest_sha256": "", "files": [], "is_damaged": state == "failed"}
    Verification.objects.update_or_create(checkpoint=checkpoint, defaults=values)


def test_a_damaged_snapshot_is_offered_and_not_suggested(at_console: Client, stopped: Run) -> None:
    """The check of its files found damage, and the page still suggested it."""
    check(number(12), "failed")
    check(number(11), "succeeded")
    path = f"/jobs/{stopped.job_id}/restore/"
    page = at_console.get(path).content.decode()
    assert f'id="from-{number(11).pk}" value="{number(11).pk}" checked' in page
    assert f'id="from-{number(12).pk}"' in page
    assert "damaged" in page
    newest = job_rows._read(stopped.job_id).newest
    assert newest is not None
    assert newest.number == 11, "the job page restores it too"
    progress = run_progress(stopped)
    assert (progress.newest, progress.continuable) == (number(12), number(11))
    check(number(12), "succeeded")
    assert f'id="from-{number(12).pk}" value="{number(12).pk}" checked' in at_console.get(path).content.decode()


def test_a_damaged_snapshot_is_no_restore_point(stopped: Run) -> None:
    check(number(1), "failed")
    job = Job.objects.annotate(point=oldest_restorable()).get(pk=stopped.job_id)
    point = read_restore_point(job.point)
    assert point is not None
    assert point.number == 2


def test_only_completed_ones_are_offered(at_console: Client, stopped: Run) -> None:
    number(11).delete()
    Checkpoint.objects.filter(number=10).update(discarded_at=timezone.now())
    page = at_console.get(f"/jobs/{stopped.job_id}/restore/").content.decode()
    offered = re.findall(r'id="from-(\d+)"', page)
    assert offered == [str(number(n).pk) for n in (12, 9, 8, 7, 6, 5, 4)], "savepoints first, then checkpoints"


def test_the_chosen_one_stays_chosen_on_a_page_that_does_not_list_it(at_console: Client, stopped: Run) -> None:
    page = at_console.get(f"/jobs/{stopped.job_id}/restore/", {"checkpoint": number(1).pk}).content.decode()
    assert f'id="from-{number(1).pk}" value="{number(1).pk}" checked' in page
    assert page.count("checked>") == 1


def test_a_change_brings_the_plan_alone(at_console: Client, stopped: Run) -> None:
    query = choice(12, stopped.version, 3)
    response = at_console.get(f"/jobs/{stopped.job_id}/restore/", query, headers=PLAN)
    assert "<html" not in response.content.decode()
    assert "it was 2: 128 key groups are redistributed to 3 subtasks" in blocks.text(response)
    assert '<input type="hidden" name="parallelism" value="3">' in response.content.decode()
    assert "HX-Request" in response.headers["Vary"]


def test_repeated_output_is_named_and_must_be_accepted(at_console: Client, stopped: Run) -> None:
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(9, stopped.version)
    response = at_console.get(path, query)
    assert "Output is repeated. Checkpoints 10 to 12 were committed after it" in blocks.text(response)
    assert 'name="accept_repeated_output" required' in response.content.decode()
    button = r"<button[^>]*primary danger[^>]*>Restore checkpoint 9 at parallelism 2</button>"
    assert re.search(button, response.content.decode()), "red, as all that repeats or loses output"
    assert 'class="panel plan failed"' in response.content.decode(), "as red as the button"
    harmless = at_console.get(path, choice(12, stopped.version)).content.decode()
    assert "primary danger" not in harmless
    assert "plan failed" not in harmless
    refused = at_console.post(path, query)
    assert refused.status_code == 409
    assert "Accept repeated output, or choose a newer checkpoint" in blocks.text(refused)
    assert not Operation.objects.exists()
    accepted = at_console.post(path, {**query, "accept_repeated_output": "on"})
    assert accepted.headers["Location"] == f"/jobs/{stopped.job_id}/"
    assert stopped.job.runs.count() == 2


def test_of_a_long_history_the_first_and_the_last_checkpoint_are_named(
    at_console: Client, stopped: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.operations.restores.effects.MAX_COUNTED", 1)
    said = blocks.text(at_console.get(f"/jobs/{stopped.job_id}/restore/", choice(9, stopped.version)))
    assert "More than 1 checkpoints, from 10 to 12, were committed after it" in said


def test_a_restore_counts_the_records_that_are_read_again(at_console: Client) -> None:
    run = rows.run(rows.job(), "stopped")
    checkpoint = rows.checkpoint(run, 1, triggered_at=timezone.now() - timedelta(minutes=1))
    rows.checkpoint(run, 2)
    for age_s, records in ((40, 1_200_000), (20, 100_000)):
        at = timezone.now() - timedelta(seconds=age_s)
        Metrics.objects.create(
            step_s=5, run_id=run.pk, at=at, operator="", token=1, span_ms=5_000, records_in=records, records_out=0,
            bytes_in=0, bytes_out=0,
        )  # fmt: skip
    path = f"/jobs/{run.job_id}/restore/"
    query = {"version": run.version_id, "parallelism": 2}
    said = blocks.text(at_console.get(path, {**query, "checkpoint": checkpoint.pk}))
    assert "a second time. About 1.3 M records have been read since checkpoint 1." in said
    newest = Checkpoint.objects.get(number=2).pk
    assert "records have been read" not in blocks.text(at_console.get(path, {**query, "checkpoint": newest}))
    Metrics.objects.all().delete()
    assert "records have been read" not in blocks.text(at_console.get(path, {**query, "checkpoint": checkpoint.pk}))


def test_the_time_between_two_attempts_counts_for_nothing_on_both_pages(at_console: Client) -> None:
    """The page of the job counted it at the rate of the present attempt."""
    run, now = rows.run(rows.job(), token=2), timezone.now()
    column = {"index": [0], "records_in": [0], "records_out": [50_000], "busy": [0.5], "backpressured": [0.0],
              "watermark": [7], "in_flight_bytes": [0]}  # fmt: skip
    for ago_s in (95, 90, 85, 80, 20, 15, 10, 5):
        at = now - timedelta(seconds=ago_s)
        Metrics.objects.create(
            step_s=5, run_id=run.pk, at=at, operator=WHOLE_RUN, token=run.token, span_ms=5_000, records_in=50_000,
            records_out=0, bytes_in=0, bytes_out=0, busy=0.5, backpressured=0.0,
        )  # fmt: skip
        if ago_s <= 20:
            SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators={"flights": column})
    failed_at, deployed_at = now - timedelta(seconds=75), now - timedelta(seconds=20)
    Attempt.objects.create(run=run, token=1, ended_at=failed_at, outcome="failed", reason="slot 1 was lost")
    launch = {"deployed": int(deployed_at.timestamp() * 1000)}
    Attempt.objects.create(run=run, token=2, started_at=failed_at, launch=launch)
    checkpoint = rows.checkpoint(run, 7, triggered_at=now - timedelta(seconds=95))
    horizon = at_console.get(f"/jobs/{run.job_id}/").context["view"].health.horizon
    assert horizon.records == pytest.approx(400_000, rel=0.15), "of 40 s"
    rows.checkpoint(run, 8, triggered_at=now - timedelta(seconds=5))
    query = {"version": run.version_id, "parallelism": 2, "checkpoint": checkpoint.pk}
    read_since = at_console.get(f"/jobs/{run.job_id}/restore/", query).context["read_since"]
    assert read_since == pytest.approx(horizon.records, rel=0.15)


def test_a_restore_makes_a_run_from_the_checkpoint_at_the_new_parallelism(at_console: Client, stopped: Run) -> None:
    form = choice(12, stopped.version, 3, reason="a bad release")
    response = at_console.post(f"/jobs/{stopped.job_id}/restore/", form, follow=True)
    operation = Operation.objects.get()
    assert operation.run is not None
    assert (operation.kind, operation.run.parallelism, operation.run.restore_checkpoint) == ("restore", 3, number(12))
    assert operation.reason == "a bad release"
    assert "The restore was requested." in blocks.text(response)


def another_version(
    of: Run, operators: list[dict[str, Any]], edges: list[dict[str, Any]], max_parallelism: int = 128, **fields: Any
) -> JobVersion:
    graph = {**rows.GRAPH, "operators": operators, "edges": edges}
    return JobVersion.objects.create(
        job=of.job, number=2, parallelism=4, max_parallelism=max_parallelism, state="ready", graph=graph, **fields
    )


def without(uid: str) -> list[dict[str, Any]]:
    return [operator for operator in rows.GRAPH["operators"] if operator["uid"] != uid]


def test_it_can_be_restored_into_another_version(at_console: Client, stopped: Run) -> None:
    """S0-62: here an operator without state is gone, and another one is new."""
    added = graphs.operator("more", "more", "operator", 2, most=2)
    newer = another_version(stopped, [*without("prepared"), added], [])
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 4)
    said = blocks.text(at_console.get(path, query))
    assert "prepared dropped the job lacks it, and it held no state 2 → – 0 B" in said
    assert "more new it is not in the checkpoint and starts empty – → 2 0 B" in said
    assert "allow_unmapped" not in said, "nothing is lost"
    assert at_console.post(path, query).status_code == 302


def test_state_that_the_version_has_no_operator_for_goes_only_if_that_is_accepted(
    at_console: Client, stopped: Run
) -> None:
    newer = another_version(stopped, without("window"), [])
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 4)
    page, posted = at_console.get(path, query), at_console.post(path, query)
    assert "State is lost. Version 2 has no operator for the state of window." in blocks.text(page)
    assert 'name="allow_unmapped" required' in page.content.decode()
    assert posted.status_code == 422
    said = "Savepoint 12 cannot be restored into version 2: window: the checkpoint holds state for an operator that the"
    assert said in blocks.text(posted)
    assert not Operation.objects.exists()
    assert at_console.post(path, {**query, "allow_unmapped": "on"}).status_code == 302
    assert Run.objects.get(version=newer).allow_unmapped


def test_state_that_has_no_size_is_state_too(at_console: Client, stopped: Run) -> None:
    """Lists stand in the manifest itself."""
    operators = [{**o, "has_state": o["uid"] == "prepared"} for o in rows.OPERATORS]
    Checkpoint.objects.filter(number=12).update(operators=operators)
    store(number(12))
    newer = another_version(stopped, without("prepared"), [])
    said = blocks.text(at_console.get(f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 4)))
    assert "Version 2 has no operator for the state of prepared." in said


def test_a_new_operator_before_a_finished_one_is_refused_by_name(at_console: Client, stopped: Run) -> None:
    """S0-24, S0-63."""
    added = graphs.operator("codes", "codes", "source", 1, most=1, bounded=True)
    edge = graphs.edge("codes", "airlines")
    newer = another_version(stopped, [*rows.GRAPH["operators"], added], [*rows.GRAPH["edges"], edge])
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 4)
    said = "Savepoint 12 cannot be restored into version 2: codes: it feeds 'airlines', which had finished"
    page = at_console.get(path, query)
    assert said in blocks.text(page)
    assert re.search(r"<button[^>]* disabled>Restore", page.content.decode())
    assert at_console.post(path, query).status_code == 422
    assert not Operation.objects.exists()


def test_a_damaged_one_is_refused_by_the_name_of_its_file(at_console: Client, stopped: Run) -> None:
    file = job_root(stopped.job_id) / number(12).path / MANIFEST_FILE
    file.write_bytes(file.read_bytes()[:-1])
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, stopped.version)
    page, posted = at_console.get(path, query), at_console.post(path, query)
    assert f"{file}: not a readable manifest" in blocks.text(page)
    assert re.search(r"<button[^>]* disabled>Restore", page.content.decode())
    assert posted.status_code == 422
    assert not Operation.objects.exists()


@pytest.mark.parametrize("parallelism", ["", "0", "-1", "x", "9" * 20])
def test_a_parallelism_that_is_no_number_shows_no_plan(at_console: Client, stopped: Run, parallelism: str) -> None:
    query = {**choice(12, stopped.version), "parallelism": parallelism}
    response = at_console.post(f"/jobs/{stopped.job_id}/restore/", query)
    assert response.status_code == 422
    assert "Choose a checkpoint, a version and a parallelism." in blocks.text(response)
    assert response.context["form"].errors["parallelism"]
    assert not Operation.objects.exists()


def test_a_parallelism_beyond_the_key_groups_is_refused_before_and_after(at_console: Client, stopped: Run) -> None:
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, stopped.version, 129)
    page, posted = at_console.get(path, query), at_console.post(path, query)
    assert "must lie between 1 and max_parallelism (128), not 129" in blocks.text(page)
    for promise in ("129 subtasks", "A new run", "→ 129"):
        assert promise not in blocks.text(page)
    assert re.search(r"<button[^>]* disabled>Restore", page.content.decode())
    assert posted.status_code == 422
    assert not Operation.objects.exists()


def test_a_drained_savepoint_warns(at_console: Client) -> None:
    run = rows.run(rows.job(), "finished")
    drained = rows.checkpoint(run, 1, kind="drain")
    path = f"/jobs/{run.job_id}/restore/"
    assert "taken by a drain: windows fired early" in blocks.text(at_console.get(path, choice(1, run.version)))
    assert at_console.get(path).context["plan"] is None, "a drained savepoint is never the suggestion"
    ended = [{**row, "finished": "finished"} for row in rows.OPERATORS]
    Checkpoint.objects.filter(pk=drained.pk).update(operators=ended, finished_operators=[o["uid"] for o in ended])
    store(number(1))
    said = blocks.text(at_console.get(path, choice(1, run.version)))
    assert "all: this run would end at once" in said
    assert "leaves nothing to do" in said


def test_drained_savepoints_are_listed_last(at_console: Client, stopped: Run) -> None:
    rows.checkpoint(stopped, 14, kind="drain")
    page = at_console.get(f"/jobs/{stopped.job_id}/restore/")
    offered = [int(pk) for pk in re.findall(r'id="from-(\d+)"', page.content.decode())]
    assert [Checkpoint.objects.get(pk=pk).number for pk in offered] == [12, 11, 10, 9, 8, 7, 6, 14]
    assert "Drained savepoints" in blocks.text(page)
    assert "windows fired early" in blocks.text(page)


def test_the_chosen_version_shows_its_message_and_its_difference(at_console: Client, stopped: Run) -> None:
    newer = another_version(
        stopped, without("prepared"), [], message="fewer steps", params={**rows.PARAMS, "on_malformed": "skip"}
    )
    said = blocks.text(at_console.get(f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 4)))
    assert "version 2: fewer steps" in said
    assert f"differences from version 1, which run {stopped.pk} had." in said
    assert "Parameter on_malformed fail skip" in said
    assert "Operator prepared operator prepared absent" in said
    same = blocks.text(at_console.get(f"/jobs/{stopped.job_id}/restore/", choice(12, stopped.version)))
    assert f"Run {stopped.pk} had this version." in same


def test_a_restore_has_an_expected_time_with_its_spread(at_console: Client, stopped: Run) -> None:
    path, query = f"/jobs/{stopped.job_id}/restore/", choice(12, stopped.version)
    assert "Expected time: unknown" in blocks.text(at_console.get(path, query))

    def ended(kind: str, seconds: int) -> None:
        begun = timezone.now()
        rows.operation(stopped.job, kind, created_at=begun, ended_at=begun + timedelta(seconds=seconds))

    ended("start", 9)
    assert "Expected time until the run is running: 9.0 s; as the last start of this job." in blocks.text(
        at_console.get(path, query)
    )
    for seconds in (4, 6, 14):
        ended("restore", seconds)
    said = blocks.text(at_console.get(path, query))
    assert "Expected time of the stop" not in said, "no run ends"
    assert "until the run is running: 6.0 s; the last 3 restores of this job took 4.0 s to 14 s." in said


def test_snapshots_have_absolute_times_and_are_found_by_name_and_number(at_console: Client, stopped: Run) -> None:
    moment = datetime(2026, 11, 20, 6, 30, 5, tzinfo=UTC)
    Checkpoint.objects.filter(number=3).update(name="before the move", triggered_at=moment)
    rows.checkpoint(stopped, 14, kind="savepoint", name="of Friday")
    path = f"/jobs/{stopped.job_id}/restore/"

    def offered(**query: str) -> list[int]:
        page = at_console.get(path, {"checkpoint": "", **query}).content.decode()
        pks = [int(pk) for pk in re.findall(r'id="from-(\d+)"', page)]
        return [Checkpoint.objects.get(pk=pk).number for pk in pks]

    assert offered(q="MOVE") == [14, 3], "the suggestion stays"
    assert offered(q="7") == [14, 7]
    assert offered() == [14, 12, 11, 10, 9, 8, 7, 6]
    assert offered(before="6") == [14, 12, 5, 4, 3, 2, 1], "each kind has pages of its own"
    assert "2026-11-20 06:30:05" in blocks.text(at_console.get(path, {"q": "move"}))
    assert "None has this name, note or number." in blocks.text(at_console.get(path, {"q": "nowhere"}))


def test_a_restore_is_bound_to_the_plan_that_was_read(at_console: Client, stopped: Run) -> None:
    """A run that began and ended meanwhile has committed output: the page shows the new plan and does nothing."""
    path = f"/jobs/{stopped.job_id}/restore/"
    page = at_console.get(path, choice(12, stopped.version))
    plan = re.findall(r'name="plan_hash" value="(\w+)"', page.content.decode())[0]
    later = rows.checkpoint(rows.run(stopped.job, "stopped"), 14, kind="stop")
    form = choice(12, stopped.version, plan_hash=plan)
    refused = at_console.post(path, form)
    said = blocks.text(refused)
    assert refused.status_code == 409
    assert "no longer those that were shown. Nothing was done: read the new plan." in said
    assert f"Checkpoint {later.number} was committed after it" in said
    assert not Operation.objects.exists()
    renewed = re.findall(r'name="plan_hash" value="(\w+)"', refused.content.decode())[0]
    accepted = at_console.post(path, {**form, "plan_hash": renewed, "accept_repeated_output": "on"})
    assert accepted.status_code == 302


def test_only_possible_parallelisms_can_be_chosen(at_console: Client, stopped: Run, settings: Settings) -> None:
    settings.WEIR_MAX_SLOTS = 6
    newer = another_version(stopped, rows.GRAPH["operators"], rows.GRAPH["edges"], max_parallelism=4)
    path = f"/jobs/{stopped.job_id}/restore/"
    for version, most in ((stopped.version, 6), (newer, 4)):
        query = choice(12, version, most + 1)
        page = at_console.get(path, query)
        assert f"1 to {most}." in blocks.text(page)
        assert f"1 to {most}." in blocks.text(at_console.get(path, query, headers=PLAN))
        assert 'min="1" max="6"' in page.content.decode()
        assert b"plan_hash" not in page.content, "nothing restores it"


def test_a_plan_that_arrives_late_replaces_no_value_that_is_being_typed(at_console: Client, stopped: Run) -> None:
    """The plan of the chosen checkpoint replaced the field of the parallelism, also while an operator changed it."""
    path = f"/jobs/{stopped.job_id}/restore/"
    answer = at_console.get(path, choice(12, stopped.version), headers=PLAN).content.decode()
    assert "hx-swap-oob" in answer
    assert 'id="id_parallelism"' not in answer


def test_operators_that_differ_come_first_and_the_others_are_folded(at_console: Client, stopped: Run) -> None:
    newer = another_version(stopped, without("prepared"), [])
    page = at_console.get(f"/jobs/{stopped.job_id}/restore/", choice(12, newer, 2))
    plan = page.context["plan"]
    assert [row.uid for row in plan.differing] == ["airlines", "prepared"]
    assert [row.uid for row in plan.unchanged] == ["flights", "join", "window", "parquet"]
    assert "4 operators continue as they were" in blocks.text(page)


def test_a_job_without_checkpoints_has_nothing_to_restore(at_console: Client) -> None:
    assert "The job has no checkpoint to restore." in blocks.text(at_console.get(f"/jobs/{rows.job().pk}/restore/"))
    assert "A savepoint in another folder is restored over REST" in blocks.text(
        at_console.get(f"/jobs/{rows.job('another').pk}/restore/")
    )


def test_a_reader_is_told_why_not(reading: Client, stopped: Run) -> None:
    assert "You may not operate jobs" in blocks.text(reading.get(f"/jobs/{stopped.job_id}/restore/"))
    refused = reading.post(f"/jobs/{stopped.job_id}/restore/", choice(12, stopped.version))
    assert refused.status_code == 403
    assert not Operation.objects.exists()


def test_a_double_click_restores_once(at_console: Client, stopped: Run) -> None:
    page = at_console.get(f"/jobs/{stopped.job_id}/restore/").content.decode()
    key = re.findall(r'name="key" value="([\w-]+)"', page)[0]
    form = choice(12, stopped.version, key=key)
    at_console.post(f"/jobs/{stopped.job_id}/restore/", form)
    said = blocks.text(at_console.post(f"/jobs/{stopped.job_id}/restore/", form, follow=True))
    assert "This page had already sent the request." in said
    assert Operation.objects.count() == 1


def test_a_run_that_was_restored_by_folder_did_not_begin_from_empty_state(at_console: Client) -> None:
    run = rows.run(rows.job(), restore_path="/savepoints/of-another-place")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "savepoint in /savepoints/of-another-place" in said
    assert "empty state" not in said


@pytest.mark.parametrize("way", ["stop", "cancel"])
def test_a_running_job_is_stopped_and_restored_by_one_confirmation(at_console: Client, way: str) -> None:
    """The page binds the operation to the plan that it showed, and commits of the run meanwhile do not change it."""
    run = rows.run(rows.job())
    rows.checkpoint(run, 5)
    rows.checkpoint(run, 6)
    path, query = f"/jobs/{run.job_id}/restore/", choice(5, run.version, 3)
    response = at_console.get(path, query)
    said, page = blocks.text(response), response.content.decode()
    assert (
        f"Run {run.pk} ends first. Until then, neither retention nor a user removes the files of checkpoint 5." in said
    )
    assert "Checkpoint 6 was committed after it; their records are read again" in said
    assert "A new run of version 1 starts at parallelism 3" in said
    assert re.search(r"<button[^>]*primary danger[^>]*>End this run and restore</button>", page)
    assert re.search(r'value="stop" required checked>', page)
    assert "--from 5 --version 1 --parallelism 3 --end-run stop" in said
    (plan,) = re.findall(r'name="plan_hash" value="(\w+)"', page)
    rows.checkpoint(run, 7)
    form = {**query, "plan_hash": plan, "end_run": way, "accept_repeated_output": "on", "reason": "wrong rows"}
    accepted = at_console.post(path, form, follow=True)
    assert "The rollback was requested" in blocks.text(accepted)
    rollback = Operation.objects.get(kind="rollback")
    assert (rollback.parts.get().kind, rollback.reason, number(5).held_by) == (way, "wrong rows", rollback.pk)
    assert "rolled back" in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert f"Steps {way.capitalize()} Queued" in blocks.text(at_console.get(f"/operations/{rollback.pk}/"))


def test_a_run_that_cannot_stop_offers_its_cancellation_only(at_console: Client) -> None:
    run = rows.run(rows.job(), "restarting")
    rows.checkpoint(run, 5)
    page = at_console.get(f"/jobs/{run.job_id}/restore/", choice(5, run.version)).content.decode()
    assert re.search(r'value="stop" required disabled>', page)
    assert re.search(r'value="cancel" required>', page)
    assert not re.search(r"<button[^>]* disabled>End this run", page)
    assert "--end-run cancel" in page
    assert "&quot;end_run&quot;: &quot;cancel&quot;" in page
    first = at_console.get(f"/jobs/{run.job_id}/").content.decode()
    assert f'id="do-rollback" data-key="r" href="/jobs/{run.job_id}/restore/"' in first


def test_a_rollback_has_the_expected_time_of_its_stop(at_console: Client) -> None:
    run = rows.run(rows.job())
    checkpoint, begun = rows.checkpoint(run, 7), timezone.now()
    rows.operation(run.job, "savepoint", created_at=begun, ended_at=begun + timedelta(seconds=2))
    path = f"/jobs/{run.job_id}/restore/?checkpoint={checkpoint.pk}"
    assert (
        f"Expected time of the stop, if run {run.pk} is stopped with a savepoint: at least 2.0 s; as the last "
        "savepoint of this job."
    ) in blocks.text(at_console.get(path))
