"""The session of a stage."""

import os
import subprocess
import sys

import pytest

_NAMESPACE = ["unshare", "--uts", "--map-root-user"]
_PROGRAM = """
from spark_jobs.session import SparkSettings, spark_session
with spark_session(SparkSettings(app_name="words")) as spark:
    print(spark.range(3).count())
"""


@pytest.mark.slow
def test_a_local_session_starts_on_a_host_whose_name_does_not_resolve() -> None:
    """Spark's JVM ended at its start, with the name of an exception of Java."""
    if subprocess.run([*_NAMESPACE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine permits no name space for a host name")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    script = f"hostname no-such-host.invalid && exec {sys.executable} -"
    process = subprocess.run(
        [*_NAMESPACE, "sh", "-c", script], input=_PROGRAM, env=environment, check=True, capture_output=True, text=True
    )
    assert process.stdout == "3\n"


@pytest.mark.slow
def test_a_stage_runs_beside_slots_on_a_spark_connect_server() -> None:
    """SPARK_REMOTE is for slots: a stage runs where SPARK_MASTER says, and PySpark refused both together."""
    environment = {**os.environ, "SPARK_REMOTE": "sc://no-such-host.invalid:15002", "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.run(
        [sys.executable, "-"], input=_PROGRAM, env=environment, check=True, capture_output=True, text=True
    )
    assert process.stdout == "3\n"
