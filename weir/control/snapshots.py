"""Commands on checkpoints and savepoints: clones, drills, checks, pins, names, schedules and reviews.

A checkpoint or savepoint is named by its job and its number within the job.
"""

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


# ---------------------------------------------------------------- checks, pins, names, disposal


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@wait_options
@with_console
def verify(console: Console, /, job: str, number: int, **options: Any) -> None:
    """Compares the files of snapshot NUMBER of JOB with its manifest; the console keeps the result."""
    _request(console, job, number, "verify", {}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@wait_options
@with_console
def pin(console: Console, /, job: str, number: int, **options: Any) -> None:
    """Pins snapshot NUMBER of JOB: retention does not delete it, and it cannot be discarded."""
    _request(console, job, number, "pin", {}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@wait_options
@with_console
def unpin(console: Console, /, job: str, number: int, **options: Any) -> None:
    """Removes the pin of snapshot NUMBER of JOB."""
    _request(console, job, number, "unpin", {}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.option("--name", help="The new name; an empty text removes it.")
@click.option("--note", help="The new note; an empty text removes it.")
@wait_options
@with_console
def label(console: Console, /, job: str, number: int, name: str | None, note: str | None, **options: Any) -> None:
    """Changes the name or the note of snapshot NUMBER of JOB."""
    if name is None and note is None:
        raise click.UsageError("either --name or --note must be given")
    texts = {key: text for key, text in (("name", name), ("note", note)) if text is not None}
    _request(console, job, number, "label", texts, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.option("--yes", is_flag=True, help="Ask no question.")
@wait_options
@with_console
def discard(console: Console, /, job: str, number: int, yes: bool, **options: Any) -> None:
    """Deletes the files of savepoint NUMBER of JOB."""
    confirm(f"The files of savepoint {number} of {job} are deleted. Discard it?", yes)
    _request(console, job, number, "discard", {}, **options)


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
@click.argument("job")
@click.argument("number", type=int)
@click.argument("folder")
@wait_options
@with_console
def copy(console: Console, /, job: str, number: int, folder: str, **options: Any) -> None:
    """Copies savepoint NUMBER of JOB into FOLDER, below a folder of WEIR_SAVEPOINT_ROOTS on the console's host."""
    _request(console, job, number, "copy", {"target": folder}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.argument("user")
@wait_options
@with_console
def assign(console: Console, /, job: str, number: int, user: str, **options: Any) -> None:
    """Assigns the review of snapshot NUMBER of JOB to USER; an empty name removes the assignment."""
    _request(console, job, number, "assign", {"user": user}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.argument("text")
@wait_options
@with_console
def comment(console: Console, /, job: str, number: int, text: str, **options: Any) -> None:
    """Adds a comment to the review of snapshot NUMBER of JOB."""
    _request(console, job, number, "comment", {"text": text}, **options)


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@click.argument("state", type=click.Choice(["unreviewed", "in_review", "reviewed", "waived"]))
@click.option("--note", help="The new note of the review.")
@wait_options
@with_console
def review(console: Console, /, job: str, number: int, state: str, note: str | None, **options: Any) -> None:
    """Sets the state of the review of snapshot NUMBER of JOB."""
    texts = {} if note is None else {"note": note}
    _request(console, job, number, "review", {"state": state, **texts}, **options)


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


COMMANDS: Final = (
    clone, copy, drill, verify, pin, unpin, label, discard, schedule, unschedule, reviews, assign, comment, review,
    evidence,
)  # fmt: skip
