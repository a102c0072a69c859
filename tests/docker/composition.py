"""docker/compose.yaml under podman: podman-compose creates each container, this module waits as `depends_on` asks.

podman 4.3 runs health checks only through systemd and cannot wait for health, so this module does both. Names,
commands, variables, volumes and network are those of the composition.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.docker.podman import Podman
from tests.waiting import until

PATIENCE_S = 300.0
HEALTH_CHECK_PAUSE_S = 1.0  #: each check starts a program in the container, Celery's a whole console


@dataclass(frozen=True, slots=True)
class Composition:
    engine: Podman
    file: Path
    services: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, engine: Podman, file: Path) -> Composition:
        return cls(engine, file, yaml.safe_load(file.read_text())["services"])

    def compose(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "podman_compose", "--file", str(self.file), *arguments]
        process = subprocess.run(
            command, env=self.engine.environment, text=True, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.returncode == 0, f"{' '.join(command)}: {process.returncode}\n{process.stdout}"
        return process.stdout

    def up(self, **scale: int) -> None:
        """Starts every service after those that it depends on, each when its condition holds."""
        for name in self._in_order():
            count = scale.get(name.replace("-", "_"), 1)
            self.compose("up", "--detach", "--no-deps", "--no-build", "--scale", f"{name}={count}", name)
            if "healthcheck" in self.services[name]:
                for container in self.containers(name):
                    self.until_healthy(container)
            else:
                self._until_completed(self.containers(name)[0])

    def containers(self, service: str) -> list[str]:
        label = f"label=com.docker.compose.service={service}"
        return self.engine("ps", "--all", "--filter", label, "--format", "{{.Names}}").split()

    def until_healthy(self, container: str) -> None:
        def logs() -> str:
            return self.engine("logs", "--tail", "60", container, check=False)

        def is_healthy() -> bool:
            time.sleep(HEALTH_CHECK_PAUSE_S)
            return self.engine.succeeds("healthcheck", "run", container)

        until(is_healthy, PATIENCE_S, or_else=logs)

    def _until_completed(self, container: str) -> None:
        def state() -> str:
            return self.engine("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", container).strip()

        until(lambda: state().startswith("exited"), PATIENCE_S, or_else=state)
        assert state() == "exited 0", self.engine("logs", container)

    def _in_order(self) -> Iterator[str]:
        """The services, each after all that it depends on."""
        started: set[str] = set()
        while waiting := [name for name in self.services if name not in started]:
            ready = next(name for name in waiting if set(self.services[name].get("depends_on", ())) <= started)
            yield ready
            started.add(ready)
