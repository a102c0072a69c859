"""The processes that the demo starts beside the stack: the feeder, and the oracle that computes the expected result.

Their environment has the variable that marks processes of the stack (`processes.MARK`), so `make down` ends them. The
kernel ends them when the demo dies.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.environment import Environment
from stack.processes import die_with_parent
from stack.settings import ROOT


class OracleFailed(Exception):
    """The oracle did not produce a result; the text names its log."""


@dataclass
class Children:
    """Starts the feeder and the oracle; the end of the block stops the feeder."""

    environment: Environment
    _feeder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_feeder()

    def log_of(self, name: str) -> Path:
        return self.environment.var / "log" / f"{name}.log"

    def feeder(self, folder: Path, seconds: float) -> subprocess.Popen[bytes]:
        """Starts a feeder that writes the missing files into `folder`. Only a single feeder may run."""
        assert self._feeder is None or self._feeder.poll() is not None, "two feeders in one folder"
        argv = ["examples.feeder", "--to", str(folder), "--seconds", str(seconds)]
        with self.log_of("feeder").open("ab") as log:
            self._feeder = subprocess.Popen(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=self.environment.for_children(),
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        return self._feeder

    def stop_feeder(self) -> None:
        """Stops the feeder. This is safe at any moment, because files appear atomically."""
        if self._feeder is None or self._feeder.poll() is not None:
            return
        self._feeder.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._feeder.wait(timeout=5)
        self._feeder.kill()
        self._feeder.wait()

    def oracle(self, output: Path, *, partial: bool = False) -> dict[str, Any]:
        """Compares the output with the result of plain Spark.

        Raises:
            OracleFailed: the oracle ended without a result.
        """
        argv = ["examples.oracle", "--output", str(output), *(["--partial"] if partial else [])]
        with self.log_of("oracle").open("ab") as log:
            process = subprocess.run(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, check=False,
                env=self.environment.for_children(), preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        lines = process.stdout.decode().strip().splitlines()
        if not lines or process.returncode not in (0, 1):
            raise OracleFailed(f"the comparison ended with {process.returncode}: see {self.log_of('oracle')}")
        comparison: dict[str, Any] = json.loads(lines[-1])
        return comparison
