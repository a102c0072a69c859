"""Compatibility of column types within a state or a join: the single table of rules for keys and for values.

A type is named as Arrow prints it, without dictionaries (`plain_type`). The rules are symmetric: the order of the two
types does not matter. Verdicts:

- same: the values and their stored form are equal;
- widened: a common type holds all values of both types, and a key keeps its hash;
- refused: some value would be lost, rounded, or become equal to another value.

The common types are:

- integers: the narrowest integer that holds both. No integer holds a signed type and uint64: -1 and 2**64-1 have the
  same 64 bits, so they would be one key;
- text: the large type. Binary likewise; fixed-size binary is widened to variable-size binary, not to another size;
- decimal128 of equal scale: the greater precision. With different scales, equal numbers have different bytes;
- floats: values are widened. Keys are refused: 0.1 as a float is a different number than 0.1 as a double;
- times, dates and durations: no common type, since ticks of different units differ;
- null, the type of a column of nulls alone: the other type.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Compatibility(StrEnum):
    """The verdict on two types of a column."""

    SAME = "same"
    WIDENED = "widened"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """The verdict on a pair of types. `common`: the type that holds the values of both types; None: refused."""

    verdict: Compatibility
    common: str | None


_NULL: Final = "null"
_SIGNED: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_UNSIGNED: Final = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_FLOATS: Final = ("halffloat", "float", "double")  #: from narrow to wide
_TEXT: Final = ("string", "large_string")
_BINARY: Final = ("binary", "large_binary")
_FIXED: Final = re.compile(r"fixed_size_binary\[\d+\]")
_DECIMAL: Final = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TIME: Final = re.compile(r"(date32\[day\]|date64\[ms\]|(time32|time64|timestamp|duration)\[.+\])")


def key_rule(first: str, second: str) -> Rule:
    """The rule for two types of a key column. A type that cannot be a key is refused even with itself."""
    if not (is_key_type(first) and is_key_type(second)):
        return Rule(Compatibility.REFUSED, None)
    if first in _FLOATS and second in _FLOATS and first != second:
        return Rule(Compatibility.REFUSED, None)
    return value_rule(first, second)


def value_rule(first: str, second: str) -> Rule:
    """The rule for two types of a value column."""
    if first == second:
        return Rule(Compatibility.SAME, first)
    common = _common(first, second)
    return Rule(Compatibility.REFUSED if common is None else Compatibility.WIDENED, common)


def is_key_type(name: str) -> bool:
    """Whether values of the type can be keys: compared, hashed, stored and sorted."""
    type_names = (*_SIGNED, *_UNSIGNED, "float", "double", *_TEXT, *_BINARY, "bool", _NULL)
    return name in type_names or any(pattern.fullmatch(name) for pattern in (_FIXED, _DECIMAL, _TIME))


def _common(first: str, second: str) -> str | None:
    for kinds in (_FLOATS, _TEXT, _BINARY):
        if first in kinds and second in kinds:
            return max(first, second, key=kinds.index)
    if _NULL in (first, second):
        return second if first == _NULL else first
    return _common_integer(first, second) or _common_binary(first, second) or _common_decimal(first, second)


def _common_integer(first: str, second: str) -> str | None:
    if first in _UNSIGNED and second in _UNSIGNED:
        return max(first, second, key=_UNSIGNED.__getitem__)
    if not {first, second} <= {*_SIGNED, *_UNSIGNED}:
        return None
    bits = max(_SIGNED[name] if name in _SIGNED else 2 * _UNSIGNED[name] for name in (first, second))
    return next((name for name, width in _SIGNED.items() if width == bits), None)


def _common_binary(first: str, second: str) -> str | None:
    """The variable-size type, for a pair of fixed-size and variable-size binary."""
    sized = next((name for name in (first, second) if name in _BINARY), None)
    fixed = _FIXED.fullmatch(first) or _FIXED.fullmatch(second)
    return sized if fixed else None


def _common_decimal(first: str, second: str) -> str | None:
    left, right = _DECIMAL.fullmatch(first), _DECIMAL.fullmatch(second)
    if left is None or right is None or left[2] != right[2]:
        return None
    return max(first, second, key=lambda name: int(name[len("decimal128(") : name.index(",")]))
