"""A savepoint that was moved, from request to last record: the console's rows, a real master, threads as slots."""

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.jobs.models import Job, JobVersion, Run
from console.runs import run_store
from runtime.clock import SystemClock
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.filesystem import FileStore
from runtime.io.postgres.store import PostgresRunStore, load_run
from runtime.launch.local import LocalLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from tests.console.compiled import compiled_graph
from tests.contracts.test_records import url
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts

HALF, WHOLE = Numbers(total=300, unbounded=True), Numbers(total=500)


def moved_savepoint(job: Job, folder: Path) -> Path:
    """Of a run that this database knows nothing of."""
    flow = counts(HALF, folder / "out")
    flow.name = str(job.pk)
    with running(flow.compile(2), folder / "first") as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) >= HALF.total * HALF.splits)
        return (folder / "first" / run.end("stop")).rename(folder / "moved")


@pytest.mark.django_db(transaction=True)
def test_a_moved_savepoint_is_restored_to_its_end(api: APIClient, job: Job, settings: Settings, tmp_path: Path) -> None:
    savepoint = moved_savepoint(job, tmp_path)
    settings.WEIR_SAVEPOINT_ROOTS = [tmp_path]
    flow = counts(WHOLE, tmp_path / "out")
    compiled = flow.compile(3)
    JobVersion.objects.create(job=job, number=1, parallelism=3, state="ready", graph=compiled_graph(flow, 3))
    body = {"kind": "restore", "params": {"path": str(savepoint)}}
    run = Run.objects.get(pk=api.post(f"/api/v1/jobs/{job.pk}/operations/", body).json()["run"])

    token = Token(run_store.claim(run.pk, "somebody") or 0)
    row, storage = load_run(url(), run.pk), tmp_path / "second"
    config = MasterConfig(
        job_id=str(row.job_id), token=token, job=compiled, storage=str(storage), allow_unmapped=row.allow_unmapped,
        coordinator=CoordinatorSettings(interval_ms=100),
    )  # fmt: skip
    records = PostgresRunStore(url(), run.pk, token, row.max_parallelism)
    exit_code = JobMaster(config, records, FileStore(storage), LocalLauncher(), SystemClock()).run()
    records.close()

    run.refresh_from_db()
    assert (exit_code, run.state, run.failure) == (MasterExitCode.DONE, "finished", None)
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)
    last = run.checkpoints.filter(status="completed").latest("number")
    assert last.number > int(next(storage.glob("savepoint-*")).name.split("-")[1]), "ids go on above the restored one"
