"""The one table of rules for types of columns, over all pairs of Arrow types, against Arrow itself."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.column_types import Compatibility, is_key_type, key_rule, value_rule

SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float32(), pa.float64()]
TEXT, BINARY, FIXED = [pa.string(), pa.large_string()], [pa.binary(), pa.large_binary()], [pa.binary(2), pa.binary(16)]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(38, 2), pa.decimal128(10, 3)]
TIMES = [
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
    *map(pa.timestamp, ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"),
    *map(pa.duration, ("s", "ms", "us", "ns")),
]  # fmt: skip
KEYS = [*SIGNED, *UNSIGNED, *FLOATS, *TEXT, *BINARY, *FIXED, *DECIMALS, *TIMES, pa.bool_(), pa.null()]
NO_KEYS = [
    pa.float16(), pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal256(50, 2), pa.month_day_nano_interval(),
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.uuid(),
    pa.run_end_encoded(pa.int32(), pa.int64()), pa.dictionary(pa.int8(), pa.string()), pa.string_view(),
]  # fmt: skip
EVERY = [*KEYS, *NO_KEYS]
SAMPLES: dict[str, list[Any]] = {
    **{str(kind): [-(2 ** (kind.bit_width - 1)), -1, 0, 2 ** (kind.bit_width - 1) - 1] for kind in SIGNED},
    **{str(kind): [0, 1, 2**kind.bit_width - 1] for kind in UNSIGNED},
    **{str(kind): ["", "a", "\u00e4"] for kind in TEXT},
    **{str(kind): [b"", b"\x00", b"ab"] for kind in BINARY},
    "fixed_size_binary[2]": [b"ab", b"\x00\x00"],
    "fixed_size_binary[16]": [bytes(16), bytes(range(16))],
    "float": [0.5, -1.0, 3.4028234663852886e38],
    "double": [0.5, 0.1, 1e300],
}


def pairs(kinds: list[pa.DataType]) -> list[tuple[str, str]]:
    return [(str(kind), str(other)) for kind, other in itertools.product(kinds, repeat=2)]


def test_every_pair_has_one_verdict_whichever_is_in_the_state() -> None:
    for kind, other in pairs(EVERY):
        for rule in (key_rule, value_rule):
            result = rule(kind, other)
            assert result == rule(other, kind), (kind, other)
            assert (result.common is None) == (result.verdict is Compatibility.REFUSED), (kind, other)
            assert result.verdict is not Compatibility.SAME or kind == other, (kind, other)


def test_a_type_goes_with_itself_unless_it_cannot_be_a_key() -> None:
    assert all(key_rule(str(kind), str(kind)).verdict is Compatibility.SAME for kind in KEYS)
    assert all(value_rule(str(kind), str(kind)).verdict is Compatibility.SAME for kind in EVERY)
    for kind in NO_KEYS:
        assert not is_key_type(str(kind))
        assert all(key_rule(str(kind), str(other)).verdict is Compatibility.REFUSED for other in EVERY), kind


def test_the_common_type_holds_every_value_of_both_types() -> None:
    """Arrow casts the extremes of each type to the common one and back, checked, without a loss."""
    checked = 0
    by_name = {str(kind): kind for kind in EVERY}
    for kind, other in pairs([kind for kind in EVERY if str(kind) in SAMPLES]):
        common = value_rule(kind, other).common
        if common is None:
            continue
        for name in (kind, other):
            values = pa.array(SAMPLES[name], by_name[name])
            wide = values.cast(by_name.get(common) or pa.type_for_alias(common))
            assert wide.cast(by_name[name]).equals(values), (kind, other, common)
            checked += 1
    assert checked > 100


#: Families of types that are widened among each other; all other pairs of different types are refused.
WIDENED = [[*SIGNED, *UNSIGNED[:3]], UNSIGNED, TEXT, BINARY, [*BINARY, FIXED[0]], [*BINARY, FIXED[1]], DECIMALS[:2]]


@pytest.mark.parametrize(("rule", "families"), [(key_rule, []), (value_rule, [FLOATS, [pa.float16(), *FLOATS]])])
def test_the_whole_table(rule: Any, families: list[list[pa.DataType]]) -> None:
    """float is no key beside double, and no integer type holds both -1 and 2**64-1."""
    widened = {pair for family in [*WIDENED, *families] for pair in pairs(family)}
    nulls = {pair for kind in (KEYS if rule is key_rule else EVERY) for pair in pairs([kind, pa.null()])}
    for kind, other in pairs(EVERY):
        expected = (kind, other) in widened | nulls
        if kind != other:
            assert (rule(kind, other).verdict is Compatibility.WIDENED) == expected, (kind, other)
