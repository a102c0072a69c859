"""docker/ without an engine: schema, linter, and agreement with what `make up` starts.

Nothing here builds or starts a container: `test_composition.py` does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack import plan
from stack.services import postgres

ROOT = Path(__file__).parent.parent.parent
DOCKER = ROOT / "docker"
OF_OTHERS = {"postgres", "redis"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return services


def tool(name: str) -> str:
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} has no package for this processor")
    return path


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_follows_the_specification() -> None:
    process = validate(DOCKER / "compose.yaml")
    assert process.returncode == 0, process.stdout


def test_the_specification_check_sees_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DOCKER / "compose.yaml").read_text().replace("healthcheck:", "health_check:", 1))
    assert validate(wrong).returncode == 1


def lint(dockerfile: Path) -> tuple[int, str]:
    process = subprocess.run([tool("hadolint"), str(dockerfile)], capture_output=True, text=True, check=False)
    return process.returncode, process.stdout


def test_the_dockerfile_is_clean() -> None:
    assert lint(DOCKER / "Dockerfile") == (0, "")


def test_the_dockerfile_for_jobs_of_ones_own_is_clean_and_begins_with_the_image(
    services: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    (derived,) = re.findall(r"(?ms)^```dockerfile\n(.*?)^```", (DOCKER / "README.md").read_text())
    (tmp_path / "Dockerfile").write_text(derived)
    assert lint(tmp_path / "Dockerfile") == (0, "")
    image, user = re.findall(r"^(?:FROM|USER) (\S+)$", derived, re.MULTILINE)[::2]
    assert services["web"]["image"] == f"${{WEIR_IMAGE:-{image}}}"
    assert f"USER {user}\n" in (DOCKER / "Dockerfile").read_text(), "the image goes on as the user that it began with"


def test_the_console_gets_the_variables_of_a_proxy(services: dict[str, dict[str, Any]]) -> None:
    names = {"DJANGO_ALLOWED_HOSTS", "DJANGO_TRUSTED_ORIGINS", "DJANGO_HTTPS", "WEIR_NUM_PROXIES"}
    environment = services["web"]["environment"]
    assert {name: environment.get(name, "")[: len(name) + 3] for name in names} == {
        name: f"${{{name}:" for name in names
    }


def test_the_dockerfile_copies_only_what_is_there_and_not_ignored() -> None:
    copied = {
        name
        for line in re.findall(r"^COPY (.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
        for name in line.split()
    }
    allowed = set(re.findall(r"^!(\S+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.MULTILINE))
    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_every_lasting_service_is_watched(services: dict[str, dict[str, Any]]) -> None:
    """`/readyz` watches beat, by the passes of the reconciler."""
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"migrate", "beat"}


def test_whoever_is_waited_for_exists_and_can_get_there(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        for awaited, how in service.get("depends_on", {}).items():
            assert awaited in services, name
            watched = "healthcheck" in services[awaited]
            assert how["condition"] == ("service_healthy" if watched else "service_completed_successfully")


def test_workers_serve_the_same_queues_as_make_up(services: dict[str, dict[str, Any]]) -> None:
    """A container may stand for several workers of a queue."""
    stack_commands = [list(spec.argv) for spec in plan.workers({})]
    service_commands = [service["command"] for service in services.values() if "worker" in service.get("command", [])]
    assert concurrency_of_queues(service_commands) == concurrency_of_queues(stack_commands)


def concurrency_of_queues(commands: list[list[str]]) -> dict[str, int]:
    """Concurrency of all workers of a queue. Variables of the composition have their defaults."""
    totals: Counter[str] = Counter()
    for command in commands:
        queue, option, concurrency = command[command.index("worker") + 1 :][:3]
        assert option == "--concurrency"
        totals[queue] += int(re.sub(r"^\$\{\w+:-(\w+)\}$", r"\1", concurrency))
    return totals


def test_migrate_prepares_the_same_as_make_up(services: dict[str, dict[str, Any]]) -> None:
    commands = [" ".join(["python", *spec.argv[1:]]) for spec in plan.preparations({})]
    assert services["migrate"]["command"][-1].strip().splitlines() == commands


def test_all_parts_of_weir_share_one_image_and_the_contract(services: dict[str, dict[str, Any]]) -> None:
    weir_services = {name: service for name, service in services.items() if name not in OF_OTHERS}
    assert len({service["image"] for service in weir_services.values()}) == 1

    console = [name for name in weir_services if not name.startswith("spark-")]
    variables = {"DATABASE_URL", "CELERY_BROKER_URL", "DJANGO_SECRET_KEY", "WEIR_VAR", "WEIR_STORAGE", "SPARK_MASTER"}
    assert [name for name in console if not variables <= set(weir_services[name]["environment"])] == []


def test_the_credentials_of_a_bucket_reach_all_processes_that_open_it(services: dict[str, dict[str, Any]]) -> None:
    """Without a value in the environment of the composition they are not set: an empty key would be a wrong one."""
    names = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"}
    for name in services.keys() - OF_OTHERS - {"spark-master"}:
        environment = services[name]["environment"]
        assert {key for key, value in environment.items() if value is None} == names, name


def test_the_role_of_the_console_is_not_the_superuser_that_the_image_makes(services: dict[str, dict[str, Any]]) -> None:
    superuser = services["postgres"]["environment"].get("POSTGRES_USER", "postgres")
    for name, service in services.items():
        url = service.get("environment", {}).get("DATABASE_URL", "")
        assert not url.startswith(f"postgresql://{superuser}:"), name
        assert "POSTGRES_PASSWORD" not in url, name


def test_postgres_has_the_settings_of_the_embedded_server(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Change data capture, and transactions that a sink prepares."""
    _, *options = services["postgres"]["command"]
    embedded = postgres(tmp_path, 1).spec.argv
    assert options[::2] == ["-c", "-c"]
    assert set(options[1::2]) <= set(embedded)


def test_no_secret_is_written_down_and_only_loopback_is_published(services: dict[str, dict[str, Any]]) -> None:
    text = (DOCKER / "compose.yaml").read_text()
    assert re.findall(r"(?:PASSWORD|SECRET_KEY): (?!\$\{\w+:\?)", text) == []
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))
