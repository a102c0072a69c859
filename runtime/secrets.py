"""References to secrets: `${secret:NAME}` in an option of a connector stands for a value that no row or file holds.

A slot and the job master resolve a reference when they connect. The value comes from the environment variable
`WEIR_SECRET_NAME` (name in upper case), else from the file NAME in the folder that `WEIR_SECRETS` names. Kubernetes and
Docker mount secrets as such files. Definitions, logs and manifests therefore contain the reference only. Each resolved
value is registered (`runtime.redaction`), so that failures and logs of the process mask it. Processes of the console
serve many jobs, and register none.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runtime.errors import JobRejected
from runtime.redaction import REFERENCE, register_resolved, secret_texts

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_URL_PASSWORD: Final = re.compile(r"[A-Za-z][\w+.-]*://[^/\s:@]*:(?P<secret>[^/\s@]+)@")
_PASSWORD_OPTION: Final = re.compile(r"\b(?:password|sslpassword)\s*=\s*(?P<secret>'[^']*'|[^\s&;]+)", re.IGNORECASE)
FOLDER_VARIABLE: Final = "WEIR_SECRETS"
_VARIABLE_PREFIX: Final = "WEIR_SECRET_"


def check_references(field: str, text: str) -> None:
    """Raises JobRejected, naming `field`, if a reference is malformed or the text contains a literal password."""
    for name in REFERENCE.findall(text):
        if not _NAME.fullmatch(name):
            problem = f"${{secret:{name}}} is no reference: a name is a letter, then letters, digits, '_' or '-'"
            raise JobRejected("bad-secret", field, problem)
    for found in (*_URL_PASSWORD.finditer(text), *_PASSWORD_OPTION.finditer(text)):
        if not REFERENCE.search(found["secret"]):
            advice = "write ${secret:NAME} in its place, and set WEIR_SECRET_NAME where the job runs"
            raise JobRejected("literal-secret", field, f"contains a password: {advice}")


def resolve(field: str, text: str, encode: Callable[[str], str] = str) -> str:
    """`text` with each reference replaced by its encoded value. Reads the environment and files.

    Raises:
        JobRejected: a secret is not set on this host; `field` and the secret's name are named.
    """
    return REFERENCE.sub(lambda found: encode(_value_of(field, found[1])), text)


def register_references(params: Mapping[str, Any]) -> None:
    """Registers the values of the references in `params` that are set on this host.

    Another process may have resolved them and may quote them in an error, such as a Spark task or a child process.
    """
    for value in _values(params):
        register_resolved(value)


def resolved_texts(params: Mapping[str, Any]) -> frozenset[str]:
    """The texts to mask for the references in `params` that are set on this host, for `runtime.redaction.redact`."""
    return frozenset(text for value in _values(params) for text in secret_texts(value))


def _values(params: Mapping[str, Any]) -> Iterator[str]:
    """The values of the references in `params` that are set on this host."""
    for name in set(REFERENCE.findall(json.dumps(dict(params)))):
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
