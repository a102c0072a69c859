"""Bulk requests: the same kind of operation for several jobs, with a result for each."""

import time
from typing import Any, Final

from weir.control.console import ACTIVE_STATES, Console, Refused, Row
from weir.control.output import write_progress

FAILED_STATES: Final = ("refused", "failed", "unknown")


def request_one(console: Console, name: str, kind: str, reason: str) -> dict[str, Any]:
    """The accepted operation of a job, or its refusal with the state "refused"."""
    try:
        return _result(name, console.request(console.job(name), kind, {}, reason))
    except Refused as refused:
        return {"job": name, "operation": None, "state": "refused", "detail": str(refused)}


def await_one(console: Console, result: dict[str, Any], deadline: float) -> dict[str, Any]:
    """The result at the end of its operation, or at `deadline` (monotonic time)."""
    if result["operation"] is None:
        return result
    operation = console.get(f"operations/{result['operation']}/")
    return _result(result["job"], console.wait_for_end(operation, deadline - time.monotonic(), write_progress))


def _result(name: str, operation: Row) -> dict[str, Any]:
    error = operation["error"] or {}
    detail = error.get("detail") or error.get("message")
    stalled = detail if operation["state"] not in ACTIVE_STATES else operation["phase"]
    return {"job": name, "operation": operation["id"], "state": operation["state"], "detail": stalled}
