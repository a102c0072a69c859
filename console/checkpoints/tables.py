"""The table of a query of state as a CSV file (RFC 4180): a header, UTF-8, null as nothing."""

import csv
import re
from io import StringIO

from django.http import HttpResponse

from console.checkpoints.models import StateQuery

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def csv_response(query: StateQuery) -> HttpResponse:
    """The table of a query that has succeeded."""
    assert query.result is not None, "asked of a query that has succeeded"
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow([column["name"] for column in query.result["columns"]])
    writer.writerows(query.result["rows"])
    name = _NOT_IN_FILE_NAMES.sub("-", query.title).strip("-") or "state"
    headers = {"Content-Disposition": f'attachment; filename="{name}-{query.pk}.csv"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)
