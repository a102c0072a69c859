"""Schedules of savepoints and drills: times, requests once each, misses with reasons, and the number that is kept."""

import re
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.test import APIClient

from console.accounts.models import User
from console.accounts.refusals import InvalidField
from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import advance_operations
from console.housekeeping.scheduled_operations import run_schedules
from console.jobs.models import Job, Run
from console.operations.blackouts import is_blacked_out
from console.operations.models import Operation, Schedule
from console.operations.schedules import next_time
from tests.console.ui import blocks, rows
from tests.console.world import World
from tests.waiting import until

MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(MOMENTS, MOMENTS, st.integers(1, 168))
def test_intervals_keep_their_phase_and_skip_what_is_past(due: datetime, now: datetime, hours: int) -> None:
    if now < due:
        due, now = now, due
    moment = next_time(Schedule(every_hours=hours), due, now)
    assert (moment - due) % timedelta(hours=hours) == timedelta(0)
    assert now < moment <= now + timedelta(hours=hours)


@given(MOMENTS, st.times())
def test_daily_times_are_the_next_in_utc(now: datetime, at: time) -> None:
    at = at.replace(second=0, microsecond=0)
    moment = next_time(Schedule(daily_at=at), now, now)
    assert (moment.time(), now < moment <= now + timedelta(days=1)) == (at, True)


@pytest.fixture
def run(transactional_db: None) -> Run:
    return rows.run(rows.job())


def ask(api: APIClient, run: Run, kind: str, **params: Any) -> Any:
    return api.post(f"/api/v1/jobs/{run.job_id}/operations/", {"kind": kind, "params": params}, format="json")


def make_due(ago: timedelta = timedelta(seconds=5)) -> datetime:
    due = timezone.now() - ago
    Schedule.objects.update(next_at=due)
    return due


def succeed(run: Run, number: int, **changes: Any) -> Checkpoint:
    """The job master takes the savepoint of the newest operation."""
    savepoint = rows.checkpoint(run, number, kind="savepoint", **changes)
    newest = Operation.objects.filter(kind="savepoint").latest("created_at")
    newest.state, newest.result = "succeeded", {"checkpoint": number}
    newest.save()
    return savepoint


def test_a_name_without_room_for_the_time_is_refused(api: APIClient, run: Run) -> None:
    """The name of a savepoint has 100 characters, and the time takes 17 of them."""
    for name in ("", "n" * 81):
        assert ask(api, run, "schedule", every_hours=6, name=name).status_code == 422


def test_a_due_schedule_requests_one_named_savepoint_and_keeps_the_newest(api: APIClient, run: Run) -> None:
    assert ask(api, run, "schedule", every_hours=6, keep=2, name="nightly").json()["state"] == "succeeded"
    run_schedules()
    assert not Operation.objects.filter(kind="savepoint").exists(), "not due yet"
    by_hand = rows.checkpoint(run, 1, kind="savepoint")
    for number in range(2, 7):
        due = make_due()
        run_schedules()
        run_schedules()
        assert Operation.objects.filter(kind="savepoint").count() == number - 1, "once"
        savepoint = succeed(run, number)
        savepoint.refresh_from_db()
        assert savepoint.name == f"nightly {due:%Y-%m-%d %H:%M}"
        if number == 2:
            Checkpoint.objects.filter(pk=savepoint.pk).update(pinned_at=timezone.now())
        advance_operations()
    assert left(run) == [by_hand.number, 2, 5, 6], "the pinned savepoint, the savepoint of a user, and the newest two"
    schedule = Schedule.objects.get()
    assert due + timedelta(hours=5) < schedule.next_at <= due + timedelta(hours=6)
    assert api.get(f"/api/v1/jobs/{run.job_id}/checkpoints/schedule/").json()["missed_at"] is None


def take_scheduled(run: Run, number: int, **changes: Any) -> Checkpoint:
    make_due()
    run_schedules()
    savepoint = succeed(run, number)
    Checkpoint.objects.filter(pk=savepoint.pk).update(**changes)
    advance_operations()
    return savepoint


def left(run: Run) -> list[int]:
    checkpoints = Checkpoint.objects.filter(job=run.job_id, discarded_at=None).order_by("number")
    return list(checkpoints.values_list("number", flat=True))


def test_a_savepoint_in_review_stays_and_does_not_count(api: APIClient, run: Run) -> None:
    ask(api, run, "schedule", every_hours=6, keep=1, name="nightly")
    reviewed = take_scheduled(run, 2, review_state="in_review")
    for number in (3, 4):
        take_scheduled(run, number)
    assert left(run) == [2, 4]
    Checkpoint.objects.filter(pk=reviewed.pk).update(review_state="waived")
    advance_operations()
    assert left(run) == [4]


def test_the_newest_reviewed_savepoint_stays_if_the_policy_refuses_all_others(api: APIClient, run: Run) -> None:
    """No snapshot could be restored without it."""
    ask(api, run, "schedule", every_hours=6, keep=1, name="nightly")
    Job.objects.filter(pk=run.job_id).update(review_policy="refuse")
    for number in (2, 3):
        take_scheduled(run, number, review_state="reviewed")
    take_scheduled(run, 4)
    take_scheduled(run, 5)
    assert left(run) == [3, 5]
    Job.objects.filter(pk=run.job_id).update(review_policy="warn")
    advance_operations()
    assert left(run) == [5]


def test_a_missed_savepoint_is_shown_with_its_reason(api: APIClient, browser: Client, run: Run) -> None:
    path = f"/jobs/{run.job_id}/checkpoints/schedule/"
    ask(api, run, "schedule", daily_at="02:30", name="nightly")
    make_due(timedelta(hours=2))
    run_schedules()
    assert "No worker of the console requested it within 10 minutes." in browser.get(path).content.decode()
    Run.objects.update(state="stopped")
    make_due()
    run_schedules()
    page = browser.get(path).content.decode()
    assert "was missed. " in page
    assert api.get(f"/api/v1{path}").json()["missed_reason"] in page
    assert "each day at 02:30 UTC" in page
    Run.objects.update(state="running")
    User.objects.update(is_active=False)
    make_due()
    run_schedules()
    reason = Schedule.objects.get().missed_reason
    assert "permission" in reason
    User.objects.update(is_active=True)
    said = blocks.text(browser.get(f"/jobs/{run.job_id}/"))
    assert re.search(rf"The savepoint of [0-9: -]+ UTC was missed: {re.escape(reason)}", said)
    Run.objects.update(created_at=timezone.now() + timedelta(minutes=1))
    assert "was missed" not in blocks.text(browser.get(f"/jobs/{run.job_id}/")), "a later run has not missed it"
    assert not Operation.objects.filter(kind="savepoint").exists()


def test_a_late_pass_requests_nothing_within_a_blackout(api: APIClient, run: Run) -> None:
    ask(api, run, "schedule", every_hours=6, name="nightly")
    now = timezone.now()
    window = f"{now - timedelta(minutes=1):%H:%M}-{now + timedelta(minutes=9):%H:%M}"
    Schedule.objects.update(blackouts=[window])
    due = make_due(timedelta(minutes=3))
    run_schedules()
    schedule = Schedule.objects.get()
    assert (schedule.missed_at, "before a blackout window" in schedule.missed_reason) == (due, True)
    assert not Operation.objects.filter(kind="savepoint").exists()
    Schedule.objects.update(blackouts=[])
    make_due(timedelta(minutes=3))
    run_schedules()
    assert Operation.objects.filter(kind="savepoint").count() == 1


def test_a_savepoint_waits_for_a_run_that_restarts(api: APIClient, run: Run) -> None:
    """A moment's restart cost the savepoint of the whole period."""
    ask(api, run, "schedule", every_hours=24, name="nightly")
    due = make_due()
    for state in ("restarting", "waiting"):
        Run.objects.update(state=state)
        run_schedules()
        schedule = Schedule.objects.get()
        assert (schedule.next_at, schedule.missed_at) == (due, None), state
    Run.objects.update(state="running")
    run_schedules()
    run_schedules()
    assert Operation.objects.get(kind="savepoint").params["name"] == f"nightly {due:%Y-%m-%d %H:%M}"
    assert Schedule.objects.get().next_at > due + timedelta(hours=23)


def test_a_savepoint_of_a_run_that_restarts_for_long_is_missed_with_that_reason(api: APIClient, run: Run) -> None:
    ask(api, run, "schedule", every_hours=24, name="nightly")
    Run.objects.update(state="restarting")
    due = make_due(timedelta(minutes=9, seconds=1))
    run_schedules()
    schedule = Schedule.objects.get()
    assert (schedule.missed_at, "restarting" in schedule.missed_reason) == (due, True)
    assert schedule.next_at > due


def test_a_schedule_that_fails_stops_no_other(api: APIClient, run: Run) -> None:
    """The later schedules were never reached, and then missed because of a worker that had been there."""
    ask(api, run, "schedule", every_hours=6, name="nightly")
    other = rows.run(rows.job("other"))
    ask(api, other, "schedule", every_hours=6, name="nightly")
    Schedule.objects.filter(job=run.job_id).update(blackouts=["someday"])
    due = make_due()
    run_schedules()
    assert Operation.objects.get(kind="savepoint").run == other
    failed = Schedule.objects.get(job=run.job_id)
    assert (failed.next_at, failed.missed_at) == (due, due), "the next pass tries it again"
    assert failed.missed_reason.startswith("The request failed: ")


def test_the_page_saves_and_removes_the_schedule_by_operations(browser: Client, run: Run) -> None:
    path = f"/jobs/{run.job_id}/checkpoints/schedule/"
    browser.post(path, {"rule": "hours", "every_hours": "12", "daily_at": "02:00", "keep": "3", "name": ""})
    browser.post(path, {"rule": "daily", "every_hours": "12", "daily_at": "04:15", "keep": "3", "name": "daily"})
    schedule = Schedule.objects.get()
    assert (schedule.every_hours, schedule.daily_at, schedule.keep, schedule.name) == (None, time(4, 15), 3, "daily")
    for wrong in ({"rule": "hours", "every_hours": "0"}, {"rule": "daily", "daily_at": "25:00"}, {"keep": "0"}):
        form = {"rule": "hours", "every_hours": "6", "keep": "3", **wrong}
        assert "params." in browser.post(path, form, follow=True).content.decode()
    browser.post(path, {"act": "unschedule"})
    assert not Schedule.objects.exists()
    assert "has no schedule of savepoints" in browser.post(path, {"act": "unschedule"}, follow=True).content.decode()
    kinds = Operation.objects.order_by("created_at").values_list("kind", "state")
    assert list(kinds) == [("schedule", "succeeded"), ("schedule", "succeeded"), ("unschedule", "succeeded")]


@pytest.mark.slow
def test_beat_and_a_worker_request_the_savepoint_of_a_schedule(place: World) -> None:
    """Real processes: Celery beat sends the pass, and a worker of `housekeeping` writes the operation."""
    run = place.run(place.new_run())
    place.sql("UPDATE weir_run SET state = 'running', lease_owner = 'a worker' WHERE id = %s", run["id"])
    owner = place.sql(
        "INSERT INTO weir_user (username, password, is_superuser, is_staff, is_active, first_name, last_name, email, "
        "date_joined) VALUES ('planner', '', true, true, true, '', '', '', now()) RETURNING id"
    )[0]["id"]
    place.sql(
        "INSERT INTO weir_schedule (job_id, operation, every_hours, name, keep, owner_id, next_at) "
        "VALUES (%s, 'savepoint', 6, 'nightly', 3, %s, now())",
        run["job_id"], owner,
    )  # fmt: skip

    def requested() -> list[dict[str, Any]]:
        place.sql("UPDATE weir_run SET lease_beat = lease_beat + 1 WHERE id = %s", run["id"])  # its master lives
        return place.sql("SELECT * FROM weir_operation WHERE kind = 'savepoint'")

    operations = until(requested, 60)
    assert [(row["run_id"], row["requested_by_id"]) for row in operations] == [(run["id"], owner)]
    assert operations[0]["params"]["name"].startswith("nightly ")
    schedule = place.sql("SELECT next_at > now() + interval '5 hours' AS later FROM weir_schedule")[0]
    assert schedule["later"], "the next savepoint is six hours later"


FRIDAY = datetime(2026, 11, 27, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("23:00-23:31", FRIDAY, FRIDAY + timedelta(minutes=1)),
        ("fri 23:00-24:00", FRIDAY, FRIDAY + timedelta(days=1)),
        ("fri 22:00-06:00", FRIDAY + timedelta(hours=6), FRIDAY - timedelta(hours=18)),
        ("sat,sun 00:00-24:00", FRIDAY + timedelta(days=2), FRIDAY),
    ],
)
def test_a_window_is_of_days_and_may_pass_midnight(window: str, inside: datetime, outside: datetime) -> None:
    assert is_blacked_out(inside, [window])
    assert not is_blacked_out(outside, [window])


@given(MOMENTS, st.integers(1, 168))
def test_times_within_a_blackout_are_skipped(now: datetime, hours: int) -> None:
    """Phase and order stay; without a free time the schedule is refused."""
    blackouts = ["mon,tue,wed,thu,fri 09:00-17:00", "22:00-02:00"]
    due = now.replace(minute=0, second=0, microsecond=0)
    try:
        moment = next_time(Schedule(every_hours=hours, blackouts=blackouts), due, now)
    except InvalidField:
        times = (due + timedelta(hours=hours) * step for step in range(1, 200))
        assert all(is_blacked_out(at, blackouts) for at in times)
        return
    assert not is_blacked_out(moment, blackouts)
    skipped = range(1, (moment - due) // timedelta(hours=hours))
    assert all(
        is_blacked_out(at, blackouts) or at <= now for at in (due + timedelta(hours=hours) * step for step in skipped)
    )


def test_blackouts_are_set_shown_and_refused_if_nothing_is_left(api: APIClient, browser: Client, run: Run) -> None:
    windows = ["sat,sun 00:00-24:00", "09:00-17:00"]
    assert ask(api, run, "schedule", daily_at="02:00", blackouts=windows).status_code == 202
    path = f"/jobs/{run.job_id}/checkpoints/schedule/"
    body = api.get(f"/api/v1{path}").json()
    assert body["blackouts"] == windows
    times = [datetime.fromisoformat(at) for at in body["next_times"]]
    assert len(times) == 5
    assert all(at.weekday() < 5 for at in times)
    assert "sat,sun 00:00-24:00 ; 09:00-17:00 UTC" in blocks.text(browser.get(path))
    refused = ask(api, run, "schedule", daily_at="10:00", blackouts=windows)
    assert (refused.status_code, "must leave at least one time" in refused.json()["detail"]) == (422, True)
    for wrong in ("9-17", "mon 25:00-26:00", "mon,09:00-17:00", "someday 09:00-17:00"):
        assert ask(api, run, "schedule", daily_at="02:00", blackouts=[wrong]).status_code == 422, wrong
    form = {
        "operation": "savepoint",
        "rule": "hours",
        "every_hours": "6",
        "keep": "3",
        "blackouts": "Sat 00:00-24:00\r\n",
    }
    assert browser.post(path, form).status_code == 302
    assert Schedule.objects.get().blackouts == ["sat 00:00-24:00"]
