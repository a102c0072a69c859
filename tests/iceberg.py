"""Catalogs of Iceberg for tests: in a file of SQLite, and in the Postgres server of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.postgres import SECRET


def sqlite_catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "warehouse")}


@contextmanager
def postgres_catalog(url: str, folder: Path) -> Iterator[dict[str, str]]:
    """A catalog in a schema of its own; `url` is DATABASE_URL."""
    schema = f"iceberg_{folder.name}_{abs(hash(folder))}"[:60].lower().replace("-", "_")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{schema}"')
    try:
        yield postgres_catalog_in(url, schema, folder)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{schema}" CASCADE')


def postgres_catalog_in(url: str, schema: str, folder: Path) -> dict[str, str]:
    """The properties of a catalog in the schema; the password is a reference to a secret."""
    parameters = conninfo_to_dict(url)
    password = f":${{secret:{SECRET}}}" if parameters.get("password") is not None else ""
    user = quote(str(parameters.get("user", "")), safe="")
    place = f"{parameters.get('host', '127.0.0.1')}:{parameters.get('port', 5432)}/{parameters['dbname']}"
    limits = "-c statement_timeout=30000 -c lock_timeout=2000"
    options = quote(f"-c search_path={schema} {limits}")
    return {
        "type": "sql",
        "uri": f"postgresql+psycopg://{user}{password}@{place}?options={options}",
        "warehouse": str(folder / "warehouse"),
    }
