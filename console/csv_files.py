"""Tables as CSV files (RFC 4180): UTF-8 with a header, times in ISO 8601, null as an empty field.

A spreadsheet runs a text that begins with `=`, `+`, `-` or `@` as a formula. Such texts get a leading apostrophe, which
a spreadsheet takes as the mark of a text. Numbers stay as they are.

A file has at most `MAX_ROWS` rows. The name of a file that lacks rows says so: `jobs-first-10000-rows.csv`.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django.http import HttpResponse

MAX_ROWS: Final = 10_000
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """A download of the first rows of the table `rows`. `name`: of the file, without its ending."""
    safe_name, remaining = _NOT_IN_FILE_NAMES.sub("-", name).strip("-") or "table", iter(rows)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    writer = csv.writer(response)
    writer.writerow([_cell(column) for column in columns])
    writer.writerows([_cell(value) for value in row] for row in islice(remaining, MAX_ROWS))
    cut = "" if next(remaining, None) is None else f"-first-{MAX_ROWS}-rows"
    response.headers["Content-Disposition"] = f'attachment; filename="{safe_name}{cut}.csv"'
    return response


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
