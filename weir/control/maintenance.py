"""Maintenance mode of the console."""

import click

from weir.control.command import json_option, with_console
from weir.control.console import Console
from weir.control.output import write_json


@click.command()
@click.option("--begin", "reason", help="Begin maintenance, with the reason that users see.")
@click.option("--end", "ends", is_flag=True, help="End the maintenance that is under way.")
@json_option
@with_console
def maintenance(console: Console, /, reason: str | None, ends: bool, as_json: bool) -> None:
    """Shows the maintenance that is under way, or begins or ends it.

    During maintenance, no run can be started, drained or rescaled, and no files of savepoints are touched.
    """
    if reason is not None and ends:
        raise click.UsageError("either --begin or --end must be given")
    if ends:
        row = console.delete("maintenance/")
    elif reason is not None:
        row = console.post("maintenance/", {"reason": reason})
    else:
        row = next((row for row in console.rows("maintenance/", 1) if row["ended_at"] is None), None)
    if as_json:
        write_json(row)
    elif row is None:
        click.echo("no maintenance")
    else:
        state = f"ended at {row['ended_at']}" if row["ended_at"] else "under way"
        click.echo(f"maintenance since {row['started_at']} by {row['started_by']}, {state}: {row['reason']}")
