"""Processes of the contract suite: forked from a server that has loaded all libraries, ended by signals, waited for.

A process that loads the libraries itself needs about a second before its job begins. The fork server loads them once
(`multiprocessing`, start method "forkserver"); it runs no job and opens no connection, so each child starts afresh.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from pyspark import cloudpickle

from tests.contracts.sinks.job_process import JobSpec, run_job
from tests.waiting import until

PATIENCE_S: Final = 140.0
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([f"tests.contracts.sinks.{name}" for name in ("targets", "job_process", "preload")])


class JobProcess:
    """A process that runs a job into a sink, from its newest checkpoint, to its end or to its death."""

    def __init__(self, spec: JobSpec) -> None:
        pickled: bytes = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]
        arguments = (pickled, spec.folder / "log", dict(os.environ))
        self._log = spec.folder / "log"
        self._process: BaseProcess = _FORKS.Process(target=_run, args=arguments)
        self._process.start()

    def wait(self) -> int:
        """Waits for the end. Returns the exit code: 0 if the job has ended by itself, negative for a signal."""
        self._process.join(PATIENCE_S)
        if self._process.exitcode is None:
            os.kill(self._pid, signal.SIGABRT)  # writes the stack of each thread into the log
            self._process.join()
            log = self._log.read_text(errors="replace")[-40_000:]
            raise AssertionError(f"the process still runs after {PATIENCE_S:g} s; {log}")
        return self._process.exitcode

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def wait_until_stopped(self, log: Callable[[], str]) -> None:
        """Waits until SIGSTOP has stopped the process."""

        def is_stopped() -> bool:
            assert self._process.exitcode is None, f"the process has ended; {log()}"
            return self._state == "T"

        until(is_stopped, PATIENCE_S, or_else=log)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None, "the process has begun"
        return self._process.pid

    @property
    def _state(self) -> str:
        """The state of the process in one letter, see proc_pid_stat(5)."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def running(spec: JobSpec) -> Iterator[JobProcess]:
    """A process that ends with the block."""
    process = JobProcess(spec)
    try:
        yield process
    finally:
        process.end()


def run(spec: JobSpec) -> int:
    """Runs a process to its end. Returns its exit code, negative for a signal."""
    with running(spec) as process:
        return process.wait()


def _run(pickled: bytes, log: Path, environment: dict[str, str]) -> None:
    """Runs in the new process, whose output goes to the file `log`."""
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    faulthandler.enable(output)
    sys.exit(run_job(cloudpickle.loads(pickled)))
