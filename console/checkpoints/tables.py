"""The table of a state query as a CSV file (RFC 4180): UTF-8 with a header, null as an empty field."""

import csv
import re
from io import StringIO

from django.http import HttpResponse

from console.checkpoints.models import StateQuery

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def csv_response(query: StateQuery) -> HttpResponse:
    assert query.result is not None, "the caller has checked that the query succeeded"
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow([column["name"] for column in query.result["columns"]])
    writer.writerows(query.result["rows"])
    name = _NOT_IN_FILE_NAMES.sub("-", query.title).strip("-") or "state"
    headers = {"Content-Disposition": f'attachment; filename="{name}-{query.pk}.csv"'}
    return HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)
