"""Sessions of Postgres end soon after the host of their client is gone, and with them the locks that they hold."""

from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg.rows import scalar_row

from runtime.connectors.postgres.connection import lift_time_limits
from runtime.io.postgres.store import connect

NAMES = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"]


def lost_client_ms(session: "psycopg.Connection[Any]") -> list[int]:
    """The times after which the server of the session notices a lost client: of a quiet session, of unsent data."""
    assert not session.info.host.startswith("/"), "the limits are those of TCP"
    query = "SELECT setting::int FROM pg_settings WHERE name = ANY(%s) ORDER BY array_position(%s, name)"
    cursor = psycopg.Cursor(session, row_factory=scalar_row).execute(query, [NAMES, NAMES])
    idle, interval, count, unsent_ms = cursor.fetchall()
    return [1000 * (idle + interval * count), unsent_ms]


@pytest.mark.django_db
def test_the_locks_of_a_lost_console_are_free_when_its_lease_is() -> None:
    connection.ensure_connection()
    for after_ms in lost_client_ms(connection.connection):
        assert 0 < after_ms <= 1000 * settings.WEIR_LEASE_S


def test_the_locks_of_a_lost_job_master_are_free_when_its_lease_is(database_url: str) -> None:
    with connect(database_url) as session:
        for after_ms in lost_client_ms(session):
            assert 0 < after_ms <= 1000 * settings.WEIR_LEASE_S


def test_the_open_transaction_of_a_lost_writer_ends(database_url: str) -> None:
    """Its session has no other limit: it waits for rows between two checkpoints."""
    with psycopg.connect(database_url) as session:
        lift_time_limits(session)
        session.commit()
        for after_ms in lost_client_ms(session):
            assert 0 < after_ms < 60_000


@pytest.mark.django_db
def test_both_ends_notice_a_lost_peer() -> None:
    """A console whose Postgres has vanished while it waits for an answer does not wait for two hours."""
    connection.ensure_connection()
    assert connection.connection.info.get_parameters()["keepalives_idle"] == "5"
