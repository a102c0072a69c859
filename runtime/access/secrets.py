"""References in options of a connector: `${secret:NAME}` to a value that no row or file holds, and
`${connection:NAME}` to a named connection (`access.data_hosts`).

A slot and the job master resolve a reference when they connect. The value comes from the environment variable
`WEIR_SECRET_NAME` (name in upper case), else from the file NAME in the folder that `WEIR_SECRETS` names. Kubernetes and
Docker mount secrets as such files. Definitions, logs and manifests therefore contain the reference only. Each resolved
value is registered (`access.redaction`), so that failures and logs of the process mask it. Processes of the console
serve many jobs, and register none.

A secret is bound to the named connections that mention it. Under the console it resolves for a pipeline that may use
such a connection, and goes to the hosts of that connection only.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runtime.access.data_hosts import (
    CONNECTION_NAME,
    HOSTS_VARIABLE,
    Connection,
    connections,
    hosts_of,
    is_listed,
    is_same_host,
)
from runtime.access.redaction import REFERENCE, register_resolved, secret_texts
from runtime.errors import JobRejected

_CONNECTION: Final = re.compile(r"\$\{connection:([^}]*)\}")
_NAME: Final = CONNECTION_NAME
_URL_PASSWORD: Final = re.compile(r"[A-Za-z][\w+.-]*://[^/\s:@]*:(?P<secret>[^/\s@]+)@")
_PASSWORD_OPTION: Final = re.compile(r"\b(?:password|sslpassword)\s*=\s*(?P<secret>'[^']*'|[^\s&;]+)", re.IGNORECASE)
FOLDER_VARIABLE: Final = "WEIR_SECRETS"
_VARIABLE_PREFIX: Final = "WEIR_SECRET_"


def is_connection(text: str) -> bool:
    """Whether `text` is `${connection:NAME}`."""
    return _CONNECTION.fullmatch(text) is not None


def check_references(field: str, text: str) -> None:
    """Raises JobRejected, naming `field`, for a malformed reference, an unknown connection or a literal password."""
    if (reference := _CONNECTION.search(text)) is not None:
        if not is_connection(text):
            detail = f"{reference[0]} must be the whole value: a connection has address, login and options together"
            raise JobRejected("bad-connection", field, detail)
        _connection(field, reference[1])
    for name in REFERENCE.findall(text):
        if not _NAME.fullmatch(name):
            problem = f"${{secret:{name}}} is no reference: a name is a letter, then letters, digits, '_' or '-'"
            raise JobRejected("bad-secret", field, problem)
    for match in (*_URL_PASSWORD.finditer(text), *_PASSWORD_OPTION.finditer(text)):
        if not REFERENCE.search(match["secret"]):
            advice = "write ${secret:NAME} in its place, and set WEIR_SECRET_NAME where the job runs"
            raise JobRejected("literal-secret", field, f"contains a password: {advice}")


def named_connection(field: str, text: str) -> Connection | None:
    """The connection that `text` names, with its secrets. None if `text` is no reference to a connection.

    Raises:
        JobRejected: the pipeline may not use the connection, or a secret is not set on this host.
    """
    if (reference := _CONNECTION.fullmatch(text)) is None:
        return None
    connection = _connection(field, reference[1])
    options = {name: _resolve(field, value) for name, value in connection.options.items()}
    return Connection(_resolve(field, connection.address), options)


def resolve(field: str, text: str, hosts: Iterable[str], encode: Callable[[str], str] = str) -> str:
    """`text` with each reference replaced by its encoded value. Reads the environment and files.

    Args:
        hosts: all hosts that the value is sent to, as `name:port`. They are checked with the secrets. Empty for a value
            that stays in this process.

    Raises:
        JobRejected: a host is not listed, or a secret is not bound to it, or is not set on this host. The error names
            `field`, and the host or the secret.
    """
    hosts = tuple(hosts)
    check_hosts(field, hosts)
    check_secrets(field, text, hosts)
    return _resolve(field, text, encode)


def check_hosts(field: str, hosts: Iterable[str]) -> None:
    """Raises JobRejected, naming `field`, for a host that is neither listed nor of a connection of the pipeline."""
    for host in hosts:
        if not is_listed(host) and not _is_bound(field, host, (connections() or {}).values()):
            detail = (
                f"{host} is not a host that jobs may use. An administrator adds it to {HOSTS_VARIABLE}, or makes a "
                "connection for this pipeline"
            )
            raise JobRejected("host-not-allowed", field, detail)


def check_secrets(field: str, text: str, hosts: Iterable[str]) -> None:
    """Raises JobRejected unless the pipeline may use each secret in `text`, and send it to each of `hosts`.

    Without `WEIR_CONNECTIONS` a secret is bound to nothing: an author runs the job without the console.
    """
    if (by_name := connections()) is None:
        return
    advice = "an administrator adds a connection with this secret and host for this pipeline"
    for name in REFERENCE.findall(text):
        binding = [each for each in by_name.values() if any(name in REFERENCE.findall(part) for part in each.texts)]
        if not binding:
            detail = f"no connection of this pipeline has the secret {name!r}: {advice}"
            raise JobRejected("secret-not-bound", field, detail)
        for host in hosts:
            if not _is_bound(field, host, binding):
                raise JobRejected("secret-not-bound", field, f"the secret {name!r} is not for {host}: {advice}")


def _is_bound(field: str, host: str, connections: Iterable[Connection]) -> bool:
    """Whether `host` is a host of one of the connections. An address that this host cannot resolve has no hosts."""
    for each in connections:
        with suppress(JobRejected):
            if any(is_same_host(host, bound) for bound in hosts_of(_resolve(field, each.address))):
                return True
    return False


def _connection(field: str, name: str) -> Connection:
    by_name = connections() or {}
    if name not in by_name:
        available = ", ".join(sorted(by_name)) or "none"
        detail = f"this pipeline has no connection {name!r}; it has: {available}. An administrator makes connections"
        raise JobRejected("unknown-connection", field, detail)
    return by_name[name]


def _resolve(field: str, text: str, encode: Callable[[str], str] = str) -> str:
    return REFERENCE.sub(lambda match: encode(_value_of(field, match[1])), text)


def register_references(params: Mapping[str, Any]) -> None:
    """Registers the values of the references in `params` and in all connections that are set on this host.

    Another process may have resolved them and may quote them in an error, such as a Spark task or a child process.
    """
    for value in _values(params, (connections() or {}).values()):
        register_resolved(value)


def resolved_texts(params: Mapping[str, Any], connections: Iterable[Connection] = ()) -> frozenset[str]:
    """The texts to mask for the references in `params` and `connections` that are set on this host, for
    `runtime.access.redaction.redact`.
    """
    return frozenset(text for value in _values(params, connections) for text in secret_texts(value))


def _values(params: Mapping[str, Any], connections: Iterable[Connection]) -> Iterator[str]:
    """The values of the references in `params` and `connections` that are set on this host."""
    texts = [json.dumps(dict(params)), *(text for each in connections for text in each.texts)]
    for name in {name for text in texts for name in REFERENCE.findall(text)}:
        with suppress(JobRejected):
            yield _read_value("params", name)


def _value_of(field: str, name: str) -> str:
    value = _read_value(field, name)
    register_resolved(value)
    return value


def _read_value(field: str, name: str) -> str:
    variable = _VARIABLE_PREFIX + name.upper().replace("-", "_")
    if (value := os.environ.get(variable)) is not None:
        return value
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder and _NAME.fullmatch(name):
        try:
            return (Path(folder) / name).read_text(encoding="utf-8").rstrip("\r\n")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise JobRejected("unreadable-secret", field, f"the secret {name!r} cannot be read: {error}") from error
    place = f"set {variable}, or add the file {name} to the folder that {FOLDER_VARIABLE} names"
    raise JobRejected("missing-secret", field, f"the secret {name!r} is not set on this host: {place}")
