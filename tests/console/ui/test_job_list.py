"""The list of jobs: what a line says, what is counted, how it is paged, and what it costs."""

import html
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console import formats
from console.formats import MAX_LIVE_LAG_MS
from console.health.findings import Level
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.jobs.models import Attempt, Job, JobVersion, Run
from console.metrics.models import Metrics
from console.ui.plots import shapes
from console.ui.plots.sparkline import sparkline
from tests.console.ui import blocks, numbers, rows

#: Session and user; how many stand where; the jobs, their runs, newest checkpoints and active operations; numbers;
#: saved views.
LIST_QUERIES = 9


def test_an_empty_list_teaches_the_next_step(at_console: Client) -> None:
    response = at_console.get("/jobs/")
    assert "No jobs yet." in blocks.text(response)
    assert 'href="/jobs/new/"' in response.content.decode()


def test_the_list_shows_state_wanted_last_checkpoint_and_rates(at_console: Client) -> None:
    job = rows.job()
    run = rows.run(job)
    rows.checkpoint(run, 213)
    rows.operation(job, "stop", "running", run=run)
    said = blocks.text(at_console.get("/jobs/"))
    assert "flights-delays" in said
    assert "Running for 3 h 12 min" in said
    assert "desired state: stopped · stop running" in said
    assert "Checkpoint 213" in said
    assert "84 k/s" in said
    assert "12 /s" in said
    assert "watermark 2013-06-12 08:00" in said


@pytest.mark.parametrize(
    ("state", "kind", "desired"),
    [("running", "", ""), ("restarting", "", "running"), ("queued", "", "running"), ("failed", "", "running"),
     ("finished", "", ""), ("stopping", "", "stopped"), ("running", "drain", "finished"),
     ("running", "cancel", "canceled")],
)  # fmt: skip
def test_the_desired_state_is_named_where_it_differs_from_the_state(
    at_console: Client, state: str, kind: str, desired: str
) -> None:
    """A column of its own equalled the state in most rows."""
    run = rows.run(rows.job(), state)
    if kind:
        rows.operation(run.job, kind, "queued", run=run)
    for path in ("/jobs/", f"/jobs/{run.job_id}/"):
        page = at_console.get(path).content.decode()
        assert (f"desired state: <strong>{desired}</strong>" in page) == bool(desired)
        assert ("desired state" in page) == bool(desired)


def test_nobody_desires_a_run_that_failed_as_it_was_stopped_or_whose_job_is_archived(at_console: Client) -> None:
    job = rows.job()
    run = rows.run(job, "failed", failure={"code": "commit-failed", "message": "out: the disk is full"})
    assert "<strong>running</strong>" not in at_console.get("/jobs/").content.decode()
    Run.objects.filter(pk=run.pk).update(failure={"code": "final", "message": "division by zero"})
    assert "<strong>running</strong>" in at_console.get("/jobs/").content.decode()
    Job.objects.filter(pk=job.pk).update(archived_at=timezone.now())
    listed = at_console.get("/jobs/?archived=1").content.decode()
    assert job.name in listed
    assert "<strong>running</strong>" not in listed


def test_a_line_says_since_when_a_job_has_its_state_as_its_page_does(
    at_console: Client, operator: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list named the begin of the run: "for 3 h" of a job that ran again for minutes, or was sick for seconds."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    recovered, slow = numbers.recovered_run(), numbers.slow_run()
    store_verdicts()
    for run, begin in ((recovered, "again for "), (slow, r"for (?:under 1|\d+) s · running for 3 h 12 min")):
        head = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
        match = re.search(r"Running(?:, needs attention)? ((?:again )?for .*?) version ", head)
        assert match is not None
        assert re.match(begin, match[1])
        said = blocks.text(at_console.get("/jobs/", {"q": run.job.name, "sort": "name"}))
        assert f"{match[1]} · seen" in said


def test_the_list_counts_the_findings_that_the_job_page_shows(at_console: Client, operator: object) -> None:
    """S3: backpressure by the operator that slow checkpoints name is no finding of its own."""
    run = numbers.slow_run()
    store_verdicts()
    assert {"checkpoints-slow", "backpressure"} <= {each["rule"] for each in JobHealth.objects.get().findings}
    findings = at_console.get(f"/jobs/{run.job_id}/").context["view"].health.verdict.others
    (line,) = at_console.get("/jobs/").context["lines"]
    assert line.health.others == findings


def test_a_row_draws_rate_and_checkpoints_of_the_last_hour(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 1)
    numbers.record(run, hours=1, fine_minutes=1)
    page = at_console.get("/jobs/").content.decode()
    labels = re.findall(r'<svg class="spark under" role="img" aria-label="([^"]+)"', page)
    assert len(labels) == 2
    assert re.fullmatch(r"Longest checkpoint over the last hour: [\d.]+ m?s to [\d.]+ m?s, last 0\.31 s", labels[0])
    assert re.fullmatch(r"Records read over the last hour: [\d.]+ k?/s to [\d.]+ k/s, last 84 k/s", labels[1])
    assert "Lines: the last hour" in page


def test_a_line_of_the_last_hour_ends_at_the_number_beside_it() -> None:
    """The last interval is not over, and the line fell to it."""
    line = sparkline("Records read", [None, 80_000.0, 60_000.0, None], 84_000.0, formats.rate)
    assert line is not None
    assert line.about == "Records read over the last hour: 80 k/s to 84 k/s, last 84 k/s"
    assert line.path == shapes.line([None, 80_000.0, 84_000.0, None], 84_000.0)
    ended = sparkline("Records read", [80_000.0, 60_000.0, None], None, formats.rate)
    assert ended is not None
    assert ended.about.endswith("last 60 k/s")
    assert sparkline("Records read", [None, 80_000.0], 84_000.0, formats.rate) is None


def test_the_list_has_a_line_for_a_job_that_never_ran(at_console: Client) -> None:
    rows.job()
    said = blocks.text(at_console.get("/jobs/"))
    assert "Never started" in said
    assert "none yet" in said
    assert "flights · version 1" in said, "as its page does"
    assert '<td data-label="Parallelism" class="number">2</td>' in at_console.get("/jobs/").content.decode()
    JobVersion.objects.all().delete()
    assert "version 1" not in blocks.text(at_console.get("/jobs/"))


def test_the_list_shows_no_rates_of_a_run_that_does_not_flow(at_console: Client) -> None:
    rows.run(rows.job(), "restarting")
    said = blocks.text(at_console.get("/jobs/"))
    assert "Restarting" in said
    assert "k/s" not in said


def test_the_list_filters_by_state_and_by_name(at_console: Client) -> None:
    rows.run(rows.job("alpha"), "failed")
    rows.run(rows.job("beta"))
    assert "beta" not in blocks.live(at_console.get("/jobs/?state=failed"))["jobs"]
    assert "alpha" not in blocks.live(at_console.get("/jobs/?q=bet"))["jobs"]
    assert "No job matches." in blocks.text(at_console.get("/jobs/?q=gamma"))
    assert "Failed 1" in blocks.text(at_console.get("/jobs/"))


def test_the_list_takes_the_same_few_queries_for_many_jobs(at_console: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as counted:
            at_console.get("/jobs/")
        return len(counted)

    rows.checkpoint(rows.run(rows.job("first")), 1)
    store_verdicts()
    count = queries()
    for state in ("running", "restarting", "stopping", "stopped", "failed"):
        rows.checkpoint(rows.run(rows.job(state), state), 1)
    store_verdicts()
    assert queries() == count == LIST_QUERIES


def test_the_list_is_paged_by_name_and_counts_all(at_console: Client) -> None:
    names = sorted(f"Job {number:02} & more" for number in range(53))
    for name in reversed(names):
        rows.job(name)
    rows.run(Job.objects.get(name=names[-1]), "stopped")
    first = at_console.get("/jobs/")
    assert [line.job.name for line in first.context["lines"]] == names[:50]
    assert "All 53" in blocks.text(first)
    assert "Never started 52 " in blocks.text(first)
    following = html.unescape(re.findall(r'id="page-next" href="([^"]+)"', first.content.decode())[0])
    second = at_console.get(f"/jobs/{following}")
    assert [line.job.name for line in second.context["lines"]] == names[50:]
    assert 'id="page-next"' not in second.content.decode()
    assert 'id="page-first" href="/jobs/"' in second.content.decode()
    assert "Finished or stopped 1 " in blocks.text(first), "as the states of its jobs"
    assert 'href="?state=ended"' in second.content.decode(), "a filter begins with its first page"
    assert [line.job.name for line in at_console.get("/jobs/?state=ended").context["lines"]] == names[-1:]
    assert len(at_console.get("/jobs/?state=new").context["lines"]) == 50


@pytest.mark.parametrize("strange", ["state=none", "after=%00", "q=%00%27", "after=zzz"])
def test_a_list_of_nothing_is_a_page(at_console: Client, strange: str) -> None:
    rows.job()
    assert at_console.get(f"/jobs/?{strange}").status_code == 200


def test_the_list_of_a_reader_says_why_there_is_no_new_job(reading: Client) -> None:
    said = blocks.text(reading.get("/jobs/"))
    assert "New job" not in said
    assert "You may not define jobs" in said


def test_the_list_is_sorted_by_a_column_both_ways_and_paged_in_that_order(
    at_console: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.ui.paging.NAMES_PER_PAGE", 2)
    for name, parallelism, restarts in (("alpha", 2, 0), ("beta", 8, 3), ("gamma", 4, 1), ("delta", 8, 0)):
        run = rows.run(rows.job(name), parallelism=parallelism, live=rows.live(restarts=0))
        for number in range(restarts + 1):
            Attempt.objects.create(run=run, token=100 * run.pk + number)
        rows.checkpoint(run, 1, triggered_at=timezone.now() - timedelta(hours=restarts), is_stored=False)
    rows.job("never")

    def listed(sort: str) -> list[str]:
        names, after = [], ""
        while True:
            page = at_console.get("/jobs/", {"sort": sort, "after": after}).context
            names += [line.job.name for line in page["lines"]]
            if not (after := page["jobs"].older):
                return names

    assert listed("-parallelism") == ["beta", "delta", "gamma", "alpha", "never"]
    assert listed("parallelism") == ["alpha", "never", "gamma", "beta", "delta"], "that of the first version"
    assert listed("-restarts")[:2] == ["beta", "gamma"]
    counts = {line.job.name: line.restarts for line in at_console.get("/jobs/?sort=-restarts").context["lines"]}
    assert counts == {"beta": 3, "gamma": 1}, "the present job master has restarted none of them"
    beta = Job.objects.get(name="beta")
    assert 'restarts <span class="q">3</span>' in blocks.live(at_console.get(f"/jobs/{beta.pk}/"))["head"]
    assert listed("checkpoint")[:3] == ["never", "beta", "gamma"]
    page = at_console.get("/jobs/?sort=-restarts").content.decode()
    assert 'aria-sort="descending"><a id="sort-restarts" href="?sort=restarts"' in page
    assert "aria-sort" in at_console.get("/jobs/?sort=nonsense").content.decode()


def verdict(name: str, level: Level, *, state: str = "running", seconds_ago: int = 1, of_newest: bool = True) -> Job:
    """A job with a stored verdict, on its newest run or on an earlier one."""
    now = timezone.now()
    run = rows.run(rows.job(name), state)
    rows.health(
        run, level, "Sick.", run_id=run.pk if of_newest else run.pk - 1_000,
        checked_at=now - timedelta(seconds=seconds_ago),
    )  # fmt: skip
    return run.job


def test_the_list_filters_by_the_health_that_its_lines_show(at_console: Client) -> None:
    verdict("failing", Level.FAILED)
    verdict("attention", Level.ATTENTION)
    verdict("well", Level.OK)
    verdict("stale", Level.OK, seconds_ago=45)
    verdict("of-another-run", Level.FAILED, of_newest=False)
    verdict("young", Level.FAILED, of_newest=False).runs.update(created_at=timezone.now())
    verdict("ended", Level.FAILED, state="failed", seconds_ago=900)
    verdict("ended-since", Level.FAILED, state="stopped", of_newest=False)
    rows.run(rows.job("never-checked"))
    rows.job("never-ran")
    shown = {line.job.name: line.health.health for line in at_console.get("/jobs/").context["lines"]}
    unchecked = {"of-another-run", "young", "never-checked"}  # made at once; the next pass stores them for the filter
    assert {shown[name] for name in unchecked} == {"attention"}
    levels = {name: its for name, its in shown.items() if name not in unchecked}
    for level in ("failed", "attention", "ok"):
        page = at_console.get(f"/jobs/?health={level}")
        names = {line.job.name for line in page.context["lines"]}
        assert names == {name for name, its in levels.items() if its == level}, level
        assert f'id="health-{level}" href="/jobs/" aria-current="true"' in page.content.decode()
    assert levels["stale"] == "unknown"
    said = blocks.text(at_console.get("/jobs/"))
    assert "Failing 2" in said
    assert "Needs attention 1" in said
    assert "Well 1" in said
    csv = at_console.get("/jobs.csv?health=ok").getvalue().decode()
    assert "well" in csv
    assert "stale" not in csv


@pytest.mark.parametrize(("column", "key"), [("records_in", "rate"), ("records_out", "rate_out")])
def test_the_list_is_sorted_by_the_rate_of_the_newest_minute(at_console: Client, column: str, key: str) -> None:
    now = timezone.now()
    for name, records, minutes in (("slow", 60, 1), ("fast", 6_000, 1), ("long-ago", 90_000, 10), ("ended", 90_000, 1)):
        run = rows.run(rows.job(name), state="stopped" if name == "ended" else "running")
        for age, factor in ((minutes, 1), (minutes + 1, 1_000)):
            Metrics.objects.create(
                step_s=60, run_id=run.pk, at=now - timedelta(minutes=age), operator="", token=0, span_ms=60_000,
                bytes_in=0, bytes_out=0, **{"records_in": 0, "records_out": 0, column: records * factor},
            )  # fmt: skip
    rows.job("never")

    def listed(sort: str) -> list[str]:
        return [line.job.name for line in at_console.get("/jobs/", {"sort": sort}).context["lines"]]

    assert listed(f"-{key}") == ["fast", "slow", "ended", "long-ago", "never"]
    assert listed(key) == ["ended", "long-ago", "never", "slow", "fast"]


def test_the_list_has_the_lag_of_the_page_and_is_sorted_by_it(
    at_console: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs whose records flow, by a recent row: the unknown lag of the others comes last."""
    monkeypatch.setattr("console.ui.paging.NAMES_PER_PAGE", 2)
    now, runs = timezone.now(), {}
    lags = (("behind", 213_000, 6, "running"), ("stops", 400, 6, "stopping"), ("even", 400, 6, "running"),
            ("history", 900_000, 6, "running"),
            ("silent", 900_000, 40, "running"), ("restarts", 900_000, 6, "restarting"))  # fmt: skip
    behind_clock = {"behind": (7, 214_000), "even": (0, 500), "stops": (7, 400), "history": (7, MAX_LIVE_LAG_MS)}
    for name, lag_ms, age_s, state in lags:
        records, wall_ms = behind_clock.get(name, (0, None))
        runs[name] = run = rows.run(rows.job(name), state)
        for older_s, value in ((0, lag_ms), (5, lag_ms + 1_000)):
            Metrics.objects.create(
                step_s=5, run_id=run.pk, at=now - timedelta(seconds=age_s + older_s), operator="", token=run.token,
                span_ms=5_000, records_in=records, records_out=0, bytes_in=0, bytes_out=0, event_lag_ms=value,
                processing_lag_ms=wall_ms,
            )  # fmt: skip

    def listed(sort: str) -> dict[str, int | None]:
        lag_by_name: dict[str, int | None] = {}
        after = ""
        while True:
            page = at_console.get("/jobs/", {"sort": sort, "after": after}).context
            lag_by_name |= {line.job.name: line.lag_ms for line in page["lines"]}
            if not (after := page["jobs"].older):
                return lag_by_name

    rows.job("never")
    lag = {"behind": 214_000, "even": 500, "stops": 400, "history": None, "never": None, "restarts": None,
           "silent": None}  # fmt: skip
    assert list(listed("-lag").items()) == list(lag.items())
    assert list(listed("lag")) == ["history", "never", "restarts", "silent", "stops", "even", "behind"]
    said = blocks.text(at_console.get("/jobs/?q=behind"))
    assert "3 min 34 s" in said
    assert "watermark 2013" not in said, "the lag is shown in its place"
    assert "Lag 3 min 34 s" in blocks.text(at_console.get(f"/jobs/{runs['behind'].job_id}/"))
    assert at_console.get("/jobs/?sort=-lag").context["lines"][0].job.name == "behind"


def test_an_owner_in_the_list_leads_to_the_jobs_of_that_owner(at_console: Client) -> None:
    job = rows.job("alpha")
    Job.objects.filter(pk=job.pk).update(owner="team data")
    rows.job("beta")
    page = at_console.get("/jobs/?sort=name").content.decode()
    assert f'id="job-{job.pk}-owner" href="?sort=name&amp;owner=team+data">team data</a>' in page
    assert [line.job.name for line in at_console.get("/jobs/?owner=team+data").context["lines"]] == ["alpha"]


def test_a_job_whose_health_is_not_checked_comes_before_jobs_that_are_well(at_console: Client) -> None:
    """As its line says: the order is by the level that the page shows."""
    verdict("a-well", Level.OK)
    verdict("b-stale", Level.OK, seconds_ago=3_600)
    rows.job("c-never-ran")
    verdict("d-failing", Level.FAILED)
    names = [line.job.name for line in at_console.get("/jobs/").context["lines"]]
    assert names == ["d-failing", "b-stale", "a-well", "c-never-ran"]


def test_the_active_operation_of_a_job_is_that_on_its_run(at_console: Client) -> None:
    job = rows.job()
    run = rows.run(job)
    rows.operation(job, "stop", "running", run=run)
    rows.operation(job, "copy", "queued")
    said = blocks.text(at_console.get("/jobs/"))
    assert "stop running" in said
    assert "copy queued" not in said


def test_a_rescale_stands_for_its_parts(at_console: Client) -> None:
    job = rows.job()
    run = rows.run(job)
    rescale = rows.operation(job, "rescale", "running", run=run)
    rows.operation(job, "stop", "running", run=run, part_of=rescale, created_at=rescale.created_at)
    said = blocks.text(at_console.get("/jobs/"))
    assert "desired state: rescaled · rescale running" in said
    assert "stop running" not in said
