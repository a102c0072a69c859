"""Connections to Postgres: secrets resolved on this host, time limits, and errors in the terms of the runtime."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.keepalive import CLIENT_KEEPALIVES, SERVER_KEEPALIVES
from runtime.secrets import check_references, resolve

#: Settings unless the address has its own. A vanished server is detected within seconds.
_DEFAULTS: Final = {
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",
    **CLIENT_KEEPALIVES,
    "application_name": "weir",
    "client_encoding": "utf8",
}
#: A stopped process must not hold locks: the server ends its transaction. A process waits longer for a lock than that.
_LIMITS: Final = "SET LOCAL idle_in_transaction_session_timeout = '10s'; SET LOCAL lock_timeout = '20s'"
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
#: A writer waits for rows, and for the next checkpoint in a transaction, however short the limits of the role are.
_NO_TIME_LIMITS: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings "
    "WHERE name IN ('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')"
)
_REFERENCE: Final = re.compile(r"\$\{secret:[^}]*\}")
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba.conf entry|permission denied for database"
    r"|(?:role|database) \"[^\"]*\" does not exist|not permitted to log in"
)
#: Classes of SQLSTATE: connection, resources, locks, operator intervention. A lost connection has none.
_AWAY: Final = ("", "08", "53", "55", "57")
_REMEDIES: Final = {
    "statement timeout": "raise statement_timeout of the role",
    "lock timeout": "end the transaction that holds the lock (pg_locks)",
    "idle-in-transaction timeout": "raise idle_in_transaction_session_timeout of the role",
    "transaction timeout": "raise transaction_timeout of the role",
}
_LIMIT: Final = re.compile(rf"due to ({'|'.join(_REMEDIES)})")
_MAX_ERROR_LENGTH: Final = 500


def check_url(url: str) -> None:
    """Raises JobRejected for a malformed address or a literal password."""
    check_references("url", url)
    if not _REFERENCE.fullmatch(url):
        _parameters(url)


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection without autocommit.

    Raises:
        JobRejected: a secret is missing, or Postgres refuses the credentials or the database.
        TargetAway: the server cannot be reached.
    """
    text = resolve("url", url) if _REFERENCE.fullmatch(url) else url
    parameters = {name: resolve("url", value) for name, value in _parameters(text).items()}
    with postgres_errors("connect"):
        return psycopg.connect(make_conninfo("", **(_DEFAULTS | parameters)))


def limit_transaction(connection: psycopg.Connection[Any]) -> None:
    """Bounds the time that the current transaction holds or awaits locks."""
    connection.execute(_LIMITS)


def lift_time_limits(connection: psycopg.Connection[Any]) -> None:
    """Lifts the time limits of the session and its transactions, once the current transaction is committed.

    The server still ends the session if the host of the writer is gone.
    """
    connection.execute(_NO_TIME_LIMITS)
    connection.execute(SERVER_KEEPALIVES)


def make_durable(connection: psycopg.Connection[Any]) -> None:
    """Makes the commit of the current transaction wait for its log on disk, whatever the server's default."""
    connection.execute(_DURABLE)


@contextmanager
def postgres_errors(what: str) -> Iterator[None]:
    """Raises the errors of psycopg as `postgres_failure` maps them."""
    try:
        yield
    except psycopg.Error as error:
        raise postgres_failure(error, what) from error


def postgres_failure(error: psycopg.Error, what: str) -> WeirError:
    """The exception to raise from `error`. An unreachable or full server is `TargetAway`.

    Args:
        what: the object in use, for the message.
    """
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:_MAX_ERROR_LENGTH]
    text = f"Postgres: {what}: {line}"
    if limit := _LIMIT.search(line):
        text = f"{text}: {_REMEDIES[limit[1]]}"
    match error:
        case psycopg.OperationalError() if error.sqlstate is None or error.sqlstate[:2] in ("28", "3D"):
            if _REFUSED.search(str(error)):
                remedy = "check user, password and database of the address, and the rights of the user"
                return JobRejected("postgres-refused", "url", f"{text}: {remedy}")
        case psycopg.errors.InsufficientPrivilege():
            remedy = "GRANT the role of the address its rights on the table, and CREATE on the schema"
            return JobRejected("no-privilege", "table", f"{text}: {remedy}")
        case psycopg.DataError() | psycopg.IntegrityError():
            return DataRejected(f"{text}: correct or filter the rows, or change the table")
        case psycopg.ProgrammingError() | psycopg.NotSupportedError():
            return JobRejected("refused-statement", "table", f"{text}: compare the table with the rows and the key")
        case _:
            pass
    is_away = isinstance(error, psycopg.OperationalError) and (error.sqlstate or "")[:2] in _AWAY
    return TargetAway(text) if is_away else EnvironmentFailure(text)


def _parameters(url: str) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except psycopg.ProgrammingError:
        detail = "is no address of a Postgres: write postgresql://user@host:port/database"
        raise JobRejected("bad-url", "url", detail) from None  # the error may repeat a secret
