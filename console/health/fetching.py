"""Runs the queries of health, which are SQL, for some runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.db import connection


def fetch(query: str, runs: Sequence[int], **values: Any) -> list[Mapping[str, Any]]:
    """The rows of `query`, each by the names of its columns. `runs` and `values` are its parameters."""
    if not runs:
        return []
    with connection.cursor() as cursor:
        cursor.execute(query, {"runs": list(runs), **values})
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def decode(encoded: Any) -> Any:
    """A value of JSONB, which a cursor returns as text."""
    return msgspec.json.decode(encoded) if isinstance(encoded, str | bytes) else encoded
