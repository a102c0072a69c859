"""A Spark with two executors, with the settings of a batch run, for all batch tests that a worker runs in a row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.session import BATCH_MAX_FAILURES, SparkSettings, spark_session
from tests.spark_jobs.batch.flows import write_inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
MASTER = "local-cluster[2,1,1024]"


@pytest.fixture(scope="package")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inputs")
    write_inputs(root)
    return root


@pytest.fixture(scope="package")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, event_log: Path) -> Iterator[SparkSession]:
    scratch = str(tmp_path_factory.mktemp("spark"))
    extra = {
        "spark.task.maxFailures": str(BATCH_MAX_FAILURES),
        "spark.speculation": "false",
        "spark.authenticate": "false",  # an earlier local session leaves it in the JVM, and a cluster has no secret
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "SPARK_LOCAL_IP")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before["PYTHONPATH"]]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        with spark_session(SparkSettings(app_name="batch", master=MASTER, scratch_dir=scratch, extra=extra)) as session:
            yield session
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
