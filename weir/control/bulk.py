"""The same act on several jobs, by `jobs/bulk/` of REST: a result for each job, in the shape that REST has.

A wait replaces `state` and `detail` by those of the operation: its outcome, or its error.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import click

from weir.control.command import FAILED, STILL_RUNNING, confirm, json_option, reason_option, wait_options, with_console
from weir.control.console import ACTIVE_STATES, Console, ConsoleError, Refused, Row
from weir.control.output import write_progress, write_rows

_FAILED_STATES: Final = ("refused", "failed", "unknown")
_COLUMNS: Final = ("name", "state", "operation", "detail")


@click.command()
@click.argument("kind", type=click.Choice(["savepoint", "stop", "drain", "cancel"]))
@click.argument("jobs", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def bulk(
    console: Console, /, kind: str, jobs: tuple[str, ...], yes: bool, reason: str, wait: bool, timeout: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Takes savepoints of JOBS, or stops, drains or cancels them. A refusal stops no other job."""
    rows, unknown = _find(console, jobs)
    if kind != "savepoint":
        confirm(f"{kind.capitalize()} {', '.join(jobs)}?", yes)
    runs = [job["latest_run"] for job in rows if job["latest_run"]]
    results = [*_request(console, rows, {"kind": kind, "runs": runs, "reason": reason}), *unknown]
    if wait:
        deadline = time.monotonic() + timeout
        results = [_await(console, result, deadline) for result in results]
    _write(results, as_json=as_json)
    if wait and any(result["state"] in ACTIVE_STATES for result in results):
        click.get_current_context().exit(STILL_RUNNING)


def _tags_command(kind: str, text: str) -> click.Command:
    @click.command(kind, help=text)
    @click.argument("tags")
    @click.argument("jobs", nargs=-1, required=True)
    @reason_option
    @json_option
    @with_console
    def command(console: Console, /, tags: str, jobs: tuple[str, ...], reason: str, as_json: bool) -> None:
        rows, unknown = _find(console, jobs)
        changed = _request(console, rows, {"kind": kind, "tags": tags.split(","), "reason": reason})
        _write([*changed, *unknown], as_json=as_json)

    return command


def _find(console: Console, names: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """The jobs, and a refusal for each name without a job."""
    rows: list[Row] = []
    unknown: list[Row] = []
    for name in dict.fromkeys(names):
        try:
            rows.append(console.job(name))
        except Refused as error:
            result = {"job": None, "name": name, "state": "refused", "operation": None, "operation_state": None}
            unknown.append({**result, "detail": str(error)})
    return rows, unknown


def _request(console: Console, jobs: Sequence[Row], request: Row) -> list[Row]:
    """The results of REST."""
    if not jobs:
        return []
    body = {**request, "jobs": [job["id"] for job in jobs]}
    results: list[Row] = console.post("jobs/bulk/", body)["results"]
    return results


def _await(console: Console, result: Row, deadline: float) -> Row:
    """The result at the end of its operation, at `deadline` (monotonic time), or at an error of the console."""
    if result["operation"] is None:
        return result
    try:
        operation = console.get(f"operations/{result['operation']}/")
        ended = console.wait_for_end(operation, deadline - time.monotonic(), write_progress)
    except ConsoleError as error:
        return {**result, "state": "unknown", "detail": str(error)}
    failure: Row = ended["error"] or {}
    detail: Any = ended["phase"] if ended["state"] in ACTIVE_STATES else failure.get("detail") or failure.get("message")
    return {**result, "state": ended["state"], "operation_state": ended["state"], "detail": detail or ""}


def _write(results: Sequence[Row], *, as_json: bool) -> None:
    write_rows(results, _COLUMNS, as_json=as_json)
    if any(result["state"] in _FAILED_STATES for result in results):
        click.get_current_context().exit(FAILED)


COMMANDS: Final = (
    bulk,
    _tags_command("tag", "Adds TAGS, separated by commas, to JOBS."),
    _tags_command("untag", "Removes TAGS, separated by commas, from JOBS."),
)
