"""Settings of a stack from the environment, and the environment of its processes."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stack.folders import write_private
from stack.launch.java import find_java
from stack.processes import MARK

ROOT: Final = Path(__file__).resolve().parent.parent
_PREFIXES: Final = ("WEIR_", "DJANGO_", "SPARK_", "DATABASE_URL", "CELERY_BROKER_URL")  #: of variables of a stack


DEFAULT_MIN_FREE_MB: Final = 500  #: default of WEIR_MIN_FREE_MB
_MEGABYTE: Final = 1 << 20


class BadSetting(Exception):
    """The value of a variable is invalid; the text names the variable."""


class DiskFull(Exception):
    """A start would fill a disk; the text names the folder and the variable of the limit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders, addresses and delays. If a `given_*` address is empty, the stack starts the service itself."""

    var: Path
    restart_delay_s: float
    admin_user: str
    given_database: str
    given_broker: str
    min_free_mb: int  #: free space that a start needs, in MB
    http_port: int  #: 0: the last used port, else the first free port from 8000 on

    @property
    def run(self) -> Path:
        return self.var / "run"

    @property
    def log(self) -> Path:
        return self.var / "log"

    @classmethod
    def read(cls, var: Path | None, environment: Mapping[str, str]) -> Settings:
        """The settings of the environment. Raises BadSetting."""
        outside = environment if MARK not in environment else {}  # a stack's processes know its own addresses
        return cls(
            var=(var or Path(environment.get("WEIR_VAR") or "var")).resolve(),
            restart_delay_s=_number(environment, "WEIR_RESTART_DELAY_S", 1.0),
            admin_user=environment.get("WEIR_ADMIN_USER") or "operator",
            given_database=outside.get("DATABASE_URL", ""),
            given_broker=outside.get("CELERY_BROKER_URL", ""),
            min_free_mb=int(_number(environment, "WEIR_MIN_FREE_MB", 0)) or DEFAULT_MIN_FREE_MB,
            http_port=int(_number(environment, "WEIR_HTTP_PORT", 0)),
        )


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        raise BadSetting(f"{name} must be a number, not {text!r}") from None
    if value < 0:
        raise BadSetting(f"{name} must not be negative: {text}")
    return value


def require_free_space(settings: Settings) -> None:
    """Raises DiskFull if less than `min_free_mb` are free for `var`, Postgres or the state of jobs."""
    state = os.environ.get("WEIR_STORAGE", "").removeprefix("file://")
    for folder in (
        settings.var,
        settings.var / "pg",
        *([Path(state)] if state and "://" not in state else []),
    ):
        free = shutil.disk_usage(_existing_parent(folder)).free
        if free < settings.min_free_mb * _MEGABYTE:
            raise DiskFull(
                f"{folder}: only {free / _MEGABYTE:.1f} MB are free, and a start needs {settings.min_free_mb} MB: "
                "free space there, or lower WEIR_MIN_FREE_MB"
            )


def _existing_parent(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    real = folder.resolve()
    return next(path for path in (real, *real.parents) if path.exists())


def make_folders(settings: Settings) -> None:
    """Creates the folders. State, inputs, secrets and logs belong to their owner only.

    The service account, which differs from the user under root, may only traverse `var`.
    """
    settings.var.mkdir(mode=0o711, parents=True, exist_ok=True)
    for name in ("run", "log", "storage", "inputs", "secrets", "spark", "weir-spark"):
        folder = settings.var / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    (settings.var / "data").mkdir(exist_ok=True)


def load_or_create_secret(path: Path, value: str = "") -> str:
    """The secret in `path`, created on first use; `value` replaces it. Only its owner may read the file."""
    if path.exists() and not value:
        return path.read_text(encoding="utf-8").strip()
    secret = value or secrets.token_urlsafe(18)
    write_private(path, secret + "\n")
    return secret


def stack_variables(settings: Settings, database: str, broker: str, http_port: int) -> dict[str, str]:
    """The variables of every process of the stack, which are also written to `var/run/env`."""
    environment = os.environ
    return {
        "DATABASE_URL": database,
        "CELERY_BROKER_URL": broker,
        "WEIR_VAR": str(settings.var),
        "WEIR_CONSOLE_URL": environment.get("WEIR_CONSOLE_URL") or f"http://127.0.0.1:{http_port}",
        "WEIR_STORAGE": environment.get("WEIR_STORAGE") or str(settings.var / "storage"),
        "WEIR_INPUTS": environment.get("WEIR_INPUTS") or str(settings.var / "inputs"),
        "WEIR_SECRETS": environment.get("WEIR_SECRETS") or str(settings.var / "secrets"),
        "WEIR_LOGS": str(settings.log),
        "WEIR_HTTP_PORT": str(http_port),
        "WEIR_ADMIN_USER": settings.admin_user,
        "DJANGO_SECRET_KEY": load_or_create_secret(settings.run / "secret", environment.get("DJANGO_SECRET_KEY", "")),
        "DJANGO_SETTINGS_MODULE": "console.settings",
        "SPARK_MASTER": environment.get("SPARK_MASTER", ""),
        **({"SPARK_REMOTE": environment["SPARK_REMOTE"]} if environment.get("SPARK_REMOTE") else {}),
        "SPARK_LOCAL_DIRS": str(settings.var / "spark"),
        **_event_log(settings, environment),
        **_spark_address(environment),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_HOME": find_java(environment) or "",
    }


def _event_log(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of Spark's event log. It is on if WEIR_SPARK_EVENT_LOG or the history server's port is set."""
    port = environment.get("WEIR_SPARK_HISTORY_PORT", "")
    folder = environment.get("WEIR_SPARK_EVENT_LOG") or (str(settings.var / "spark-events") if port else "")
    return {"WEIR_SPARK_EVENT_LOG": folder, "WEIR_SPARK_HISTORY_PORT": port} if folder else {}


def _spark_address(environment: Mapping[str, str]) -> dict[str, str]:
    """Loopback for local Spark, so that no host name must resolve. On a cluster, executors must reach the driver."""
    is_local = (environment.get("SPARK_MASTER") or "local").startswith("local") and not environment.get("SPARK_REMOTE")
    address = environment.get("SPARK_LOCAL_IP") or ("127.0.0.1" if is_local else "")
    return {"SPARK_LOCAL_IP": address} if address else {}


def child_environment(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: this process's, `variables`, the mark, and this checkout first in PYTHONPATH."""
    password = load_or_create_secret(settings.run / "password", os.environ.get("WEIR_ADMIN_PASSWORD", ""))
    imports = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    overrides = {
        "WEIR_ADMIN_PASSWORD": password,
        MARK: str(settings.var),
        "PYTHONPATH": imports,
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **variables, **overrides}


def changed_variables(running: Mapping[str, str], variables: Mapping[str, str]) -> list[str]:
    """Names in `variables` that a stack lacks, or has with another value, if it runs with `running`."""
    return sorted(
        name for name, value in variables.items() if name.startswith(_PREFIXES) and running.get(name, "") != value
    )


def read_env_file(var: Path) -> dict[str, str]:
    """The variables of the last stack of `var`, as `write_env_file` wrote them. Raises FileNotFoundError."""
    lines = (var / "run/env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line)


def write_env_file(settings: Settings, variables: Mapping[str, str]) -> None:
    write_private(settings.run / "env", "".join(f"{name}={value}\n" for name, value in variables.items()))
