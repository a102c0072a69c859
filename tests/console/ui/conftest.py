"""Fixtures of the pages: an operator, a reader and an anonymous visitor, by Django's client and in Chromium."""

from collections.abc import Iterator
from functools import partial

import pytest
from django.test import Client
from playwright.sync_api import Browser, sync_playwright
from pytest_django.live_server_helper import LiveServer

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from tests.console.ui import rows
from tests.console.ui.blocks import PageClient
from tests.console.ui.browsing import ARGUMENTS, Open, open_signed_in


@pytest.fixture
def operator(db: None) -> User:
    return rows.operator_user()


@pytest.fixture
def at_console(operator: User) -> Client:
    """Signed in, may do everything."""
    client = PageClient()
    client.force_login(operator)
    return client


@pytest.fixture
def reading(db: None) -> Client:
    """Signed in, may only look."""
    client = PageClient()
    client.force_login(rows.reader())
    return client


@pytest.fixture
def stranger(db: None) -> Client:
    return PageClient()


@pytest.fixture(scope="package")
def browser(chromium: str, django_db_setup: None) -> Iterator[Browser]:
    """For all modules of this package that a worker runs in a row: each test opens a context of its own.

    It starts after the test database is made, as Playwright's loop runs in the test's thread. Django would take that
    thread for an async one, also while it clears the tables after a test, hence the variable.
    """
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def signed_in(browser: Browser, live_server: LiveServer) -> Open:
    """Opens a page of a signed-in operator; its test fails on any complaint of the browser."""
    return partial(open_signed_in, browser, live_server.url)


@pytest.fixture
def running(transactional_db: None) -> Run:
    """A job in full flow, and an operator who watches it."""
    user = rows.operator_user()
    job = rows.job()
    run = rows.run(job)
    rows.attempts(run)
    rows.history(run)
    rows.operations_of(run, user)
    for state in ("succeeded", "running"):
        rows.state_query(Checkpoint.objects.get(number=213), state)
    return run
