"""The connections that the web process keeps for later requests."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.db.backends.postgresql.base import DatabaseWrapper

from console import pooled_connections
from stack import plan
from tests.console.test_settings import read

MAX_OUTAGE_S = 6.0  #: until a request fails while Postgres is unreachable


class Requests:
    """Requests of the web process: each has a `DatabaseWrapper` of its own, as its own thread has."""

    def __init__(self, **address: Any) -> None:
        kept = read(WEIR_POSTGRES_POOL="1")["DATABASES"]["default"]
        options = {**connection.settings_dict["OPTIONS"], "pool": kept["OPTIONS"]["pool"]}
        health_checks = kept["CONN_HEALTH_CHECKS"]
        self._settings = {
            **connection.settings_dict, "OPTIONS": options, "CONN_HEALTH_CHECKS": health_checks, **address
        }  # fmt: skip

    def backend(self, setting: str = "") -> int:
        """The process of Postgres that answers a request, which leaves `setting` behind in an open transaction."""
        wrapper = self.wrapper()
        try:
            with wrapper.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (found,) = cursor.fetchone()
                if setting:
                    cursor.execute("BEGIN")
                    cursor.execute(setting)
        finally:
            wrapper.close()
        return int(found)

    def wrapper(self) -> DatabaseWrapper:
        return DatabaseWrapper(self._settings, alias="pooled")

    def end(self) -> None:
        self.wrapper().close_pool()


@pytest.fixture
def requests(transactional_db: None) -> Iterator[Requests]:
    made = Requests()
    yield made
    made.end()


def test_requests_in_succession_share_connections(requests: Requests) -> None:
    """Two at most: the pool opens one, and another for a request that waits for the first."""
    assert len({requests.backend() for _ in range(10)}) <= 2


def test_a_transaction_that_a_request_leaves_open_ends_with_it(requests: Requests) -> None:
    first = requests.backend("SELECT pg_advisory_xact_lock(42)")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s", [first])
        assert cursor.fetchone() == (0,)
    assert first in {requests.backend() for _ in range(4)}


def test_a_connection_that_postgres_has_ended_is_replaced(requests: Requests) -> None:
    first = requests.backend()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    assert first not in {requests.backend() for _ in range(4)}


def test_at_most_a_request_fails_after_a_restart_of_postgres(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pooled connections are dead then, more than a request can check in its time."""
    monkeypatch.setattr(pooled_connections, "connection", requests.wrapper())
    with ThreadPoolExecutor(16) as threads:
        backends = set(threads.map(lambda _: requests.backend("SELECT pg_sleep(1)"), range(16)))
    assert len(backends) > 10
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) pid", [list(backends)])
    failed = 0
    for _ in range(5):
        try:
            assert requests.backend() not in backends
        except OperationalError:
            failed += 1
            pooled_connections.drop_pooled_connections()
    assert failed <= 1


def test_a_request_fails_soon_while_postgres_is_unreachable(transactional_db: None) -> None:
    unreachable = Requests(HOST="127.0.0.1", PORT="1")
    began = time.monotonic()
    try:
        with pytest.raises(OperationalError):
            unreachable.backend()
    finally:
        unreachable.end()
    assert time.monotonic() - began < MAX_OUTAGE_S


def test_only_the_web_process_has_a_pool() -> None:
    assert "pool" not in read()["DATABASES"]["default"]["OPTIONS"]
    assert plan.web({}, 3, "http://localhost/").environment["WEIR_POSTGRES_POOL"] == "1"
    assert not any("WEIR_POSTGRES_POOL" in worker.environment for worker in plan.workers({}))
