"""The page of the cluster: places, queue, slots, storage, versions."""

import re
from pathlib import Path

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from console.health.housekeeping import store_verdicts
from tests.console.ui import blocks, rows


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
    assert "Database Answers" in said
    assert re.search(r"Postgres \d", said)
    assert re.search(r"free of", said)


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
