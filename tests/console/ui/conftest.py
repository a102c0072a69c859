"""Somebody at the console: one who may do everything, one who may only look, one who is not signed in."""

import pytest
from django.test import Client

from console.accounts.models import User
from tests.console.ui import rows


@pytest.fixture
def operator(db: None) -> User:
    return rows.operator_user()


@pytest.fixture
def at_console(operator: User) -> Client:
    """Signed in, may do everything."""
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def reading(db: None) -> Client:
    """Signed in, may only look."""
    client = Client()
    client.force_login(rows.reader())
    return client


@pytest.fixture
def stranger(db: None) -> Client:
    return Client()
