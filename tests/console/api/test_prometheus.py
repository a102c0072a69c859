"""`/metrics`: a scrape of a real run, and the queries of the Grafana dashboard against it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from console.accounts.models import User
from console.alerts.models import Channel
from console.health.housekeeping import store_verdicts
from console.jobs.models import Attempt, Job, Run
from console.operations.models import Operation, Schedule
from console.runs import lost_leases
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun, api_as
from tests.console.metrics.test_history import running
from tests.jobs.gated import Gated
from tests.jobs.numbers import counts
from tests.waiting import until

DASHBOARD = Path(__file__).parents[3] / "docker" / "grafana-dashboard.json"
Samples = Mapping[str, list[tuple[dict[str, str], float]]]


def scrape(client: Client) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"].startswith("text/plain; version=")
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def queries() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
            first = re.findall(r"weir_[a-z_]+", target["expr"])[0]
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                yield f"{first}{{{label}=~'.*'}}"
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"])
def test_a_collector_needs_to_accept_no_json(accept: str, api: APIClient) -> None:
    """Telegraf accepts text and protobuf only."""
    assert api.get("/metrics", headers={"accept": accept})["Content-Type"].startswith("text/plain")


@pytest.mark.django_db(transaction=True)
def test_every_query_of_the_dashboard_finds_series_of_a_real_run(tmp_path: Path) -> None:
    """Names and labels of each expression, of each legend and of the variable are in the scrape of a run."""
    source = Gated(total=1_000)
    with running(counts(source, tmp_path / "out"), tmp_path / "s") as (run, _):
        Attempt.objects.create(run=run, token=run.token)
        api = api_as(run.job.created_by)  # type: ignore[arg-type]

        def is_complete() -> bool:
            samples = scrape(api)
            records = sum(
                value for labels, value in samples.get("weir_records_in_total", []) if labels["operator"] == "counts"
            )
            checkpoints = sum(value for _, value in samples.get("weir_checkpoints_completed_total", []))
            return (
                records == 1_000 * source.splits
                and checkpoints > 0
                and "weir_last_recovery_point_timestamp_seconds" in samples
            )

        until(is_complete)
        Operation.objects.create(job=run.job, kind="savepoint", state="queued")
        lost_leases.observe_leases()
        samples = scrape(api)
    assert len(set(queries())) > 20
    for query in queries():
        names = re.findall(r"\bweir_[a-z_]+", query)
        assert names, query
        for name in names:
            # The source has no event time, so two names have no sample here; `test_each_number_…` has them.
            if name in ("weir_watermark_lag_seconds", "weir_event_time_lag_seconds"):
                continue
            assert name in samples, query
            labels = set(re.findall(r"(\w+)=~", query)) | set(re.findall(r"by \((\w+)\)", query))
            labels |= set(re.findall(r"label_values\(\w+, (\w+)\)", query))
            assert all(labels <= sample.keys() for sample, _ in samples[name]), query
    console_queries = {query for query in queries() if "{" not in query and "label_values" not in query}
    assert {name for query in console_queries for name in re.findall(r"weir_[a-z_]+", query)} == {
        "weir_operations", "weir_operation_queued_timestamp_seconds", "weir_reconciler_pass_timestamp_seconds",
    }  # fmt: skip
    assert {labels["job_name"] for labels, _ in samples["weir_records_in_total"]} == {run.job.name}
    assert {labels["phase"] for labels, _ in samples["weir_checkpoint_phase_seconds"]} >= {"alignment", "sync", "async"}


@pytest.mark.django_db
def test_each_number_has_its_base_unit(api: APIClient, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    operator = {"records_in": 7, "busy": 0.5, "backpressured": 0.25, "watermark": 1_500, "processing_lag_ms": 2_500,
                "event_lag_ms": 500, "in_flight_bytes": 64}  # fmt: skip
    live = {
        "operators": {"sums": operator},
        "slots": [{"index": 1, "cpu_ms": 1_250, "memory_bytes": 4_096}, {"index": 2, "cpu_ms": None}],
        "checkpoints": {"completed": 3, "failed": 1, "duration_ms": 250, "written_bytes": 9, "phases": {"sync": 12.0}},
        "state_bytes": {"sums": 1_024},
    }
    run = make_run(RunState.RUNNING, token=1, live=live)
    for token in (1, 2, 3):
        Attempt.objects.create(run=run, token=token)
    make_checkpoint(run, 1, triggered_at="2026-01-01T00:00:00Z", completed_at="2026-01-01T00:00:09Z")
    make_checkpoint(run, 2, kind="savepoint", completed_at="2026-01-02T00:00:00Z")
    make_checkpoint(run, 3, status="failed")
    values = {name: samples[0][1] for name, samples in scrape(api).items() if not name.startswith("weir_health")}
    assert values == {
        "weir_run_state": 1, "weir_restarts_total": 2, "weir_records_in_total": 7, "weir_busy_ratio": 0.5,
        "weir_backpressured_ratio": 0.25, "weir_idle_ratio": 0.25, "weir_watermark_timestamp_seconds": 1.5,
        "weir_watermark_lag_seconds": 2.5, "weir_event_time_lag_seconds": 0.5, "weir_in_flight_bytes": 64,
        "weir_state_bytes": 1_024, "weir_slot_cpu_seconds_total": 1.25, "weir_slot_memory_bytes": 4_096,
        "weir_checkpoints_completed_total": 3, "weir_checkpoints_failed_total": 1,
        "weir_checkpoint_duration_seconds": 0.25, "weir_checkpoint_written_bytes": 9,
        "weir_checkpoint_phase_seconds": 0.012, "weir_last_recovery_point_timestamp_seconds": 1_767_225_600,
    }  # fmt: skip


@pytest.mark.django_db
def test_a_run_that_has_ended_or_reported_nothing_has_its_state_only(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.STOPPED, live={"operators": {"sums": {"records_in": 1}}})
    assert dict(scrape(api)) == {"weir_run_state": [({"job_name": run.job.name, "state": "stopped"}, 1.0)]}
    make_run(RunState.QUEUED)
    assert scrape(api)["weir_run_state"][0][0]["state"] == "queued"


@pytest.mark.django_db
def test_the_console_has_numbers_of_its_own(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.RUNNING, token=1)
    for kind, state in (("savepoint", "queued"), ("savepoint", "queued"), ("stop", "running"), ("pin", "succeeded")):
        Operation.objects.create(job=run.job, kind=kind, state=state)
    earlier = timezone.now() - timedelta(hours=2)
    Operation.objects.create(job=run.job, kind="drain", state="failed", created_at=earlier)
    oldest = Operation.objects.create(job=run.job, kind="drain", state="queued", created_at=earlier)
    lost_leases.observe_leases()
    run.refresh_from_db()
    samples = scrape(api)
    counts = {(labels["kind"], labels["state"]): value for labels, value in samples["weir_operations"]}
    numbers = {("savepoint", "queued"): 2, ("stop", "running"): 1, ("pin", "succeeded"): 1, ("drain", "queued"): 1}
    assert counts == numbers, "an old operation that has ended is left out"
    assert samples["weir_operation_queued_timestamp_seconds"][0][1] == pytest.approx(oldest.created_at.timestamp())
    assert run.observed_at is not None
    assert samples["weir_reconciler_pass_timestamp_seconds"][0][1] == pytest.approx(run.observed_at.timestamp())


@pytest.mark.django_db
def test_the_oldest_alert_that_waits_is_a_sample(api: APIClient) -> None:
    name, now = "weir_alert_waiting_timestamp_seconds", timezone.now()
    channel = Channel.objects.create(name="night shift", address="https://hooks.example.com")
    channel.deliveries.create(event="test", message={}, created_at=now - timedelta(hours=1), delivered_at=now)
    assert name not in scrape(api)
    waiting = channel.deliveries.create(event="test", message={}, created_at=now - timedelta(minutes=9))
    channel.deliveries.create(event="test", message={}, created_at=now)
    assert scrape(api)[name][0][1] == pytest.approx(waiting.created_at.timestamp())
    Channel.objects.update(is_enabled=False)
    assert name not in scrape(api)


@pytest.mark.django_db
def test_a_missed_time_of_a_schedule_is_a_sample(api: APIClient, make_run: MakeRun, operator: User) -> None:
    job, missed_at = make_run(RunState.RUNNING, token=1).job, timezone.now()
    rule = {"job": job, "owner": operator, "every_hours": 6, "next_at": missed_at}
    Schedule.objects.create(operation="savepoint", name="nightly", keep=3, missed_at=missed_at, **rule)
    Schedule.objects.create(operation="drill", **rule)
    ((labels, value),) = scrape(api)["weir_schedule_missed_timestamp_seconds"]
    assert labels == {"job_name": job.name, "operation": "savepoint"}
    assert value == pytest.approx(missed_at.timestamp())


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["post", "put", "delete", "options"])
def test_another_method_than_get_is_refused(api: APIClient, client: Client, method: str) -> None:
    """As a problem document, also for a client that accepts no JSON."""
    client.raise_request_exception = api.raise_request_exception = False
    assert getattr(api, method)("/metrics").status_code == (200 if method == "options" else 405)
    assert getattr(client, method)("/metrics").status_code in (401, 403)


@pytest.mark.django_db
def test_a_scrape_needs_a_login_and_few_queries(api: APIClient, client: Client, make_run: MakeRun) -> None:
    """With a token as the rest of the API, or a browser session."""
    make_run(RunState.RUNNING, token=1)
    assert client.get("/metrics").status_code == 401
    with CaptureQueriesContext(connection) as captured:
        scrape(api)
    tables = re.findall(
        r'FROM "(weir_job|weir_run|weir_job_health|weir_operation|weir_schedule)"',
        " ".join(query["sql"] for query in captured),
    )
    assert Counter(tables) == {"weir_job": 2, "weir_operation": 2, "weir_run": 3, "weir_schedule": 1}


@pytest.mark.django_db
def test_the_health_of_a_job_is_a_number_and_a_sample_per_rule(api: APIClient, make_run: MakeRun) -> None:
    run = make_run(RunState.QUEUED)
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(minutes=1))
    store_verdicts()
    samples = scrape(api)
    assert samples["weir_health_level"] == [({"job_name": run.job.name}, 2.0)]
    assert samples["weir_health_finding"] == [({"job_name": run.job.name, "rule": "no-worker"}, 1.0)]
    now = timezone.now()
    expired = {"observed_at": now, "observed_since": now - timedelta(seconds=6), "observed_beat": 0}
    Run.objects.filter(pk=run.pk).update(state="running", started_at=now, lease_owner="worker", lease_beat=0, **expired)
    store_verdicts()
    assert scrape(api)["weir_health_level"] == [({"job_name": run.job.name}, 2.0)], "a fail-over is under way"
    Run.objects.filter(pk=run.pk).update(observed_since=now - timedelta(minutes=1))
    store_verdicts()
    samples = scrape(api)
    assert samples["weir_health_level"] == [({"job_name": run.job.name}, 3.0)]
    assert samples["weir_health_finding"] == [({"job_name": run.job.name, "rule": "lost-lease"}, 1.0)]
    Run.objects.filter(pk=run.pk).update(state="canceled")
    store_verdicts()
    assert "weir_health_level" not in scrape(api)


@pytest.mark.django_db
def test_an_alert_on_a_job_that_fails_for_good_does_not_clear(api: APIClient, make_run: MakeRun) -> None:
    """Its level stays until the next run begins, or until the job is archived."""
    failed = make_run(RunState.FAILED, failure={"code": "attempt-failed", "message": "no such luck"})
    store_verdicts()
    samples = scrape(api)
    assert samples["weir_health_level"] == [({"job_name": failed.job.name}, 3.0)]
    assert samples["weir_health_finding"] == [({"job_name": failed.job.name, "rule": "run-failed"}, 1.0)]
    assert "weir_health_checked_timestamp_seconds" not in samples, "a verdict that is final has an old time"
    Job.objects.update(archived_at=timezone.now())
    assert "weir_health_level" not in scrape(api)
    Job.objects.update(archived_at=None, latest_run=Run.objects.create(job=failed.job, version=failed.version,
                                                                      parallelism=1, state="queued"))  # fmt: skip
    assert scrape(api)["weir_health_level"] == [({"job_name": failed.job.name}, 1.0)], "of the next run"
