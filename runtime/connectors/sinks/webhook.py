"""Batches of rows by HTTP POST, each with an idempotency key.

The body is a JSON array of rows. The header `Idempotency-Key` is `<source>-<epoch>-<first row>-<last row>`. A request
that is sent again after a failure has the same key and body, so a server that answers repeated keys without effect
receives every row exactly once (IETF draft "The Idempotency-Key HTTP Header Field").
"""

import http.client
import math
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
import pyarrow as pa

from runtime.access.secrets import check_hosts, check_references, check_secrets, named_connection, resolve
from runtime.core.job.graph import Guarantee
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway
from runtime.ports import OutputEpoch

MAX_ROWS: Final = 10_000
_REFERENCE: Final = re.compile(r"\$\{secret:[^}]*\}")
_RETRYABLE: Final = frozenset({408, 425, 429})  #: further to all of 500 and above
#: The server, or a gateway before it, cannot serve now: time-outs, rate limit, gateway, overload, full storage.
_AWAY: Final = frozenset({408, 429, 502, 503, 504, 507})
_REMEDIES: Final = {
    401: "check the credentials in `headers`",
    403: "check the credentials in `headers` and their rights",
    404: "correct the URL, or restore the endpoint",
    410: "correct the URL, or restore the endpoint",
    413: "lower `batch_rows`",
}
_OWN_HEADERS: Final = frozenset({"content-length", "content-type", "host", "idempotency-key", "transfer-encoding"})
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


@dataclass(frozen=True)
class Webhook:
    """A target of `WriteAheadSink` that posts rows to a URL.

    A time-out, a refused connection and the statuses 408, 425, 429 and 5xx are repeated. Any other status outside 2xx
    ends the job, and so does a redirection. A server that does not answer, or answers with 408, 429, 502, 503, 504 or
    507, is waited out without limit.

    Args:
        url: `http` or `https`; may contain `${secret:NAME}`. Or `${connection:NAME}`, whose options are headers.
        headers: further headers; values may contain `${secret:NAME}`.
        batch_rows: maximum number of rows in a request. A version of the job that changes it may repeat rows of an
            epoch whose delivery was interrupted.
        timeout_s: for a connection and for each answer.
        guarantee: "exactly-once" if the server answers repeated idempotency keys without effect.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    batch_rows: int = 500
    timeout_s: float = 30.0
    guarantee: str = Guarantee.AT_LEAST_ONCE.value

    def check(self) -> None:
        check_references("url", self.url)
        _check_place(self.url)
        if not self.url.startswith("${"):
            check_hosts("url", _hosts(_address("url", _REFERENCE.sub("secret", self.url))))
        for name, value in self.headers.items():
            check_references(f"headers.{name}", value)
            if name.lower() in _OWN_HEADERS:
                raise JobRejected("bad-header", f"headers.{name}", "is set by the connector")
            if name.lower() in _SECRET_HEADERS and "${secret:" not in value:
                advice = "write ${secret:NAME} in its place, and set WEIR_SECRET_NAME where the job runs"
                raise JobRejected("literal-secret", f"headers.{name}", f"contains a secret: {advice}")
        if not 1 <= self.batch_rows <= MAX_ROWS:
            raise JobRejected("bad-batch", "batch_rows", f"must be from 1 to {MAX_ROWS}")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise JobRejected("bad-timeout", "timeout_s", "must be a number of seconds above 0")
        if self.guarantee not in (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE):
            raise JobRejected("bad-guarantee", "guarantee", "must be exactly-once or at-least-once")

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        address, headers = self._resolve()
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        with closing(self._connection(address)) as connection:
            for first, rows in split_rows(batches, self.batch_rows):
                key = f"{epoch.source}-{epoch.number}-{first}-{first + len(rows) - 1}"
                request_headers = {**headers, "Content-Type": "application/json", "Idempotency-Key": key}
                self._post(connection, path, _encode(rows), request_headers)

    def _resolve(self) -> tuple[SplitResult, dict[str, str]]:
        """The URL and the headers with secrets. Raises JobRejected if the job may not use the host or a secret."""
        _check_place(self.url)
        connection = named_connection("url", self.url)
        address = _address("url", resolve("url", self.url, ()) if connection is None else connection.address)
        hosts = _hosts(address)
        if connection is None:
            check_secrets("url", self.url, hosts)
        check_hosts("url", hosts)
        headers = {name: resolve(f"headers.{name}", value, hosts) for name, value in self.headers.items()}
        return address, {**headers, **(connection.options if connection is not None else {})}

    def _connection(self, address: SplitResult) -> http.client.HTTPConnection:
        assert address.hostname is not None, "the address has been checked"
        if address.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(address.hostname, address.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(address.hostname, address.port, timeout=self.timeout_s)

    def _post(self, connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            answer.read()
        except ssl.SSLCertVerificationError as error:
            problem = f"the certificate of {self._name} is not accepted: {error.verify_message}"
            raise JobRejected("bad-certificate", "url", problem) from None
        except (ValueError, http.client.InvalidURL):  # their texts quote the value, which may be a secret
            problem = f"the URL or a header for {self._name} has an invalid character"
            raise JobRejected("bad-header", "headers", problem) from None
        except TimeoutError:
            remedy = "raise `timeout_s` if the server needs longer"
            raise TargetAway(f"{self._name} does not answer within {self.timeout_s:g} s: {remedy}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise TargetAway(f"{self._name} does not answer: {reason}") from None
        self._check_status(answer.status)

    def _check_status(self, status: int) -> None:
        if 200 <= status < 300:
            return
        name = f"{status} ({http.client.responses[status]})" if status in http.client.responses else str(status)
        if status in _AWAY:
            raise TargetAway(f"{self._name} answers with status {name}")
        if status in _RETRYABLE or status >= http.client.INTERNAL_SERVER_ERROR:
            raise EnvironmentFailure(f"{self._name} answers with status {name}")
        remedy = _REMEDIES.get(status, "mend the cause")
        problem = f"{self._name} refuses a batch with status {name}: {remedy}, then restart the job"
        raise JobRejected("webhook-refused", "url", problem)

    @property
    def _name(self) -> str:
        """The connector with its URL, without the query; references to secrets are not resolved."""
        return f"Webhook {self.url.partition('?')[0]}"


def _address(field_name: str, url: str) -> SplitResult:
    """The parts of the URL. Raises JobRejected, without the URL, if it is none of HTTP."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid or "@" in parts.netloc:
        problem = "must be an http or https URL with a host and without a user; use the header Authorization"
        raise JobRejected("bad-url", field_name, problem)
    return parts


def _check_place(url: str) -> None:
    """Raises JobRejected for a secret within the host or port, which errors would print. It may begin the whole URL."""
    place = re.split(r"[/?#]", url.partition("://")[2] or url, maxsplit=1)[0]
    if "${" in place and not (url.startswith(place) and re.fullmatch(r"\$\{\w+:[^}]*\}", place)):
        raise JobRejected("bad-secret", "url", "takes no secret in its host or port: only in path and query, or as all")


def _hosts(address: SplitResult) -> tuple[str, ...]:
    """The host to which `_connection` connects."""
    return (f"{address.hostname}:{address.port or (443 if address.scheme == 'https' else 80)}",)


def split_rows(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Lists of `count` rows, the last with the rest, each with the number of its first row, across batch boundaries."""
    first, rows = 0, list[dict[str, Any]]()
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, count - len(rows))
            try:
                rows += part.to_pylist()
            except (OverflowError, ValueError) as error:  # for example a time after the year 9999
                raise DataRejected(f"a row cannot be written as JSON: {error}: correct or cast the column") from error
            start += part.num_rows
            if len(rows) == count:
                yield first, rows
                first, rows = first + count, []
    if rows:
        yield first, rows


def _encode(rows: list[dict[str, Any]]) -> bytes:
    """A JSON array: dates and times in ISO 8601, decimals as text, bytes in base64, NaN and infinities as null."""
    try:
        return msgspec.json.encode(rows)
    except (TypeError, OverflowError) as error:
        raise DataRejected(f"a row cannot be written as JSON: {error}") from error
