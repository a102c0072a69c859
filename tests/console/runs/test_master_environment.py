"""The environment of code that a job master runs: no database, key of manifests or Spark Connect server."""

import json
import os
import subprocess
import sys

import pytest
from django.db import connection

from console.jobs.models import Attempt
from tests.console.ui import rows

#: In the place of an engine: prints the environment that code of the author and its child processes have.
PROGRAM = """
import json, os, subprocess, sys
from runtime.master.master_process import run_master

def engine(row, run, token, url):
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    child = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    print(json.dumps([dict(os.environ), json.loads(child.stdout)]), flush=True)
    return 0

sys.exit(run_master("engine", engine))
"""


@pytest.mark.django_db(transaction=True)
def test_code_of_an_author_finds_none_of_the_secrets_of_a_job_master() -> None:
    run = rows.run(rows.job(), "starting", token=40)
    Attempt.objects.create(run=run, token=40, outcome="running")
    url = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**connection.settings_dict)
    key = "a key of thirty-two characters or more"
    server = {"SPARK_REMOTE": "sc://head:15002/;token=swordfish", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "barracuda"}
    environment = {**os.environ, "DATABASE_URL": url, "WEIR_MANIFEST_KEY": key, **server}
    command = [sys.executable, "-c", PROGRAM, "run", str(run.pk), "40"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as master:
        assert master.stdout is not None
        master_sees, child_sees = json.loads(master.stdout.readline())
        assert master.wait(60) == 0
    for variables in (master_sees, child_sees):
        assert "PATH" in variables
        assert not {url, key, *server.values()}.intersection(variables.values())
