"""The commands of `weirctl`.

Exit codes: 0 done, 1 the operation failed, 2 wrong usage, 3 refused by the console, 4 no console answers, 5 the
operation still runs at the end of `--timeout`. Click completes commands and options in the shell:
`eval "$(_WEIRCTL_COMPLETE=bash_source weirctl)"`.
"""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec

import click

from weir.control import definition
from weir.control.console import ACTIVE_STATES, Console, ConsoleError, Refused, Row
from weir.control.login import credentials_path, read_credentials, store_credentials
from weir.control.output import write_json, write_progress, write_rows

FAILED: Final = 1
STILL_RUNNING: Final = 5

P = ParamSpec("P")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="WEIR_URL", help="Address of the console [WEIR_URL, or that of the login].")
@click.option("--token", envvar="WEIR_TOKEN", help="A token of the REST API [WEIR_TOKEN, or that of the login].")
@click.pass_context
def main(context: click.Context, url: str | None, token: str | None) -> None:
    """Operates the jobs of a Weir console."""
    context.obj = (url, token)


def with_console(command: Callable[Concatenate[Console, P], None]) -> Callable[P, None]:
    """Calls `command` with the console. An error becomes a line on stderr and an exit code."""

    @wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        url, token = click.get_current_context().find_object(tuple)  # type: ignore[misc]  # set by `main`
        try:
            stored = {} if url and token else read_credentials()
            url = url or stored.get("url")
            if not url:
                raise Refused("no console is known: run `weirctl login URL`, or set WEIR_URL and WEIR_TOKEN")
            # A token belongs to its console: that of the login is not sent to another address.
            own = token or (stored.get("token", "") if url.rstrip("/") == stored.get("url") else "")
            command(Console(url, own), *args, **kwargs)
        except ConsoleError as error:
            click.echo(f"weirctl: {error}", err=True)
            click.get_current_context().exit(error.exit_code)

    return call


def json_option(command: Callable[P, None]) -> Callable[P, None]:
    return click.option("--json", "as_json", is_flag=True, help="Write JSON with all fields.")(command)


def wait_options(command: Callable[P, None]) -> Callable[P, None]:
    """Options of a command that requests an operation."""
    command = click.option("--wait/--no-wait", default=True, help="Wait for the end (default).")(command)
    command = click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")(command)
    command = click.option("--reason", default="", help="Why; the console keeps it with the operation.")(command)
    return json_option(command)


# ---------------------------------------------------------------- login


@main.command()
@click.argument("url")
@click.option("--user", prompt="User")
@click.option("--password", prompt=True, hide_input=True, envvar="WEIR_PASSWORD")
def login(url: str, user: str, password: str) -> None:
    """Stores a token for the console at URL, in a file that only you can read."""
    try:
        console = Console(url)
        path = store_credentials(console.url, console.token(user, password))
    except ConsoleError as error:
        click.echo(f"weirctl: {error}", err=True)
        click.get_current_context().exit(error.exit_code)
    click.echo(f"The token for {console.url} is in {path}.")


@main.command()
def logout() -> None:
    """Removes the stored token from this machine."""
    credentials_path().unlink(missing_ok=True)


# ---------------------------------------------------------------- looking


@main.command()
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--owner", help="Only jobs of this owner.")
@click.option("--limit", default=1000, show_default=True)
@json_option
@with_console
def jobs(console: Console, /, tag: str | None, owner: str | None, limit: int, as_json: bool) -> None:
    """Lists jobs with the state of their latest run."""
    found = console.rows("jobs/", limit, tag=tag, owner=owner)
    flat = (
        {**row, "health": row["health"]["level"] if row["health"] and not as_json else row["health"]} for row in found
    )
    write_rows(flat, ("name", "latest_state", "health", "pipeline", "owner", "tags"), as_json=as_json)


@main.command()
@click.argument("job")
@json_option
@with_console
def status(console: Console, /, job: str, as_json: bool) -> None:
    """Shows the latest run of JOB: state, health, and the operations that are possible now."""
    found = console.job(job)
    run = console.get(f"runs/{found['latest_run']}/") if found["latest_run"] else None
    if as_json:
        write_json({"job": found, "run": run})
        return
    if run is None:
        click.echo(f"{job} has not run yet.")
        return
    click.echo(
        f"{job}: run {run['id']}, version {run['version_number']}, {run['state']}, parallelism {run['parallelism']}"
    )
    for finding in run["health"]["findings"]:
        click.echo(f"{finding['level']}: {finding['sentence']}")
    click.echo("possible: " + (", ".join(act["act"] for act in run["acts"] if act["enabled"]) or "nothing"))


@main.command()
@click.argument("job")
@click.option("--kind", type=click.Choice(["checkpoint", "savepoint", "stop", "drain"]))
@click.option("--limit", default=20, show_default=True)
@json_option
@with_console
def checkpoints(console: Console, /, job: str, kind: str | None, limit: int, as_json: bool) -> None:
    """Lists checkpoints and savepoints of JOB, newest first."""
    found = console.rows(f"jobs/{console.job(job)['id']}/checkpoints/", limit, kind=kind)
    columns = ("number", "kind", "outcome", "ended_at", "duration_ms", "size_bytes", "name", "run", "review_state")
    write_rows(found, columns, as_json=as_json)


@main.command()
@click.argument("job")
@click.option("--limit", default=20, show_default=True)
@json_option
@with_console
def operations(console: Console, /, job: str, limit: int, as_json: bool) -> None:
    """Lists operations of JOB, newest first."""
    found = console.rows(f"jobs/{console.job(job)['id']}/operations/", limit)
    write_rows(found, ("id", "kind", "state", "phase", "created_at", "ended_at", "reason"), as_json=as_json)


# ---------------------------------------------------------------- definitions


@main.command()
@click.argument("job")
@click.option("--version", type=int, help="Number of the version (default: the newest).")
@with_console
def export(console: Console, /, job: str, version: int | None) -> None:
    """Writes the definition of JOB as YAML. Secrets are masked."""
    found = console.job(job)
    if version is None and not found["newest_version"]:
        raise Refused(f"{job} has no version yet")
    shown = console.version(found, version) if version else console.get(f"versions/{found['newest_version']}/")
    click.echo(definition.export(found, shown), nl=False)


@main.command()
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="A file of `export`.")
@click.option("--message", default="", help="Why; the list of versions shows it.")
@with_console
def apply(console: Console, /, path: Path, message: str) -> None:
    """Makes the definition of a job equal to a file: creates the job, or a version of it, if anything differs."""
    for line in definition.apply(console, definition.read(path), message) or ["nothing to change"]:
        click.echo(line)


# ---------------------------------------------------------------- acting


@main.command()
@click.argument("job")
@click.option("--version", type=int, help="Number of the version (default: the newest that is ready).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--accept-repeated-output", is_flag=True)
@wait_options
@with_console
def start(
    console: Console,
    /,
    job: str,
    version: int | None,
    parallelism: int | None,
    accept_repeated_output: bool,
    **asked: Any,
) -> None:
    """Starts JOB without state."""
    found = console.job(job)
    target = _target(console, found, version, parallelism)
    _operate(console, found, "start", {**target, "accept_repeated_output": accept_repeated_output}, **asked)


@main.command()
@click.argument("job")
@click.option("--name", default="", help="A name to find the savepoint by.")
@click.option("--note", default="")
@click.option("--pin", is_flag=True, help="Retention never deletes it.")
@wait_options
@with_console
def savepoint(console: Console, /, job: str, name: str, note: str, pin: bool, **asked: Any) -> None:
    """Takes a savepoint of JOB, which goes on."""
    _operate(console, console.job(job), "savepoint", {"name": name, "note": note, "pin": pin}, **asked)


@main.command()
@click.argument("job")
@click.option("--name", default="", help="A name to find the savepoint by.")
@wait_options
@with_console
def stop(console: Console, /, job: str, name: str, **asked: Any) -> None:
    """Takes a savepoint of JOB and ends the run; it can be restored without loss."""
    _operate(console, console.job(job), "stop", {"name": name}, **asked)


@main.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def drain(console: Console, /, job: str, yes: bool, **asked: Any) -> None:
    """Ends JOB for good: every window and timer fires now, then a last savepoint is taken."""
    found = console.job(job)
    _confirm(f"Every open window and timer of {job} fires early, and the run ends. Drain it?", yes)
    _operate(console, found, "drain", {}, **asked)


@main.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def cancel(console: Console, /, job: str, yes: bool, **asked: Any) -> None:
    """Ends JOB without a savepoint."""
    found = console.job(job)
    _confirm(f"{job} ends without a savepoint (`weirctl stop` takes one). Cancel it?", yes)
    _operate(console, found, "cancel", {}, **asked)


@main.command()
@click.argument("job")
@click.option("--parallelism", type=int, required=True)
@wait_options
@with_console
def rescale(console: Console, /, job: str, parallelism: int, **asked: Any) -> None:
    """Stops JOB with a savepoint and restores it at another parallelism."""
    _operate(console, console.job(job), "rescale", {"parallelism": parallelism}, **asked)


@main.command()
@click.argument("job")
@click.option("--from", "number", type=int, help="Number of a checkpoint or savepoint of the job.")
@click.option("--path", help="Folder of a savepoint, instead of a number.")
@click.option("--version", type=int, help="Number of the version (default: the newest that is ready).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--accept-repeated-output", is_flag=True)
@click.option("--allow-unmapped", is_flag=True, help="Drop the state of operators that the version lacks.")
@click.option("--dry-run", is_flag=True, help="Show the effects and do nothing.")
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def restore(
    console: Console, /, job: str, number: int | None, path: str | None, version: int | None, parallelism: int | None,
    accept_repeated_output: bool, allow_unmapped: bool, dry_run: bool, yes: bool, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Starts JOB from a checkpoint or savepoint, after its effects were shown. They are binding."""
    if (number is None) == (path is None):
        raise click.UsageError("either --from or --path must be given")
    found = console.job(job)
    target = _target(console, found, version, parallelism)
    if number is not None:
        origin: dict[str, Any] = {"checkpoint": console.checkpoint(found, number)["id"]}
        plan = console.get(f"checkpoints/{origin['checkpoint']}/mapping/", **target)
    else:
        origin = {"path": path}
        plan = console.get(f"jobs/{found['id']}/mapping/", path=path, **target)
    _write_plan(plan, as_json=as_json and dry_run)
    if dry_run:
        return
    _confirm(f"Restore {job} at parallelism {plan['parallelism']}?", yes)
    accepted = {"accept_repeated_output": accept_repeated_output, "allow_unmapped": allow_unmapped}
    params = {**origin, **target, **accepted, "plan_hash": plan["plan_hash"]}
    _operate(console, found, "restore", params, as_json=as_json, **asked)


@main.command()
@click.argument("operation")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
@json_option
@with_console
def wait(console: Console, /, operation: str, timeout: float, as_json: bool) -> None:
    """Waits for the end of OPERATION, an id that an earlier command printed."""
    _end(console, console.get(f"operations/{operation}/"), timeout, as_json=as_json)


def _target(console: Console, job: Row, version: int | None, parallelism: int | None) -> dict[str, Any]:
    found = {"version": console.version(job, version)["id"]} if version is not None else {}
    return {**found, "parallelism": parallelism} if parallelism is not None else found


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can answer here: --yes accepts.")
    click.confirm(question, abort=True, err=True)


def _write_plan(plan: Row, *, as_json: bool) -> None:
    if as_json:
        write_json(plan)
        return
    for operator in plan["operators"]:
        click.echo(f"{operator['uid']}: {operator['fate']}, {operator['reason']}", err=True)
    repeats = plan["repeats"]
    if repeats:
        click.echo(f"output of checkpoints {repeats['first']} to {repeats['last']} is written a second time", err=True)
    for problem in plan["problems"]:
        click.echo(f"problem: {problem['field']}: {problem['detail']}", err=True)
    for warning in plan["warnings"]:
        click.echo(f"warning: {warning}", err=True)


def _operate(
    console: Console, job: Row, kind: str, params: Row, *, wait: bool, timeout: float, reason: str, as_json: bool
) -> None:
    operation = console.request(job, kind, params, reason)
    if wait:
        _end(console, operation, timeout, as_json=as_json)
    elif as_json:
        write_json(operation)
    else:
        click.echo(operation["id"])


def _end(console: Console, operation: Row, timeout_s: float, *, as_json: bool) -> None:
    """Waits, writes the outcome, and exits with its code."""
    ended = console.wait_for_end(operation, timeout_s, write_progress)
    if as_json:
        write_json(ended)
    elif ended["state"] in ACTIVE_STATES:
        click.echo(f"weirctl: still {ended['state']} after {timeout_s:.0f} s: `weirctl wait {ended['id']}`", err=True)
    elif ended["error"]:
        click.echo(f"weirctl: {ended['error'].get('detail') or ended['error']}", err=True)
    else:
        click.echo(ended["id"])
    if ended["state"] != "succeeded":
        click.get_current_context().exit(STILL_RUNNING if ended["state"] in ACTIVE_STATES else FAILED)


if __name__ == "__main__":
    main()
