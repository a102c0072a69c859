"""Parsing of request bodies and of numbers in the query."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from console.accounts.refusals import InvalidField
from console.accounts.storable import require_storable


class StorableJson(JSONParser):
    """A JSON parser that refuses values which Postgres cannot store, naming the field."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            given = super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise ParseError("The body is nested too deeply.") from error
        except LookupError as error:
            raise ParseError(f"The charset of the body is unknown: {error}.") from error
        require_storable(given)
        return given


def number_between(name: str, given: str, least: int, most: int) -> int:
    """A query parameter as an integer from `least` to `most`. Raises InvalidField for any other value."""
    found = whole_number(name, given, most + 1)
    if not least <= found <= most:
        raise InvalidField(name, f"must be from {least} to {most}")
    return found


def whole_number(name: str, given: str, most: int) -> int:
    """A query parameter as an integer from 0 to `most`; larger values are clamped."""
    if not given.isascii() or not given.isdigit():
        raise InvalidField(name, f"must be a whole number, not {given!r}")
    return min(int(given.lstrip("0")[: len(str(most)) + 1] or "0"), most)  # int() refuses 4301 digits
