"""The commands of `weir`.

Exit codes: 0 done, 1 the operation failed or definitions differ, 2 wrong usage, 3 refused by the console, 4 no console
answers, 5 the operation still runs at the end of `--timeout`. Click completes commands and options in the shell:
`eval "$(_WEIR_COMPLETE=bash_source weir)"`.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from runtime.core.job.lifecycle import RunState, may_start
from runtime.errors import JobRejected, WeirError
from runtime.libraries import DISTRIBUTION
from weir.control import authors, bulk, changes, definition, maintenance, package, plans, processes, snapshots
from weir.control.command import (
    FAILED,
    confirm,
    confirmed_run,
    copied_to,
    copy_option,
    end,
    json_option,
    operate,
    target,
    wait_options,
    with_console,
)
from weir.control.console import Console, ConsoleError, Refused, Row, SignedOut
from weir.control.login import credentials_path, read_credentials, store_credentials
from weir.control.output import write_json, write_rows

_JOB_COLUMNS: Final = ("name", "state", "pipeline", "owner", "tags", "cause")
_COMMANDS_OF_ACTS: Final = {"rollback": "restore --end-run"}  #: acts of a run whose commands have another name


class _Commands(click.Group):
    """A refusal, such as that of a missing extra, and the failure of a job become a line on stderr."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except WeirError as error:
            click.echo(f"weir: {error}", err=True)
            context.exit(Refused.exit_code if isinstance(error, JobRejected) else FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, prog_name="weir", message="%(prog)s %(version)s")
@click.option("--url", envvar="WEIR_URL", help="Address of the console [WEIR_URL, or that of the login].")
@click.option("--token", envvar="WEIR_TOKEN", help="A token of the REST API [WEIR_TOKEN, or that of the login].")
@click.pass_context
def main(context: click.Context, url: str | None, token: str | None) -> None:
    """Writes and operates streaming jobs, and starts the processes of their console."""
    context.obj = (url, token)


# ---------------------------------------------------------------- login


@main.command()
@click.argument("url")
@click.option("--user", prompt="User")
@click.option("--password", prompt=True, hide_input=True, envvar="WEIR_PASSWORD")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(["read", "define", "operate", "review", "maintain"]),
    help="A right of the token (repeatable); `read` is always included [read only].",
)  # fmt: skip
@click.option("--days", type=click.IntRange(1, 3650), help="Lifetime of the token [set by the console, else 90].")
def login(url: str, user: str, password: str, scopes: tuple[str, ...], days: int | None) -> None:
    """Stores a token for the console at URL, in a file that only you can read."""
    limits = [scope for scope in scopes if scope != "read"] if scopes else None
    try:
        console = Console(url)
        path = store_credentials(console.url, console.token(user, password, limits, days))
    except ConsoleError as error:
        click.echo(f"weir: {error}", err=True)
        click.get_current_context().exit(error.exit_code)
    click.echo(f"The token for {console.url} is in {path}.")


@main.command()
def logout() -> None:
    """Revokes the stored token, and removes it from this machine, also if the console does not answer."""
    try:
        stored = read_credentials()
        if stored:
            with suppress(SignedOut):  # it has expired, or an earlier answer was lost
                Console(stored["url"], stored["token"]).delete("auth/tokens/current/")
    except ConsoleError as error:
        click.echo(f"weir: the token is not revoked: {error}", err=True)
        click.get_current_context().exit(error.exit_code)
    finally:
        credentials_path().unlink(missing_ok=True)


# ---------------------------------------------------------------- looking


@main.command()
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--owner", help="Only jobs of this owner.")
@click.option("--limit", default=1000, show_default=True)
@json_option
@with_console
def jobs(console: Console, /, tag: str | None, owner: str | None, limit: int, as_json: bool) -> None:
    """Lists jobs with the state and the health of their latest run, and the cause if it is not well."""
    rows = console.rows("jobs/", limit, tag=tag, owner=owner)
    write_rows(rows if as_json else map(_with_health, rows), _JOB_COLUMNS, as_json=as_json)


def _with_health(job: Row) -> Row:
    health = job["health"]
    if health is None:
        return {**job, "state": "Never started", "cause": ""}
    return {**job, "state": health["word"], "cause": health["sentence"] if health["findings"] else ""}


@main.command()
@click.argument("job")
@json_option
@with_console
def status(console: Console, /, job: str, as_json: bool) -> None:
    """Shows the latest run of JOB: state, cause and remedy, rows by step, and the operations that are possible now.

    Rows are those of the present attempt; rates are per second.
    """
    job_row = console.job(job)
    run = console.get(f"runs/{job_row['latest_run']}/") if job_row["latest_run"] else None
    if as_json:
        write_json({"job": job_row, "run": run})
        return
    if run is None:
        click.echo(f"{job} has not run yet.")
        return
    live, health = run["live"] or {}, run["health"]
    click.echo(
        f"{job}: {health['word']}, run {run['id']}, version {run['version_number']},"
        f" parallelism {run['parallelism']}, restarts {live.get('restarts', 0)}"
    )
    for finding in health["findings"]:
        click.echo(f"{finding['level']}: {finding['sentence']} {finding['remedy']}")
    if steps := live.get("operators"):
        rows = ({"step": uid, **numbers} for uid, numbers in steps.items())
        write_rows(rows, ("step", "state", "records_in", "rate_in", "records_out", "rate_out"), as_json=False)
    possible = [_COMMANDS_OF_ACTS.get(act["act"], act["act"]) for act in run["acts"] if act["enabled"]]
    click.echo("possible: " + (", ".join(possible) or "nothing"))


@main.command()
@click.argument("job")
@click.option("--kind", type=click.Choice(["checkpoint", "savepoint", "stop", "drain"]))
@click.option("--limit", default=20, show_default=True)
@json_option
@with_console
def checkpoints(console: Console, /, job: str, kind: str | None, limit: int, as_json: bool) -> None:
    """Lists checkpoints and savepoints of JOB, newest first."""
    rows = console.rows(f"jobs/{console.job(job)['id']}/checkpoints/", limit, kind=kind)
    columns = ("number", "kind", "outcome", "ended_at", "duration_ms", "size_bytes", "name", "run", "review_state")
    write_rows(rows, columns, as_json=as_json)


@main.command()
@click.argument("job", required=False)
@click.option("--user", help="Only operations that this user requested.")
@click.option("--limit", default=20, show_default=True)
@json_option
@with_console
def operations(console: Console, /, job: str | None, user: str | None, limit: int, as_json: bool) -> None:
    """Lists operations of JOB, or of all jobs, newest first."""
    rows = console.rows("operations/", limit, job=console.job(job)["id"] if job else None, user=user)
    columns = ("id", "kind", "state", "phase", "created_at", "ended_at", "reason")
    write_rows(rows, columns if job else ("job", *columns), as_json=as_json)


# ---------------------------------------------------------------- definitions


@main.command()
@click.argument("job")
@click.option("--version", type=int, help="Number of the version (default: the newest).")
@with_console
def export(console: Console, /, job: str, version: int | None) -> None:
    """Writes the definition of JOB as YAML. Secrets are masked."""
    job_row = console.job(job)
    if version is None and not job_row["newest_version"]:
        raise Refused(f"{job} has no version yet")
    version_row = (
        console.version(job_row, version) if version else console.get(f"versions/{job_row['newest_version']}/")
    )
    click.echo(definition.export(job_row, version_row), nl=False)


@main.command()
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="A file of `export`.")
@json_option
@with_console
def diff(console: Console, /, path: Path, as_json: bool) -> None:
    """Shows the differences from the job to a file. Exit code 0: equal, 1: different."""
    _write_differences(definition.differences(console, definition.read(path)), as_json=as_json)


@main.command()
@click.option("-f", "--file", "path", type=click.Path(path_type=Path), required=True, help="A file of `export`.")
@click.option("--message", default="", help="Why; the list of versions shows it.")
@click.option("--dry-run", is_flag=True, help="Show the differences and do nothing, as `weir diff`.")
@with_console
def apply(console: Console, /, path: Path, message: str, dry_run: bool) -> None:
    """Makes the definition of a job equal to a file: creates the job, or a version of it, if anything differs."""
    document = definition.read(path)
    if dry_run:
        _write_differences(definition.differences(console, document), as_json=False)
        return
    for line in definition.apply(console, document, message) or ["nothing to change"]:
        click.echo(line)


def _write_differences(differences: list[Row], *, as_json: bool) -> None:
    """Writes the differences, and exits with 1 if there are any."""
    if as_json:
        write_json(differences)
    for row in () if as_json else differences:
        before, after = (json.dumps(row[side], ensure_ascii=False) for side in ("before", "after"))
        click.echo(f"{row['part']} {row['name']}: {before} -> {after}")
    if differences:
        click.get_current_context().exit(FAILED)


# ---------------------------------------------------------------- acting


@main.command()
@click.argument("job")
@click.option("--version", type=int, help="Number of the version (default: the newest that is ready).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--accept-repeated-output", is_flag=True)
@click.option("--when-ready", is_flag=True, help="Wait for the compilation of the version (default: the newest).")
@wait_options
@with_console
def start(
    console: Console, /, job: str, version: int | None, parallelism: int | None, accept_repeated_output: bool,
    when_ready: bool, **options: Any,
) -> None:  # fmt: skip
    """Starts JOB without state."""
    job_row = console.job(job)
    run_target = target(console, job_row, version, parallelism)
    params = {**run_target, "accept_repeated_output": accept_repeated_output, "when_ready": when_ready}
    operate(console, job_row, "start", params, **options)


@main.command()
@click.argument("job")
@click.option("--name", default="", help="A name to find the savepoint by.")
@click.option("--note", default="")
@click.option("--pin", is_flag=True, help="Retention never deletes it.")
@copy_option
@wait_options
@with_console
def savepoint(
    console: Console, /, job: str, name: str, note: str, pin: bool, folder: str | None, **options: Any
) -> None:
    """Takes a savepoint of JOB, which goes on. Prints its number, for `weir restore --from`."""
    params = {"name": name, "note": note, "pin": pin, **copied_to(folder)}
    operate(console, console.job(job), "savepoint", params, **options)


@main.command()
@click.argument("job")
@click.option("--name", default="", help="A name to find the savepoint by.")
@copy_option
@wait_options
@with_console
def stop(console: Console, /, job: str, name: str, folder: str | None, **options: Any) -> None:
    """Takes a savepoint of JOB and ends the run; it can be restored without loss."""
    operate(console, console.job(job), "stop", {"name": name, **copied_to(folder)}, **options)


@main.command()
@click.argument("job")
@copy_option
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def drain(console: Console, /, job: str, folder: str | None, yes: bool, **options: Any) -> None:
    """Ends JOB for good: every window and timer fires now, then a last savepoint is taken."""
    job_row = console.job(job)
    confirm(f"Every open window and timer of {job} fires early, and the run ends. Drain it?", yes)
    operate(console, job_row, "drain", {**confirmed_run(job_row), **copied_to(folder)}, **options)


@main.command()
@click.argument("job")
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def cancel(console: Console, /, job: str, yes: bool, **options: Any) -> None:
    """Ends JOB without a savepoint."""
    job_row = console.job(job)
    confirm(f"{job} ends without a savepoint (`weir stop` takes one). Cancel it?", yes)
    operate(console, job_row, "cancel", confirmed_run(job_row), **options)


@main.command()
@click.argument("job")
@click.option("--version", type=int, help="Number of the version that goes on (default: that of the run).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--allow-unmapped", is_flag=True, help="Drop the state of operators that the version lacks.")
@click.option("--dry-run", is_flag=True, help="Show the effects and do nothing. Exit code 3: it is not possible.")
@wait_options
@with_console
def rescale(
    console: Console, /, job: str, version: int | None, parallelism: int | None, allow_unmapped: bool, dry_run: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Stops JOB with a savepoint and restores it at another parallelism, or in another version."""
    if version is None and parallelism is None:
        raise click.UsageError("either --parallelism or --version must be given")
    job_row = console.job(job)
    run_target = target(console, job_row, version, parallelism)
    if allow_unmapped:
        run_target["allow_unmapped"] = True
    if dry_run:
        plans.show_rescale(console.get(f"jobs/{job_row['id']}/rescale/", **run_target), as_json=as_json)
    else:
        operate(console, job_row, "rescale", run_target, as_json=as_json, **options)


@main.command()
@click.argument("job")
@click.option("--from", "number", type=int, help="Number of a checkpoint or savepoint of the job.")
@click.option("--path", help="Folder of a savepoint, instead of a number.")
@click.option("--version", type=int, help="Number of the version (default: the newest, once it is compiled).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--accept-repeated-output", is_flag=True)
@click.option("--allow-unmapped", is_flag=True, help="Drop the state of operators that the version lacks.")
@click.option("--end-run", type=click.Choice(["stop", "cancel"]), help="End the active run first, as one operation.")
@click.option("--dry-run", is_flag=True, help="Show the effects and do nothing.")
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def restore(
    console: Console, /, job: str, number: int | None, path: str | None, version: int | None, parallelism: int | None,
    accept_repeated_output: bool, allow_unmapped: bool, end_run: str | None, dry_run: bool, yes: bool, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Starts JOB from a checkpoint or savepoint, after its effects were shown. They are binding.

    With --end-run, the active run ends first (`stop` takes a savepoint). Its output after the snapshot is repeated.
    """
    if (number is None) == (path is None):
        raise click.UsageError("either --from or --path must be given")
    if end_run and number is None:
        raise click.UsageError("--end-run needs --from: only a recorded snapshot is held until the run has ended")
    job_row = console.job(job)
    state = job_row["latest_state"]
    if not (end_run or dry_run or state is None or may_start(RunState(state))):
        raise Refused(f"run {job_row['latest_run']} is {state}; `--end-run stop` ends it first, with a savepoint")
    if version is None and (newest := console.newest_version(job_row, options["timeout"])):
        if newest["state"] == "ready":
            version = newest["number"]
        else:
            click.echo(f"version {newest['number']} is rejected: the newest that is ready goes on", err=True)
    run_target = target(console, job_row, version, parallelism)
    if number is not None:
        origin: dict[str, Any] = {"checkpoint": console.checkpoint(job_row, number)["id"]}
        plan = console.get(f"checkpoints/{origin['checkpoint']}/mapping/", **run_target)
    else:
        origin = {"path": path}
        plan = console.get(f"jobs/{job_row['id']}/mapping/", path=path, **run_target)
    plans.write_restore(plan, as_json=as_json and dry_run)
    if dry_run:
        return
    first = f"End the run of {job} by a {end_run}, then restore it" if end_run else f"Restore {job}"
    target_version = "" if version is None else f" in version {version}"
    confirm(f"{first}{target_version} at parallelism {plan['parallelism']}?", yes)
    accepted = {"accept_repeated_output": accept_repeated_output, "allow_unmapped": allow_unmapped}
    params = {**origin, **run_target, **accepted, "plan_hash": plan["plan_hash"]}
    if end_run:
        operate(console, job_row, "rollback", {**params, "end_run": end_run}, as_json=as_json, **options)
    else:
        operate(console, job_row, "restore", params, as_json=as_json, **options)


@main.command()
@click.argument("operation")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait.")
@json_option
@with_console
def wait(console: Console, /, operation: str, timeout: float, as_json: bool) -> None:
    """Waits for the end of OPERATION, an id that an earlier command printed."""
    end(console, console.get(f"operations/{operation}/"), timeout, as_json=as_json)


@main.command()
@click.argument("operation")
@json_option
@with_console
def withdraw(console: Console, /, operation: str, as_json: bool) -> None:
    """Withdraws OPERATION, which no job master has begun, or a rescale or rollback before its restore.

    A copy, a check of files and a restore drill stop also while they are under way.
    """
    withdrawn = console.withdraw(operation)
    if as_json:
        write_json(withdrawn)
    else:
        click.echo(withdrawn["error"]["message"], err=True)
        click.echo(withdrawn["id"])


PARTS = (authors, package, processes, bulk, changes, snapshots)
for command in (*(each for part in PARTS for each in part.COMMANDS), maintenance.maintenance):
    main.add_command(command)


if __name__ == "__main__":
    main()
