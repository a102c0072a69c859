"""What masters and slots log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from runtime.access.redaction import redact_json
from runtime.access.secrets import resolve
from runtime.io import logs


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_secrets_of_the_parameters_do_not_reach_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(lambda event: redact_json(event, {"db_password": "fish-and-chips"}, {}))
    structlog.get_logger().error("slot failed", traceback="ValueError: cannot log in with fish-and-chips", slot=1)
    logged = capsys.readouterr().err
    assert "cannot log in with ********" in logged
    assert "fish-and-chips" not in logged


def test_resolved_secrets_do_not_reach_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_SECRET_DB", "fish-and-chips")
    resolve("url", "${secret:db}", ())
    logs.configure()
    failure = ValueError("cannot log in with fish-and-chips")
    try:
        raise failure
    except ValueError as error:
        structlog.get_logger().exception("close failed", error=str(error))
    assert "fish-and-chips" not in logs.traceback_text(failure)
    logged = capsys.readouterr().err
    assert logged.count("cannot log in with ********") >= 2, "in the text and in the traceback"
    assert "fish-and-chips" not in logged
