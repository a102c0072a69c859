"""Tables as CSV files (RFC 4180): UTF-8 with a header, times in ISO 8601, null as an empty field.

A spreadsheet runs a text that begins with `=`, `+`, `-` or `@` as a formula. Such texts get a leading apostrophe, which
a spreadsheet takes as the mark of a text. Numbers stay as they are.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.http import HttpResponse

_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """A download of the table `rows`. `name`: of the file, without its ending."""
    safe_name = _NOT_IN_FILE_NAMES.sub("-", name).strip("-") or "table"
    headers = {"Content-Disposition": f'attachment; filename="{safe_name}.csv"'}
    response = HttpResponse(content_type="text/csv; charset=utf-8", headers=headers)
    writer = csv.writer(response)
    writer.writerow([_cell(column) for column in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return response


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
