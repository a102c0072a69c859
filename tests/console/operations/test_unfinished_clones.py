"""Clones whose process dies between the copy of their files and the insertion of their rows."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import STORAGE_MARKER
from console.housekeeping.advance import advance_operations
from console.jobs.models import Job
from console.operations.models import Operation
from console.operations.restores import clones
from console.operations.services import OperationRequestContext, request
from runtime.errors import EnvironmentFailure
from tests.console.stored import job_root
from tests.console.ui import rows

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 60


@pytest.fixture
def snapshot() -> Checkpoint:
    return rows.checkpoint(rows.run(rows.job()), 5, "savepoint")


def folders(settings: Settings) -> set[str]:
    return {entry.name for entry in Path(settings.WEIR_STORAGE).iterdir()} - {STORAGE_MARKER}


def test_the_files_of_a_process_that_died_are_deleted_and_named(
    operator: User, snapshot: Checkpoint, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed, and no page or log named them."""
    before = folders(settings)
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**connection.settings_dict),
        "WEIR_STORAGE": str(settings.WEIR_STORAGE),
    }
    command = [sys.executable, "-m", "tests.console.programs.cloner", str(operator.pk), str(snapshot.pk)]
    assert subprocess.run(command, env=environment, timeout=WAIT_S, check=False).returncode == 9
    left = folders(settings) - before
    (name,) = (each for each in left if each.isdecimal())
    assert not Job.objects.filter(pk=name).exists()
    key = clones._LOCKS + int(name)
    with connection.cursor() as cursor:  # Postgres sees the end of the process a moment later
        cursor.execute("SELECT pg_advisory_lock(%s)", [key])
        cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
    monkeypatch.setattr(clones, "log", log := Mock())
    advance_operations()
    assert folders(settings) == before
    log.warning.assert_called_once_with("an unfinished clone is deleted", folder=str(job_root(int(name))))
    assert not Operation.objects.exists()


def test_a_file_with_another_name_hides_no_mark(settings: Settings) -> None:
    """The pass ended at it, and the files of later clones stayed."""
    other, mark = (Path(settings.WEIR_STORAGE) / clones._MARKS / name for name in ("x", "99999999"))
    other.parent.mkdir()
    other.touch()
    mark.touch()
    clones.delete_unfinished_clones()
    assert (other.exists(), mark.exists()) == (True, False)
    shutil.rmtree(other.parent)


def test_a_pass_leaves_a_clone_that_is_being_created(
    operator: User, snapshot: Checkpoint, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, before = clones.create_clone, folders(settings)

    def work() -> None:
        try:
            advance_operations()
        finally:
            connection.close()

    def create_after_a_pass(*args: Any) -> Any:
        with ThreadPoolExecutor(1) as worker:
            worker.submit(work).result(WAIT_S)
        return create(*args)

    monkeypatch.setattr("console.operations.kinds.snapshot.clone.create_clone", create_after_a_pass)
    row = request(OperationRequestContext(user=operator), snapshot.job, "clone", {"checkpoint": snapshot.pk}).operation
    assert folders(settings) - before == {str((row.result or {})["job"])}, "its mark is removed"


def test_a_mark_that_could_not_be_removed_costs_no_clone(
    operator: User, snapshot: Checkpoint, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = folders(settings)

    def fail(*_: Any, **__: Any) -> None:
        raise EnvironmentFailure("Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("runtime.io.filesystem.FileStore.delete", fail)
        row = request(
            OperationRequestContext(user=operator), snapshot.job, "clone", {"checkpoint": snapshot.pk}
        ).operation
    advance_operations()
    assert folders(settings) - before == {str((row.result or {})["job"])}
