"""The census of Celery workers: a real worker on a real broker, old answers at once, a broker that is gone."""

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from django.db import connection, connections

from console.celery import app
from console.pages import workers
from console.pages.workers import Answer, Worker, WorkerCensus, ask_workers
from stack.settings import ROOT
from tests.waiting import until

NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
PATIENCE_S = 60.0


def test_a_worker_answers_with_its_queues_and_places(broker_url: str) -> None:
    options: dict[str, Any] = {"pool": "threads", "concurrency": 2, "perform_ping_check": False}
    options |= {"hostname": "runs-1@here", "queues": ["first", "second"]}  # other tests leave tasks in those of runs
    with start_worker(app, **options):
        workers = until(lambda: [worker for worker in ask_workers() if worker.queues])
    assert workers == [Worker("runs-1@here", ("first", "second"), places=2, busy=0)]


@pytest.mark.django_db(transaction=True)
def test_a_worker_keeps_its_connection_until_postgres_ends_it(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    backends: list[int] = []

    @app.task(queue="connections", serializer="json")
    def note_backend(is_last: bool = False) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.append(cursor.fetchone()[0])
        if is_last:
            connection.close()

    def run(number: int, **arguments: Any) -> None:
        note_backend.apply_async(kwargs=arguments)
        until(lambda: len(backends) == number)

    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, queues=["connections"]):
        run(1)
        run(2)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [backends[0]])
        run(3, is_last=True)
    assert backends[0] == backends[1] != backends[2]


def test_an_answer_comes_at_once_and_an_old_one_starts_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    questions, may_answer = threading.Semaphore(0), threading.Event()

    def ask() -> tuple[Worker, ...]:
        questions.release()
        may_answer.wait(PATIENCE_S)
        return (Worker("a", ("runs",), 2, 1),)

    census = WorkerCensus(ask)
    assert census.last() is None
    assert questions.acquire(timeout=PATIENCE_S)
    assert census.last() is None, "while the workers are being asked"
    may_answer.set()
    answer = until(census.last)
    assert answer is not None
    assert answer.workers[0].free == 1
    assert census.last() is answer
    assert not questions.acquire(timeout=0.2), "a young answer starts no question"
    monkeypatch.setattr(workers, "_MAX_AGE", timedelta(0))
    assert census.last() is answer
    assert questions.acquire(timeout=PATIENCE_S)
    monkeypatch.setattr(workers, "_CURRENT", timedelta(0))
    assert census.last() is None, "rows of the database contradict an answer of long ago"


def test_a_broker_that_is_gone_is_named() -> None:
    def ask() -> tuple[Worker, ...]:
        raise ConnectionRefusedError

    census = WorkerCensus(ask)
    census.last()
    answer = until(census.last)
    assert answer is not None
    assert answer.error == "The broker does not answer: ConnectionRefusedError."


def test_free_places_are_summed_by_queue() -> None:
    workers = (
        Worker("a", ("runs",), 2, 1),
        Worker("b", ("runs", "stages"), 3, 0),
        Worker("c", ("housekeeping",), 1, 4),
    )
    answer = Answer(at=None, workers=workers)  # type: ignore[arg-type]
    assert answer.queues == (("housekeeping", 1, 0), ("runs", 5, 4), ("stages", 3, 3))


@pytest.mark.parametrize(
    ("answer", "wait"),
    [
        (None, ""),
        (
            Answer(NOW, (Worker("a", ("runs",), 4, 4), Worker("b", ("stages",), 2, 0))),
            "All places for runs (4) are in use",
        ),
        (Answer(NOW, (Worker("a", ("runs",), 4, 4), Worker("b", ("runs",), 2, 1))), ""),
        (Answer(NOW, (Worker("b", ("stages",), 2, 0),)), "No worker for runs answers"),
        (Answer(NOW), "No worker for runs answers"),
        (Answer(NOW, error="The broker does not answer: TimeoutError."), ""),
    ],
)
def test_a_new_run_waits_if_the_workers_have_just_said_so(
    answer: Answer | None, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CENSUS", SimpleNamespace(last=lambda: answer))
    said = workers.wait_of_new_run()
    assert said.startswith(wait)
    assert bool(said) is bool(wait)


def test_a_worker_starts_without_the_pages() -> None:
    """Six processes of a stack start so: each would load forms, serializers and templates of pages it never shows."""
    start = "import sys; from console.celery import app; app.loader.import_default_modules()"
    program = f"{start}; print('console.tasks' in sys.modules, 'console.urls' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["True", "False"]
