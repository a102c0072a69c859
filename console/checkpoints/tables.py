"""The table of a state query as a CSV file."""

from django.http import StreamingHttpResponse

from console.checkpoints.models import StateQuery
from console.csv_files import csv_file


def csv_response(query: StateQuery) -> StreamingHttpResponse:
    assert query.result is not None, "the caller has checked that the query succeeded"
    columns = [column["name"] for column in query.result["columns"]]
    return csv_file(f"{query.title or 'state'}-{query.pk}", columns, query.result["rows"])
