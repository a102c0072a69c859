"""Texts in SQL for DuckDB."""

from collections.abc import Iterable


def text_literal(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def listing(values: Iterable[object]) -> str:
    """A list of texts."""
    return f"[{', '.join(map(text_literal, values))}]"
