"""A stage process that delivers epochs to both targets, and dies by SIGKILL at a named step of a named epoch.

    python -m tests.spark_jobs.sinks.deliver_program FOLDER URL TABLE PARQUET [STEP EPOCH] [--forgetful]

It works in the JVM of the process that starts it (PYSPARK_GATEWAY_PORT), so that a test kills many of these processes
and starts Spark once. It ends when nothing is left to deliver. `--forgetful` leaves out what makes the targets exact:
the recorded epoch.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from runtime.connectors import commit_log
from runtime.connectors.sinks.epoch_stage import EpochStage
from spark_jobs.sinks import parquet_table
from spark_jobs.sinks.delivery import Delivery
from spark_jobs.sinks.parquet_table import ParquetTable
from spark_jobs.sinks.postgres_table import PostgresTable
from spark_jobs.sinks.targets import DeliveredEpoch

STEPS = (
    "before the function", "postgres: staged", "postgres: before the commit", "postgres: committed",
    "parquet: staged", "parquet: one file shown", "parquet: before the commit", "parquet: committed",
    "released: noted",
)  # fmt: skip


def main() -> None:
    folder, url, table, parquet, *arguments = [argument for argument in sys.argv[1:] if argument != "--forgetful"]
    step, epoch = (arguments[0], int(arguments[1])) if arguments else ("", 0)
    forgetful = "--forgetful" in sys.argv
    postgres: PostgresTable = (_Forgetful if forgetful else _Postgres)(url, table)
    files = ParquetTable(parquet)

    def die(here: str, number: int) -> None:
        if (here, number) == (step, epoch):
            os.kill(os.getpid(), signal.SIGKILL)

    def deliver(spark: Any, frame: Any, epoch: DeliveredEpoch) -> None:
        _NOW.update(die=die, number=epoch.number)
        die("before the function", epoch.number)
        postgres.write(frame, epoch)
        die("postgres: committed", epoch.number)
        files.write(frame.repartition(2), epoch)
        die("parquet: committed", epoch.number)

    _watch_steps()
    stage = EpochStage(deliver, folder=folder, is_bound=True)
    delivery = Delivery(stage, _session_of_the_starter(), lambda progress: None)
    delivery.delete_delivered_epochs()
    while delivery.deliver_next(threading.Event()):
        pass
    sys.stdout.flush()
    os._exit(0)  # the context is not ours to stop


def _session_of_the_starter() -> SparkSession:
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java: Any = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(context)
    return SparkSession(SparkContext(gateway=gateway, jsc=java))


_NOW: dict[str, Any] = {}


def _die(step: str) -> None:
    if _NOW:
        _NOW["die"](step, _NOW["number"])


class _Postgres(PostgresTable):
    def _move(self, connection: Any, *arguments: Any) -> bool:
        _die("postgres: staged")
        return super()._move(_Watched(connection), *arguments)  # type: ignore[arg-type]


class _Forgetful(PostgresTable):
    def _is_recorded(self, *_: Any) -> bool:
        return False

    def _record(self, *_: Any) -> bool:
        return True


class _Watched:
    """A connection that dies with its last statement before the commit."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, query: Any, *arguments: Any) -> Any:
        if query.as_string(self._connection).startswith("DROP TABLE"):
            _die("postgres: before the commit")
        return self._connection.execute(query, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _watch_steps() -> None:
    show, put, replace, unlink = ParquetTable._publish, commit_log.CommitLog.append_epoch, Path.replace, Path.unlink

    def watched_show(self: Any, *arguments: Any) -> None:
        _die("parquet: staged")
        show(self, *arguments)

    def watched_put(self: Any, epoch: Any) -> bool:
        _die("parquet: before the commit")
        return put(self, epoch)

    def watched_replace(self: Path, target: Any) -> Any:
        result = replace(self, target)
        if self.name.startswith("part-"):
            _die("parquet: one file shown")
        return result

    def watched_unlink(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith("part-7-"):
            _die("released: noted")
        unlink(self, missing_ok)

    parquet_table.ParquetTable._publish = watched_show  # type: ignore[method-assign, assignment]
    commit_log.CommitLog.append_epoch = watched_put  # type: ignore[method-assign]
    Path.replace = watched_replace  # type: ignore[method-assign]
    Path.unlink = watched_unlink  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
