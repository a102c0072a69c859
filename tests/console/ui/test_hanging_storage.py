"""Pages and the API while the storage of checkpoints hangs: no thread of a request reads from it."""

import io
import os
import threading
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.checkpoints import timed_reads
from console.jobs.models import Run
from tests.console.conftest import api_as
from tests.console.stored import job_root
from tests.console.ui import blocks, every_page, rows
from tests.waiting import until

WAIT_S = 30
AWAY = "Checkpoint storage does not answer."


@pytest.fixture
def answers(running: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Set once the storage answers. Until then it hangs, and a read by the thread of a request fails the test."""
    event, root = Event(), str(settings.WEIR_STORAGE)

    def hang(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if not event.is_set() and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(root):
                assert threading.current_thread().name == "storage-read", f"{path}: read by the thread of a request"
                assert event.wait(WAIT_S)
            return function(path, *args, **kwargs)

        return read

    monkeypatch.setattr(timed_reads, "TIMEOUT_S", 0.02)
    monkeypatch.setattr(timed_reads, "MAX_HANGING", 100)
    with monkeypatch.context() as patched:
        for module, name in ((os, "stat"), (os, "lstat"), (os, "scandir"), (os, "statvfs"), (io, "open")):
            patched.setattr(module, name, hang(getattr(module, name)))
        yield event
        event.set()
        until(lambda: all(read.result.done() for read in timed_reads._reads.values()))
    timed_reads._reads.clear()


@pytest.fixture
def console(running: Run) -> Client:
    client = Client()
    client.force_login(User.objects.get(username="operator"))
    return client


@pytest.fixture
def api(running: Run) -> APIClient:
    return api_as(User.objects.get(username="operator"))


def test_no_page_waits_for_storage(running: Run, console: Client, answers: Event) -> None:
    savepoint = running.checkpoints.filter(kind="savepoint").latest("number")
    restored = rows.run(rows.job("restored"), restore_path=str(job_root(running.job_id) / savepoint.path))
    paths = every_page.pages_of_running_job(running)
    paths |= {"run-restored": f"/runs/{restored.pk}/", "savepoint-page": f"/checkpoints/{savepoint.pk}/"}
    names = []
    for name, path in paths.items():
        answer = console.get(path)
        assert answer.status_code == 200, path
        names += [name] if AWAY in blocks.text(answer) else []
    assert names == ["job-node", "discard", "state", "compare", "retention", "orphans", "restore", "evidence"]
    assert "Checkpoints Does not answer" in blocks.text(console.get("/cluster/"))


def test_a_page_has_the_content_once_storage_answers(running: Run, console: Client, answers: Event) -> None:
    pages = every_page.pages_of_running_job(running)
    for name in ("restore", "state", "orphans"):
        assert AWAY in blocks.text(console.get(pages[name]))
    answers.set()
    until(lambda: "What will happen" in blocks.text(console.get(pages["restore"])))
    until(lambda: "States by operator" in blocks.text(console.get(pages["state"])))
    until(lambda: "Each folder has its checkpoint." in blocks.text(console.get(pages["orphans"])))


def test_no_endpoint_waits_for_storage(running: Run, api: APIClient, answers: Event) -> None:
    job, folder = f"/api/v1/jobs/{running.job_id}", str(job_root(running.job_id))
    checkpoint = running.checkpoints.filter(status="completed", kind="checkpoint").latest("number")
    savepoint = running.checkpoints.filter(kind="savepoint", status="completed").latest("number")
    url = f"/api/v1/checkpoints/{checkpoint.pk}"
    for path, status in (
        (f"{url}/mapping/", 503), (f"{job}/mapping/?path={folder}/{savepoint.path}", 503), (f"{url}/state/", 503),
        (f"{url}/evidence/", 200), (f"{url}/", 200), ("/api/v1/cluster/", 200), (f"{job}/checkpoints/retention/", 200),
        (f"{job}/checkpoints/orphans/", 200),
        (f"{job}/checkpoints/compare/?base={savepoint.number}&other={checkpoint.number}", 200),
    ):  # fmt: skip
        assert api.get(path).status_code == status, path
    rollback = {"end_run": "stop", "accept_repeated_output": True}
    for kind, params in (
        ("rollback", {"checkpoint": checkpoint.pk, **rollback}), ("rescale", {"parallelism": 1}),
        ("discard", {"checkpoint": savepoint.pk}), ("clone", {"checkpoint": checkpoint.pk}),
        ("copy", {"checkpoint": savepoint.pk, "target": f"{folder}/copies"}),
    ):  # fmt: skip
        answer = api.post(f"{job}/operations/", {"kind": kind, "params": params}, format="json")
        assert (kind, answer.status_code, answer.json()["code"]) == (kind, 503, "storage-away")
    response = api.post(f"{url}/state-queries/", {"operator": "window", "state": "state"}, format="json")
    assert response.status_code == 503
