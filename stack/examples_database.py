"""The database of the example pipelines, beside the console's own, in the embedded Postgres.

Its role may not read the console's tables. It may create replication slots, as change data capture needs.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from stack.folders import service_account, write_private

#: The connection `examples` has this address as `${secret:examples-url}`.
VARIABLE: Final = "WEIR_SECRET_EXAMPLES_URL"
_NAME: Final = sql.Identifier("examples")


def ensure_examples_database(home: Path, console_url: str) -> str:
    """Creates role and database `examples` unless they exist. Returns the address; the password is in `home/pg`.

    Args:
        home: the stack's `var`.
        console_url: address of the console's database in the same cluster.
    """
    folder, port = home / "pg", urlsplit(console_url).port
    password_file = folder / "examples"
    if not password_file.exists():
        write_private(password_file, secrets.token_hex(16), service_account())
    password, superuser = (path.read_text(encoding="ascii") for path in (password_file, folder / "superuser"))
    with psycopg.connect(f"postgresql://postgres:{superuser}@127.0.0.1:{port}/postgres", autocommit=True) as server:
        if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'examples'").fetchone():
            server.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(_NAME))
        server.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(_NAME, password))
        if not server.execute("SELECT 1 FROM pg_database WHERE datname = 'examples'").fetchone():
            server.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(_NAME))
        server.execute("REVOKE CONNECT ON DATABASE weir FROM PUBLIC")
    return f"postgresql://examples:{password}@127.0.0.1:{port}/examples"
