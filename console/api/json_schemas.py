"""JSON schemas that the OpenAPI document quotes."""

from collections.abc import Mapping
from typing import Any


def inline_references(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with its definitions inlined, since its internal references would be dangling in the document.

    Keywords beside a reference take precedence; titles are dropped.
    """
    copy: dict[str, Any] = _inline(schema, schema.get("$defs", {}))
    return copy


def _inline(part: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline(item, definitions) for item in part]
    if not isinstance(part, Mapping):
        return part
    name = str(part.get("$ref", "")).rpartition("/")[2]
    keywords = {**definitions.get(name, {}), **part}
    dropped = ("$ref", "$defs", "title")
    return {key: _inline(value, definitions) for key, value in keywords.items() if key not in dropped}


def integer_from(least: int, most: int | None = None) -> dict[str, Any]:
    """The schema of an integer parameter. Without `most`, larger values count as the largest that is stored."""
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})
