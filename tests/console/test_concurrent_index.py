"""Migrations that build indexes concurrently: a repetition after an interruption replaces what is invalid."""

from collections.abc import Iterator

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def _newest_afterwards() -> Iterator[None]:
    yield
    call_command("migrate", verbosity=0)


def are_valid(table: str) -> dict[str, bool]:
    """Whether each index of the table is valid, by name."""
    query = "SELECT indexrelid::regclass::text, indisvalid FROM pg_index WHERE indrelid = to_regclass(%s)"
    with connection.cursor() as cursor:
        cursor.execute(query, [table])
        return dict(cursor.fetchall())


@pytest.mark.usefixtures("_newest_afterwards")
@pytest.mark.parametrize(
    ("app", "before", "table"),
    [("operations", "0013", "weir_operation"), ("checkpoints", "0011", "weir_checkpoint")],
)
def test_an_interrupted_build_is_repeated(app: str, before: str, table: str, database_url: str) -> None:
    whole = are_valid(table)
    call_command("migrate", app, before, verbosity=0)
    earlier = are_valid(table)
    parameters = connection.get_connection_params()
    address = psycopg.conninfo.make_conninfo(database_url, dbname=parameters["dbname"])
    with psycopg.connect(address) as writer:
        writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")  # as by a job master: the build waits for its end
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '300ms'")
        with pytest.raises(OperationalError, match="lock timeout"):
            call_command("migrate", app, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")
    (unfinished,) = are_valid(table).keys() - earlier.keys()
    assert not are_valid(table)[unfinished]

    call_command("migrate", app, verbosity=0)

    assert are_valid(table) == whole
    assert all(whole.values())
