"""A pytest plugin: real Postgres and Redis servers for a test session, started when a test first needs them.

Loaded by `-p stack.pytest_services`, because pytest-django reads the settings (and so DATABASE_URL) before any
conftest. Addresses and folders are fixed at import, but servers start with their fixtures, so `pytest tests/core`
starts no server. `stack.reaper` ends the leftovers of a killed session.
With WEIR_TEST_EXTERNAL=1 the plugin uses the addresses in the environment and starts no server.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from stack import reaper
from stack.launch.browser import ADVICE, find_chromium
from stack.launch.java import find_java
from stack.processes import ProcessId, load_identity, save_identity
from stack.services import RunningServer, free_port, start_postgres, start_redis

_PREFIX: Final = "weir-test-"
_EXTERNAL: Final = os.environ.get("WEIR_TEST_EXTERNAL") == "1"


def _make_home() -> Path:
    """Creates the session's replacement for `var/`, a folder that the service account can traverse."""
    home = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    home.chmod(0o711)
    this = ProcessId.of(os.getpid())
    assert this is not None
    save_identity(home / reaper.OWNER_FILE, this)
    os.environ[reaper.TEST_MARK] = str(home)
    return home


def _set_environment(home: Path) -> tuple[int, int]:
    """Sets the variables that Django's settings read at import. Returns the ports of Postgres and Redis."""
    folder = {"WEIR_VAR": "", "WEIR_STORAGE": "storage", "WEIR_INPUTS": "inputs", "WEIR_LOGS": "log"}
    os.environ.update({name: str(home / part) for name, part in folder.items()})
    os.environ["WEIR_DATA_ROOTS"] = tempfile.gettempdir()  # the parent of `tmp_path`
    os.environ.setdefault("DJANGO_SECRET_KEY", secrets.token_hex(32))
    os.environ.setdefault("JAVA_HOME", find_java(os.environ) or "")
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable})
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return free_port(), free_port()


def _remove_dead_homes() -> None:
    """Removes folders of dead sessions, which are left if the machine crashed together with the reaper."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (home / reaper.OWNER_FILE).exists() and load_identity(home / reaper.OWNER_FILE) is None:
            reaper.remove_home(home)


_HOME: Final = _make_home()
reaper.start(_HOME)
_POSTGRES_PORT, _REDIS_PORT = _set_environment(_HOME)
_PASSWORD: Final = secrets.token_hex(16)
if not _EXTERNAL:
    os.environ["DATABASE_URL"] = f"postgresql://weir:{_PASSWORD}@127.0.0.1:{_POSTGRES_PORT}/weir"
    os.environ["CELERY_BROKER_URL"] = f"redis://:{_PASSWORD}@127.0.0.1:{_REDIS_PORT}/0"


def pytest_unconfigure() -> None:
    reaper.remove_home(_HOME)
    _remove_dead_homes()


@pytest.fixture(scope="session")
def weir_var() -> Path:
    """The folder that WEIR_VAR names in this session; removed at its end."""
    return _HOME


@pytest.fixture(scope="session")
def postgres_server(weir_var: Path) -> Iterator[RunningServer | None]:
    """The Postgres that DATABASE_URL names; None if it is external."""
    if _EXTERNAL:
        yield None
        return
    with start_postgres(
        weir_var, port=_POSTGRES_PORT, password=_PASSWORD, rights=("CREATEDB", "REPLICATION")
    ) as running:
        yield running


@pytest.fixture(scope="session")
def redis_server(weir_var: Path) -> Iterator[RunningServer | None]:
    """The Redis that CELERY_BROKER_URL names; None if it is external."""
    if _EXTERNAL:
        yield None
        return
    with start_redis(weir_var, port=_REDIS_PORT, password=_PASSWORD) as running:
        yield running


@pytest.fixture(scope="session")
def database_url(postgres_server: RunningServer | None) -> str:
    """URL of a running Postgres. Django's tests use its database `test_weir` instead of `weir`."""
    return os.environ["DATABASE_URL"]


@pytest.fixture(scope="session")
def broker_url(redis_server: RunningServer | None) -> str:
    """URL of a running Redis."""
    return os.environ["CELERY_BROKER_URL"]


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a system Chromium; skips the test with advice if there is none."""
    program = find_chromium()
    if program is None:
        pytest.skip(ADVICE)
    return program
