"""One `var` and the commands on it, as `make` gives them: a whole stack for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from stack.processes import MARK, ProcessId, marked_processes, servers_in
from stack.settings import ROOT, read_env_file


class Checkout:
    """One `var` and the commands on it, as `make` gives them."""

    def __init__(self, var: Path) -> None:
        self.var = var
        hidden = {MARK, "DATABASE_URL", "CELERY_BROKER_URL", "WEIR_VAR", "WEIR_STORAGE", "WEIR_INPUTS", "WEIR_LOGS"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment["WEIR_DATA_HOSTS"] = "127.0.0.1"  # of the servers that tests start

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "stack", "--var", str(self.var), *arguments]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=ROOT, env={**self.environment, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, **variables: str) -> str:
        child = self.start(*arguments, **variables)
        output, _ = child.communicate(timeout=300)
        assert child.returncode == 0, output
        return output

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.var / "run/status.json").read_text())
        return status

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.status()["processes"] if row["name"] == name)

    def answers(self) -> bool:
        with urllib.request.urlopen(f"{self.status()['url']}readyz", timeout=20) as response:
            return bool(response.status == 200)

    def variables(self) -> dict[str, str]:
        return read_env_file(self.var)

    @property
    def left(self) -> list[ProcessId]:
        return [*marked_processes(self.var), *servers_in(self.var / "pg"), *servers_in(self.var / "redis")]

    def remove(self) -> None:
        self.run("clean")
