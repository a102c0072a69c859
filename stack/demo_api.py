"""The demo's client of the REST API: log in, read rows, run operations to their end.

Rows stay dictionaries: a missing field raises a KeyError that names it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

Row = Mapping[str, Any]

_MAX_RETRIES: Final = 5
_POLL_S: Final = 0.3
_FINAL_OPERATION_STATES: Final = {"succeeded", "failed"}


class ApiRefused(Exception):
    """The console refused a request; the text is the console's explanation."""


@dataclass(frozen=True, slots=True)
class Api:
    """A logged-in client."""

    client: httpx.Client

    @classmethod
    def login(cls, url: str, username: str, password: str) -> Api:
        """A client with a token of the user. Raises ApiRefused."""
        client = httpx.Client(base_url=f"{url}/api/v1/", timeout=60.0)
        api = cls(client)
        token = api.post("auth/token/", {"username": username, "password": password, "scopes": ["define", "operate"]})[
            "token"
        ]
        client.headers["Authorization"] = f"Bearer {token}"
        return api

    def get(self, path: str, **query: Any) -> Row:
        """Reads a row. Tries again when the connection fails, since reading has no side effects."""
        for last_try in (*[False] * _MAX_RETRIES, True):
            try:
                return _answer(self.client.get(path, params=query or None))  # {} would remove the query of `path`
            except httpx.TransportError:
                if last_try:
                    raise
                time.sleep(1.0)
        raise AssertionError("unreachable")

    def all(self, path: str) -> list[Row]:
        """All rows of the list at `path`, from all pages."""
        rows: list[Row] = []
        page: Any = self.get(path)
        while True:
            rows += page if isinstance(page, list) else page["results"]
            following = None if isinstance(page, list) else page.get("next")
            if not following:
                return rows
            page = self.get(following)

    def post(self, path: str, body: Row) -> Row:
        return _answer(self.client.post(path, json=body))

    # ------------------------------------------------------------ resources of the console

    def run(self, run_id: int) -> Row:
        return self.get(f"runs/{run_id}/")

    def latest_run(self, job_id: int) -> Row:
        return max(self.all(f"jobs/{job_id}/runs/"), key=lambda run: int(run["id"]))

    def checkpoints(self, job_id: int) -> list[Row]:
        """Completed checkpoints and savepoints, oldest first."""
        rows = self.all(f"jobs/{job_id}/checkpoints/")
        return sorted((row for row in rows if row["status"] == "completed"), key=lambda row: int(row["number"]))

    def ready_version(self, job_id: int, body: Row, timeout_s: float) -> Row:
        """Adds a version and waits until it is compiled.

        Raises:
            ApiRefused: the version was rejected, or compiling took too long.
        """
        version = self.post(f"jobs/{job_id}/versions/", body)
        deadline = time.monotonic() + timeout_s
        while version["state"] == "compiling" and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            version = self.get(f"versions/{version['id']}/")
        if version["state"] != "ready":
            raise ApiRefused(f"version {version['number']} is {version['state']}: {version.get('error')}")
        return version

    def operate(self, job_id: int, kind: str, params: Row, timeout_s: float) -> Row:
        """Requests an operation and waits for its end.

        Raises:
            ApiRefused: the operation was refused, failed, or did not end in time.
        """
        operation = self.post(f"jobs/{job_id}/operations/", {"kind": kind, "params": params})
        deadline = time.monotonic() + timeout_s
        while operation["state"] not in _FINAL_OPERATION_STATES and time.monotonic() < deadline:
            operation = self.get(f"operations/{operation['id']}/", wait=5)
            time.sleep(_POLL_S)
        if operation["state"] != "succeeded":
            phase = operation.get("phase") or "no phase"
            raise ApiRefused(f"{kind} is {operation['state']} ({phase}): {operation.get('error')}")
        return operation


def _answer(response: httpx.Response) -> Row:
    if response.is_error:
        raise ApiRefused(
            f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text}"
        )
    answer: Row = response.json()
    return answer
