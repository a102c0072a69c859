"""Which types of a column may meet in one state or one join: the one table of rules, for keys and for values.

A type is named as Arrow prints it, without dictionaries (`state.keycodes.plain_type`). Each pair of types has one of
three verdicts, whichever of the two is in the state:

- same: the values and their stored form are equal;
- widened: one type, the common one, holds all values of both, and a key keeps its hash;
- refused: a value of one would be lost, rounded, or become equal to another value.

The common types are:

- integers: the narrowest integer that holds both. No integer holds a signed type and uint64: -1 and 2**64-1 have the
  same 64 bits, so they would be one key;
- text: the large kind. Binary likewise; fixed-size binary is widened to binary, and not to another size;
- decimal128 of one scale: the greater precision. At another scale equal numbers have other bytes;
- floats: values are widened. Keys are not: 0.1 as a float is another number than 0.1 as a double;
- times, dates and durations: only the same, since another unit counts other ticks;
- null: any other type. A column of nulls alone has it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Compatibility(StrEnum):
    """The verdict on two types of one column."""

    SAME = "same"
    WIDENED = "widened"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rule:
    """The verdict on a pair of types. `common` is the type in which both go on; None: refused."""

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


def key_rule(one: str, other: str) -> Rule:
    """The rule for two types of a key column; a type that cannot be a key is refused beside itself, too."""
    if not (is_key_type(one) and is_key_type(other)):
        return Rule(Compatibility.REFUSED, None)
    if one in _FLOATS and other in _FLOATS and one != other:
        return Rule(Compatibility.REFUSED, None)
    return value_rule(one, other)


def value_rule(one: str, other: str) -> Rule:
    """The rule for two types of a value column."""
    if one == other:
        return Rule(Compatibility.SAME, one)
    common = _common(one, other)
    return Rule(Compatibility.REFUSED if common is None else Compatibility.WIDENED, common)


def is_key_type(name: str) -> bool:
    """Whether values of the type can be told apart, hashed, stored and sorted, so that they can be keys."""
    known = (*_SIGNED, *_UNSIGNED, "float", "double", *_TEXT, *_BINARY, "bool", _NULL)
    return name in known or any(pattern.fullmatch(name) for pattern in (_FIXED, _DECIMAL, _TIME))


def _common(one: str, other: str) -> str | None:
    for kinds in (_FLOATS, _TEXT, _BINARY):
        if one in kinds and other in kinds:
            return max(one, other, key=kinds.index)
    if _NULL in (one, other):
        return other if one == _NULL else one
    return _common_integer(one, other) or _common_binary(one, other) or _common_decimal(one, other)


def _common_integer(one: str, other: str) -> str | None:
    if one in _UNSIGNED and other in _UNSIGNED:
        return max(one, other, key=_UNSIGNED.__getitem__)
    if not {one, other} <= {*_SIGNED, *_UNSIGNED}:
        return None
    bits = max(_SIGNED[name] if name in _SIGNED else 2 * _UNSIGNED[name] for name in (one, other))
    return next((name for name, width in _SIGNED.items() if width == bits), None)


def _common_binary(one: str, other: str) -> str | None:
    """Of a fixed-size binary and one of any size."""
    sized = next((name for name in (one, other) if name in _BINARY), None)
    fixed = _FIXED.fullmatch(one) or _FIXED.fullmatch(other)
    return sized if fixed else None


def _common_decimal(one: str, other: str) -> str | None:
    left, right = _DECIMAL.fullmatch(one), _DECIMAL.fullmatch(other)
    if left is None or right is None or left[2] != right[2]:
        return None
    return max(one, other, key=lambda name: int(name[len("decimal128(") : name.index(",")]))
