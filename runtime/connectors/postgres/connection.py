"""Connections to Postgres: secrets resolved on this host, time limits, and errors in the terms of the runtime."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from runtime.access.secrets import (
    check_hosts,
    check_references,
    check_secrets,
    is_connection,
    named_connection,
    resolve,
)
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.keepalive import CLIENT_KEEPALIVES, SERVER_KEEPALIVES

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
#: Parameters of libpq that an address of a job may have. Others name further hosts (`hostaddr`, `service`), files of
#: other users (`passfile`, `sslkey`), or files to write (`sslkeylogfile`): a named connection may have them.
_PARAMETERS: Final = frozenset(
    {
        "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
        "fallback_application_name", "gssencmode", "host", "keepalives", "keepalives_count", "keepalives_idle",
        "keepalives_interval", "load_balance_hosts", "options", "password", "port", "require_auth",
        "ssl_min_protocol_version", "sslmode", "sslnegotiation", "sslrootcert", "sslsni", "target_session_attrs",
        "tcp_user_timeout", "user",
    }
)  # fmt: skip
_PORT: Final = 5432
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
    """As `check_address`; a literal password is refused too."""
    check_references("url", url)
    check_address(url)


def check_address(url: str) -> None:
    """Raises JobRejected for a malformed address, or a host or parameter that jobs may not use."""
    if not is_connection(url) and not _REFERENCE.fullmatch(url):
        parameters = _parameters(url)
        check_parameters("url", parameters)
        check_hosts("url", _hosts(parameters))


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection without autocommit. `url` is an address with references, or a named connection.

    Raises:
        JobRejected: the job may not use the host or the secret, a secret is missing, or Postgres refuses the
            credentials or the database.
        TargetAway: the server cannot be reached.
    """
    text = conninfo(url)
    with postgres_errors("connect"):
        return psycopg.connect(text)


def conninfo(url: str) -> str:
    """The connection string of libpq with secrets and time limits. Checks hosts and secrets.

    Raises:
        JobRejected: the job may not use the host or the secret, or a secret is missing.
    """
    if (connection := named_connection("url", url)) is not None:
        return make_conninfo("", **(_DEFAULTS | _parameters(connection.address) | dict(connection.options)))
    if _REFERENCE.fullmatch(url):
        parameters = _parameters(resolve("url", url, ()))
        check_secrets("url", url, _hosts(parameters))
    else:
        parameters = _parameters(url)
        check_parameters("url", parameters)
    hosts = _hosts(parameters)
    return make_conninfo("", **(_DEFAULTS | {name: resolve("url", value, hosts) for name, value in parameters.items()}))


def check_parameters(field: str, names: Iterable[str]) -> None:
    """Raises JobRejected, naming `field`, for a parameter of libpq that a job may not choose."""
    for name in names:
        if name not in _PARAMETERS:
            detail = f"a job may not choose the parameter {name}; a named connection may. Allowed are: "
            raise JobRejected("bad-option", field, detail + ", ".join(sorted(_PARAMETERS)))


def _hosts(parameters: Mapping[str, str]) -> tuple[str, ...]:
    """All hosts that libpq may connect to. A single port stands for all hosts.

    Raises:
        JobRejected: the numbers of hosts and ports differ, or errors of libpq would print a secret.
    """
    for name in ("host", "port", "dbname"):
        if "${" in parameters.get(name, ""):
            raise JobRejected("bad-secret", "url", f"takes no secret as {name}: only the whole address may be one")
    names, ports = parameters.get("host", "").split(","), parameters.get("port", "").split(",")
    if len(ports) == 1:
        ports = ports * len(names)
    if len(ports) != len(names):
        raise JobRejected("bad-url", "url", f"has {len(names)} hosts and {len(ports)} ports")
    return tuple(f"{name}:{port or _PORT}" for name, port in zip(names, ports, strict=True))


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
