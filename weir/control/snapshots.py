"""Commands on checkpoints and savepoints: clones, drills, checks, pins, names, schedules and reviews.

A checkpoint or savepoint is named by its job and its number within the job.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec

import click

from weir.control.command import FAILED, confirm, json_option, operate, target, wait_options, with_console
from weir.control.console import Console, Row
from weir.control.output import write_json, write_rows

P = ParamSpec("P")


def _request(console: Console, job: str, number: int, kind: str, params: Row, **options: Any) -> None:
    """Requests an operation on a checkpoint or savepoint of `job`."""
    job_row = console.job(job)
    operate(console, job_row, kind, {"checkpoint": console.checkpoint(job_row, number)["id"], **params}, **options)


# ---------------------------------------------------------------- restores beside the job


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.option("--version", type=int, help="Number of the version (default: the newest that is ready).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--name", default="", help="Name of the new job.")
@click.option("--allow-unmapped", is_flag=True, help="Drop the state of operators that the version lacks.")
@wait_options
@with_console
def clone(
    console: Console, /, job: str, number: int, version: int | None, parallelism: int | None, name: str,
    allow_unmapped: bool, **options: Any,
) -> None:  # fmt: skip
    """Restores snapshot NUMBER of JOB as a new job, whose output is discarded."""
    run_target = target(console, console.job(job), version, parallelism)
    _request(console, job, number, "clone", {**run_target, "name": name, "allow_unmapped": allow_unmapped}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.option("--version", type=int, help="Number of the version (default: the newest that is ready).")
@click.option("--parallelism", type=int, help="Default: that of the version.")
@click.option("--allow-unmapped", is_flag=True, help="Drop the state of operators that the version lacks.")
@wait_options
@with_console
def drill(
    console: Console, /, job: str, number: int, version: int | None, parallelism: int | None, allow_unmapped: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Restores snapshot NUMBER of JOB beside it up to a first checkpoint, measures it, and removes it."""
    run_target = target(console, console.job(job), version, parallelism)
    _request(console, job, number, "drill", {**run_target, "allow_unmapped": allow_unmapped}, **options)


# ---------------------------------------------------------------- plain requests


def _plain_command(entry: Row) -> click.Command:
    """A command that does nothing but request the operation of `entry`, a row of `operations.json`."""

    def request(console: Console, /, job: str, number: int, **inputs: Any) -> None:
        options = {name: inputs.pop(name) for name in ("wait", "timeout", "reason", "as_json")}
        is_accepted = inputs.pop("yes", False)
        params = {name: value for name, value in inputs.items() if value is not None}
        if entry["needs_option"] and not params:
            names = " or ".join(f"--{name}" for name in entry["options"])
            raise click.UsageError(f"either {names} must be given")
        if entry["question"]:
            confirm(entry["question"].format(number=number, job=job), is_accepted)
        _request(console, job, number, entry["kind"], params, **options)

    command: Any = wait_options(with_console(request))
    if entry["question"]:
        command = click.option("--yes", is_flag=True, help="Ask no question.")(command)
    for name, text in reversed(entry["options"].items()):
        command = click.option(f"--{name}", help=text)(command)
    for argument in reversed(entry["arguments"]):
        choices = argument["choices"] and click.Choice(argument["choices"])
        metavar = None if choices else argument["metavar"]
        command = click.argument(argument["name"], type=choices, metavar=metavar)(command)
    command = click.argument("job")(click.argument("number", type=int)(command))
    return click.command(entry["kind"], help=entry["help"])(command)


# ---------------------------------------------------------------- schedule


def _operation_option(command: Callable[P, None]) -> Callable[P, None]:
    kinds = click.Choice(["savepoint", "drill"])
    return click.option("--operation", type=kinds, default="savepoint", show_default=True)(command)


@click.command()
@click.argument("job")
@_operation_option
@click.option("--every-hours", type=int, help="Interval.")
@click.option("--daily-at", help="Time of each day, HH:MM (UTC).")
@click.option("--keep", type=int, help="Savepoints that are kept, besides pinned ones [7].")
@click.option("--name", help="Name of the savepoints; their time is added.")
@click.option("--not-within", "blackouts", multiple=True,
              help='A window without requests (UTC, repeatable): "09:00-17:00", "sat,sun 00:00-24:00".')  # fmt: skip
@wait_options
@with_console
def schedule(
    console: Console, /, job: str, operation: str, every_hours: int | None, daily_at: str | None, keep: int | None,
    name: str | None, blackouts: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
    """Shows the schedule of savepoints or drills of JOB, or sets it if an interval or a time is given."""
    job_row = console.job(job)
    rule = {"every_hours": every_hours, "daily_at": daily_at, "keep": keep, "name": name}
    params: dict[str, Any] = {key: value for key, value in rule.items() if value is not None}
    if blackouts:
        params["blackouts"] = list(blackouts)
    if params:
        operate(console, job_row, "schedule", {"operation": operation, **params}, **options)
        return
    stored = console.get(f"jobs/{job_row['id']}/checkpoints/schedule/", operation=operation)
    columns = (
        "operation",
        "every_hours",
        "daily_at",
        "name",
        "keep",
        "blackouts",
        "next_at",
        "missed_at",
        "missed_reason",
    )
    write_json(stored) if options["as_json"] else write_rows([stored], columns, as_json=False)


@click.command()
@click.argument("job")
@_operation_option
@wait_options
@with_console
def unschedule(console: Console, /, job: str, operation: str, **options: Any) -> None:
    """Removes the schedule of savepoints or drills of JOB. Its savepoints stay."""
    operate(console, console.job(job), "unschedule", {"operation": operation}, **options)


# ---------------------------------------------------------------- reviews


@click.command()
@click.option("--limit", default=20, show_default=True)
@json_option
@with_console
def reviews(console: Console, /, limit: int, as_json: bool) -> None:
    """Lists the snapshots of all jobs that need a look."""
    columns = ("job", "number", "kind", "outcome", "ended_at", "review_state")
    write_rows(console.rows("reviews/", limit), columns, as_json=as_json)


@click.command()
@click.argument("job", required=False)
@click.argument("number", type=int, required=False)
@click.option("--verify", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="A pack to check, instead of JOB and NUMBER. Exit code 1: its seal is not valid.")  # fmt: skip
@with_console
def evidence(console: Console, /, job: str | None, number: int | None, path: Path | None) -> None:
    """Writes the evidence pack of snapshot NUMBER of JOB as JSON, or checks the seal of a pack."""
    if (path is None) == (number is None):
        raise click.UsageError("either JOB and NUMBER or --verify must be given")
    if path is None:
        checkpoint = console.checkpoint(console.job(job or ""), number or 0)
        write_json(console.get(f"checkpoints/{checkpoint['id']}/evidence/"))
        return
    checked = console.post_document("evidence/check/", path.read_bytes())
    click.echo(checked["detail"])
    if not checked["valid"]:
        click.get_current_context().exit(FAILED)


_PLAIN: Final[list[Row]] = json.loads(Path(__file__).with_name("operations.json").read_text())
COMMANDS: Final = (clone, drill, schedule, unschedule, reviews, evidence, *map(_plain_command, _PLAIN))
