"""Output of `weir`: a table or lines for people on stdout, JSON for programs with `--json`, progress on stderr."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def write_rows(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """A line per row. `columns` name the fields; JSON has all fields."""
    entries = list(rows)
    if as_json:
        write_json(entries)
        return
    table = [[column.upper() for column in columns], *([_text(row[column]) for column in columns] for row in entries)]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def write_progress(operation: Mapping[str, Any]) -> None:
    phase = f", {operation['phase']}" if operation["phase"] else ""
    click.echo(f"{operation['kind']}: {operation['state']}{phase}", err=True)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
