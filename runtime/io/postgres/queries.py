"""Statements of `queries.sql`, by name. Only Django migrations name columns besides that file.

A block is `-- name --`, a sentence with its purpose, and a statement.
"""

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

_BLOCK = re.compile(r"^-- (\w+) --\n((?:-- .*\n)+)((?:(?!--).*\n?)+)", re.MULTILINE)


@cache
def load_statements() -> dict[str, tuple[str, str]]:
    """Statement name -> (description, SQL text)."""
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    return {name: (purpose.replace("-- ", "").strip(), sql.strip()) for name, purpose, sql in _BLOCK.findall(text)}


def statement(name: str) -> LiteralString:
    """The statement called `name`. Its text comes from a file of this package and never from user input."""
    return load_statements()[name][1]
