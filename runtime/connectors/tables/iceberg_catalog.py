"""Access to an Iceberg table by a catalog of `pyiceberg`: secrets, time limits, and its errors as errors of Weir."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import urlparse

from runtime import s3
from runtime.access.data_hosts import hosts_of
from runtime.access.data_roots import DataRoots
from runtime.access.redaction import REFERENCE, is_secret
from runtime.access.secrets import check_hosts, check_references, check_secrets, is_connection, resolve
from runtime.connectors.bucket import check_place
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.keepalive import CLIENT_KEEPALIVES
from runtime.libraries import import_library

#: Of a catalog in Postgres, unless its address has its own. A lost server or a held lock then ends a commit.
_LIMITS: Final = {
    "connect_timeout": "10",
    "tcp_user_timeout": "10000",
    **CLIENT_KEEPALIVES,
    "options": "-c statement_timeout=30000 -c lock_timeout=20000",
}
#: Properties of pyiceberg that a job may choose. Others load code (`py-catalog-impl`), or name further hosts and files.
_PROPERTIES: Final = frozenset(
    {
        "audience", "credential", "init_catalog_tables", "namespace-separator", "oauth2-server-uri", "pool_pre_ping",
        "prefix", "resource", "rest-page-size", "schema_version", "scope", "snapshot-loading-mode", "token", "type",
        "ugi", "uri", "warehouse",
    }
)  # fmt: skip
_SECRET_PROPERTIES: Final = ("credential", "token", "uri")  #: may contain references
#: The type of a catalog by the scheme of its address.
_TYPES: Final = {
    "http": "rest",
    "https": "rest",
    "thrift": "hive",
    "sqlite": "sql",
    "postgresql": "sql",
    "postgresql+psycopg": "sql",
    "postgresql+psycopg2": "sql",
}
_SERVER_URL: Final = re.compile(r"(?:https?|thrift)://[^\s/\\?#@,$]+(?:/[^\s\\?#@,$]*)?")
_REFUSED: Final = ("UnauthorizedError", "ForbiddenError", "OAuthError", "AuthorizationExpiredError")
_AWAY: Final = ("ServiceUnavailableError", "ServerError", "TooManyRequestsError")
#: of pyarrow: no connection, or an answer that passes
_STORE_AWAY: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING)|HTTP status 5\d\d"
)
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
    """Raises JobRejected, naming the property, for one that a job may not choose, a literal secret, or a host or file
    that jobs may not use.
    """
    if not isinstance(catalog, Mapping) or not catalog:
        detail = "must have the properties of a catalog, such as type, uri and warehouse"
        raise JobRejected("bad-catalog", "catalog", detail)
    for name, value in catalog.items():
        _check_property(name, value)
    if not REFERENCE.fullmatch(catalog.get("uri", "")):
        _check_bound(catalog, _hosts(catalog))


def _check_property(name: str, value: str) -> None:
    field = f"catalog.{name}"
    if name not in _PROPERTIES:
        allowed = ", ".join(sorted(_PROPERTIES))
        raise JobRejected("bad-option", field, f"is no property that a job may choose. Allowed are: {allowed}")
    if not isinstance(value, str):
        raise JobRejected("bad-catalog", field, "must be text")
    check_references(field, value)
    if is_connection(value):
        raise JobRejected("bad-connection", field, "a catalog takes no connection: write its properties")
    if "${" in value and name not in _SECRET_PROPERTIES:
        raise JobRejected("bad-secret", field, f"takes no secret: only {', '.join(_SECRET_PROPERTIES)} do")
    if is_secret(name, {}) and "${secret:" not in value:
        raise JobRejected("literal-secret", field, "contains a secret: write ${secret:NAME} instead")


def _check_bound(catalog: Mapping[str, str], hosts: Collection[str]) -> None:
    """Raises JobRejected for a secret in a catalog without hosts: it would be bound to nothing."""
    for name, value in catalog.items():
        if not hosts and REFERENCE.search(value):
            raise JobRejected("secret-not-bound", f"catalog.{name}", "has a secret, but the catalog names no host")


def _hosts(catalog: Mapping[str, str]) -> tuple[str, ...]:
    """All hosts of a catalog, whose address is no reference; none for a file.

    Raises:
        JobRejected: naming the property, for an invalid address, or a host or a file that jobs may not use.
    """
    uri = catalog.get("uri", "")
    kind = _type(uri)
    if catalog.get("type", kind) != kind:
        raise JobRejected("bad-catalog", "catalog.type", f"must be {kind}, by the address of the catalog")
    warehouse = catalog.get("warehouse", "")
    place = urlparse(warehouse)
    if s3.is_bucket(warehouse):
        check_place("catalog.warehouse", warehouse)
    elif kind != "rest" and (place.scheme not in ("", "file") or place.netloc):
        detail = "must be a folder or s3://bucket/prefix: mount other storage"
        raise JobRejected("bad-catalog", "catalog.warehouse", detail)
    hosts = {"catalog.uri": _database_hosts(_database(uri)) if kind == "sql" else _server_hosts("catalog.uri", uri)}
    if "oauth2-server-uri" in catalog:
        field = "catalog.oauth2-server-uri"
        hosts[field] = _server_hosts(field, catalog["oauth2-server-uri"])
    for field, names in hosts.items():
        check_hosts(field, names)
    return tuple(host for names in hosts.values() for host in names)


def _type(uri: str) -> str:
    kind = _TYPES.get(uri.partition("://")[0])
    if kind is None or re.search(r"\s", uri):
        detail = f"must be an address without spaces that begins with one of {', '.join(sorted(_TYPES))} and ://"
        raise JobRejected("bad-catalog", "catalog.uri", detail)
    return kind


def _server_hosts(field: str, uri: str) -> tuple[str, ...]:
    """The hosts of addresses of HTTP or Thrift; those of Thrift are separated by commas."""
    addresses = uri.split(",") if uri.startswith("thrift:") else [uri]
    if not all(map(_SERVER_URL.fullmatch, addresses)):
        detail = "must be an address without user, query and references: write token or credential"
        raise JobRejected("bad-catalog", field, detail)
    return tuple(host for address in addresses for host in hosts_of(address, field))


def _database_hosts(url: Any) -> tuple[str, ...]:
    """The host to which SQLAlchemy connects; none for a file, which is checked."""
    if url.drivername == "sqlite":
        if not url.database or url.database.startswith((":", "file:")) or url.query or url.host:
            raise JobRejected("bad-catalog", "catalog.uri", "must be sqlite:/// and the path of a file, nothing else")
        DataRoots.of_environment(os.environ).check("catalog.uri", url.database)
        return ()
    from runtime.connectors.postgres.connection import check_parameters  # its library is part of the extra

    check_parameters("catalog.uri", [f"?{name}" if name in ("host", "port") else name for name in url.query])
    if "${" in f"{url.database} {url.query.get('dbname', '')}":
        raise JobRejected("bad-secret", "catalog.uri", "takes no secret as the name of its database")
    port = url.port or 5432
    if not url.host:  # libpq takes PGHOST or a socket
        return (f":{port}",)
    return hosts_of(f"[{url.host}]:{port}" if ":" in url.host else f"{url.host}:{port}", "catalog.uri")


@contextmanager
def open_catalog(name: str, catalog: Mapping[str, str]) -> Iterator[Any]:
    """The catalog, closed with the block: a database has few connections, and a job needs them rarely.

    Raises:
        JobRejected: a secret or a property is missing or refused, or the catalog refuses the credentials.
        TargetAway: the catalog is unreachable.
    """
    check_catalog(catalog)
    uri = catalog["uri"]
    if REFERENCE.fullmatch(uri):
        uri = resolve("catalog.uri", uri, ())
    hosts = _hosts({**catalog, "uri": uri})
    _check_bound(catalog, hosts)
    check_secrets("catalog.uri", catalog["uri"], hosts)
    properties = {key: resolve(f"catalog.{key}", value, hosts) for key, value in catalog.items() if key != "uri"}
    properties |= {"type": _type(uri), "uri": uri, **_store_properties()}
    if uri.startswith("postgresql"):
        properties["uri"] = _database_address(_database(uri), hosts)
        properties.setdefault("pool_pre_ping", "true")

    def load() -> Any:
        try:
            return import_library("pyiceberg.catalog", "iceberg").load_catalog(name, **properties)
        except ValueError:  # its text repeats the properties, and with them secrets
            detail = f"is refused by pyiceberg; it has the properties {', '.join(sorted(catalog))}"
            raise JobRejected("bad-catalog", "catalog", detail) from None

    with closing(create_together(f"catalog {name}", load)) as client:
        yield client


def _store_properties() -> dict[str, str]:
    """How pyiceberg reaches buckets: as all parts of Weir, by the environment of the host."""
    properties = {
        "s3.endpoint": s3.endpoint(),
        "s3.region": s3.region(),
        "s3.connect-timeout": str(s3.CONNECT_TIMEOUT_S),
        "s3.request-timeout": str(s3.READ_TIMEOUT_S),
    }
    return {name: value for name, value in properties.items() if value is not None}


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
        if (failure := _failure(error, what)) is None:
            raise
        raise failure from error


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
    is_store_away = isinstance(error, OSError) and _STORE_AWAY.search(str(error))
    if is_store_away or type(error).__module__.startswith("requests."):
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


def _database(uri: str) -> Any:
    """The parts of the address of a database, as SQLAlchemy reads them."""
    engine, exceptions = (import_library(f"sqlalchemy.{name}", "iceberg") for name in ("engine", "exc"))
    try:
        return engine.make_url(uri)
    except (ValueError, exceptions.ArgumentError):  # their texts repeat the address, and with it a password
        raise JobRejected("bad-catalog", "catalog.uri", "is no address of a database") from None


def _database_address(url: Any, hosts: Collection[str]) -> str:
    """The address of a Postgres with its secrets and with time limits."""
    parameters = {name: resolve("catalog.uri", str(value), hosts) for name, value in url.query.items()}
    password = resolve("catalog.uri", url.password, hosts) if url.password else None
    url = url.set(password=password, query=_LIMITS | parameters)
    return str(url.render_as_string(hide_password=False))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
