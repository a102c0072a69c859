"""Commands that change jobs and their versions: duplicates, archive, tags, equal versions and deletion."""

from typing import Final

import click

from weir.control.command import FAILED, confirm, json_option, with_console
from weir.control.console import Console, Refused
from weir.control.output import write_json, write_rows


@click.command()
@click.argument("job")
@click.argument("name")
@click.option("--version", type=int, help="Number of the version (default: the newest).")
@click.option("--start", "starts", is_flag=True, help="Start the new job once it is compiled.")
@json_option
@with_console
def duplicate(console: Console, /, job: str, name: str, version: int | None, starts: bool, as_json: bool) -> None:
    """Defines a new job NAME with the definition of JOB, without state."""
    found = console.job(job)
    like = console.version(found, version)["id"] if version else found["newest_version"]
    if like is None:
        raise Refused(f"{job} has no version yet")
    made = console.post("jobs/", {"name": name, "duplicate_of": like, "start": starts})
    write_json(made) if as_json else click.echo(f"{made['name']}: created, with version 1")


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
    made = console.post(f"versions/{version['id']}/equal/", {})
    write_json(made) if as_json else click.echo(f"{job}: version {made['number']} is equal to version {number}")


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


@click.command()
@click.argument("tags")
@click.argument("jobs", nargs=-1, required=True)
@json_option
@with_console
def tag(console: Console, /, tags: str, jobs: tuple[str, ...], as_json: bool) -> None:
    """Adds TAGS, separated by commas, to JOBS."""
    _change_tags(console, "tag", tags, jobs, as_json=as_json)


@click.command()
@click.argument("tags")
@click.argument("jobs", nargs=-1, required=True)
@json_option
@with_console
def untag(console: Console, /, tags: str, jobs: tuple[str, ...], as_json: bool) -> None:
    """Removes TAGS, separated by commas, from JOBS."""
    _change_tags(console, "untag", tags, jobs, as_json=as_json)


def _change_tags(console: Console, kind: str, tags: str, jobs: tuple[str, ...], *, as_json: bool) -> None:
    found = [console.job(name)["id"] for name in jobs]
    results = console.post("jobs/bulk/", {"kind": kind, "jobs": found, "tags": tags.split(",")})["results"]
    write_rows(results, ("name", "state", "detail"), as_json=as_json)
    if any(result["state"] == "refused" for result in results):
        click.get_current_context().exit(FAILED)


COMMANDS: Final = (duplicate, archive, unarchive, equal, delete_version, tag, untag)
