"""The database of the examples beside that of the console."""

from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from stack.examples_database import ensure_examples_database
from stack.services import RunningServer


def test_the_examples_have_a_database_and_cannot_enter_the_consoles(
    postgres_server: RunningServer | None, database_url: str, weir_var: Path
) -> None:
    if postgres_server is None:
        pytest.skip("the server of the tests is not embedded")
    url = ensure_examples_database(weir_var, database_url)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE SCHEMA own; CREATE TABLE own.kept AS SELECT 1 AS n")
        database.execute("SELECT pg_create_logical_replication_slot('example', 'pgoutput', true)")
    assert ensure_examples_database(weir_var, database_url) == url, "a second start changes nothing"
    with psycopg.connect(url, autocommit=True) as database:
        assert database.execute("SELECT n FROM own.kept").fetchone() == (1,)
        database.execute("DROP SCHEMA own CASCADE")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(make_conninfo(url, dbname="weir"))
