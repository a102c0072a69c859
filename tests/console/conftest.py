"""People, and a job with everything that a run can have."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.contrib.auth.models import Permission
from django.core.cache import cache, caches
from django.test import Client
from pytest_django.fixtures import Settings
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from console.accounts import tokens
from console.accounts.models import Scope, User
from console.alerts import failing
from console.checkpoints.models import Checkpoint
from console.health import passes
from console.jobs.models import Job, JobVersion, Pipeline, Run
from console.operations import maintenance
from console.ui.live import job_rows
from runtime.core.job.lifecycle import RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import folder_of
from tests.console import graphs
from tests.console.stored import store
from tests.console.world import World, world
from weir.control import console as client
from weir.control.__main__ import main

GRAPH = {
    "code": graphs.CODE,
    "max_parallelism": 128,
    "parallelism": 2,
    "operators": [
        graphs.operator("numbers", "Numbers", "source", 2),
        graphs.operator("sums", "Sums", "operator", 2),
        graphs.operator("files", "Files", "sink", 2),
    ],
    "edges": [
        graphs.edge("numbers", "sums", 0, "hash", "k"),
        graphs.edge("sums", "files"),
    ],
}
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "window_ms": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def _own_caches() -> None:
    """No test sees blocks that another test has rendered, as rows of tests have the same keys; nor its maintenance."""
    caches["fragments"].clear()
    job_rows.forget_rows()
    cache.set(maintenance.CACHE_KEY, (), timeout=None)
    cache.set(passes.CACHE_KEY, None, timeout=None)
    cache.set(failing.CACHE_KEY, (), timeout=None)


@pytest.fixture(scope="module")
def place() -> Iterator[World]:
    """Real processes of their own, to be killed."""
    # Not below pytest's own folders: the servers' account could not pass through them.
    home = Path(tempfile.mkdtemp(prefix="weir-world-"))
    home.chmod(0o711)
    try:
        with world(home / "var") as instance:
            yield instance
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def operator(db: None) -> User:
    """May do everything."""
    return User.objects.create_superuser("operator", password="a long enough one")


@pytest.fixture
def viewer(db: None) -> User:
    """May look."""
    return User.objects.create_user("viewer", password="a long enough one")


@pytest.fixture
def definer(db: None) -> User:
    """May define jobs, and not run them."""
    user = User.objects.create_user("definer", password="a long enough one")
    user.user_permissions.add(Permission.objects.get(codename="add_job"))
    return user


def api_as(user: User, scopes: Iterable[str] = tuple(Scope)) -> APIClient:
    api = APIClient()
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.issue(user, scopes=scopes).text}")
    return api


@pytest.fixture
def api(operator: User) -> APIClient:
    """The API, signed in by token as someone who may do everything."""
    return api_as(operator)


@pytest.fixture
def browser(client: Client, operator: User) -> Client:
    client.force_login(operator)
    return client


@pytest.fixture
def pipeline(db: None) -> Pipeline:
    return Pipeline.objects.create(name="sums", description="Sums of numbers", schema=SCHEMA)


@pytest.fixture
def job(pipeline: Pipeline, operator: User) -> Job:
    return Job.objects.create(name="daily sums", pipeline=pipeline.name, created_by=operator)


@pytest.fixture
def version(job: Job) -> JobVersion:
    """A version that is ready."""
    return JobVersion.objects.create(
        job=job, number=1, parallelism=2, params={"path": "in"}, state="ready", graph=GRAPH
    )


MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(job: Job, version: JobVersion) -> MakeRun:
    """A run in any state, as if it had come there."""

    def make(state: RunState, **facts: Any) -> Run:
        return Run.objects.create(job=job, version=version, parallelism=2, state=state.value, **facts)

    return make


MakeCheckpoint = Callable[..., Checkpoint]


@pytest.fixture
def make_checkpoint() -> MakeCheckpoint:
    """A checkpoint of a run, in storage too; a completed periodic one unless told otherwise."""

    def make(run: Run, number: int, kind: str = "checkpoint", status: str = "completed", **facts: Any) -> Checkpoint:
        folder = folder_of(CheckpointKind(kind), number, 1)
        row = Checkpoint.objects.create(
            job=run.job, run=run, number=number, kind=kind, status=status, **{"token": 1, "path": folder, **facts}
        )
        if status == "completed":
            store(row)
        return row

    return make


@pytest.fixture(autouse=True)
def _no_census(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages ask the workers of a broker, which a test has only if it starts one."""
    monkeypatch.setattr("console.pages.workers.CENSUS", SimpleNamespace(last=lambda: None))


@pytest.fixture(autouse=True)
def _no_throttle() -> None:
    """Logins are counted, and readiness is remembered, for longer than a test."""
    from django.core.cache import cache

    from console.health.readiness import READINESS

    cache.clear()
    READINESS.clear()


@pytest.fixture(autouse=True)
def _cheap_clients(settings: Settings) -> None:
    """A good hash takes a quarter of a second, by design; to know all static files takes each new client as long."""
    settings.WHITENOISE_AUTOREFRESH = True
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(client, "_RETRY_AFTER_S", 0.0)
    return tmp_path


class Commands:
    """`weir` with the address of the console and a token in its environment."""

    def __init__(self, url: str, token: str) -> None:
        self._env = {"WEIR_URL": url, "WEIR_TOKEN": token}

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, arguments, env=self._env)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def weir(home: Path, live_server: LiveServer, operator: User) -> Commands:
    return Commands(live_server.url, tokens.issue(operator, scopes=Scope).text)
