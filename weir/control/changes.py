"""Commands that change jobs and their versions: duplicates, archive, equal versions and deletion."""

from typing import Final

import click

from weir.control.command import confirm, json_option, with_console
from weir.control.console import Console, Refused
from weir.control.output import write_json


@click.command()
@click.argument("job")
@click.argument("name")
@click.option("--version", type=int, help="Number of the version (default: the newest).")
@click.option("--start", "starts", is_flag=True, help="Start the new job once it is compiled.")
@json_option
@with_console
def duplicate(console: Console, /, job: str, name: str, version: int | None, starts: bool, as_json: bool) -> None:
    """Defines a new job NAME with the definition of JOB, without state."""
    job_row = console.job(job)
    like = console.version(job_row, version)["id"] if version else job_row["newest_version"]
    if like is None:
        raise Refused(f"{job} has no version yet")
    new_job = console.post("jobs/", {"name": name, "duplicate_of": like, "start": starts})
    write_json(new_job) if as_json else click.echo(f"{new_job['name']}: created, with version 1")


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@with_console
def archive(console: Console, /, jobs: tuple[str, ...]) -> None:
    """Archives JOBS: lists leave them out, and they cannot be started. Their runs must have ended."""
    _set_archive_mark(console, jobs, archived=True)


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@with_console
def unarchive(console: Console, /, jobs: tuple[str, ...]) -> None:
    """Brings archived JOBS back."""
    _set_archive_mark(console, jobs, archived=False)


def _set_archive_mark(console: Console, jobs: tuple[str, ...], *, archived: bool) -> None:
    for name in jobs:
        changed = console.patch(f"jobs/{console.job(name)['id']}/", {"archived": archived})
        click.echo(f"{name}: {'archived' if changed['archived_at'] else 'in the list'}")


@click.command()
@click.argument("job")
@click.argument("number", type=int)
@json_option
@with_console
def equal(console: Console, /, job: str, number: int, as_json: bool) -> None:
    """Makes the definition of JOB equal to its version NUMBER, by a new version if the newest differs."""
    version = console.version(console.job(job), number)
    new_version = console.post(f"versions/{version['id']}/equal/", {})
    write_json(new_version) if as_json else click.echo(
        f"{job}: version {new_version['number']} is equal to version {number}"
    )


@click.command("delete-version")
@click.argument("job")
@click.argument("number", type=int)
@click.option("--yes", is_flag=True, help="Ask no question.")
@with_console
def delete_version(console: Console, /, job: str, number: int, yes: bool) -> None:
    """Deletes version NUMBER of JOB, which was rejected and never ran."""
    version = console.version(console.job(job), number)
    confirm(f"Delete version {number} of {job}?", yes)
    console.delete(f"versions/{version['id']}/")
    click.echo(f"{job}: version {number} is deleted")


COMMANDS: Final = (duplicate, archive, unarchive, equal, delete_version)
