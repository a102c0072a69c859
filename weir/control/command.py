"""Parts that the commands of `weir` share: the console, options, questions, and the end of an operation."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

import click

from weir.control.console import ACTIVE_STATES, Console, ConsoleError, Refused, Row
from weir.control.login import read_credentials
from weir.control.output import write_json, write_progress

FAILED: Final = 1
STILL_RUNNING: Final = 5

P = ParamSpec("P")


def with_console(command: Callable[Concatenate[Console, P], None]) -> Callable[P, None]:
    """Calls `command` with the console. An error becomes a line on stderr and an exit code."""

    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        url, token = click.get_current_context().find_object(tuple)  # type: ignore[misc]  # set by `main`
        try:
            stored = {} if url and token else read_credentials()
            url = url or stored.get("url")
            if not url:
                raise Refused("no console is known: run `weir login URL`, or set WEIR_URL and WEIR_TOKEN")
            # A token belongs to its console: that of the login is not sent to another address.
            console_token = token or (stored.get("token", "") if url.rstrip("/") == stored.get("url") else "")
            command(Console(url, console_token), *args, **kwargs)
        except ConsoleError as error:
            click.echo(f"weir: {error}", err=True)
            click.get_current_context().exit(error.exit_code)

    return call


def json_option(command: Callable[P, None]) -> Callable[P, None]:
    return click.option("--json", "as_json", is_flag=True, help="Write JSON with all fields.")(command)


def wait_options(command: Callable[P, None]) -> Callable[P, None]:
    """Options of a command that requests an operation."""
    command = click.option("--wait/--no-wait", default=True, help="Wait for the end (default).")(command)
    command = click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")(command)
    return json_option(reason_option(command))


def reason_option(command: Callable[P, None]) -> Callable[P, None]:
    return click.option("--reason", default="", help="Why; the console keeps it with the operation.")(command)


def copy_option(command: Callable[P, None]) -> Callable[P, None]:
    """Option of a command that takes a savepoint."""
    return click.option("--target", "folder", help="Folder that gets a copy of the savepoint.")(command)


def copied_to(folder: str | None) -> Row:
    """The parameter of the operation for `copy_option`."""
    return {} if folder is None else {"target": folder}


def target(console: Console, job: Row, version: int | None, parallelism: int | None) -> dict[str, Any]:
    params = {"version": console.version(job, version)["id"]} if version is not None else {}
    return {**params, "parallelism": parallelism} if parallelism is not None else params


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        click.echo(f"weir: {question} There is no terminal to answer on: --yes accepts.", err=True)
        click.get_current_context().exit(click.UsageError.exit_code)
    click.confirm(question, abort=True, err=True)


def confirmed_run(job: Row) -> Row:
    """The parameter that binds an operation to the run that was the latest when the question was asked."""
    return {"run": job["latest_run"]} if job["latest_run"] else {}


def operate(
    console: Console, job: Row, kind: str, params: Row, *, wait: bool, timeout: float, reason: str, as_json: bool
) -> None:
    operation = console.request(job, kind, params, reason)
    if wait:
        end(console, operation, timeout, as_json=as_json)
    elif as_json:
        write_json(operation)
    else:
        click.echo(operation["id"])


def end(console: Console, operation: Row, timeout_s: float, *, as_json: bool) -> None:
    """Waits, writes the outcome, and exits with its code. For a savepoint, the outcome is its number within the job."""
    ended = console.wait_for_end(operation, timeout_s, write_progress)
    if as_json:
        write_json(ended)
    elif ended["state"] in ACTIVE_STATES:
        click.echo(f"weir: still {ended['state']} after {timeout_s:.0f} s: `weir wait {ended['id']}`", err=True)
    elif ended["error"]:
        click.echo(f"weir: {ended['error'].get('detail') or ended['error'].get('message')}", err=True)
    else:
        click.echo((ended["result"] or {}).get("checkpoint", ended["id"]))
    if ended["state"] != "succeeded":
        click.get_current_context().exit(STILL_RUNNING if ended["state"] in ACTIVE_STATES else FAILED)
