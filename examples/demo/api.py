"""The demo's console: REST requests that wait for their result."""

from __future__ import annotations

import time
from typing import Any, Final, Self

from weir.control.console import Console, Refused, Row

_POLL_S: Final = 0.3
_MAX_ROWS: Final = 100_000


class Api(Console):
    """A logged-in client."""

    @classmethod
    def login(cls, url: str, username: str, password: str) -> Self:
        """A client with a token of the user. Raises ConsoleError."""
        return cls(url, Console(url).token(username, password, ["define", "operate"]))

    def all(self, path: str) -> list[Row]:
        """All rows of the list at `path`, from all pages."""
        return list(self.rows(path, _MAX_ROWS))

    def run(self, run_id: int) -> Row:
        run: Row = self.get(f"runs/{run_id}/")
        return run

    def latest_run(self, job_id: int) -> Row:
        return max(self.all(f"jobs/{job_id}/runs/"), key=lambda run: int(run["id"]))

    def checkpoints(self, job_id: int) -> list[Row]:
        """Completed checkpoints and savepoints, oldest first."""
        rows = self.rows(f"jobs/{job_id}/checkpoints/", _MAX_ROWS, outcome="completed")
        return sorted(rows, key=lambda row: int(row["number"]))

    def ready_version(self, job_id: int, body: Row, timeout_s: float) -> Row:
        """Adds a version and waits until it is compiled.

        Raises:
            Refused: the version was rejected, or compiling took too long.
        """
        version: dict[str, Any] = self.post(f"jobs/{job_id}/versions/", body)
        deadline = time.monotonic() + timeout_s
        while version["state"] == "compiling" and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            version = self.get(f"versions/{version['id']}/")
        if version["state"] != "ready":
            raise Refused(f"version {version['number']} is {version['state']}: {version.get('error')}")
        return version

    def operate(self, job_id: int, kind: str, params: Row, timeout_s: float) -> Row:
        """Requests an operation and waits for its end.

        Raises:
            Refused: the operation was refused, failed, or did not end in time.
        """
        operation = self.wait_for_end(self.request({"id": job_id}, kind, params, ""), timeout_s, lambda _: None)
        if operation["state"] != "succeeded":
            phase = operation.get("phase") or "no phase"
            raise Refused(f"{kind} is {operation['state']} ({phase}): {operation.get('error')}")
        return operation
