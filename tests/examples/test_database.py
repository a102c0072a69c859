"""The database of the examples beside that of the console."""

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from examples.database import create_database
from stack.services import RunningServer


def test_the_examples_have_a_database_and_cannot_enter_the_consoles(
    postgres_server: RunningServer | None, database_url: str, weir_var: Path
) -> None:
    if postgres_server is None:
        pytest.skip("the server of the tests is not embedded")
    superuser = (weir_var / "pg/superuser").read_text(encoding="ascii")
    url = create_database(superuser, database_url, None)
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE SCHEMA own; CREATE TABLE own.kept AS SELECT 1 AS n")
        database.execute("SELECT pg_create_logical_replication_slot('example', 'pgoutput', true)")
    assert create_database(superuser, database_url, urlsplit(url).password) == url, "a second start changes nothing"
    with psycopg.connect(url, autocommit=True) as database:
        assert database.execute("SELECT n FROM own.kept").fetchone() == (1,)
        database.execute("DROP SCHEMA own CASCADE")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(make_conninfo(url, dbname="weir"))
