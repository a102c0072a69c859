"""A Spark Connect server with two executors on this machine, for tests. PySpark's wheel contains it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyspark

from stack.launch.java import find_java
from stack.processes import end_processes, session_members
from stack.services import free_port
from stack.settings import ROOT
from tests.waiting import until

PATIENCE_S: Final = 240.0  #: nothing here is about speed
STARTED: Final = "Spark Connect server started"
#: As docs/operation.md recommends them.
CONF: Final = {
    "spark.python.daemon.module": "runtime.launch.spark_daemon",
    "spark.python.worker.reuse": "false",
    "spark.task.maxFailures": "1",
}


class ConnectServer:
    """The server, which may be killed and started again at the same address. `folder` gets its files."""

    def __init__(self, folder: Path, cores: int = 4) -> None:
        self._folder, self._cores, self._port = folder, cores, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def start(self) -> None:
        conf = {
            **CONF,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
        program = Path(pyspark.__file__).parent / "bin/spark-submit"
        argv = [str(program), "--master", f"local-cluster[2,{self._cores},1024]"]
        argv += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        argv += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = {
            **os.environ, "JAVA_HOME": find_java(os.environ) or "", "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT), "SPARK_CONNECT_MODE": "0", "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip
        log = self._folder / "server.log"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                argv, cwd=self._folder, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )
        self._sessions.append(self._process.pid)
        until(lambda: STARTED in log.read_text(errors="replace"), PATIENCE_S, or_else=log.read_text)

    @property
    def pid(self) -> int:
        """The server's JVM."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL of the server's JVM. Its executors end by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        for session in self._sessions:
            end_processes(lambda leader=session: session_members(leader), grace_s=10)  # type: ignore[misc]
        if self._process is not None:
            self._process.wait()

    @property
    def executors(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.pid).children() if child.name() == "java"]

    @property
    def daemons(self) -> list[psutil.Process]:
        """The Python processes that executors fork the processes of slots from."""
        return [child for executor in self.executors for child in executor.children() if "python" in child.name()]


@contextmanager
def connect_server(folder: Path, cores: int = 4) -> Iterator[ConnectServer]:
    """A server with two executors of so many cores."""
    server = ConnectServer(folder, cores)
    try:
        server.start()
        yield server
    finally:
        server.end()
