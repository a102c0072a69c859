"""The hosts that jobs may connect to, and the connections that an administrator has named.

Parameters of a job name hosts, so every user who may define a job chooses addresses. Under the console a host is
allowed if `WEIR_DATA_HOSTS` lists it, or if it is the host of a named connection that the pipeline may use. The console
sets the variables for every child process; without them there is no limit, for jobs that an author starts.

A named connection has address, login, TLS and secrets together. A job names it as `${connection:NAME}`, so a definer
cannot choose where its secret goes. `WEIR_CONNECTIONS` has the connections of the pipeline, as JSON with references to
secrets (`runtime.access.secrets`).

Hosts are texts `name:port`. They are compared by name: a name server is trusted.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from runtime.errors import JobRejected

HOSTS_VARIABLE: Final = "WEIR_DATA_HOSTS"
CONNECTIONS_VARIABLE: Final = "WEIR_CONNECTIONS"
CONNECTION_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432}
_AUTHORITY: Final = re.compile(r"([^/?#\\]*)([/?#\\]?)(.*)", re.DOTALL)
#: Other characters end the name for some clients, and are a part of it for others.
_SERVER: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An address with its options, such as `sslmode` of libpq or headers of a webhook. All may contain references."""

    address: str
    options: Mapping[str, str] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.address, *self.options.values())


def connections() -> Mapping[str, Connection] | None:
    """The named connections by `WEIR_CONNECTIONS`. None without the variable: secrets are then bound to no host.

    Raises:
        JobRejected: the variable is malformed.
    """
    text = os.environ.get(CONNECTIONS_VARIABLE)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Connection])
    except msgspec.MsgspecError as error:
        raise JobRejected("bad-environment", CONNECTIONS_VARIABLE, f"must be JSON: {error}") from error


def hosts_of(address: str, field: str = "address") -> tuple[str, ...]:
    """The hosts of a URL, or of `host:port` separated by commas. Without a port, that of the scheme, else 0.

    Raises:
        JobRejected: naming `field` without the address, if a host is no name, or if clients disagree about the host.
    """
    scheme, separator, location = address.partition("://")
    authority, end, suffix = _AUTHORITY.findall(location)[0] if separator else (address, "", "")
    servers = [part.strip() for part in authority.rpartition("@")[2].split(",")]
    if (end in ("?", "#", "\\") and "@" in suffix) or not all(map(_SERVER.fullmatch, servers)):
        detail = "must name its host by letters, digits, '.', '_' and '-', or by an IPv6 address in brackets"
        raise JobRejected("bad-host", field, f"{detail}, and the port behind ':'")
    return tuple(_with_port(server, _DEFAULT_PORTS.get(scheme.lower(), 0)) for server in servers)


def is_listed(host: str) -> bool:
    """Whether `WEIR_DATA_HOSTS` lists the host. True without the variable."""
    listed = os.environ.get(HOSTS_VARIABLE)
    return listed is None or any(_matches(host, entry) for entry in listed.split())


def is_same_host(host: str, other: str) -> bool:
    return _parts(host) == _parts(other)


def _matches(host: str, entry: str) -> bool:
    """Whether an entry `name`, `name:port` or `*.domain` lists the host. Without a port it lists every port."""
    name, port = _parts(host)
    listed, listed_port = _parts(_with_port(entry, 0))
    if listed_port not in (0, port):
        return False
    return name.endswith(listed[1:]) and name != listed[1:] if listed.startswith("*.") else name == listed


def _with_port(host: str, port: int) -> str:
    return host if re.fullmatch(r"(?:[^:]*|\[.*\]):\d+", host) else f"{host}:{port}"


def _parts(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name.strip("[]").lower().rstrip("."), int(port) if port.isdecimal() else -1
