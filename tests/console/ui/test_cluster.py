"""The page of the cluster: places, queue, slots, storage, versions."""

import re
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from console.health.housekeeping import store_verdicts
from console.jobs.models import Run
from console.pages.cluster import read_cluster
from console.pages.workers import Worker, WorkerCensus
from tests.console.ui import blocks, rows
from tests.waiting import until


def test_the_cluster_shows_who_holds_places_and_who_waits(at_console: Client) -> None:
    running = rows.run(rows.job("alpha"), lease_owner="node-1:4711:abc")
    rows.checkpoint(running, 7)
    store_verdicts()
    queued = rows.run(rows.job("beta"), "queued", live=None, live_at=None)
    rows.run(rows.job("gamma"), "stopped")
    with CaptureQueriesContext(connection) as counted:
        said = blocks.text(at_console.get("/cluster/"))
    assert len(counted) <= 8
    assert re.search(rf"alpha {running.pk} Running node-1:4711 2 of 2", said)
    assert re.search(rf"beta {queued.pk} a worker of the queue runs 2", said)
    assert "gamma" not in said
    assert "Runs with a worker 1 Waiting runs 1 Slots in use 2" in said
    assert "Database Ok Broker" in said
    assert re.search(r"Postgres \d", said)
    assert re.search(r"\d % used, \S+ \S+ free of", said)


def test_storage_that_cannot_be_read_is_called_so(at_console: Client, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.WEIR_STORAGE, settings.WEIR_INPUTS = tmp_path / "file" / "below", tmp_path / "new"
    said = blocks.text(at_console.get("/cluster/"))
    assert "Checkpoints Cannot be read" in said
    assert "Inputs from Spark no such folder yet" in said


def test_an_empty_cluster_says_so(at_console: Client) -> None:
    said = blocks.text(at_console.get("/cluster/"))
    assert "No run waits." in said
    assert "No worker supervises a run." in said


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that answer the page's question."""
    answering = [Worker("runs-1@h1", ("runs",), 2, 2), Worker("stages@h1", ("stages",), 3, 0)]
    worker_census = WorkerCensus(lambda: tuple(answering))
    monkeypatch.setattr("console.pages.workers.CENSUS", worker_census)
    worker_census.last()
    until(worker_census.last)
    return answering


def test_idle_workers_and_free_places_by_queue_are_shown(at_console: Client, census: list[Worker]) -> None:
    rows.run(rows.job(), lease_owner="node-1:4711:abc")
    said = blocks.text(at_console.get("/cluster/"))
    assert "2 of 2 places for runs in use: the next start waits Runs with a worker 1 of 2 Waiting runs 0" in said
    assert "Queue runs none of 2 places free one run in each place Queue stages 3 of 3 places free" in said
    assert said.count("the next start waits") == 1
    assert "each place executes one task at a time" in said
    assert "runs-1@h1 runs Executes 2 2 0" in said
    assert "stages@h1 stages Idle 3 3" in said


def test_a_cluster_without_workers_says_so(at_console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.pages.workers.CENSUS", worker_census := WorkerCensus(lambda: ()))
    assert "The workers are being asked." in blocks.text(at_console.get("/cluster/"))
    until(worker_census.last)
    assert "No Celery worker answers." in blocks.text(at_console.get("/cluster/"))


def test_the_graphs_of_the_runs_are_not_read(at_console: Client) -> None:
    """500 graphs of 50 KB were 25 MB at each poll."""
    batch = rows.run(rows.job(version={"graph": {**rows.GRAPH, "mode": "batch"}}))
    streaming = rows.run(rows.job("other"))
    with CaptureQueriesContext(connection) as counted:
        cluster = read_cluster()
    assert {place.run: place.live.flowing for place in cluster.places} == {batch: False, streaming: True}
    assert not [query["sql"] for query in counted if re.search(r'"graph"(?! ->> )', query["sql"])]


def test_a_run_links_its_spark_ui_while_records_flow(at_console: Client) -> None:
    run = rows.run(rows.job(), live=rows.live(spark_ui="http://10.0.0.5:4040"))
    assert f'id="spark-{run.pk}" href="http://10.0.0.5:4040"' in at_console.get("/cluster/").content.decode()
    Run.objects.update(state="restarting")
    assert "10.0.0.5" not in at_console.get("/cluster/").content.decode()


@pytest.mark.django_db(transaction=True)
def test_the_cluster_is_live(at_console: Client, census: list[Worker]) -> None:
    run = rows.run(rows.job(), lease_owner="node-1:4711:abc")
    page = at_console.get("/cluster/")
    assert "data-poll" in page.content.decode()
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(page).items())
    first = at_console.get("/cluster/", headers={"HX-Request": "true", "X-Blocks": digests})
    headers = {"HX-Request": "true", "X-Blocks": digests, "If-None-Match": first["ETag"]}
    assert at_console.get("/cluster/", headers=headers).status_code == 304
    Run.objects.filter(pk=run.pk).update(state="queued", lease_owner="")
    poll = at_console.get("/cluster/", headers=headers)
    assert {"queue", "places"} <= blocks.swapped(poll)
    assert "a worker of the queue runs" in blocks.text(poll)
