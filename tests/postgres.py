"""The test server as connectors get its address: the password is a reference to a secret."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

SECRET: Final = "TEST_POSTGRES"

# At import, since the processes of a Spark executor inherit the environment before a fixture runs.
if (_password := conninfo_to_dict(os.environ.get("DATABASE_URL", "")).get("password")) is not None:
    os.environ[f"WEIR_SECRET_{SECRET}"] = str(_password)


def address_without_password(url: str) -> str:
    """`url`, which is DATABASE_URL, with a reference in place of the password."""
    parameters = conninfo_to_dict(url)
    if parameters.get("password") is None:
        return url
    return make_conninfo(url, password=f"${{secret:{SECRET}}}")


@contextmanager
def locked(url: str, table: str, mode: str = "ACCESS EXCLUSIVE") -> Iterator[None]:
    """Within the block no other transaction writes the table, nor reads it with the default `mode`."""
    with psycopg.connect(url) as connection:
        connection.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield
