"""What every test may lean on: the servers of `stack.pytest_services`, behind Django's test database.

That plugin is loaded by `-p` in pyproject.toml: pytest-django reads the settings before any conftest.
"""

from __future__ import annotations

import gc
import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from django.db import connections
from django.test import TransactionTestCase
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from runtime.access import redaction
from tests import example_counts  # noqa: F401 - loads the profile of Hypothesis, which later options may replace
from tests.apache_kafka import ApacheKafka, NoBroker, running_apache_kafka
from tests.emptied_tables import empty_tables
from tests.s3 import BUCKET, NoServer, S3Server, running_s3
from tests.slices import parse_slice, select_slice

_SHARING: Final = ("tests/acceptance", "tests/spark_jobs/batch")  #: folders with a fixture for all of their tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", type=parse_slice, metavar="K/N", help="run one of N parts of the selected tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts what a single worker must run before all else: begun late, it would go on alone."""
    items.sort(key=lambda item: not shared_folder(item.nodeid))
    select_slice(config, items)


def pytest_configure(config: pytest.Config) -> None:
    """Sets what holds for all tests.

    Py4J talks when it is collected, which may be after pytest has closed what it would write to.

    No test crashes the machine, so files of the test process need no fsync, as those of the test database. It takes
    5 to 50 ms, and each checkpoint of a job in a thread has a dozen. Processes that a test starts call the real one.
    """
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # A thread of a live server may outlive its test: its connection would keep the database from being dropped.
    connections.settings["default"]["CONN_MAX_AGE"] = 0
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", _check_descriptor)
    config.add_cleanup(patch.undo)
    config.add_cleanup(gc.unfreeze)  # else libraries report what is left at the end of the process as leaks


def _check_descriptor(descriptor: int) -> None:
    """Raises for a closed file, as fsync does."""
    os.fstat(descriptor)


def shared_folder(nodeid: str) -> str:
    """The name under which tests share a stack or a cluster of Spark; empty for others."""
    if nodeid.startswith("tests/jobs/") and "[spark" in nodeid:
        return "tests/jobs on Spark"
    return next((folder for folder in _SHARING if nodeid.startswith(f"{folder}/")), "")


class Scheduling(LoadFileScheduling):
    """Gives each file to one worker, and all tests that share a stack or a cluster to one: two would starve."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_folder(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without the garbage collector: all that is made here lives until the end.

    Later collections leave it out. One that traverses all modules and tests takes a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def forgotten_secrets() -> Iterator[None]:
    """A process masks each secret that it has resolved until it ends, and all tests share a process."""
    yield
    redaction._resolved.clear()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server. Where it cannot be installed, the tests that need it are skipped."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running_s3(tmp_path_factory.mktemp("s3")))
        except NoServer as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A real Apache Kafka. Where it cannot be had, the tests that need it are skipped."""
    with ExitStack() as stack:
        try:
            node = stack.enter_context(running_apache_kafka(tmp_path_factory.mktemp("kafka")))
        except NoBroker as error:
            pytest.skip(str(error))
        yield node


@pytest.fixture
def bucket_uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty storage of its own in a bucket, with the environment of a host that may use it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/job"


@pytest.fixture(scope="session")
def django_db_modify_db_settings(database_url: str, broker_url: str) -> None:
    """Makes every test that touches the database start the real servers first."""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The database of all tests. A test that commits leaves its tables empty (`tests.emptied_tables`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda _: empty_tables())
        yield
