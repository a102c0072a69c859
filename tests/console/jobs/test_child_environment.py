"""What processes that run code of job authors find in their environment."""

import json
import os
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from console.jobs import child_environment
from console.jobs.models import Connection

pytestmark = pytest.mark.django_db

SECRETS = (
    *("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "DJANGO_SECRET_KEY", "DJANGO_SUPERUSER_PASSWORD"),
    *("PGPASSFILE", "PGPASSWORD", "PGSERVICEFILE", "POSTGRES_PASSWORD", "REDISCLI_AUTH", "REDIS_PASSWORD"),
    *("WEIR_ADMIN_PASSWORD", "WEIR_DB_PASSWORD", "WEIR_OIDC_CLIENT_SECRET"),
)
SECRETS_OF_MASTERS = ("DATABASE_URL", "SPARK_CONNECT_AUTHENTICATE_TOKEN", "SPARK_REMOTE", "WEIR_MANIFEST_KEY")


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, *SECRETS_OF_MASTERS):
        monkeypatch.setenv(name, "swordfish")


def test_a_stage_is_given_none_of_our_secrets() -> None:
    """Any pipeline could print them into its log, which the console shows."""
    assert "swordfish" not in child_environment.stage_environment().values()


def test_a_master_is_given_the_database_and_the_key_of_manifests_alone(tmp_path: Path) -> None:
    variables = child_environment.master_environment(tmp_path / "beat", "sums")
    assert sorted(name for name, value in variables.items() if value == "swordfish") == [*SECRETS_OF_MASTERS]
    assert variables["WEIR_BEAT_FILE"] == str(tmp_path / "beat")


def test_both_have_the_limits_of_jobs_and_the_folders_of_weir(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default of the console holds for them too: without the variable a job has no limits."""
    monkeypatch.delenv("WEIR_DATA_ROOTS")
    settings.WEIR_DATA_ROOTS = [Path("/a"), Path("/b")]
    settings.WEIR_DATA_HOSTS = ["db:5432", "*.kafka"]
    for variables in (child_environment.stage_environment(), child_environment.master_environment(tmp_path, "sums")):
        assert variables["WEIR_DATA_ROOTS"] == f"/a{os.pathsep}/b"
        assert variables["WEIR_DATA_HOSTS"] == "db:5432 *.kafka"
        assert variables["WEIR_STORAGE"] == str(settings.WEIR_STORAGE)
        assert variables["PATH"] == os.environ["PATH"]


def test_a_process_has_the_connections_of_its_pipeline_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets stay references. Without a pipeline, as for the list of pipelines, there are none."""
    monkeypatch.setenv("WEIR_SECRET_SHOP", "swordfish")
    for name, pipelines in (("shop", "sums orders"), ("other", "orders"), ("all", "*")):
        Connection.objects.create(name=name, address=f"postgresql://app:${{secret:{name}}}@db/d", pipelines=pipelines)
    for variables in (
        child_environment.stage_environment("sums"),
        child_environment.master_environment(tmp_path, "sums"),
    ):
        connections = json.loads(variables["WEIR_CONNECTIONS"])
        assert set(connections) == {"shop", "all"}
        assert connections["shop"] == {"address": "postgresql://app:${secret:shop}@db/d", "options": {}}
    assert child_environment.stage_environment()["WEIR_CONNECTIONS"] == "{}"
