"""What every test may lean on: the servers of `stack.pytest_services`, behind Django's test database."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest_plugins: list[str] = []  # stack.pytest_services is loaded by `-p` in pyproject.toml, before Django's settings


@pytest.fixture(scope="session")
def django_db_modify_db_settings(database_url: str, broker_url: str) -> None:
    """Makes every test that touches the database start the real servers first."""


@pytest.fixture(autouse=True)
def _allow_orm_beside_playwright(request: pytest.FixtureRequest) -> Iterator[None]:
    """Playwright's loop runs in the test's thread, so Django would take a live-server test for an async one."""
    if request.node.get_closest_marker("browser") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield
