"""What masters and slots log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from runtime.io import logs
from runtime.redaction import redact_json


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
