"""The pages of the fixtures agree with each other: times, figures and events of a run have one source."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from console import formats
from console.checkpoints.lanes import lanes_of
from console.checkpoints.models import Checkpoint, Kind
from console.jobs.models import Run
from console.metrics.models import WHOLE_RUN, Metrics, SubtaskMetrics
from console.runs.logs import LogFilter, LogSecrets, log_file, log_tail
from console.ui.templatetags.weir import quantity
from runtime.core.checkpoint.acknowledgements import PHASES
from tests.console.ui import blocks, every_page, logs, numbers, rows
from tests.console.ui.story import (
    OPEN_SESSIONS,
    RATE,
    RECORD_BYTES,
    SESSION_ACTIVE,
    SESSION_GAP,
    SESSIONS_PER_S,
    STATE_BYTES,
    TIMEOUT,
)

#: The runs of the pictures by state; `whole`: with all checkpoints since its start, and a run before it.
RUNS: dict[str, Callable[[], Run]] = {
    "running": partial(numbers.run_with_story, "flights-delays", "running", 214),
    "slow": numbers.slow_run,
    "recovered": numbers.recovered_run,
    **{state: partial(every_page.run_in_other_state, state) for state in every_page.OTHER_STATES},
    "whole": partial(numbers.recovered_run, upto=None, days=1),
}
STATES = [state for state in RUNS if state != "whole"]


@pytest.fixture(scope="module", params=STATES)
def stored(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[int]:
    """The key of a run. The transaction around its rows, which all tests of the run read, also contains their own.

    The clock stands until the last of these tests has ended, so that all of them read the same pages.
    """
    now = timezone.now()
    with pytest.MonkeyPatch.context() as patch, django_db_blocker.unblock(), transaction.atomic():
        patch.setattr(timezone, "now", lambda: now)
        rows.operator_user("ada")
        yield RUNS[request.param]().pk
        transaction.set_rollback(True)


@pytest.fixture
def run(db: None, stored: int) -> Run:
    """The run of the pictures in a state."""
    return Run.objects.get(pk=stored)


def page(at_console: Client, run: Run) -> Any:
    return at_console.get(f"/jobs/{run.job_id}/").context


def test_checkpoints_lie_within_their_attempt_which_lies_within_its_run(run: Run) -> None:
    attempts = {attempt.token: attempt for attempt in run.attempts.all()}
    began, present = run.started_at, run.live_at
    assert began
    assert present
    assert all(began <= each.started_at < (each.ended_at or present) for each in attempts.values())
    for row in run.checkpoints.all():
        attempt, ended = attempts[row.token], row.completed_at or row.triggered_at
        assert attempt.started_at <= row.triggered_at <= ended <= (attempt.ended_at or present), row
        if row.status != "in_progress":
            assert ended - row.triggered_at == timedelta(milliseconds=row.duration_ms or 0), row
        assert row.reason != "expired" or row.duration_ms == TIMEOUT / timedelta(milliseconds=1), row
        assert row.kind != Kind.DRAIN or (run.state == "finished" and run.checkpoints.latest("number") == row)


def test_restarts_are_the_starts_of_attempts(at_console: Client, run: Run) -> None:
    shown = page(at_console, run)
    restarts = [mark.time for mark in shown["timeline"].marks if mark.kind == "restart"]
    assert restarts == [attempt.started_at for attempt in run.attempts.order_by("token")[1:]]
    assert len(restarts) == shown["view"].page.restarts
    failures = {cause.last for cause in shown["inspector"].failures}
    assert failures == set(run.attempts.filter(outcome="failed").values_list("ended_at", flat=True))


def test_state_and_durations_in_tables_are_those_of_the_plots(at_console: Client, run: Run) -> None:
    shown = page(at_console, run)["timeline"].numbers
    completed = run.checkpoints.filter(status="completed")
    plotted = [value for value in shown["state_bytes"] if value is not None]
    periodic = completed.exclude(kind=Kind.DRAIN).latest("number")
    assert plotted[-1] == pytest.approx(periodic.size_bytes, rel=0.1)
    slowest = max(row.duration_ms or 0 for row in completed)
    assert max(value for value in shown["checkpoint_ms"] if value is not None) == slowest


def test_a_restore_goes_back_and_the_run_then_reads_what_waits(run: Run) -> None:
    """The lag jumps up by the replay and the outage. The catch-up reads as many records as the lag stands for."""
    seconds = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN, step_s=numbers.FINE).order_by("at")
    restored = run.attempts.get(token=run.token).restored_checkpoint
    after = list(seconds.filter(token=run.token, at__gte=restored.triggered_at)) if restored else []
    if not restored or not after:
        assert run.state in ("slow", "restarting") or not run.attempts.filter(outcome="failed").exists()
        return
    before = seconds.filter(at__lte=restored.triggered_at).last()
    assert before
    assert before.processing_lag_ms
    assert after[0].processing_lag_ms
    back_ms = (after[0].at - restored.triggered_at) / timedelta(milliseconds=1)
    assert after[0].processing_lag_ms == pytest.approx(before.processing_lag_ms + back_ms, abs=3 * numbers.FINE * 1_000)
    surplus = sum(row.records_in - RATE * numbers.FINE for row in after)
    assert surplus == pytest.approx(RATE * after[0].processing_lag_ms / 1_000, rel=0.1)
    assert after[-1].processing_lag_ms == pytest.approx(870, abs=100), "the run is up to date"


def test_counts_since_the_last_restart_are_the_areas_below_the_rates(run: Run) -> None:
    assert run.live
    began = run.attempts.exclude(token=run.token).earliest("token").started_at if run.state == "restarting" else (
        run.attempts.get(token=run.token).started_at)  # fmt: skip
    assert began
    assert run.live_at
    is_young = run.live_at - began < timedelta(minutes=15)
    rows_since = Metrics.objects.filter(
        run_id=run.pk, at__gte=began, step_s=numbers.FINE if is_young else numbers.COARSE
    )
    reported = run.live["operators"]
    read = rows_since.filter(operator="flights").aggregate(total=Sum("records_out"))["total"]
    assert reported["flights"]["records_out"] == pytest.approx(read, rel=0.05)
    written = rows_since.filter(operator="parquet").aggregate(total=Sum("records_in"))["total"]
    written += OPEN_SESSIONS if run.state == "finished" else 0
    assert reported["window"]["records_out"] == reported["parquet"]["records_in"]
    assert reported["parquet"]["records_in"] == pytest.approx(written, rel=0.05)


def test_a_session_that_has_begun_is_open_or_has_ended(run: Run) -> None:
    """As many sessions begin as end, and each is open for the same time on average."""
    assert run.live
    assert run.started_at
    operators = run.live["operators"]
    restored = run.restore_checkpoint or (run.state != "restarting" and run.attempts.filter(outcome="failed").exists())
    begun = operators["flights"]["records_out"] / RATE * SESSIONS_PER_S + (OPEN_SESSIONS if restored else 0)
    still_open = 0 if run.state == "finished" else OPEN_SESSIONS
    assert operators["window"].get("open_results", {}).get("sessions", 0) == still_open
    assert operators["window"]["records_out"] == pytest.approx(begun - still_open, abs=1)
    assert SESSIONS_PER_S * (SESSION_ACTIVE + SESSION_GAP).total_seconds() == pytest.approx(OPEN_SESSIONS)
    for row in run.checkpoints.filter(status="completed", kind=Kind.CHECKPOINT, number__gt=1):
        window = next(one for one in row.operators if one["uid"] == "window")
        row_bytes = window["state_bytes"] / OPEN_SESSIONS
        changed = SESSIONS_PER_S * (SESSION_ACTIVE.total_seconds() + 5) * row_bytes
        assert window["written_bytes"] == pytest.approx(changed, rel=0.02), "the sessions that have changed since"


def test_barriers_wait_for_the_records_that_are_in_flight_before_the_join(run: Run) -> None:
    """The records in flight at the trigger are those that the join processes until the barrier has come."""
    fine = Metrics.objects.filter(run_id=run.pk, operator="join", step_s=numbers.FINE).order_by("at")
    processed = [(row.at, row.records_in or 0, row.in_flight_bytes or 0) for row in fine]
    step = timedelta(seconds=numbers.FINE)
    slow = 0
    for row in run.checkpoints.filter(kind=Kind.CHECKPOINT, status="completed", triggered_at__gte=processed[0][0]):
        delay = next(one["max_start_delay_ms"] for one in row.operators if one["uid"] == "join")
        began, end = row.triggered_at, row.triggered_at + timedelta(milliseconds=delay)
        around = [held for at, _, held in processed if began - step < at < began + step]
        if delay < 3_000 or len(around) < 2:
            continue
        slow += 1
        records = sum(
            count * max(timedelta(), min(end, at + step) - max(began, at)) / step for at, count, _ in processed
        )
        least, most = min(around) / RECORD_BYTES, max(around) / RECORD_BYTES
        assert 0.85 * least < records < 1.15 * most, row
    assert slow > 5


def test_a_savepoint_expires_if_the_join_cannot_process_the_records_in_flight_in_time(run: Run) -> None:
    fine = Metrics.objects.filter(run_id=run.pk, operator="join", step_s=numbers.FINE)
    for expired in run.checkpoints.filter(reason="expired"):
        at = expired.triggered_at
        assert expired.kind == Kind.SAVEPOINT
        before = fine.filter(at__lte=at).latest("at").in_flight_bytes
        assert before
        processed = fine.filter(at__gte=at, at__lt=expired.completed_at).aggregate(total=Sum("records_in"))["total"]
        assert processed < before / RECORD_BYTES
        completed = run.checkpoints.filter(status="completed", number=expired.number - 1).get()
        assert completed.completed_at
        assert completed.completed_at <= at


def test_the_phases_of_checkpoints_differ(run: Run) -> None:
    found = [
        next(one for one in row.operators if one["uid"] == "window")
        for row in run.checkpoints.filter(status="completed", kind=Kind.CHECKPOINT).order_by("-number")[:10]
    ]
    for phase in ("alignment", "sync", "async"):
        assert len({round(one[f"max_{phase}_ms"], 2) for one in found}) > 3, phase


def test_the_highest_levels_of_minutes_are_those_of_finer_rows(run: Run) -> None:
    of_run = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN)
    for row in of_run.filter(step_s=60).order_by("-at")[:12]:
        finer = of_run.filter(step_s=numbers.FINE, at__gte=row.at, at__lt=row.at + timedelta(minutes=1))
        for lag in ("event_lag_ms", "processing_lag_ms"):
            assert getattr(row, lag) == max(getattr(each, lag) or 0 for each in finer), row.at
        assert row.in_flight_bytes == pytest.approx(max(each.in_flight_bytes or 0 for each in finer), rel=0.1), row.at


def test_watermarks_are_as_old_as_the_report_and_the_lag(run: Run) -> None:
    """Two minutes after its end, a run still showed the watermark of those that go on."""
    assert run.live
    assert run.live_at
    newest = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN, step_s=numbers.FINE).latest("at")
    assert newest.processing_lag_ms is not None
    end_ms = (newest.at.timestamp() + numbers.FINE) * 1_000
    is_down = newest.at.timestamp() + numbers.FINE > run.live_at.timestamp() - 6
    assert newest.watermark == pytest.approx(end_ms - newest.processing_lag_ms, abs=5_200 if is_down else 200)
    passed_ms = (run.live_at - newest.at) / timedelta(milliseconds=1)
    reported = {one["watermark"] for one in run.live["operators"].values()} - {None}
    assert reported.pop() == pytest.approx(newest.watermark, abs=passed_ms + 200), "the lag varies a little"
    assert not reported


def test_the_lag_includes_no_more_than_the_disorder_that_the_source_allows(run: Run) -> None:
    newest = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN, step_s=numbers.FINE).latest("at")
    assert newest.processing_lag_ms
    assert run.version.params["max_disorder_ms"] < newest.processing_lag_ms


def test_the_watermark_is_as_far_behind_the_sources_as_records_are_queued(run: Run) -> None:
    """Backpressure slows the sources, so what waits outside of the job is no part of it."""
    whole = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN, step_s=numbers.FINE)
    behind = [(row.event_lag_ms or 0, row.processing_lag_ms or 0, row.in_flight_bytes or 0) for row in whole]
    assert all(event < wall for event, wall, _ in behind)
    assert max(event for event, _, _ in behind) < 10_000
    assert max(behind)[2] == pytest.approx(max(queued for _, _, queued in behind), rel=0.2)


def test_subtasks_have_the_records_of_their_operator(run: Run) -> None:
    if run.state != "running":
        return
    found = SubtaskMetrics.objects.filter(run_id=run.pk).order_by("at")
    assert len(found) > 200
    for at, operators in found.values_list("at", "operators")[::20]:
        for row in Metrics.objects.filter(run_id=run.pk, step_s=numbers.FINE, at=at).exclude(operator=WHOLE_RUN):
            own = operators[row.operator]
            assert sum(own["records_in"]) == pytest.approx(row.records_in, abs=2)
            assert set(own["watermark"]) == {row.watermark}


def test_checkpoints_become_slower_until_a_savepoint_expires(run: Run) -> None:
    for expired in run.checkpoints.filter(reason="expired"):
        completed = run.checkpoints.filter(status="completed", number__lt=expired.number).order_by("-number")
        took = [row.duration_ms or 0 for row in completed[:6]]
        assert took == sorted(took, reverse=True)
        assert took[0] > 0.25 * (expired.duration_ms or 0)


def test_savepoints_write_all_their_state_and_a_drain_leaves_no_window(run: Run) -> None:
    for row in run.checkpoints.filter(status="completed").exclude(kind=Kind.CHECKPOINT):
        state = sum(operator["state_bytes"] for operator in row.operators)
        assert row.written_bytes == row.size_bytes == state, row
        assert sum(operator["written_bytes"] for operator in row.operators) == state, row
        if row.kind == Kind.DRAIN:
            assert state < 0.01 * STATE_BYTES
            assert run.live
            assert run.live["operators"]["window"]["records_out"] > OPEN_SESSIONS
            assert run.live["operators"]["parquet"]["records_in"] > OPEN_SESSIONS


def test_phases_of_the_plots_are_those_of_the_slowest_subtask_of_a_checkpoint(at_console: Client, run: Run) -> None:
    shown = page(at_console, run)["timeline"].numbers
    known = [at for at, took in enumerate(shown["checkpoint_ms"]) if took is not None]
    plotted = tuple(shown[f"{phase}_ms"][known[-1]] for phase in PHASES)
    found = run.checkpoints.filter(status="completed").only("acknowledgements")
    slowest = [max(lanes_of(row.acknowledgements, ()), key=lambda lane: lane.at_ms or 0) for row in found]
    assert plotted in [pytest.approx(lane.phases_ms, rel=0.01) for lane in slowest]


def test_bars_of_a_lane_end_where_its_acknowledgement_came(run: Run) -> None:
    for row in run.checkpoints.filter(status="completed").only("acknowledgements"):
        for lane in lanes_of(row.acknowledgements, ()):
            assert sum(lane.phases_ms) == pytest.approx(lane.at_ms, abs=1)


def test_rates_of_the_graph_are_those_of_the_plots(at_console: Client, run: Run) -> None:
    shown = page(at_console, run)
    if not shown["view"].live.flowing:
        return
    operators = shown["view"].live.operators
    for column, rate in (
        ("records_in_per_s", operators["flights"].rate_out),
        ("records_out_per_s", operators["parquet"].rate_in),
    ):
        newest = [value for value in shown["timeline"].numbers[column] if value is not None][-1]
        assert newest == pytest.approx(rate, rel=0.1), column
    newest = [value for value in shown["timeline"].numbers["records_in_per_s"] if value is not None][-1]
    assert formats.rate(newest) == formats.rate(operators["flights"].rate_out), "the same text on the page"


def test_the_lag_at_the_top_is_that_of_the_plots(at_console: Client, run: Run) -> None:
    """The first thing to look at: how far the watermark is behind the clock."""
    response = at_console.get(f"/jobs/{run.job_id}/")
    head = blocks.live(response)["health"]
    if run.state != "running":
        assert ("<dt>Lag</dt>" in head) == (run.state == "failed"), "the lag of a failed job grows"
        return
    newest = [value for value in response.context["timeline"].numbers["processing_lag_ms"] if value is not None][-1]
    assert f"<dt>Lag</dt><dd>{quantity(formats.duration(newest))}</dd>" in head


def test_rates_of_minutes_are_the_means_of_finer_rates(run: Run) -> None:
    """The lines in the list of jobs and the plots of hours read minutes, the plot of 15 min finer rows."""
    of_run = Metrics.objects.filter(run_id=run.pk, operator=WHOLE_RUN)
    minutes = list(of_run.filter(step_s=60).order_by("-at")[:12])
    assert min(row.records_in for row in minutes) < 0.8 * max(row.records_in for row in minutes), "the run was slow"
    for row in minutes:
        finer = of_run.filter(step_s=5, at__gte=row.at, at__lt=row.at + timedelta(minutes=1))
        per_s = [each.records_in / 5 for each in finer]
        assert row.records_in / 60 == pytest.approx(sum(per_s) / len(per_s), rel=0.02), row.at


def test_records_to_replay_are_the_rate_times_the_age_of_the_recovery_point(at_console: Client, run: Run) -> None:
    shown = page(at_console, run)
    horizon = shown["view"].health.horizon
    if run.state != "running":
        assert horizon is None
        return
    point = Checkpoint.objects.get(job=run.job, number=horizon.checkpoint)
    age_s = (shown["now"] - point.triggered_at).total_seconds()
    assert horizon.records == pytest.approx(shown["view"].live.operators["flights"].rate_out * age_s, rel=0.1)


def test_manifests_that_pages_list_are_in_storage(at_console: Client, run: Run) -> None:
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/checkpoints/retention/"))
    assert "cannot be read" not in said


def test_acknowledgements_of_a_checkpoint_in_progress_are_in_the_past(run: Run) -> None:
    for row in run.checkpoints.filter(status="in_progress").only("acknowledgements", "triggered_at"):
        assert run.live_at
        age_ms = (run.live_at - row.triggered_at) / timedelta(milliseconds=1)
        arrived = [at for own in row.acknowledgements.values() for at in own["at_ms"] if at is not None]
        assert max(arrived) <= age_ms


def test_retention_keeps_as_many_checkpoints_as_the_job_wants_and_frees_what_they_wrote(
    at_console: Client, run: Run
) -> None:
    preview = at_console.get(f"/jobs/{run.job_id}/checkpoints/retention/?keep=3").context["preview"]
    assert len(preview.discarded) + len(preview.kept_checkpoints) == rows.RETAINED
    for line in preview.discarded:
        assert line.freed_bytes == pytest.approx(line.checkpoint.written_bytes, rel=0.1)
        assert line.shared_bytes > 10 * line.freed_bytes


def test_a_restarting_run_has_no_slots_and_a_running_run_has_all(at_console: Client, run: Run) -> None:
    slots = page(at_console, run)["view"].live.slots
    assert len(slots) == (run.parallelism if run.state == "running" else 0)
    assert all(slot.pid and slot.executor and slot.log and slot.memory_bytes for slot in slots)
    for lost in run.attempts.filter(outcome="failed", detail__slot=1):
        assert lost.detail
        assert lost.detail["slot_log"].rpartition(" ")[-1] not in {slot.host for slot in slots}, "it is on another host"


def test_the_log_of_a_failed_attempt_has_an_error(run: Run, settings: Any, tmp_path: Path) -> None:
    settings.WEIR_LOGS = tmp_path
    logs.write(run)
    lines = log_tail(log_file(run), LogSecrets("", {}, {}), LogFilter("error")) or ()
    failed = run.attempts.filter(outcome="failed")
    assert len([line for line in lines if "attempt fails" in line.text]) == failed.count()


def test_the_log_has_the_slots_of_an_attempt_when_its_page_has_them(run: Run, settings: Any, tmp_path: Path) -> None:
    settings.WEIR_LOGS = tmp_path
    logs.write(run)
    lines = [json.loads(line) for line in log_file(run).read_text().splitlines()]
    at = {(line["event"], line.get("token")): datetime.fromisoformat(line["timestamp"]) for line in lines}
    assert run.live_at
    assert max(at.values()) <= run.live_at
    for attempt in run.attempts.all():
        deployed, first = at.get(("every slot is deployed", attempt.token)), run.checkpoints.filter(token=attempt.token)
        assert (deployed is None) == (run.state == "restarting" and attempt.ended_at is None)
        if deployed is None:
            assert ("every slot is there", attempt.token) not in at
            continue
        assert attempt.started_at < at["every slot is there", attempt.token] < deployed
        begun = first.earliest("number").triggered_at
        assert deployed < begun < deployed + timedelta(seconds=10)


WATERMARK_MS = rows.JUNE_2013_MS


def sessions() -> list[dict[str, Any]]:
    table = rows.table(WATERMARK_MS)
    names = [column["name"] for column in table["columns"]]
    return [dict(zip(names, row, strict=True)) for row in table["rows"]]


def test_rows_of_a_state_are_open_sessions_in_the_order_of_their_key_groups() -> None:
    found = sessions()
    assert [row["key_group"] for row in found] == sorted(row["key_group"] for row in found)
    assert {row["key_group"] % 2 for row in found} == {0, 1}
    assert [row["flight"] for row in found] != sorted(row["flight"] for row in found)
    assert len({row["flight"] for row in found}) == len(found)
    gap_ms = SESSION_GAP / timedelta(milliseconds=1)
    for row in found:
        assert WATERMARK_MS - gap_ms - 10_000 < row[":last"] <= WATERMARK_MS
        active_s = (row[":last"] - row[":session"]) / 1000
        assert row["reports:count"] == pytest.approx(active_s * rows.REPORTS_PER_S, abs=1)
        assert active_s > 0
    active_ms = SESSION_ACTIVE / timedelta(milliseconds=1)
    over = [row for row in found if WATERMARK_MS - row[":session"] > 2 * active_ms]
    assert sum(row[":last"] - row[":session"] for row in over) / len(over) == pytest.approx(active_ms, rel=0.1)


def test_rows_of_a_state_have_the_key_that_was_asked_for() -> None:
    request = rows.state_query_request()
    for name, value in request["key"].items():
        assert {str(row[name]) for row in sessions()} == {value}


def test_a_query_reads_the_sessions_that_were_open_at_its_snapshot(run: Run) -> None:
    snapshot = run.checkpoints.filter(status="completed").exclude(kind=Kind.DRAIN).latest("number")
    query = rows.state_query(snapshot)
    assert query.result
    newest_ms = max(row[4] for row in query.result["rows"])
    assert newest_ms == pytest.approx(snapshot.triggered_at.timestamp() * 1_000, abs=10 * 60_000)
    query.delete()


@pytest.mark.parametrize("stored", ["whole"], indirect=True)
def test_all_checkpoints_of_a_run_have_numbers_without_gaps(run: Run) -> None:
    found = list(run.checkpoints.order_by("number"))
    restored = run.restore_checkpoint
    assert restored
    assert [row.number for row in found] == list(range(restored.number + 1, restored.number + 1 + len(found)))
    assert all(a.triggered_at < b.triggered_at for a, b in pairwise(found))
    earlier = list(restored.run.checkpoints.filter(kind=Kind.CHECKPOINT).order_by("number"))
    for a, b in pairwise(earlier):
        interval_ms = (b.triggered_at - a.triggered_at) / timedelta(milliseconds=1)
        assert interval_ms == restored.run.version.settings["checkpoint_interval_ms"]
    for each in (run, restored.run):
        assert each.started_at
        assert each.version.created_at < each.started_at
    assert run.version != restored.run.version, "its interval is another one"
