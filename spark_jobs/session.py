"""Typed settings → SparkSession. Only this module of `spark_jobs` starts Spark.

The settings alone decide where Spark runs and how much it logs; the program of a stage does not.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.access.data_roots import JOB_VARIABLES
from runtime.access.job_package import PACKAGE_VARIABLE, active_package
from runtime.access.spark_settings import REMOTE_VARIABLE
from runtime.errors import EnvironmentFailure
from runtime.launch.event_log import event_log_settings
from runtime.libraries import import_library, jvm_start

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
BATCH_MAX_FAILURES: Final = 4  #: attempts per task, Spark's default on a cluster
MAX_ERROR_LENGTH: Final = 1_000  #: characters


class SparkUnavailable(EnvironmentFailure):
    """Spark does not start; a retry may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Spark settings of a stage.

    Args:
        master: a Spark master URL; `local[N]` runs inside this process's own JVM.
        scratch_dir: for Spark's spill files and warehouse; its files are not needed after the stage.
        extra: further Spark settings, which override the settings here.
    """

    app_name: str
    master: str = "local[2]"
    scratch_dir: str = field(default_factory=lambda: str(Path(tempfile.gettempdir()) / "weir-spark"))
    shuffle_partitions: int = 4
    driver_memory: str = "1g"
    extra: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, app_name: str, *, cores: int = 2) -> SparkSettings:
        """Settings from `SPARK_MASTER` (empty means `local[cores]`) and `WEIR_VAR`."""
        master = os.environ.get("SPARK_MASTER") or f"local[{cores}]"
        root = os.environ.get("WEIR_VAR") or tempfile.gettempdir()
        return cls(app_name=app_name, master=master, scratch_dir=str(Path(root) / "weir-spark"))

    @classmethod
    def for_batch(cls, app_name: str, *, cores: int = 2) -> SparkSettings:
        """As `from_environment`, with retries of failed tasks; for `local[N]` the retries are part of the URL."""
        settings = cls.from_environment(app_name, cores=cores)
        master = re.sub(r"^local\[(\w+|\*)\]$", rf"local[\1,{BATCH_MAX_FAILURES}]", settings.master)
        extra = {"spark.task.maxFailures": str(BATCH_MAX_FAILURES), "spark.speculation": "false"}
        passed = {f"spark.executorEnv.{name}": os.environ[name] for name in JOB_VARIABLES if name in os.environ}
        return replace(settings, master=master, extra={**extra, **passed, **settings.extra})

    def as_conf(self) -> dict[str, str]:
        """The settings under Spark's names."""
        conf = {
            "spark.driver.memory": self.driver_memory,
            "spark.local.dir": self.scratch_dir,
            "spark.log.level": "WARN",
            "spark.sql.python.filterPushdown.enabled": "true",  # for `weir-state`
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions),
            "spark.sql.warehouse.dir": str(Path(self.scratch_dir) / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if self.master.startswith("local"):  # needs no resolvable host name, and is reachable from this host only
            conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if self.master == "local" or self.master.startswith("local["):  # Spark generates a secret at each start
            conf["spark.authenticate"] = "true"
        return conf | event_log_settings(os.environ) | dict(self.extra) | _package_settings()


def _package_settings() -> dict[str, str]:
    """Settings by which Spark's Python processes import the job from the package of this process."""
    package = active_package()
    if package is None:
        return {}
    return {
        "spark.python.daemon.module": "runtime.launch.package_daemon",
        f"spark.executorEnv.{PACKAGE_VARIABLE}": package.digest,
        "spark.executorEnv.WEIR_STORAGE": package.storage,
    }


@contextmanager
def spark_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """A session for a single stage, stopped at the end. Python workers use this interpreter by default.

    Raises:
        SparkUnavailable: the JVM does not start, or the cluster does not answer.
        JobRejected: PySpark is not installed.
    """
    import_library("pyspark", "spark")
    from pyspark.sql import SparkSession

    os.environ.pop(REMOTE_VARIABLE, None)  # of slots: PySpark would open a session there
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if settings.master.startswith("local"):  # otherwise the host's name must resolve
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    Path(settings.scratch_dir).mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(settings.app_name).master(settings.master)
    for name, value in settings.as_conf().items():
        builder = builder.config(name, value)
    try:
        with jvm_start():
            session = builder.getOrCreate()
    except Exception as error:
        raise SparkUnavailable(f"Spark does not start at {settings.master}: {first_line(error)}") from error
    try:
        yield session
    finally:
        session.stop()


def current_task() -> TaskContext:
    """The Spark task in which this code runs."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "it runs in a Spark task"
    return task


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type: Spark appends a whole Java stack to its messages."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip()[:MAX_ERROR_LENGTH]


def error_summary(error: BaseException) -> str:
    """Type and first line of an error."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"
