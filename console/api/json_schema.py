"""JSON schemas inlined for the OpenAPI document, where their internal references would be dangling."""

from collections.abc import Mapping
from typing import Any


def inline_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with its definitions inlined. Keywords beside a reference take precedence; titles are dropped."""
    found: dict[str, Any] = _inline(schema, schema.get("$defs", {}))
    return found


def _inline(part: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline(item, definitions) for item in part]
    if not isinstance(part, Mapping):
        return part
    name = str(part.get("$ref", "")).rpartition("/")[2]
    whole = {**definitions.get(name, {}), **part}
    dropped = ("$ref", "$defs", "title")
    return {key: _inline(value, definitions) for key, value in whole.items() if key not in dropped}
