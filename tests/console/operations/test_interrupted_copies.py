"""A copy under way in another process: it holds no transaction, excludes other passes, and survives SIGKILL."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from console.checkpoints.models import Checkpoint
from console.housekeeping.advance import FILE_WORK_LOCK, advance_operations
from console.operations.models import Operation
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE
from tests.console.stored import job_root
from tests.console.ui import rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def backup(tmp_path: Path, settings: Any) -> Path:
    settings.WEIR_SAVEPOINT_ROOTS = (*settings.WEIR_SAVEPOINT_ROOTS, str(tmp_path / "backup"))
    return tmp_path / "backup"


@pytest.fixture
def copies(backup: Path) -> list[Operation]:
    """Two copies of a savepoint, in two folders; the first is older."""
    savepoint = rows.checkpoint(rows.run(rows.job(), "stopped"), 5, kind="stop")
    operations = []
    for name in ("first", "second"):
        params = {"checkpoint": savepoint.pk, "target": str(backup / name)}
        operations.append(Operation.objects.create(job=savepoint.job, kind="copy", params=params))
    return operations


@contextmanager
def paused_copier(backup: Path, settings: Any) -> Iterator["subprocess.Popen[str]"]:
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**connection.settings_dict),
        "WEIR_STORAGE": str(settings.WEIR_STORAGE),
        "WEIR_SAVEPOINT_ROOTS": str(backup),
    }
    command = [sys.executable, "-m", "tests.console.programs.copier"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as copier:
        try:
            assert copier.stdout is not None
            assert copier.stdout.readline() == "paused\n"
            yield copier
        finally:
            copier.kill()


def states(copies: list[Operation]) -> list[str]:
    for row in copies:
        row.refresh_from_db()
    return [row.state for row in copies]


def folders(backup: Path) -> list[str]:
    return sorted(str(path.relative_to(backup)) for path in backup.glob("*/*"))


def test_a_copy_holds_no_transaction_and_excludes_another_pass(
    copies: list[Operation], backup: Path, settings: Any
) -> None:
    with paused_copier(backup, settings) as copier:
        assert states(copies) == ["running", "queued"]
        assert copies[0].started_at is not None
        assert re.fullmatch(r"copying files: [\d.]+ (B|KiB) of [\d.]+ MiB", copies[0].phase)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'"
            )
            assert cursor.fetchone() == (0,)
        advance_operations()
        assert states(copies) == ["running", "queued"], "a console makes one copy at a time"
        copier.communicate("go on\n", timeout=60)
    assert states(copies) == ["succeeded", "succeeded"]


def test_the_next_pass_makes_the_copy_of_a_worker_that_was_killed(
    copies: list[Operation], backup: Path, settings: Any
) -> None:
    with paused_copier(backup, settings) as copier:
        copier.kill()
    assert states(copies) == ["running", "queued"]
    path = Checkpoint.objects.get().path
    assert folders(backup) == [f"first/{path}"]
    assert not (backup / "first" / path / MANIFEST_FILE).exists(), "it is no savepoint yet"
    _wait_for_release()
    advance_operations()
    assert states(copies) == ["succeeded", "succeeded"]
    assert folders(backup) == [f"first/{path}", f"second/{path}"]


def test_a_copy_of_a_killed_worker_fails_if_its_savepoint_is_gone(
    copies: list[Operation], backup: Path, settings: Any
) -> None:
    with paused_copier(backup, settings) as copier:
        copier.kill()
    savepoint = Checkpoint.objects.get()
    (job_root(savepoint.job_id) / savepoint.path / "join-0/state.arrow").unlink()
    _wait_for_release()
    advance_operations()
    assert states(copies) == ["failed", "failed"]
    assert (copies[0].error or {})["code"] == "corrupt-checkpoint"


def _wait_for_release() -> None:
    """Postgres sees the end of a killed client a moment later; the periodic pass simply comes again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [FILE_WORK_LOCK])
        cursor.execute("SELECT pg_advisory_unlock(%s)", [FILE_WORK_LOCK])
