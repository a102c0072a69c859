"""Tables as CSV files (RFC 4180): UTF-8 with a header, times in ISO 8601, objects as JSON, null as an empty field.

A spreadsheet runs a text that begins with `=`, `+`, `-` or `@` as a formula. Such texts get a leading apostrophe, which
a spreadsheet takes as the mark of a text. Numbers stay as they are.

A file is streamed while its rows are read, and is never whole in memory. If the database fails meanwhile, the
connection is closed before the end of the file, so that a client sees a failed download.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from itertools import chain
from typing import Any, Final

from django.http import StreamingHttpResponse

_PART_CHARACTERS: Final = 16 * 1024
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


def csv_file(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> StreamingHttpResponse:
    """A download of the table `rows`. `name`: of the file, without its ending.

    The first part is read at once, so that a database that is away is an answer of its own.
    """
    safe_name, parts = _NOT_IN_FILE_NAMES.sub("-", name).strip("-") or "table", _parts(columns, rows)
    response = StreamingHttpResponse(chain([next(parts)], parts), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{safe_name}.csv"'
    return response


def _parts(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    part = StringIO()
    writer = csv.writer(part)
    for row in chain([columns], rows):
        writer.writerow([_cell(value) for value in row])
        if part.tell() >= _PART_CHARACTERS:
            yield part.getvalue()
            part.seek(0)
            part.truncate()
    yield part.getvalue()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
