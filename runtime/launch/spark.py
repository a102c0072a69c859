"""Job master on Spark: `python -m runtime.launch.spark run RUN TOKEN`.

Slots run in Spark jobs of one task each, which last across attempts (`slot_pool`). Spark places and isolates the tasks,
ships the code and detects lost executors. So the loss of a slot costs no other slot its process. Rendezvous, barriers
and heartbeats use Weir's own connections. The process ends when its stdin closes: no master outlives its supervisor.
"""

import math
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import structlog
from pyspark import SparkConf, SparkContext, cloudpickle

from runtime.access.job_package import active_package
from runtime.access.spark_settings import check_spark_settings, slot_server, slot_server_token
from runtime.clock import SystemClock
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.settings import JobSettings
from runtime.dataflow.plan import CompiledJob
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.postgres.listener import OperationsListener
from runtime.io.postgres.store import PostgresRunStore, RunRow
from runtime.io.store import open_store
from runtime.launch.driver_jvm import DriverJvm, JvmLost
from runtime.launch.event_log import event_log_settings
from runtime.launch.member import MemberTask, local_address, member_task
from runtime.launch.slot_pool import POLL_INTERVAL_S, SlotPool, StartMember
from runtime.launch.spark_tasks import SparkTaskLauncher, summarize_error
from runtime.launch.standalone_cluster import StandaloneMaster
from runtime.libraries import jvm_start
from runtime.master.config import MasterConfig
from runtime.master.delivery_backlog import reject_undelivered_epochs
from runtime.master.job_master import JobMaster
from runtime.master.launcher import SlotPhase
from runtime.master.master_process import (
    compile_job,
    record_code,
    records_of,
    run_master,
    settings_of,
    storage_of,
    stream_root,
    touch_heartbeat,
)

EXTRA_CORES: Final = 2  #: room for driver-side jobs and for tasks that are still being killed
LOOPBACK: Final = "127.0.0.1"

log = structlog.get_logger()


class SparkLauncher(SparkTaskLauncher):
    """Implements `launcher.Launcher` with a Spark job per slot, in a Spark context that lives as long as the master."""

    def __init__(
        self, name: str, spark_master: str, settings: Mapping[str, str] | None = None, spares: int = 0
    ) -> None:
        """`name` is the Spark application's name; `settings` are the version's."""
        super().__init__(spares=spares)
        self._name, self._spark_master, self._settings = name, spark_master, settings or {}
        self.context: SparkContext | None = None  #: None until it is opened
        self._jvm: DriverJvm | None = None  #: as `context`
        self._ui_address = self._application = ""
        self._opening = threading.Lock()
        self._standalone = StandaloneMaster(spark_master) if spark_master.startswith("spark://") else None

    @property
    def spans_hosts(self) -> bool:
        return bool(self._spark_master) and not self._spark_master.startswith("local[")

    @property
    def _is_local(self) -> bool:
        """Whether all slots run on this host. The address of a master elsewhere, such as YARN, is the user's to set."""
        return not self._spark_master or self._spark_master.startswith("local")

    @property
    def host(self) -> str:
        if self._is_local:
            return LOOPBACK
        return os.environ.get("SPARK_LOCAL_IP") or self._address_towards_master()

    @property
    def ui_address(self) -> str:
        return self._ui_address

    @property
    def application(self) -> str:
        return self._application

    def _address_towards_master(self) -> str:
        url = urlsplit(self._spark_master.split(",")[0])
        if url.scheme != "spark" or url.hostname is None:
            problem = f"{self._spark_master!r} does not reveal this machine's address for slots: set SPARK_LOCAL_IP"
            raise JobRejected("bad-environment", "SPARK_MASTER", problem)
        try:
            return local_address(url.hostname)
        except OSError as error:  # a name server's outage is temporary
            raise EnvironmentFailure(f"SPARK_MASTER: no route to {self._spark_master!r}: {error}") from error

    @property
    def loss(self) -> str:
        """Why the context, once created, gets no executors any more; "" if it does.

        A killed JVM cannot be restarted in this process. A standalone master that restarted does not know the
        application.
        """
        context, jvm = self.context, self._jvm
        if context is None or jvm is None:
            return ""
        if self._standalone is not None and self._standalone.has_forgotten_application:
            return "the Spark master has restarted and no longer knows this application"
        try:
            has_stopped = jvm.call("a query of its status", lambda: context._jsc.sc().isStopped())
        except JvmLost as error:
            return str(error)
        except Exception as error:
            return f"the JVM of the Spark driver does not answer: {summarize_error(error)}"
        return "its Spark context has stopped" if has_stopped else ""

    def warm_up(self, slots: int) -> None:
        """Starts the JVM ahead of the first slot. An error is only logged: `open` will raise it again."""

        def warm() -> None:
            try:
                self.open_context(slots)
            except Exception as error:
                log.warning("no Spark context yet", error=summarize_error(error))

        threading.Thread(target=warm, name="warm-up", daemon=True).start()

    def close(self) -> None:
        if self.context is None or self._jvm is None:
            return
        try:
            self._jvm.call("the stop of its context", self.context.stop)
        except Exception as error:
            log.warning("the Spark context did not stop", error=summarize_error(error))

    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        try:
            context = self._open_context_when_reachable(pool, job.graph.parallelism)
        except Exception as error:
            raise EnvironmentFailure(summarize_error(error)) from error
        task = member_task(pool.address, cloudpickle.dumps(job), active_package())  # type: ignore[no-untyped-call]

        def start(number: int) -> None:
            self.start_thread(pool, number, partial(self._run_task, context, task, pool, number))

        return start

    def _run_task(self, context: SparkContext, task: MemberTask, pool: SlotPool, number: int) -> None:
        context.addJobTag(self.tag_of(number))
        context.setInterruptOnCancel(True)
        context.setJobDescription(f"{self._name}: process {number} for slots")
        if not pool.is_dismissed:
            context.parallelize([number], 1).mapPartitions(task).collect()

    def cancel(self, tag: str) -> None:
        if self.context is None or self._jvm is None:
            return
        try:
            self._jvm.call("the cancel of a task", partial(self.context.cancelJobsWithTag, tag))
        except Exception as error:  # the task ends with the JVM
            log.error("a Spark job is not canceled", tag=tag, error=summarize_error(error))

    def report(self, pool: SlotPool) -> None:
        context, required = self.context, pool.status.wanted
        if context is None:
            return
        try:
            available = self._slot_count(context)
            if available < required:
                cause = self._standalone.shortage(context) if self._standalone is not None else ""
                pool.on_status(SlotPhase.WAITING, available, cause)
            else:
                pool.on_status(SlotPhase.STARTING, available)
        except Exception as error:
            log.debug("the slots of the cluster are unknown", error=summarize_error(error))

    def _open_context_when_reachable(self, pool: SlotPool, slots: int) -> SparkContext:
        """Waits for the Spark master first: without it Spark ends the context, and its JVM, after a minute."""
        while self._standalone is not None and self.context is None and not self._standalone.is_reachable:
            pool.on_status(SlotPhase.WAITING, 0, f"the Spark master {self._spark_master} does not answer")
            threading.Event().wait(POLL_INTERVAL_S)
            if pool.is_dismissed:
                raise EnvironmentFailure("no slots are needed any more")
        context = self.open_context(slots)
        if not self.spans_hosts and (available := self._slot_count(context)) < slots:  # and no more will come
            raise EnvironmentFailure(f"the job needs {slots} slots, and {context.master} has only {available}")
        return context

    @staticmethod
    def _slot_count(context: SparkContext) -> int:
        """Tasks that this application's executors run at once."""
        spark = context._jsc.sc()
        return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))

    def open_context(self, slots: int) -> SparkContext:
        """The launcher's own context, created at the first call. Another may have other settings or too few slots."""
        with self._opening:
            if self.context is None:
                if self._is_local:
                    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # Spark's UI listens there
                with jvm_start():
                    context = SparkContext(conf=self._conf(slots))
                context.setLogLevel("ERROR")
                self._jvm = DriverJvm(context)
                self._ui_address, self._application = str(context.uiWebUrl or ""), str(context.applicationId or "")
                self.context = context
            return self.context

    def _conf(self, slots: int) -> SparkConf:
        """The configuration of the context. Raises ValueError for a setting that a version may not choose."""
        check_spark_settings(self._settings)  # again: the console may have other settings, or the row may be changed
        settings = SparkConf().setAppName(self._name)
        settings.setAll([*_SPARK_SETTINGS.items(), *event_log_settings(os.environ).items(), *self._settings.items()])
        settings.setMaster(self._spark_master or f"local[{slots + self._spares + EXTRA_CORES}]")
        if is_local(settings.get("spark.master", "")):
            settings.set("spark.authenticate", "true")
        if self._spark_master.startswith("spark://"):
            operators = _set_where_absent(settings, {**_CLUSTER_SETTINGS, **UI_SETTINGS, **_addresses(self.host)})
            operators.setAll(list(self._settings.items()))
            settings.set("spark.cores.max", str(cores_for(slots + self._spares, operators)))
        else:
            settings.setAll(list(UI_SETTINGS.items()))
        if self.spans_hosts:
            _set_where_absent(settings, _EXECUTOR_SETTINGS)
        return settings


def _set_where_absent(settings: SparkConf, defaults: Mapping[str, str]) -> SparkConf:
    """Sets defaults that neither version nor administrator has set. Returns the administrator's settings."""
    SparkContext._ensure_initialized(conf=settings)
    operators = SparkConf()
    for name, value in defaults.items():
        if not operators.contains(name) and not settings.contains(name):
            settings.set(name, value)
    return operators


def cores_for(slots: int, conf: SparkConf) -> int:
    """Cores of a standalone cluster that provide `slots` slots. Executors of a fixed size are counted whole."""
    per_slot = int(conf.get("spark.task.cpus", "1") or 1)
    per_executor = int(conf.get("spark.executor.cores", "0") or 0)
    if per_executor < per_slot:
        return slots * per_slot
    return math.ceil(slots / (per_executor // per_slot)) * per_executor


def _addresses(host: str) -> dict[str, str]:
    return {"spark.driver.host": host, "spark.driver.bindAddress": host}


#: Defaults on a cluster, which the administrator may override. Spark counts the slots of a silent host until its
#: executors have missed their heartbeats: two minutes by Spark's defaults, half a minute by these settings.
_CLUSTER_SETTINGS: Final = {
    "spark.executor.heartbeatInterval": "5s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "30s",
    "spark.network.timeoutInterval": "5s",
}
#: Defaults that version or administrator may override. No records of a job enter an executor's JVM, which only starts
#: and monitors Python processes. Spark's default heap is 1 GB, its minimum 450 MB. `local[N]` has no executors.
_EXECUTOR_SETTINGS: Final = {"spark.executor.memory": "512m"}
#: Settings of a context that runs a job. On a cluster the administrator may override them.
UI_SETTINGS: Final = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",  # runs are ended in the console, which records the reason
}
_SPARK_SETTINGS: Final = {
    "spark.stage.maxConsecutiveAttempts": "1",  # Weir restarts the job, from the last checkpoint
    "spark.task.maxFailures": "1",
    "spark.python.task.killTimeout": "100ms",  # so that a hung process is replaced soon
    "spark.python.worker.reuse": "false",  # threads and memory that a slot leaks end with its process
    "spark.python.daemon.module": "runtime.launch.spark_daemon",
    "spark.dynamicAllocation.enabled": "false",
    "spark.speculation": "false",
    "spark.ui.showConsoleProgress": "false",
    # The driver starts jobs and waits: optimized compilation only delays its start. The administrator's options
    # follow these, which therefore select no garbage collector: with two selected no JVM starts.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}


def is_local(master: str) -> bool:
    """Whether Spark is local and generates its authentication secret. A cluster's secret is in spark-defaults.conf."""
    return re.fullmatch(r"local(\[[^]]*\])?", master) is not None


# ---------------------------------------------------------------- the process


def _create_master(
    row: RunRow, run: int, token: Token, launcher: SparkTaskLauncher, url: str
) -> tuple[JobMaster, PostgresRunStore]:
    """Compiles the run's version and creates its job master. Raises JobRejected."""
    settings = settings_of(row)
    job, code = compile_job(row)
    if not row.allow_unmapped:
        reject_undelivered_epochs(stream_root(row), job.sinks)
    storage = storage_of(row)
    records = records_of(row, run, token, url)
    record_code(records, code)
    config = MasterConfig(
        job_id=str(row.job_id),
        token=token,
        job=job,
        storage=storage,
        host=launcher.host,
        coordinator=settings.coordinator,
        restart=settings.restart,
        heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
        slots=settings.slots,
        has_had_slots=row.has_checkpoint,
        retention=settings.retention,
        on_corrupt_checkpoint=settings.on_corrupt_checkpoint,
        fallback_limit_ms=settings.fallback_limit_ms,
        allow_unmapped=row.allow_unmapped,
        slot_memory_bytes=settings.slot_memory_bytes,
    )
    master = JobMaster(config, records, open_store(storage), launcher, SystemClock(), touch_heartbeat)
    return master, records


def _create_launcher(name: str, settings: JobSettings) -> SparkTaskLauncher:
    """The launcher on the Spark Connect server of SPARK_REMOTE, else on SPARK_MASTER. Raises JobRejected."""
    if url := slot_server():
        from runtime.launch.connect import ConnectLauncher

        return ConnectLauncher(url, settings.spare_slots, slot_server_token())
    return SparkLauncher(name, os.environ.get("SPARK_MASTER", ""), settings.spark, settings.spare_slots)


def _run(row: RunRow, run: int, token: Token, url: str) -> MasterExitCode:
    launcher = _create_launcher(f"{row.job_name}, run {run}", settings_of(row))
    try:
        launcher.warm_up(row.parallelism)
        master, records = _create_master(row, run, token, launcher, url)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=master.release, daemon=True).start())
        listener = OperationsListener(url, run, master.poke)
        try:
            return master.run()
        finally:
            listener.close()
            records.close()
    finally:
        launcher.close()


if __name__ == "__main__":
    sys.exit(run_master("runtime.launch.spark", _run))
