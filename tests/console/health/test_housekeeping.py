"""Stored verdicts: what they cost, that they last, and where they are shown: list, API, admin."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.checkpoints.models import Checkpoint
from console.health import housekeeping, verdicts
from console.health.assessment import assess
from console.health.collection import collect
from console.health.facts import RunFacts
from console.health.findings import Level
from console.health.hours import MIN_USUAL_MINUTES
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.jobs.models import Attempt, Job, Run
from console.metrics.models import Metrics, SubtaskMetrics
from console.metrics.partitions import create_partitions
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db


def sick(name: str, minutes: float) -> Run:
    """A run whose newest checkpoint completed `minutes` ago."""
    run = rows.run(rows.job(name))
    rows.checkpoint(run, 7, triggered_at=timezone.now() - timedelta(minutes=minutes), is_stored=False)
    return run


def test_the_list_begins_with_the_jobs_that_need_an_operator(browser: Client) -> None:
    """Health first, then the oldest recovery point; a job that was sorted away stays reachable by name."""
    sick("a-well", 0.02)
    sick("b-late", 5)
    sick("c-later", 50)
    failed = rows.run(rows.job("d-failed"), "failed")
    Run.objects.filter(pk=failed.pk).update(failure={"code": "missing-table", "message": "Table t is missing."})
    rows.job("e-new")
    store_verdicts()
    response = browser.get("/jobs/")
    assert [line.job.name for line in response.context["lines"]] == ["d-failed", "c-later", "b-late", "a-well", "e-new"]
    said = blocks.text(response)
    assert "Table t is missing." in said
    assert said.count("Running, needs attention") == 2
    by_name = browser.get("/jobs/?sort=name").context["lines"]
    assert [line.job.name for line in by_name] == ["a-well", "b-late", "c-later", "d-failed", "e-new"]


def test_a_verdict_lasts_since_it_was_first_found_and_ends_with_its_run() -> None:
    run = sick("late", 5.1)
    store_verdicts()
    first = JobHealth.objects.get()
    assert (first.run_id, first.run_state, Level(first.level)) == (run.pk, "running", Level.ATTENTION)
    store_verdicts()
    assert JobHealth.objects.get().since == first.since
    Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=timezone.now())
    store_verdicts()
    last = JobHealth.objects.get()
    assert (Level(last.level), last.findings, last.run_state) == (Level.NONE, [], "stopped")
    store_verdicts(timezone.now() + timedelta(hours=1))
    assert JobHealth.objects.get().checked_at == last.checked_at, "a run that has ended is not checked again"


def test_a_verdict_from_before_the_end_of_a_run_is_none_on_its_end(browser: Client) -> None:
    """While no worker of the queue housekeeping is free, a run that fails is listed as failing, and comes first."""
    for name in ("a-well", "b-failed", "c-stopped"):
        sick(name, 0.02)
    store_verdicts()
    Run.objects.filter(job__name="b-failed").update(state="failed", ended_at=timezone.now())
    JobHealth.objects.filter(job__name="c-stopped").update(level=Level.ATTENTION, sentence="Checkpoints are slow.")
    Run.objects.filter(job__name="c-stopped").update(state="stopped", ended_at=timezone.now())
    response = browser.get("/jobs/")
    assert [(line.job.name, line.health.health) for line in response.context["lines"]] == [
        ("b-failed", Level.FAILED.word), ("a-well", Level.OK.word), ("c-stopped", Level.NONE.word),
    ]  # fmt: skip
    assert "Checkpoints are slow." not in blocks.text(response)
    failing = browser.get(f"/jobs/?health={Level.FAILED.word}").context["lines"]
    assert [line.job.name for line in failing] == ["b-failed"]


def test_a_disk_that_is_nearly_full_is_a_finding_of_each_run_under_way(settings: Settings, tmp_path: Path) -> None:
    settings.WEIR_STORAGE = tmp_path
    run = rows.run(rows.job())
    assert "low-disk" not in _rules_of(run)
    settings.WEIR_MIN_FREE_MB = 1 << 30
    cache.clear()
    assert "low-disk" in _rules_of(run)


def _rules_of(run: Run) -> set[str]:
    store_verdicts()
    return {finding["rule"] for finding in JobHealth.objects.get(job=run.job_id).findings}


def test_the_acknowledgements_of_a_slow_checkpoint_are_read() -> None:
    run = rows.run(rows.job("slow"))
    at_ms = {"at_ms": [400, 4_100.5]}
    for number, duration_ms, expected in ((7, 9_000, 4_100.5), (8, 300, None)):
        rows.checkpoint(run, number, duration_ms=duration_ms, acknowledgements={"join": at_ms}, is_stored=False)
        newest = collect([run], timezone.now())[run.pk].checkpoints.newest
        assert newest is not None
        assert (newest.number, newest.acknowledged_ms) == (number, expected)


def test_a_run_whose_verdict_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, late = sick("broken", 5), sick("late", 5)

    def collect_others(runs: Sequence[Run], *arguments: Any) -> Mapping[int, RunFacts]:
        if broken in runs:
            raise KeyError("rows_in")
        return collect(runs, *arguments)

    monkeypatch.setattr(housekeeping, "_retry_at", {})
    monkeypatch.setattr(verdicts, "collect", collect_others)
    store_verdicts()
    assert JobHealth.objects.get().run_id == late.pk
    Job.objects.filter(pk=late.job_id).update(latest_run=None)
    store_verdicts()
    monkeypatch.setattr(housekeeping, "_retry_at", {broken.pk: 0.0})  # it is due
    with pytest.raises(KeyError):
        store_verdicts()


def test_void_verdicts_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were replaced in the order of their age, while each reader made them again."""
    for name in ("a", "b", "changed", "new"):
        sick(name, 5)
    store_verdicts()
    JobHealth.objects.filter(job__name="new").delete()
    JobHealth.objects.exclude(job__name="changed").update(checked_at=timezone.now() - timedelta(seconds=20))
    Run.objects.filter(job__name="changed").update(token=9_999)
    order: list[str] = []

    def collect_in_order(runs: Sequence[Run], *arguments: Any) -> Mapping[int, RunFacts]:
        order.extend(run.job.name for run in runs)
        return collect(runs, *arguments)

    monkeypatch.setattr(housekeeping, "_RUNS_AT_A_TIME", 1)
    monkeypatch.setattr(verdicts, "collect", collect_in_order)
    store_verdicts()
    assert set(order[:2]) == {"changed", "new"}


def test_a_run_whose_verdict_fails_is_left_out_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the oldest of each pass, which then checked its neighbours one by one and reached no others."""
    broken = sick("broken", 5)
    sick("late", 5)
    sizes: list[int] = []

    def collect_others(runs: Sequence[Run], *arguments: Any) -> Mapping[int, RunFacts]:
        sizes.append(len(runs))
        if broken in runs:
            raise KeyError("rows_in")
        return collect(runs, *arguments)

    monkeypatch.setattr(housekeeping, "_retry_at", {})
    monkeypatch.setattr(verdicts, "collect", collect_others)
    store_verdicts()
    assert sizes == [2, 1, 1]
    store_verdicts()
    assert sizes[3:] == [1]
    monkeypatch.setattr(housekeeping, "_retry_at", {broken.pk: 0.0})
    store_verdicts()
    assert sizes[4:] == [2, 1, 1]


def test_the_facts_of_many_runs_cost_the_queries_of_one() -> None:
    def queries(runs: list[Run]) -> int:
        with CaptureQueriesContext(connection) as counted:
            collect(runs, timezone.now())
        return len(counted)

    sick_runs = [sick(f"job-{number}", 1) for number in range(6)]
    runs = list(Run.objects.filter(pk__in=[run.pk for run in sick_runs]).select_related("version", "job"))
    assert queries(runs) == queries(runs[:1]) == 1


def test_the_predecessors_behind_forward_edges_are_facts() -> None:
    run = rows.run(rows.job())
    join, window = (collect([run], timezone.now())[run.pk].operators[uid] for uid in ("join", "window"))
    assert (join.inputs, join.forward_inputs) == (("prepared", "airlines"), ("prepared",))
    assert (window.inputs, window.forward_inputs) == (("join",), ())


def test_only_partitions_that_may_hold_the_facts_are_planned() -> None:
    """Postgres took 31 ms to plan 270 partitions, and then read three."""
    run, now = sick("planned", 1), timezone.now()
    for days in (1, 0):
        create_partitions(now - timedelta(days=days))
    with CaptureQueriesContext(connection) as capture:
        collect([run], now)
    (statement,) = (query["sql"] for query in capture.captured_queries if "metrics" in query["sql"])
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}")
        assert not [line for (line,) in cursor.fetchall() if "Subplans Removed" in line]


def test_superseded_and_aborted_checkpoints_are_not_counted_as_failures() -> None:
    run = sick("late", 5)
    for number, reason in enumerate(("expired", "subsumed", "declined_subsumed", "suspended"), 8):
        rows.checkpoint(run, number, status="failed", reason=reason)
    facts = collect([run], timezone.now())[run.pk].checkpoints
    assert (facts.failed, facts.failed_number, facts.failed_reason) == (1, 8, "expired")


def test_the_subtasks_of_the_last_half_minute_become_facts() -> None:
    """Means over the samples of the current attempt; a watermark stands still since its last change."""
    run, now = rows.run(rows.job()), timezone.now()
    for number in range(12):
        columns = {
            "index": [0, 1],
            "records_in": [0, 0],
            "records_out": [50, 0],
            "busy": [0.25, 1.0],
            "backpressured": [0.5, 0.0],
            "watermark": [number * 5_000, 7],
            "in_flight_bytes": [0, 0],
        }
        at = now - timedelta(seconds=5 * (12 - number))
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators={"flights": columns})
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token - 1, operators={"flights": {}})
    facts = collect([run], now)[run.pk]
    first, second = facts.operators["flights"].subtasks
    assert (facts.flow_s, facts.watermark_s) == (35.0, 55.0)
    assert (first.records_per_s, first.busy, first.backpressured) == (10.0, 0.25, 0.5)
    assert (first.still_s, first.advance_ms, second.still_s, second.advance_ms) == (0.0, 55_000, 55.0, 0)
    assert facts.operators["window"].inputs == ("join",)


def test_a_source_without_records_is_a_fact_since_its_last_ones() -> None:
    """Within the samples by 5 s; before them by the history; a run that never had records since its start."""
    run, now = rows.run(rows.job()), timezone.now()
    create_partitions(now)
    begins = [now - timedelta(seconds=5 * number) for number in range(15, 0, -1)]
    for begin in begins:
        columns = {name: [0] for name in ("records_in", "records_out", "busy", "backpressured", "in_flight_bytes")}
        operators = {"flights": {"index": [0], "watermark": [7], **columns}}
        SubtaskMetrics.objects.create(run_id=run.pk, at=begin, token=run.token, operators=operators)

    def silent_since() -> datetime | None:
        return collect([run], now)[run.pk].operators["flights"].silent_since

    assert silent_since() == run.started_at
    records = {"step_s": 5, "run_id": run.pk, "operator": "flights", "token": 1, "span_ms": 5_000, "records_in": 0,
               "bytes_in": 0, "bytes_out": 0}  # fmt: skip
    for seconds, sent in ((400, 70), (130, 70), (125, 0)):
        Metrics.objects.create(at=now - timedelta(seconds=seconds), records_out=sent, **records)
    assert silent_since() == now - timedelta(seconds=125), "by the history"
    samples = SubtaskMetrics.objects.order_by("at")
    for number, expected in ((-4, begins[-3]), (-1, None)):
        sample = list(samples)[number]
        sample.operators["flights"]["records_out"] = [3]
        SubtaskMetrics.objects.filter(run_id=run.pk, at=sample.at).update(operators=sample.operators)
        assert silent_since() == expected


@pytest.mark.parametrize(
    ("hours", "expected_s"), [(0.4, 24 * 60), (2.1, 2.1 * 3_600), (23.9, 23.9 * 3_600), (25, 25 * 3_600)]
)
def test_the_age_of_a_silence_never_runs_backwards(hours: float, expected_s: float) -> None:
    """It was cut to whole minutes after 10 min, to quarters after 2 h, and to 75 s after a day."""
    now = timezone.now()
    create_partitions(now)
    create_partitions(now - timedelta(days=1))
    last_at = now - timedelta(hours=hours)
    run = rows.run(rows.job(), began_ago=timedelta(days=3))
    samples(run, now)
    rows.health(run, Level.OK, "", silent_inputs=[("flights", "`flights`", last_at.isoformat())])
    for step_s in (60, 900):
        at = datetime.fromtimestamp((last_at.timestamp() - 1) // step_s * step_s, UTC)
        Metrics.objects.create(step_s=step_s, run_id=run.pk, at=at, operator="flights", token=run.token, **sent(70))
    history(run, "flights", 60, 3)
    former = JobHealth.objects.get()

    def silence_s(former: JobHealth | None) -> float:
        since = collect([run], now, {run.pk: former} if former else None)[run.pk].operators["flights"].silent_since
        assert since is not None
        return (now - since).total_seconds()

    assert silence_s(former) == pytest.approx(expected_s, abs=0.001)
    assert 75 < silence_s(None) <= expected_s
    former.token -= 1
    assert silence_s(former) == silence_s(None), "of another attempt"
    history(run, "flights", 60, 5, records_out=70)
    assert silence_s(JobHealth.objects.get()) < 300, "records have come since"


def test_a_minute_that_is_in_no_quarter_yet_ends_a_silence() -> None:
    """The newest quarter with records was taken for the last records, although later minutes had some."""
    run, now = rows.run(rows.job()), timezone.now()
    samples(run, now)
    for step_s, minutes_ago in ((900, 60), (60, 21)):
        history(run, "flights", step_s, minutes_ago, records_out=600)
    since = collect([run], now)[run.pk].operators["flights"].silent_since
    assert since is not None
    assert timedelta(minutes=19) < now - since <= timedelta(minutes=21)


def test_a_source_that_never_sent_a_record_exceeds_the_limit_of_its_job() -> None:
    """Its silence slid with its oldest sample, so no limit above 75 s was ever reached."""
    run = rows.run(rows.job(), live=rows.live(), began_ago=timedelta(minutes=10))
    Job.objects.update(max_silence_s=500)
    samples(run, timezone.now())
    assert "input-silent" in _rules_of(run)


def sent(records: int) -> dict[str, int]:
    return {"span_ms": 5_000, "records_in": 0, "records_out": records, "bytes_in": 0, "bytes_out": 0}


def samples(run: Run, now: datetime) -> None:
    """The newest samples of `flights`, without records."""
    for number in range(15, 0, -1):
        columns = {name: [0] for name in ("records_in", "records_out", "busy", "backpressured", "in_flight_bytes")}
        operators = {"flights": {"index": [0], "watermark": [7], **columns}}
        at = now - timedelta(seconds=5 * number)
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators=operators)


def test_a_silent_source_is_shown_on_the_page_in_the_list_and_over_rest(browser: Client, api: APIClient) -> None:
    run = rows.run(rows.job(), live=rows.live())
    samples(run, timezone.now())
    store_verdicts()
    page = blocks.text(browser.get(f"/jobs/{run.job_id}/"))
    assert "No records from flights for 3 h 12 min" in page
    assert "no records from flights for 3 h 12 min" in blocks.text(browser.get("/jobs/"))
    (silent,) = api.get(f"/api/v1/jobs/{run.job_id}/").json()["health"]["silent_inputs"]
    assert silent["operator"] == "flights"
    assert 'weir_input_silent_since_timestamp_seconds{job_name="flights-delays",operator="flights"}' in (
        api.get("/metrics").content.decode()
    )
    assert "input-silent" not in _rules_of(run)
    changed = api.patch(f"/api/v1/jobs/{run.job_id}/", {"max_silence_s": 60}, headers={"If-Match": "*"})
    assert (changed.status_code, changed.json()["max_silence_s"]) == (200, 60)
    assert "input-silent" in _rules_of(run)
    refused = api.patch(f"/api/v1/jobs/{run.job_id}/", {"max_silence_s": 5}, headers={"If-Match": "*"})
    assert refused.status_code == 422


def history(run: Run, operator: str, step_s: int, minutes_ago: float, **numbers: Any) -> None:
    """A row of the interval of `step_s` seconds that lies `minutes_ago`."""
    at = datetime.fromtimestamp((timezone.now().timestamp() - minutes_ago * 60) // step_s * step_s, UTC)
    fields = {"span_ms": step_s * 1000, "records_in": 0, "records_out": 0, "bytes_in": 0, "bytes_out": 0, **numbers}
    Metrics.objects.create(step_s=step_s, run_id=run.pk, at=at, operator=operator, token=0, **fields)


def test_the_last_hours_become_facts() -> None:
    """Lag and the newest records of a source by minutes, its records by quarters, durations of an hour ago."""
    run = rows.run(rows.job())
    for minutes_ago, lag_ms in ((19, 60_000), (16, 70_000), (3, 400_000), (1.5, 390_000)):
        history(run, "flights", 60, minutes_ago, processing_lag_ms=lag_ms)
    for minutes_ago in range(40, 40 + MIN_USUAL_MINUTES):
        history(run, "flights", 60, minutes_ago, records_out=600)
    history(run, "prepared", 60, 40, records_out=600)
    for quarter, records in ((4, 9_000), (3, 0), (2, 27_000), (1, 0)):
        history(run, "flights", 900, 15 * quarter + 5, records_out=records)
    for minutes_ago, took_ms in ((110, 300.0), (90, 500.0), (70, 900.0), (5, 7_000.0)):
        history(run, "", 60, minutes_ago, checkpoint_ms=took_ms)
    history(run, "", 5, 0.2, event_lag_ms=8_000)
    history(run, "", 5, 0.5, event_lag_ms=7_000)
    facts = collect([run], timezone.now())[run.pk]
    flights = facts.operators["flights"]
    assert (flights.usual_per_s, facts.lag_ms, facts.behind_newest_ms) == (10.0, None, 8_000)
    assert facts.operators["prepared"].usual_per_s == 0.0, "a single minute is not the usual rate"
    assert flights.lag_ms == (70_000, 390_000)
    assert (flights.sent.quarters, flights.sent.with_records, flights.sent.per_s) == (3, 2, 20.0)
    assert facts.checkpoints.earlier_ms == 500.0
    assert facts.checkpoints.timeout_ms == 60_000


@pytest.mark.parametrize(("days", "records", "is_silent"), [(1, 0, True), (7, 0, True), (7, 9, False), (6, 0, False)])
def test_a_pause_at_the_same_time_a_day_or_a_week_ago_is_a_fact(days: int, records: int, is_silent: bool) -> None:
    run, now = rows.run(rows.job()), timezone.now()
    create_partitions(now - timedelta(days=days))
    for minutes_ago in range(40, 40 + MIN_USUAL_MINUTES):
        history(run, "flights", 60, minutes_ago, records_out=600)
    history(run, "prepared", 60, 40, records_out=600)
    history(run, "flights", 900, days * 1_440, records_out=records)
    assert collect([run], now)[run.pk].operators["flights"].sent.was_silent_before is is_silent


def test_the_newest_savepoint_is_a_fact_while_it_has_failed() -> None:
    run = rows.run(rows.job())

    def failed() -> int | None:
        savepoint = collect([run], timezone.now())[run.pk].failed_savepoint
        return None if savepoint is None else savepoint.number

    rows.checkpoint(run, 7, kind="savepoint", is_stored=False)
    assert failed() is None
    rows.checkpoint(run, 8, kind="savepoint", status="failed", reason="expired")
    rows.checkpoint(run, 9, kind="savepoint", status="failed", reason="suspended")
    rows.checkpoint(run, 10, is_stored=False)
    assert failed() == 8, "an abort by a cancel is no failure"
    triggered, minute = timezone.now() - timedelta(seconds=68), timedelta(minutes=1)
    Checkpoint.objects.filter(number=8).update(triggered_at=triggered, completed_at=triggered + minute)
    failure = collect([run], timezone.now())[run.pk].failed_savepoint
    assert failure is not None
    assert failure.failed_at == triggered + minute, "its failure counts, not its trigger"
    rows.checkpoint(run, 11, kind="savepoint", is_stored=False)
    assert failed() is None


def test_the_api_has_health_with_every_finding(api: APIClient) -> None:
    run = sick("late", 5.1)
    store_verdicts()
    listed: dict[str, Any] = api.get("/api/v1/jobs/").json()["results"][0]["health"]
    now = api.get(f"/api/v1/runs/{run.pk}/").json()["health"]
    for health in (listed, now):
        assert health["level"] == "attention"
        assert health["sentence"].startswith("No checkpoint has completed for 5 min")
        (finding,) = health["findings"]
        assert (finding["rule"], finding["operator"], finding["checkpoint"]) == ("checkpoints-overdue", "", None)
        assert finding["since"]
        assert finding["remedy"]


def test_a_verdict_that_is_too_old_is_the_last_known_one(browser: Client) -> None:
    """An outage of the console's worker makes no job sick, and none looks well."""
    sick("well", 0.02)
    sick("late", 5.1)
    store_verdicts()
    assert "Last known" not in blocks.text(browser.get("/jobs/"))
    JobHealth.objects.update(checked_at=timezone.now() - timedelta(seconds=45))
    said = blocks.text(browser.get("/jobs/"))
    assert "Running, health not checked" in said
    assert "Last known, 45 s ago: Checkpoints take 0.31 s" in said
    assert said.count("Running, needs attention") == 1
    assert "Last known, 45 s ago: No checkpoint has completed for 5 min" in said
    assert [line.job.name for line in browser.get("/jobs/?health=attention").context["lines"]] == ["late"]
    assert not browser.get("/jobs/?health=ok").context["lines"]


def test_the_admin_lists_verdicts_by_urgency(browser: Client) -> None:
    for name, minutes in (("well", 0.02), ("late", 5)):
        sick(name, minutes)
    store_verdicts()
    path = "/admin/health/jobhealth/"
    assert [row.job.name for row in browser.get(path).context["cl"].result_list] == ["late", "well"]
    assert [row.job.name for row in browser.get(f"{path}?level=ok").context["cl"].result_list] == ["well"]


@pytest.mark.parametrize(
    ("state", "kind", "other"), [("stopping", "stop", "drain"), ("draining", "drain", "stop"),
                                  ("cancelling", "cancel", "stop"), ("starting", "start", "stop")]
)  # fmt: skip
def test_the_change_of_state_under_way_has_its_begin_and_the_longest_before(state: str, kind: str, other: str) -> None:
    run, now = rows.run(rows.job(), state), timezone.now()
    for minutes in (1, 4, 2):
        begun = now - timedelta(days=minutes)
        rows.operation(run.job, kind, run=None, created_at=begun, ended_at=begun + timedelta(minutes=minutes))
    rows.operation(run.job, other, created_at=now - timedelta(hours=9), ended_at=now)
    Attempt.objects.create(run=run, token=run.token, started_at=now - timedelta(minutes=30))
    rows.operation(run.job, kind, "running", run=run, started_at=now - timedelta(minutes=30))
    change = collect([run], now)[run.pk].change
    assert change is not None
    assert (change.since, change.longest_ms) == (now - timedelta(minutes=30), 240_000)
    run.live = {}
    (finding,) = [each for each in assess(collect([run], now)[run.pk]).findings if each.rule == "slow-change"]
    assert "has taken 30 min, the longest before 4 min." in finding.sentence
    run.state = "running"
    Run.objects.filter(pk=run.pk).update(state="running")
    assert collect([run], now)[run.pk].change is None


def test_a_drill_that_fails_makes_the_job_sick_until_the_next_one_succeeds() -> None:
    run = sick("proven", 0.02)
    snapshot = run.checkpoints.get()

    def level(state: str, **facts: Any) -> Level:
        rows.operation(run.job, "drill", state, **{"params": {"checkpoint": snapshot.pk}, **facts})
        store_verdicts()
        return Level(JobHealth.objects.get().level)

    assert level("succeeded") is Level.OK
    error = {"code": "attempt-failed", "message": "The file a.arrow is missing."}
    now = timezone.now()
    partial = {"checkpoint": snapshot.pk, "allow_unmapped": True}
    assert level("failed", error=error, created_at=now, params=partial) is Level.OK, "it proves nothing"
    assert level("failed", error=error, created_at=now) is Level.ATTENTION
    said = JobHealth.objects.get().sentence
    assert said.startswith("The newest restore drill of snapshot 7 failed ")
    assert said.endswith(" ago: The file a.arrow is missing.")
    assert level("running", created_at=now + timedelta(seconds=1)) is Level.ATTENTION
    assert level("succeeded", created_at=now + timedelta(seconds=2)) is Level.OK
