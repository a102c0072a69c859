"""What is told of a Spark that cannot run slots, and where slots reach their master. Nothing is started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import EnvironmentFailure, JobRejected
from runtime.launch.spark import LOOPBACK, SparkLauncher
from runtime.launch.spark_tasks import summarize_error

#: As Spark 4.1 says it, with the folders shortened.
NO_NUMPY = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: ResultStage 0 (collect at spark.py:9) has failed \
the maximum allowable number of times: 1. Most recent failure reason: Stage failed because barrier task \
ResultTask(0, 0) finished unsuccessfully.
org.apache.spark.SparkException:\x20
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 198, in _run_module_as_main
    File "/opt/weir/runtime/hosts/forking.py", line 8, in <module>
      import numpy as np  # noqa: F401
      ^^^^^^^^^^^^^^^^^^
  ModuleNotFoundError: No module named 'numpy'
PYTHONPATH was:
  /opt/pyspark/python/lib/pyspark.zip:/opt/pyspark/python/lib/py4j-0.10.9.9-src.zip:/opt/weir
org.apache.spark.SparkException: EOFException occurred while reading the port number from its stdout.
\tat org.apache.spark.errors.SparkCoreErrors$.eofExceptionWhileReadPortNumberError(SparkCoreErrors.scala:55)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:382)
"""


def test_the_cause_is_told_that_stands_deep_in_an_error_of_spark() -> None:
    """An executor whose Python lacks a package: its name is what an operator needs."""
    summary = summarize_error(RuntimeError(NO_NUMPY))
    assert "ModuleNotFoundError: No module named 'numpy'" in summary
    assert summary.startswith("org.apache.spark.SparkException: Job aborted")
    assert "PythonWorkerFactory" not in summary
    assert "^^^" not in summary


def test_an_error_of_any_length_is_told_by_its_beginning_and_its_end() -> None:
    summary = summarize_error(
        RuntimeError("\n".join(["it began so", *(f"line {number}" for number in range(1_000)), "it ended so"]))
    )
    assert summary.startswith("it began so")
    assert summary.endswith("it ended so")
    assert len(summary) < 1_100


def test_an_error_without_words_is_told_by_its_kind() -> None:
    assert summarize_error(ValueError()) == "ValueError"


@pytest.mark.parametrize("has_java", [False, True], ids=["no Java", "a Java that ends"])
def test_a_run_without_java_names_the_package_to_install(tmp_path: Path, has_java: bool) -> None:
    """The folder of PATH has the programs of Spark's scripts. A JVM also ends if its host name does not resolve."""
    if has_java:
        java = tmp_path / "java"
        java.write_text("#!/bin/bash\nexit 1\n")
        java.chmod(0o755)
    for name in ("bash", "dirname", "env", "head", "readlink", "tr", "uname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    program = "from runtime.launch.spark import SparkLauncher; SparkLauncher('run', '').open_context(1)"
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    error = process.stderr.splitlines()[-1]
    assert error.startswith(
        "runtime.errors.EnvironmentFailure: Spark's JVM ended at its start; the first error in its output"
        if has_java
        else "runtime.errors.EnvironmentFailure: Spark needs Java 17 or newer. Install it: apt-get install"
    )


def test_slots_reach_a_local_master_over_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.7")
    assert {SparkLauncher("job", master).host for master in ("", "local[4]", "local-cluster[2,1,1024]")} == {LOOPBACK}


def test_on_a_cluster_the_address_is_the_one_that_the_operator_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own connections keep to it too; another network of this machine may not be reached from there."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.7")
    assert SparkLauncher("job", "spark://127.0.0.1:7077").host == "192.0.2.7"
    monkeypatch.delenv("SPARK_LOCAL_IP")
    assert SparkLauncher("job", "spark://127.0.0.1:7077").host == "127.0.0.1"


@pytest.mark.parametrize("master", ["k8s://https://192.0.2.1:6443", "yarn"])
def test_a_cluster_whose_address_says_nothing_of_the_way_is_refused_by_name(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with pytest.raises(JobRejected, match="set SPARK_LOCAL_IP") as error:
        _ = SparkLauncher("job", master).host
    assert error.value.field == "SPARK_MASTER"
    assert master in str(error.value)


def test_a_cluster_whose_name_is_not_known_now_may_be_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that went well must not end for good because a name server was away when its master was started again."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with pytest.raises(EnvironmentFailure, match="SPARK_MASTER: no route to "):
        _ = SparkLauncher("job", "spark://no-such-host.invalid:7077").host
