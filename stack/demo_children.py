"""The processes that the demo starts beside the stack: the feeder, and the oracle that knows the right answer.

They carry the stack's mark, so `make down` ends them too, and the kernel ends them with the demo.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stack.processes import MARK, die_with_parent
from stack.settings import ROOT, env_file


class NoStack(Exception):
    """No stack runs here; the text says what to do."""


class OracleFailed(Exception):
    """The comparison itself did not work; the text names its log."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a running stack has written down about itself."""

    var: Path
    variables: dict[str, str] = field(repr=False)

    @classmethod
    def read(cls, var: Path | None) -> Environment:
        """Raises NoStack."""
        folder = (var or Path(os.environ.get("WEIR_VAR") or ROOT / "var")).resolve()
        try:
            return cls(folder, env_file(folder))
        except FileNotFoundError:
            raise NoStack(f"no stack has been started with its data in {folder}: run `make up` first") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.variables['WEIR_HTTP_PORT']}"

    @property
    def storage(self) -> Path:
        return Path(self.variables["WEIR_STORAGE"])

    @property
    def event_log(self) -> Path | None:
        """Where Spark logs what it does; None: nowhere."""
        folder = self.variables.get("WEIR_SPARK_EVENT_LOG")
        return Path(folder) if folder else None

    @property
    def user(self) -> str:
        return self.variables.get("WEIR_ADMIN_USER", "operator")

    @property
    def password(self) -> str:
        return (self.var / "run" / "password").read_text(encoding="utf-8").strip()

    def for_children(self) -> dict[str, str]:
        imports = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        return {**os.environ, **self.variables, MARK: str(self.var), "PYTHONPATH": imports}


@dataclass
class Children:
    """Starts them, and ends what is left at the end of the block."""

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
        """Feeds what is not there yet. One at a time."""
        assert self._feeder is None or self._feeder.poll() is not None, "two feeders in one folder"
        argv = ["spark_jobs.feeder", "--to", str(folder), "--seconds", str(seconds)]
        with self.log_of("feeder").open("ab") as log:
            self._feeder = subprocess.Popen(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=self.environment.for_children(),
                preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        return self._feeder

    def stop_feeder(self) -> None:
        """Files appear whole, so it can be ended at any moment."""
        if self._feeder is None or self._feeder.poll() is not None:
            return
        self._feeder.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._feeder.wait(timeout=5)
        self._feeder.kill()
        self._feeder.wait()

    def oracle(self, output: Path, *, partial: bool = False) -> dict[str, Any]:
        """The comparison of the output with plain Spark.

        Raises:
            OracleFailed: there is no answer.
        """
        argv = ["spark_jobs.oracle", "--output", str(output), *(["--partial"] if partial else [])]
        with self.log_of("oracle").open("ab") as log:
            done = subprocess.run(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, check=False,
                env=self.environment.for_children(), preexec_fn=die_with_parent(signal.SIGTERM),
            )  # fmt: skip
        lines = done.stdout.decode().strip().splitlines()
        if not lines or done.returncode not in (0, 1):
            raise OracleFailed(f"the comparison ended with {done.returncode}: see {self.log_of('oracle')}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found
