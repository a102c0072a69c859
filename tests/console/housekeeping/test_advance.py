"""File work of operations, beside the passes that watch runs."""

import os
import pkgutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest
from django.db import connection
from django.db.models import F, Q
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.housekeeping import reconciler
from console.housekeeping.advance import advance_operations
from console.jobs.models import Job
from console.operations.kinds.snapshot.discard import Discard
from console.operations.models import Operation
from console.operations.services import OperationRequestContext, request
from runtime.core.snapshot.pins import PINS_FOLDER
from runtime.io.filesystem import FileStore
from tests.console.stored import job_root
from tests.console.ui import rows

WAIT_S = 30


def in_thread(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_runs_are_watched_while_files_are_deleted(operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion of a large folder stopped the reconciler for all jobs."""
    run = rows.run(rows.job())
    savepoint = rows.checkpoint(run, 5, "savepoint")
    request(OperationRequestContext(user=operator), run.job, "discard", {"checkpoint": savepoint.pk})
    start = rows.operation(run.job, "start", "queued", run=run)
    delete, is_deleting, may_end = FileStore.delete, Event(), Event()

    def delete_slowly(store: FileStore, paths: Iterable[str]) -> None:
        is_deleting.set()
        assert may_end.wait(WAIT_S)
        delete(store, paths)

    monkeypatch.setattr(FileStore, "delete", delete_slowly)
    with ThreadPoolExecutor(1) as worker:
        deletion = worker.submit(in_thread, advance_operations)
        assert is_deleting.wait(WAIT_S)
        reconciler.reconcile()
        start.refresh_from_db()
        assert start.state == "succeeded"
        advance_operations()  # another pass leaves the work to the first
        assert Operation.objects.get(kind="discard").is_active
        may_end.set()
        deletion.result(WAIT_S)
    assert Operation.objects.get(kind="discard").state == "succeeded"
    assert not (job_root(run.job_id) / savepoint.path).exists()


def take_next_number(job: Job) -> None:
    """The job master gets the number of the next checkpoint, as `next_checkpoint_id` of `queries.sql` does."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
    Job.objects.filter(pk=job.pk).update(last_checkpoint_id=F("last_checkpoint_id") + 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("kind", "access"),
    [
        ("clone", "os.link"),
        ("discard", "runtime.io.filesystem.FileStore.get"),
        ("rollback", "runtime.io.filesystem.FileStore.get"),
    ],
)
def test_the_running_job_takes_checkpoints_while_its_files_are_accessed(
    operator: User, monkeypatch: pytest.MonkeyPatch, kind: str, access: str
) -> None:
    """The request held the row of the job, which the job master updates."""
    run = rows.run(rows.job())
    params = {"checkpoint": rows.checkpoint(run, 5, "savepoint").pk}
    rows.checkpoint(run, 6)
    original, accesses = pkgutil.resolve_name(access), count()

    def access_meanwhile(*args: Any, **kwargs: Any) -> Any:
        next(accesses)
        with ThreadPoolExecutor(1) as master:
            master.submit(in_thread, partial(take_next_number, run.job)).result(WAIT_S)
        return original(*args, **kwargs)

    before = Job.objects.get(pk=run.job_id).last_checkpoint_id
    with monkeypatch.context() as slow:
        slow.setattr(access, access_meanwhile)
        if kind == "rollback":
            params |= {"accept_repeated_output": True}
        request(OperationRequestContext(user=operator), run.job, kind, params)
    assert Job.objects.get(pk=run.job_id).last_checkpoint_id == before + next(accesses) > before


@pytest.mark.django_db(transaction=True)
def test_a_pin_keeps_the_files_of_a_checkpoint_before_its_clone_takes_the_first(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention does not wait for the request."""
    snapshot = rows.checkpoint(rows.run(rows.job()), 5)
    pin = job_root(snapshot.job_id) / PINS_FOLDER / f"console-{snapshot.pk}.json"
    link = os.link
    pinned: list[bool] = []

    def link_pinned(source: Any, target: Any) -> None:
        pinned.append(pin.exists())
        link(source, target)

    monkeypatch.setattr("os.link", link_pinned)
    request(OperationRequestContext(user=operator), snapshot.job, "clone", {"checkpoint": snapshot.pk})
    assert set(pinned) == {True}


@pytest.mark.django_db(transaction=True)
def test_an_error_of_one_kind_of_work_stops_no_other(operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the query that selects its operations: it ended the pass, before the kinds behind it."""
    run = rows.run(rows.job())
    savepoint = rows.checkpoint(run, 1, kind="savepoint")
    context = OperationRequestContext(user=operator)
    verification = request(context, run.job, "verify", {"checkpoint": savepoint.pk}).operation
    monkeypatch.setattr(Discard, "files_due", Q(no_such_column=1))
    assert advance_operations()
    verification.refresh_from_db()
    assert not verification.is_active, verification.state


def test_another_queue_than_that_of_the_reconciler_has_the_file_work(settings: Settings) -> None:
    routes = settings.CELERY_TASK_ROUTES
    assert routes["console.tasks.advance_operations"] != routes["console.tasks.reconcile"]
    assert settings.CELERY_BEAT_SCHEDULE["advance-operations"]["task"] == "console.tasks.advance_operations"
