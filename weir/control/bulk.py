"""Bulk requests: the same kind of operation for several jobs, with a result for each."""

import time
from typing import Any, Final

from weir.control.console import ACTIVE_STATES, Console, ConsoleError, Refused, Row
from weir.control.output import write_progress

FAILED_STATES: Final = ("refused", "failed", "unknown")


def request_one(console: Console, name: str, kind: str, reason: str) -> dict[str, Any]:
    """The accepted operation of a job, or the error with the state "refused", or "unknown" without an answer."""
    try:
        return _result(name, console.request(console.job(name), kind, {}, reason))
    except ConsoleError as error:
        return {"job": name, "operation": None, **_error(error)}


def await_one(console: Console, result: dict[str, Any], deadline: float) -> dict[str, Any]:
    """The result at the end of its operation, at `deadline` (monotonic time), or at an error, which it has then."""
    if result["operation"] is None:
        return result
    try:
        operation = console.get(f"operations/{result['operation']}/")
        return _result(result["job"], console.wait_for_end(operation, deadline - time.monotonic(), write_progress))
    except ConsoleError as error:
        return {**result, **_error(error)}


def _error(error: ConsoleError) -> dict[str, str]:
    return {"state": "refused" if isinstance(error, Refused) else "unknown", "detail": str(error)}


def _result(name: str, operation: Row) -> dict[str, Any]:
    error = operation["error"] or {}
    detail = error.get("detail") or error.get("message")
    stalled = detail if operation["state"] not in ACTIVE_STATES else operation["phase"]
    return {"job": name, "operation": operation["id"], "state": operation["state"], "detail": stalled}
