"""A Spark with two executors, for the tests of a module: slots are processes of another JVM than the job master's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark import SparkContext

from runtime.launch import spark
from runtime.launch.spark import SparkLauncher
from tests import small_states
from tests.waiting import until

EXECUTORS: Final = 2
CORES: Final = 2  #: of each; a slot starts while the one that it replaces is still being killed
MASTER: Final = f"local-cluster[{EXECUTORS},{CORES},1024]"
PATIENCE_S: Final = 120.0
ROOT: Final = Path(__file__).parent.parent


@contextmanager
def spark_cluster(name: str) -> Iterator[SparkLauncher]:
    """A launcher whose executors are registered. Only one can be open in a process."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))  # executors load the tests' code
    patch = pytest.MonkeyPatch()
    patch.setitem(spark._SPARK_SETTINGS, "spark.python.daemon.module", small_states.__name__)
    # An earlier local session leaves it in the JVM, and a cluster has no secret.
    patch.setitem(spark._SPARK_SETTINGS, "spark.authenticate", "false")
    launcher = SparkLauncher(name, MASTER)
    try:
        launcher.warm_up(EXECUTORS)
        until(lambda: _registered_executors() == EXECUTORS, PATIENCE_S)
        yield launcher
    finally:
        launcher.close()
        patch.undo()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _registered_executors() -> int:
    java = getattr(SparkContext._active_spark_context, "_jsc", None)  # None until the JVM is there
    driver = 1
    return int(java.sc().getExecutorMemoryStatus().size()) - driver if java else 0
