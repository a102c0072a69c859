"""The database of the example pipelines, beside the console's own, in the Postgres of the stack.

Its role may not read the console's tables. It may create replication slots, as change data capture needs.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from examples.environment import Environment
from stack.folders import write_private
from stack.settings import ROOT

#: The connection `examples` has this address as `${secret:examples-url}`.
VARIABLE: Final = "WEIR_SECRET_EXAMPLES_URL"
SECRET: Final = "examples-url"  # noqa: S105 - a name
_NAME: Final = sql.Identifier("examples")


class NoDatabase(Exception):
    """The stack uses a Postgres server of its user; the text names the variable to set."""


def provide_database(environment: Environment) -> str:
    """The address of the database; creates database, secret and connection unless they exist. Callers take turns.

    Raises:
        NoDatabase: the server is not the stack's own, and `VARIABLE` is not set.
    """
    arguments = ("ensure_connection", "examples", f"${{secret:{SECRET}}}", "enrichment", "change_capture")
    with (environment.var / "run/examples.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = os.environ.get(VARIABLE) or _own_database(environment)
        subprocess.run(
            [sys.executable, "-m", "django", *arguments], cwd=ROOT, env=environment.for_children(), check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return address


def _own_database(environment: Environment) -> str:
    """The address of the database in the server of the stack. The secret keeps the address."""
    superuser = environment.var / "pg/superuser"
    if not superuser.exists():
        raise NoDatabase(f"DATABASE_URL names your own Postgres: set {VARIABLE} before `make up`, and here")
    secret, console_url = Path(environment.variables["WEIR_SECRETS"]) / SECRET, environment.variables["DATABASE_URL"]
    password = urlsplit(secret.read_text(encoding="utf-8")).password if secret.exists() else None
    address = create_database(superuser.read_text(encoding="ascii"), console_url, password)
    write_private(secret, address)
    return address


def create_database(superuser: str, console_url: str, password: str | None) -> str:
    """Creates role and database `examples` unless they exist. Returns the address.

    Args:
        superuser: password of the role `postgres`.
        console_url: address of the console's database in the same cluster.
        password: of the role `examples`; None: a new one.
    """
    port, password = urlsplit(console_url).port, password or secrets.token_hex(16)
    with psycopg.connect(f"postgresql://postgres:{superuser}@127.0.0.1:{port}/postgres", autocommit=True) as server:
        if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'examples'").fetchone():
            server.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(_NAME))
        server.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(_NAME, password))
        if not server.execute("SELECT 1 FROM pg_database WHERE datname = 'examples'").fetchone():
            server.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(_NAME))
        server.execute("REVOKE CONNECT ON DATABASE weir FROM PUBLIC")
    return f"postgresql://examples:{password}@127.0.0.1:{port}/examples"
