"""A run whose job master rejects the job: run and attempt end with the reason."""

import os
import subprocess
import sys
from typing import Any

import pytest
from django.db import connection

from console.jobs.models import Attempt
from runtime.core.job.lifecycle import MasterExitCode
from tests.console.ui import rows


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("stored", [{"of_newer_software": 1}, {"spark": {"spark.jars=a --conf spark.x": "1"}}])
def test_a_rejected_job_ends_its_run_and_its_attempt(stored: dict[str, Any]) -> None:
    run = rows.run(rows.job(version={"settings": stored}), "starting", token=40)
    Attempt.objects.create(run=run, token=40, outcome="running")
    url = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**connection.settings_dict)
    command = [sys.executable, "-m", "runtime.launch.spark", "run", str(run.pk), "40"]
    environment = {**os.environ, "DATABASE_URL": url}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as master:
        assert master.wait(60) == MasterExitCode.DONE
    run.refresh_from_db()
    attempt = Attempt.objects.get()
    failure = run.failure or {}
    assert (run.state, failure["code"]) == ("failed", "bad-settings")
    assert (attempt.outcome, attempt.reason) == ("failed", failure["message"])
    assert attempt.ended_at is not None
