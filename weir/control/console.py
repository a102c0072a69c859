"""A client of the console's REST API.

Rows stay dictionaries: a missing field raises a KeyError that names it. A request is repeated when the connection
fails. A POST takes effect once all the same: each repetition carries the same `Idempotency-Key`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import httpx

Row = Mapping[str, Any]

_RETRIES: Final = 3
_RETRY_AFTER_S: Final = 1.0
_TIMEOUT_S: Final = 60.0
_WAIT_S: Final = 10  #: one request waits this long for the end of an operation
_PAGE: Final = 200
ACTIVE_STATES: Final = ("queued", "running")


class ConsoleError(Exception):
    """The console refused a request, or did not answer. `exit_code` is that of the command."""

    exit_code = 1


class Refused(ConsoleError):
    """The console refused a request; the text is its explanation."""

    exit_code = 3


class SignedOut(Refused):
    """The console does not accept the token: it was revoked, or has expired."""


class Unreachable(ConsoleError):
    """No console answered at the address."""

    exit_code = 4


class Console:
    """A console at `url`, such as http://127.0.0.1:8000, used with `token`."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=f"{self.url}/api/v1/", headers=headers, timeout=_TIMEOUT_S)

    def get(self, path: str, /, **query: Any) -> Any:
        """Raises Refused, Unreachable."""
        return self._send("GET", path, params={name: value for name, value in query.items() if value is not None})

    def get_with_tag(self, path: str) -> tuple[Row, str]:
        """A row and its entity tag, for `patch`. Raises Refused, Unreachable."""
        response = self._respond("GET", path)
        return _answer(self.url, response), response.headers["ETag"]

    def post(self, path: str, body: Row) -> Any:
        """A request with a key of its own: when it is repeated, it takes effect once. Raises Refused, Unreachable."""
        return self._send("POST", path, json=body, headers={"Idempotency-Key": str(uuid4())})

    def post_document(self, path: str, document: bytes) -> Any:
        """Posts a JSON document as it is, so that only the console reads it. Raises Refused, Unreachable."""
        return self._send("POST", path, content=document, headers={"Content-Type": "application/json"})

    def patch(self, path: str, body: Row, if_match: str = "*") -> Any:
        """Edits the row if it still has the entity tag `if_match`; "*": in any state. Raises Refused, Unreachable."""
        return self._send("PATCH", path, json=body, headers={"If-Match": if_match})

    def delete(self, path: str) -> Any:
        """Raises Refused, Unreachable."""
        return self._send("DELETE", path)

    def rows(self, path: str, most: int, /, **query: Any) -> Iterator[Row]:
        """The first `most` rows of the list at `path`."""
        page = self.get(path, limit=min(most, _PAGE), **query)
        while True:
            yield from page["results"][:most]
            most -= len(page["results"])
            if most <= 0 or not page["next"]:
                return
            page = self._send("GET", page["next"])

    # ------------------------------------------------------------ resources

    def token(self, username: str, password: str, scopes: Sequence[str] | None = None, days: int | None = None) -> str:
        """A new token. `scopes` None: it only reads. `days` None: the console's default.

        Raises Refused if name or password are wrong.
        """
        limits: dict[str, Any] = {} if scopes is None else {"scopes": list(scopes)}
        if days is not None:
            limits["expires_at"] = (datetime.now(UTC) + timedelta(days=days)).isoformat()
        return str(self.post("auth/token/", {"username": username, "password": password, **limits})["token"])

    def job(self, name: str) -> Row:
        row = next(self.rows("jobs/", 1, name=name), None)
        if row is None:
            raise Refused(f"no job has the name {name!r}; `weir jobs` lists the names")
        return row

    def version(self, job: Row, number: int) -> Row:
        row = next(self.rows(f"jobs/{job['id']}/versions/", 1, number=number), None)
        if row is None:
            raise Refused(f"--version: {job['name']} has no version {number}")
        return row

    def checkpoint(self, job: Row, number: int) -> Row:
        """A checkpoint or savepoint by its number within the job."""
        row = next(self.rows(f"jobs/{job['id']}/checkpoints/", 1, number=number), None)
        if row is None:
            raise Refused(f"{job['name']} has no checkpoint or savepoint {number}")
        return row

    def newest_version(self, job: Row, timeout_s: float) -> Row | None:
        """The newest version of a job, once it is compiled. Raises Refused: it still is not after `timeout_s`."""
        if not job["newest_version"]:
            return None
        for version in self._until_deadline(f"versions/{job['newest_version']}/", timeout_s):
            if version["state"] != "compiling":
                return version
        raise Refused(f"version {version['number']} of {job['name']} is not compiled yet; see --version")

    def upload_package(self, data: bytes, timeout_s: float) -> Row:
        """The stored package, once it is described, or as it is after `timeout_s`. Raises Refused, Unreachable."""
        stored = self._send("POST", "packages/", content=data, headers={"Content-Type": "application/zip"})
        for row in self._until_deadline(f"packages/{stored['digest']}/", timeout_s):
            stored = row
            if stored["state"] != "describing":
                break
        return dict(stored)

    # ------------------------------------------------------------ operations

    def request(self, job: Row, kind: str, params: Row, reason: str) -> Row:
        """Requests an operation. Raises Refused, Unreachable."""
        body = {"kind": kind, "params": params, "reason": reason}
        accepted: Row = self.post(f"jobs/{job['id']}/operations/", body)
        return accepted

    def withdraw(self, operation: str) -> Row:
        """Ends an operation that is queued, or whose restore waits. Raises Refused, Unreachable."""
        withdrawn: Row = self.post(f"operations/{operation}/withdraw/", {})
        return withdrawn

    def wait_for_end(self, operation: Row, timeout_s: float, on_change: Callable[[Row], None]) -> Row:
        """The operation once it has ended, or as it is after `timeout_s`. `on_change` is called for each phase."""
        on_change(operation)
        if operation["state"] not in ACTIVE_STATES:
            return operation
        for now in self._until_deadline(f"operations/{operation['id']}/", timeout_s):
            if (now["state"], now["phase"]) != (operation["state"], operation["phase"]):
                on_change(now)
            operation = now
            if operation["state"] not in ACTIVE_STATES:
                break
        return operation

    def _until_deadline(self, path: str, timeout_s: float) -> Iterator[Row]:
        """The row at `path`, at least once, read by requests that wait for its end."""
        deadline = time.monotonic() + timeout_s
        while True:
            asked_at = time.monotonic()
            yield self.get(path, wait=min(_WAIT_S, max(0, int(deadline - asked_at))))
            if time.monotonic() >= deadline:
                return
            time.sleep(max(0.0, asked_at + _RETRY_AFTER_S - time.monotonic()))  # a busy console answers at once

    # ------------------------------------------------------------ requests

    def _send(self, method: str, path: str, **request: Any) -> Any:
        return _answer(self.url, self._respond(method, path, **request))

    def _respond(self, method: str, path: str, **request: Any) -> httpx.Response:
        for is_last in (*[False] * _RETRIES, True):
            try:
                return self._client.request(method, path, **request)
            except httpx.InvalidURL as error:
                raise Unreachable(f"{self.url!r} is no address of a console: {error}") from error
            except httpx.TransportError as error:
                if is_last or isinstance(error, httpx.UnsupportedProtocol):
                    raise Unreachable(f"no console answers at {self.url}: {error}") from error
                time.sleep(_RETRY_AFTER_S)
        raise AssertionError("unreachable")


_OPTIONS: Final = {"checkpoint": "from"}  #: parameters of operations whose options have another name


def _answer(url: str, response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    try:
        body = response.json()
    except ValueError:
        raise Unreachable(f"{url} answers {response.status_code}, and not as a console of Weir") from None
    if not response.is_error:
        return body
    detail = str(body.get("detail") or response.reason_phrase)
    is_operation = response.request.url.path.endswith("/operations/")
    fields = "; ".join(_field_text(each, detail, is_operation) for each in body.get("errors", ()))
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise SignedOut(f"{detail} `weir login` stores a token.")
    raise Refused(f"{detail} ({fields})" if fields and fields not in detail else detail)


def _field_text(error: Row, detail: str, is_operation: bool) -> str:
    """The field of an error, with its text unless `detail` is the same. Parameters of operations are options."""
    name = error["pointer"].lstrip("/")
    if is_operation and name.startswith("params/"):
        name = name.removeprefix("params/")
        name = "--" + _OPTIONS.get(name, name).replace("_", "-")
    return name if error["detail"] == detail else f"{name.replace('/', '.')}: {error['detail']}"
