"""What every test may lean on: the servers of `stack.pytest_services`, behind Django's test database.

That plugin is loaded by `-p` in pyproject.toml: pytest-django reads the settings before any conftest.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Py4J talks when it is collected, which may be after pytest has closed what it would write to."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay in one process, and all that use the whole stack: they share what is costly to start."""
    for item in items:
        whole_stack = Path(__file__).parent / "acceptance" in item.path.parents
        item.add_marker(pytest.mark.xdist_group("acceptance" if whole_stack else str(item.path)))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(database_url: str, broker_url: str) -> None:
    """Makes every test that touches the database start the real servers first."""
