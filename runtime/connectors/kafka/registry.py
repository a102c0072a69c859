"""The schema registry of Confluent, as formats use it, and the frame that it puts around each value.

0 (1 byte) · id of the schema (4 bytes, big-endian) · value
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from runtime.access.data_hosts import hosts_of
from runtime.access.secrets import check_hosts, check_references, is_connection, named_connection, resolve
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway
from runtime.libraries import import_library

FRAME_BYTES: Final = 5
_TIMEOUT_S: Final = 10
_MAX_RETRIES: Final = 2
_OPTIONS: Final = frozenset({"basic.auth.user.info", "ssl.ca.location"})
#: One address: the client would take more, separated by commas, and would parse other characters in its own way.
_URL: Final = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[\w./~-]*)?")
_SECRET: Final = re.compile(r"\$\{secret:[^}]*\}")
_INCOMPATIBLE: Final = frozenset({409, 42201})  #: HTTP status or error code: incompatible, or no schema

T = TypeVar("T")


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry.

    Args:
        url: address of the registry, or `${connection:NAME}`.
        options: `basic.auth.user.info` as `user:${secret:NAME}`, and `ssl.ca.location`. A named connection may have
            every option of confluent-kafka.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Raises JobRejected, naming the field, if a setting is invalid."""
        if is_connection(self.url):
            check_references("registry.url", self.url)
            if self.options:
                raise JobRejected("bad-option", "registry.options", "belong to the connection of `registry.url`")
        else:
            if "@" in self.url or "$" in self.url:
                advice = "put the login into the option basic.auth.user.info: addresses are logged"
                raise JobRejected("literal-secret", "registry.url", advice)
            if not _URL.fullmatch(self.url):
                raise JobRejected("bad-url", "registry.url", f"must be an http or https address, not {self.url!r}")
            check_hosts("registry.url", hosts_of(self.url))
        for name, value in self.options.items():
            where = f"registry.options.{name}"
            if name not in _OPTIONS:
                raise JobRejected("bad-option", where, f"must be one of {', '.join(sorted(_OPTIONS))}")
            check_references(where, value)
            secret = value.partition(":")[2] if name == "basic.auth.user.info" else value
            if name in ("basic.auth.user.info", "ssl.key.password") and not _SECRET.fullmatch(secret):
                raise JobRejected("literal-secret", where, "contains a password: write ${secret:NAME} in its place")

    def open(self) -> "RegistryClient":
        return RegistryClient(self)


class RegistryClient:
    """Reads and registers schemas. Ids are cached: a schema never changes under its id. Not thread-safe.

    Every method raises EnvironmentFailure if the registry is down, and JobRejected if it refuses.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        registry.check()
        connection = named_connection("registry.url", registry.url)
        self._url = registry.url if connection is None else connection.address
        self._library = import_library("confluent_kafka.schema_registry", "kafka")
        self._transport_error: type[Exception] = import_library("httpx2", "kafka").TransportError
        hosts = hosts_of(self._url)
        resolved = {n: resolve(f"registry.options.{n}", value, hosts) for n, value in registry.options.items()}
        resolved |= {} if connection is None else connection.options
        self.client = self._library.SchemaRegistryClient(
            {
                "url": self._url,
                "timeout": _TIMEOUT_S,
                "max.retries": _MAX_RETRIES,
                "retries.wait.ms": 100,
                **resolved,
            }
        )
        self._texts: dict[int, str] = {}

    def schema(self, number: int) -> str:
        """The text of a schema.

        Raises:
            ArrowInvalid: the registry has no schema with this id.
        """
        if number not in self._texts:
            try:
                self._texts[number] = self.call(f"schema {number}", lambda: self.client.get_schema(number).schema_str)
            except JobRejected as error:
                if error.code != "missing-schema":
                    raise
                raise pa.ArrowInvalid(error.detail) from error
        return self._texts[number]

    def register(self, subject: str, text: str, kind: str) -> int:
        """The id of a schema, which is registered unless it is already."""
        schema = self._library.Schema(text, kind)
        schema_id: int = self.call(f"subject {subject!r}", lambda: self.client.register_schema(subject, schema))
        return schema_id

    def call(self, what: str, request: Callable[[], T]) -> T:
        """The result of `request`; its errors name `what`."""
        where = f"schema registry {self._url}: {what}"
        try:
            return request()
        except self._transport_error as error:
            raise TargetAway(f"{where}: {error or type(error).__name__}") from error
        except self._library.SchemaRegistryError as error:
            status, code, reason = error.http_status_code, error.error_code, error.error_message
            if status in (401, 403):
                advice = "check `basic.auth.user.info` in the options of the registry"
                raise JobRejected("registry-refused", "registry.options", f"{where}: {reason}: {advice}") from error
            if status in _INCOMPATIBLE or code in _INCOMPATIBLE:
                advice = "write a compatible schema, or change the compatibility of the subject"
                raise JobRejected("incompatible-schema", "format.schema", f"{where}: {reason}: {advice}") from error
            if status == 404:
                raise JobRejected("missing-schema", "registry", f"{where}: {reason}") from error
            raise EnvironmentFailure(f"{where}: {reason} (HTTP {status}, error {code})") from error


def schema_number(value: bytes) -> int:
    """The id of the schema in the frame of `value`. Raises ArrowInvalid if there is no frame."""
    if len(value) < FRAME_BYTES or value[0]:
        raise pa.ArrowInvalid("the value has no frame of a schema registry: its first byte must be 0")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def frame(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")
