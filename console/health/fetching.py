"""Runs the query of health, and reads values of its JSON."""

from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import connection


def fetch(query: str, values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of `query`, each by the names of its columns. `values` are its parameters."""
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def decode(encoded: Any) -> Any:
    """A value of JSONB, which a cursor returns as text, or a text of JSON."""
    return msgspec.json.decode(encoded) if isinstance(encoded, str | bytes) else encoded
