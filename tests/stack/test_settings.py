"""What every process of the stack is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.plan import history
from stack.settings import (
    Settings,
    changed_variables,
    make_folders,
    read_env_file,
    require_free_space,
    stack_variables,
    write_env_file,
)


@pytest.mark.parametrize(
    ("master", "address", "expected"),
    [
        ("", "", "127.0.0.1"),
        ("local[4]", "", "127.0.0.1"),
        ("spark://head:7077", "", None),  # executors elsewhere could not reach the driver
        ("spark://head:7077", "10.0.0.7", "10.0.0.7"),
        ("", "127.0.0.2", "127.0.0.2"),
        ("sc://head:15002", "", None),  # executors could not reach the job master
    ],
)
def test_the_driver_keeps_to_this_machine_only_where_spark_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, address: str, expected: str | None
) -> None:
    monkeypatch.setenv("SPARK_REMOTE" if master.startswith("sc:") else "SPARK_MASTER", master)
    monkeypatch.setenv("SPARK_LOCAL_IP", address)
    settings = Settings.read(tmp_path / "var", {})
    make_folders(settings)
    variables = stack_variables(settings, "postgresql://db/weir", "redis://broker/0", 8000)
    assert variables.get("SPARK_LOCAL_IP") == expected
    assert variables.get("SPARK_REMOTE", master) == master  # PySpark takes an empty value for a server

    write_env_file(settings, variables)
    assert read_env_file(settings.var) == variables


def test_state_and_logs_are_private_and_data_is_not(tmp_path: Path) -> None:
    """Also those that exist and that everybody may read."""
    (tmp_path / "var" / "log").mkdir(parents=True, mode=0o755)
    make_folders(Settings.read(tmp_path / "var", {}))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "var").iterdir()}
    private = {"run", "log", "storage", "inputs", "secrets", "spark", "weir-spark"}
    assert {name for name, mode in modes.items() if mode == 0o700} == private
    assert modes.keys() - private == {"data"}


def test_the_history_server_of_spark_is_started_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine only; it reads what runs and stages are told to write."""
    monkeypatch.delenv("WEIR_SPARK_EVENT_LOG", raising=False)
    settings = Settings.read(tmp_path / "var", {})
    make_folders(settings)
    arguments = ("postgresql://db/weir", "redis://broker/0", 8000)
    assert history(stack_variables(settings, *arguments)) == []
    monkeypatch.setenv("WEIR_SPARK_HISTORY_PORT", "18080")
    variables = stack_variables(settings, *arguments)
    (server,) = history(variables)
    assert variables["WEIR_SPARK_EVENT_LOG"] == str(settings.var / "spark-events")
    assert server.environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert (settings.var / "spark-events").as_uri() in server.environment["SPARK_HISTORY_OPTS"]
    assert Path(server.argv[0]).exists()


def test_variables_that_a_running_stack_has_otherwise_are_named() -> None:
    """Not those that are no longer set: `make up` also shows the address of a stack, from any shell."""
    running = {"WEIR_STORAGE": "/a", "SPARK_MASTER": "spark://head:7077", "DJANGO_HTTPS": "1", "LANG": "C"}
    assert changed_variables(running, running) == []
    assert changed_variables(running, {"LANG": "de", "WEIR_MAX_SLOTS": ""}) == []
    variables = {"WEIR_STORAGE": "/b", "SPARK_MASTER": "spark://head:7077", "DATABASE_URL": "postgresql://db/weir"}
    assert changed_variables(running, variables) == ["DATABASE_URL", "WEIR_STORAGE"]


def test_a_bucket_has_no_free_space_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_STORAGE", "s3://bucket/state")
    require_free_space(Settings.read(tmp_path / "var", {"WEIR_MIN_FREE_MB": "1"}))
    assert not list(tmp_path.iterdir())
