"""The statements of `queries.sql`, by name. The only other place that spells a column is a Django migration.

A block is `-- name --`, a sentence that says what it does, and one statement.
"""

import re
from functools import cache
from importlib.resources import files
from typing import LiteralString

_BLOCK = re.compile(r"^-- (\w+) --\n((?:-- .*\n)+)((?:(?!--).*\n?)+)", re.MULTILINE)


@cache
def load() -> dict[str, tuple[str, str]]:
    """Name to (description, statement)."""
    text = (files(__package__) / "queries.sql").read_text("utf-8")
    return {name: (said.replace("-- ", "").strip(), sql.strip()) for name, said, sql in _BLOCK.findall(text)}


def statement(name: str) -> LiteralString:
    """The statement called `name`, which comes from a file of ours and not from anybody's input."""
    return load()[name][1]
