"""The layout of `console.ui`: no SQL beside the pages."""

import ast
from pathlib import Path

from console import ui

FOLDER = Path(ui.__file__).parent


def test_pages_read_by_selectors_and_not_by_sql() -> None:
    assert [path for path in FOLDER.rglob("*.py") if uses_connection(path.read_text())] == []


def test_a_module_with_a_cursor_is_found() -> None:
    assert uses_connection("from django.db import InterfaceError, connection\n")
    assert not uses_connection("from django.db import models\n")


def uses_connection(source: str) -> bool:
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    return any(node.module == "django.db" and alias.name.startswith("connection") for node in imports
               for alias in node.names)  # fmt: skip
