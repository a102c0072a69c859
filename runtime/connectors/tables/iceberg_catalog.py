"""Access to an Iceberg table by a catalog of `pyiceberg`: secrets, time limits, and its errors as errors of Weir."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from runtime.connectors.libraries import import_library
from runtime.connectors.postgres.connection import check_parameters
from runtime.data_hosts import hosts_of
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.keepalive import CLIENT_KEEPALIVES
from runtime.redaction import REFERENCE, is_secret
from runtime.secrets import check_hosts, check_references, is_connection, resolve

#: Of a catalog in Postgres, unless its address has its own. A lost server or a held lock then ends a commit.
_LIMITS: Final = {
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",
    **CLIENT_KEEPALIVES,
    "options": "-c statement_timeout=30000 -c lock_timeout=20000",
}
#: Addresses of servers: of the catalog, of its tokens, of an object store. Others are folders and buckets.
_SERVER_URL: Final = re.compile(r"(?:https?|thrift|postgresql(?:\+\w+)?)://", re.IGNORECASE)
_REFUSED: Final = ("UnauthorizedError", "ForbiddenError", "OAuthError", "AuthorizationExpiredError")
_AWAY: Final = ("ServiceUnavailableError", "ServerError", "TooManyRequestsError")
#: Beginnings of SQLSTATE: authorization, unknown database, missing right.
_SQL_REFUSED: Final = ("28", "3D", "42501")
#: Classes of SQLSTATE: connection, resources, locks, operator intervention. A lost connection has none.
_SQL_AWAY: Final = ("", "08", "53", "55", "57")
MAX_CREATIONS: Final = 4  #: a catalog or table that several slots create at the same time
_SQL_REFUSALS: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "not permitted to log in",
)


def check_catalog(catalog: Mapping[str, str]) -> None:
    """Raises JobRejected, naming the property, for a property that is no text or is a literal secret."""
    if not isinstance(catalog, Mapping) or not catalog:
        detail = "must have the properties of a catalog, such as type, uri and warehouse"
        raise JobRejected("bad-catalog", "catalog", detail)
    for name, value in catalog.items():
        if not isinstance(value, str):
            raise JobRejected("bad-catalog", f"catalog.{name}", "must be text")
        check_references(f"catalog.{name}", value)
        if is_connection(value):
            raise JobRejected(
                "bad-connection", f"catalog.{name}", "a catalog takes no connection: write its properties"
            )
        if is_secret(name, {}) and "${secret:" not in value:
            raise JobRejected("literal-secret", f"catalog.{name}", "contains a secret: write ${secret:NAME} instead")
    _hosts(catalog)


def _hosts(catalog: Mapping[str, str]) -> tuple[str, ...]:
    """The hosts that the properties name. Raises JobRejected, naming the property, if jobs may not use one."""
    hosts = list[str]()
    for name, value in catalog.items():
        if _SERVER_URL.match(value):
            check_hosts(f"catalog.{name}", hosts_of(value))
            hosts += hosts_of(value)
    return tuple(hosts)


@contextmanager
def open_catalog(name: str, catalog: Mapping[str, str]) -> Iterator[Any]:
    """The catalog, closed with the block: a database has few connections, and a job needs them rarely.

    Raises:
        JobRejected: a secret or a property is missing, or the catalog refuses the credentials.
        TargetAway: the catalog is unreachable.
    """
    named = {key: value for key, value in catalog.items() if not REFERENCE.fullmatch(value)}
    texts = {key: named.get(key) or resolve(f"catalog.{key}", value, ()) for key, value in catalog.items()}
    hosts = _hosts(texts)
    properties = {
        key: _database_address(value) if value.startswith("postgresql") else resolve(f"catalog.{key}", value, hosts)
        for key, value in catalog.items()
    }
    if properties.get("uri", "").startswith("postgresql"):
        properties.setdefault("pool_pre_ping", "true")

    def load() -> Any:
        try:
            return import_library("pyiceberg.catalog", "iceberg").load_catalog(name, **properties)
        except ValueError:  # its text repeats the properties, and with them secrets
            detail = f"names no catalog of pyiceberg; it has the properties {', '.join(sorted(catalog))}"
            raise JobRejected("bad-catalog", "catalog", f"{detail}: add type and uri") from None

    with closing(create_together(f"catalog {name}", load)) as found:
        yield found


def create_together(what: str, create: Callable[[], Any]) -> Any:
    """The result of `create`, repeated if another slot creates the same at the same time.

    The catalog refuses the second creation by a unique key, and the repetition finds what the first has created.
    """
    for _ in range(MAX_CREATIONS - 1):
        try:
            with iceberg_errors(what):
                return create()
        except TargetAway:
            raise
        except EnvironmentFailure:
            continue
    with iceberg_errors(what):
        return create()


def load_table(catalog: Any, name: str) -> Any:
    """The newest version of the table; None if the catalog has no table of this name."""
    missing = import_library("pyiceberg.exceptions", "iceberg").NoSuchTableError
    with iceberg_errors(name):
        try:
            return catalog.load_table(name)
        except missing:
            return None


@contextmanager
def iceberg_errors(what: str) -> Iterator[None]:
    """Turns errors of the library, of its database and of files into errors that name `what`."""
    try:
        yield
    except WeirError:
        raise
    except Exception as error:
        if (found := _failure(error, what)) is None:
            raise
        raise found from error


def _failure(error: Exception, what: str) -> WeirError | None:
    exceptions = import_library("pyiceberg.exceptions", "iceberg")
    text = f"Iceberg: {what}: {_first_line(error)}"
    if type(error).__module__.startswith("sqlalchemy."):
        return _database_failure(error, what)
    if isinstance(error, exceptions.RESTError):
        if type(error).__name__ in _REFUSED:
            return JobRejected("catalog-refused", "catalog", f"{text}: check the credentials and the rights")
        return TargetAway(text) if type(error).__name__ in _AWAY else EnvironmentFailure(text)
    if isinstance(error, (exceptions.NotInstalledError, exceptions.NoSuchPropertyException, ModuleNotFoundError)):
        return JobRejected("bad-catalog", "catalog", text)
    if type(error).__module__.startswith("requests."):
        return TargetAway(text)
    is_of_library = type(error).__module__.startswith(("pyiceberg.", "pydantic"))
    return EnvironmentFailure(text) if is_of_library or isinstance(error, OSError) else None


def _database_failure(error: Any, what: str) -> WeirError:
    """The failure from an error of SQLAlchemy: `orig` is the error of the driver."""
    origin = getattr(error, "orig", None)
    if origin is None:
        return JobRejected("bad-catalog", "catalog", f"Iceberg: {what}: the address of the catalog is not valid")
    text = f"Iceberg: {what}: the database of the catalog failed: {_first_line(origin)}"
    state: str | None = getattr(origin, "sqlstate", getattr(origin, "pgcode", "none"))
    if (state or "").startswith(_SQL_REFUSED) or any(part in str(origin) for part in _SQL_REFUSALS):
        remedy = "check user, password and database of the address, and the rights of the user"
        return JobRejected("catalog-refused", "catalog", f"{text}: {remedy}")
    is_away = type(error).__name__ == "OperationalError" and (state or "")[:2] in _SQL_AWAY
    return TargetAway(text) if is_away else EnvironmentFailure(text)


def _database_address(uri: str) -> str:
    """The address of a Postgres with its secrets and with time limits."""
    engine, exceptions = (import_library(f"sqlalchemy.{name}", "iceberg") for name in ("engine", "exc"))
    try:
        url = engine.make_url(uri)
    except exceptions.ArgumentError:  # its text repeats the address, and with it a password
        raise JobRejected("bad-catalog", "catalog.uri", "is no address of a database") from None
    hosts = hosts_of(f"postgresql://{url.host or ''}:{url.port or 5432}")
    check_parameters("catalog.uri", [f"?{name}" if name in ("host", "port") else name for name in url.query])
    given = {name: resolve("catalog.uri", str(value), hosts) for name, value in url.query.items()}
    password = resolve("catalog.uri", url.password, hosts) if url.password else None
    url = url.set(password=password, query=_LIMITS | given)
    return str(url.render_as_string(hide_password=False))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
